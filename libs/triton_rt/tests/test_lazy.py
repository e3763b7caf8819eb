"""LazyKernel and from_jit on the CPU; the README's example."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from triton_rt import KernelSource, LazyKernel, Target, compile, errors

FACTOR = tl.constexpr(3)


@triton.jit
def _inner(x):  # type: ignore[no-untyped-def]
    return x * FACTOR


@triton.jit
def _scale(x, y, n, BLOCK: tl.constexpr, ADD: tl.constexpr = 1):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, _inner(tl.load(x + i, i < n)) + ADD, i < n)


def test_readme_example(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "readme"})
        assert capsys.readouterr().out


@pytest.mark.parametrize("nested", [False, True])
def test_from_jit_carries_what_the_function_uses(nested: bool) -> None:
    function = _scale
    if nested:

        @triton.jit
        def local(x, y, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
            i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(y + i, _inner(tl.load(x + i, i < n)) + 1, i < n)

        function = local
    source = KernelSource.from_jit(
        function, {"x": "*f32", "y": "*f32", "n": "i32"}, {"BLOCK": 64}, mutated=("y",)
    )
    x, y = torch.arange(100.0), torch.zeros(100)
    LazyKernel(source)((2,), x, y, 100)
    assert torch.equal(y, 3 * x + 1)
    assert compile(source, Target(90)).cubin
    assert [p.mutated for p in source.params] == [False, True, False]


def test_compile_takes_a_function_with_its_signature() -> None:
    """As a `KernelSource` of the same is; what is missing is named, and nothing is guessed."""
    signature, constants = {"x": "*f32", "y": "*f32", "n": "i32"}, {"BLOCK": 64}
    source = KernelSource.from_jit(_scale, signature, constants, mutated=("y",), num_warps=2)
    binary = compile(
        _scale, Target(90), signature=signature, constants=constants, mutated=("y",), num_warps=2
    )
    assert binary == compile(source, Target(90)) and binary.num_warps == 2
    for wrong, message in (
        ({"signature": {"x": "*f32", "n": "i32"}, "constants": constants}, "parameter y"),
        ({"signature": signature}, "parameter BLOCK"),
        ({"constants": constants}, "parameter x"),
    ):
        with pytest.raises(errors.BadSource, match=message):
            compile(_scale, Target(90), **wrong)  # type: ignore[arg-type]
    with pytest.raises(errors.BadSource, match=r"_scale is a KernelSource, .* of its own"):
        compile(source, Target(90), num_warps=4)
    with pytest.raises(errors.BadSource, match=r"decorated with @triton\.jit"):
        compile(len, Target(90), signature={})


def test_from_jit_refuses_what_it_cannot_carry() -> None:
    holder = object()

    @triton.jit
    def strange(x):  # type: ignore[no-untyped-def]
        tl.store(x, holder)

    with pytest.raises(errors.BadSource, match=r"global holder.*importable module"):
        KernelSource.from_jit(strange, {"x": "*f32"})


def test_default_constants_and_declared_scalar_kinds(add_one: KernelSource) -> None:
    """An i64 parameter is 64 bits wide however small the value; a default fills a constexpr."""
    text = add_one.text.replace("n, B: tl.constexpr", "n, B: tl.constexpr = 128")
    text = text.replace("+ 1", "+ (n.dtype.primitive_bitwidth == 64)")
    param = type(add_one.params[0])
    source = KernelSource("kernel", text, (*add_one.params[:2], param("n", "i64")))
    x, y = torch.zeros(128), torch.zeros(128)
    LazyKernel(source)(1, x, y, 128)
    assert y.eq(1).all()


def test_zero_grid_and_repr(add_one: KernelSource) -> None:
    kernel = LazyKernel(add_one)
    y = torch.zeros(4)
    kernel((0,), y, y, 4)
    kernel((3, 0), y, y, 4)
    assert y.eq(0).all() and repr(kernel) == "LazyKernel(kernel, variants=0)"


def test_prefetch_compiles_what_is_promised(add_one: KernelSource) -> None:
    from dataclasses import replace

    params = tuple(replace(p, aligned=p.name != "y") for p in add_one.params)
    kernel = LazyKernel(replace(add_one, params=params))
    assert kernel.prefetch(Target(90)).result().alignment == 0b101
    assert kernel.binary(Target(90)) is kernel.binary(Target(90))


def test_a_failed_compile_may_be_tried_again(add_one: KernelSource) -> None:
    from dataclasses import replace

    kernel = LazyKernel(replace(add_one, constants=(("B", 100),)))
    for _ in range(2):
        with pytest.raises(errors.CompileFailed, match="power of 2"):
            kernel.binary(Target(90))


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu() -> None:
    with pytest.raises(errors.NoGPU, match="name a target"):
        Target.current()


def test_other_devices_are_refused(add_one: KernelSource) -> None:
    meta = torch.zeros(4, device="meta")
    with pytest.raises(errors.WrongDevice, match="x is on meta"):
        LazyKernel(add_one)(1, meta, meta, 4)


def test_a_kernel_made_under_fake_tensors_takes_real_ones() -> None:
    """torch.compile calls its backend, which makes kernels, while it traces with fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    signature = {"x": "*f32", "y": "*f32", "n": "i32"}
    x, y = torch.arange(4.0), torch.zeros(4)
    LazyKernel(KernelSource.from_jit(_scale, signature, {"BLOCK": 4}))((1,), x, y, 4)
    with FakeTensorMode():
        kernel = LazyKernel(KernelSource.from_jit(_scale, signature, {"BLOCK": 4}))
    kernel((1,), x, y, 4)
    assert y.tolist() == [1, 4, 7, 10]
