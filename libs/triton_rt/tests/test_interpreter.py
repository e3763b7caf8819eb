"""The interpreter against torch, in the process that also compiles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from triton_rt import KernelSource, LazyKernel, Ref, Target, compile, errors, load_jit

Make = Callable[..., KernelSource]

HELPERS = """
@triton.jit
def twice(x):
    return x + x

@triton.jit
def largest(a, b):
    return tl.maximum(a, b)

@triton.jit
def welford(m1, s1, n1, m2, s2, n2):
    n = n1 + n2
    delta = m2 - m1
    w = tl.where(n == 0, 0.0, n2 / n)
    return m1 + delta * w, s1 + s2 + delta * delta * n1 * w, n
"""

ROWS = """
row = tl.program_id(0)
i = tl.arange(0, B)
v = tl.load(x + row * n + i, mask=i < n, other=-float("inf")).to(tl.float32)
top, at = tl.max(v, 0, return_indices=True)
low = tl.min(tl.where(i < n, v, float("inf")), axis=0)
total = tl.sum(tl.where(i < n, v, 0.0), axis=0)
folded = tl.reduce(v, 0, largest)
ones = tl.where(i < n, 1.0, 0.0)
mean, m2, count = tl.reduce((tl.where(i < n, v, 0.0), tl.zeros([B], tl.float32), ones), 0, welford)
tl.store(out + row * 6 + 0, twice(top))
tl.store(out + row * 6 + 1, low)
tl.store(out + row * 6 + 2, total)
tl.store(out + row * 6 + 3, folded)
tl.store(out + row * 6 + 4, mean)
tl.store(out + row * 6 + 5, m2 / tl.cdiv(n, 1))
tl.store(index + row, at)
"""


@pytest.fixture
def rows(make_source: Make) -> KernelSource:
    return make_source("x:*bf16 out:*f32! index:*i32! n:i32", ROWS, header=HELPERS, B=64)


def check_rows(source: KernelSource) -> None:
    x = torch.randn(5, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    out, index = torch.zeros(5, 6), torch.zeros(5, dtype=torch.int32)
    LazyKernel(source)((5,), x, out, index, 50)
    wide = x.double()
    expected = [
        wide.amax(1) * 2, wide.amin(1), wide.sum(1), wide.amax(1), wide.mean(1),
        wide.var(1, correction=0),
    ]  # fmt: skip
    torch.testing.assert_close(out.double(), torch.stack(expected, 1), rtol=1e-5, atol=1e-5)
    assert index.tolist() == wide.argmax(1).tolist()


@pytest.mark.parametrize("order", ["compile first", "interpret first"])
def test_interprets_and_compiles_in_one_process(rows: KernelSource, order: str) -> None:
    if order == "compile first":
        first = compile(rows, Target(90))
        check_rows(rows)
    else:
        check_rows(rows)
        first = compile(rows, Target(90))
        check_rows(rows)
    assert compile(rows, Target(90)).cubin == first.cubin


def test_independent_of_the_environment(rows: KernelSource, tmp_path: Path) -> None:
    """With TRITON_INTERPRET=1, the same numbers and the same cubin."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys, torch, triton_rt as rt\nsource = {rows!r}\n".replace(
            "KernelSource(", "rt.KernelSource("
        ).replace("KernelParam(", "rt.KernelParam(")
        + "x = torch.arange(100.).bfloat16().view(2, 50)\n"
        "out, index = torch.zeros(2, 6), torch.zeros(2, dtype=torch.int32)\n"
        "rt.LazyKernel(source)((2,), x, out, index, 50)\n"
        "print(out.tolist(), index.tolist(), rt.compile(source, rt.Target(90)).key)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script)], env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    x = torch.arange(100.0).bfloat16().view(2, 50)
    out, index = torch.zeros(2, 6), torch.zeros(2, dtype=torch.int32)
    assert os.environ.get("TRITON_INTERPRET") != "1"
    LazyKernel(rows)((2,), x, out, index, 50)
    here = f"{out.tolist()} {index.tolist()} {compile(rows, Target(90)).key}\n"
    assert ran.stdout == here


def test_nested_imports_and_module_attributes(
    make_source: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that reaches jit functions through two modules, one as an attribute."""
    package = tmp_path / "rt_nested"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(
        "import triton\nimport triton.language as tl\nSCALE: tl.constexpr = tl.constexpr(3)\n"
        "@triton.jit\ndef scaled_sum(x):\n    return tl.sum(x, 0) * SCALE\n"
    )
    (package / "outer.py").write_text(
        "import triton\nfrom rt_nested import inner\n"
        "@triton.jit\ndef apply(x):\n    return inner.scaled_sum(x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    source = make_source(
        "x:*f32 y:*f32!",
        "tl.store(y, apply(tl.load(x + tl.arange(0, B))))",
        header="from rt_nested.outer import apply",
        B=16,
    )
    y = torch.zeros(1)
    LazyKernel(source)(1, torch.arange(16.0), y)
    assert y.item() == 3 * 120
    assert compile(source, Target(90)).cubin
    fingerprint = source.fingerprint
    module = sys.modules["rt_nested.inner"]
    monkeypatch.setattr(module, "SCALE", type(module.SCALE)(4))
    changed = KernelSource(source.name, source.text, source.params, source.constants)
    assert changed.fingerprint != fingerprint


def test_jit_function_as_a_constant(make_source: Make) -> None:
    source = make_source(
        "x:*f32 y:*f32!",
        "i = tl.arange(0, B)\ntl.store(y + i, F(tl.load(x + i).to(D)).to(tl.float32))",
        header=HELPERS,
        B=16,
        F=Ref("twice"),
        D=Ref("tl.bfloat16"),
    )
    x, y = torch.arange(16.0), torch.zeros(16)
    LazyKernel(source)(1, x, y)
    assert torch.equal(y, 2 * x)
    assert compile(source, Target(80)).cubin


LANGUAGE = {
    "cumsum": ("tl.cumsum(v, 0)", lambda v: v.cumsum(0)),
    "reverse cumsum": ("tl.cumsum(v, 0, reverse=True)", lambda v: v.flip(0).cumsum(0).flip(0)),
    "sort": ("tl.sort(v)", lambda v: v.sort().values),
    "flip": ("tl.flip(v, 0)", lambda v: v.flip(0)),
    "softmax": ("tl.softmax(v)", lambda v: v.softmax(0)),
    "sigmoid": ("tl.sigmoid(v)", torch.sigmoid),
    "erf": ("tl.erf(v)", torch.erf),
    "clamp": ("tl.clamp(v, -0.5, 0.5)", lambda v: v.clamp(-0.5, 0.5)),
    "method": ("v.to(tl.float64).sum(0).to(tl.float32) + v * 0", lambda v: v.sum() + v * 0),
    "tanh": ("libdevice.tanh(v)", torch.tanh),
    "pow": ("libdevice.pow(v, 2.0)", lambda v: v.pow(2)),
    "log1p": ("libdevice.log1p(v * v)", lambda v: torch.log1p(v * v)),
    "boolean words": (
        "tl.where(not (B == 3) and (v > 0 or v < -1), v, 0.0)",
        lambda v: torch.where((v > 0) | (v < -1), v, 0.0),
    ),
    "python builtins": ("v * max(B, 3) * min(n, 7)", lambda v: v * 32 * 7),
    "gather": ("tl.gather(v, (i + 1) % B, 0)", lambda v: v.roll(-1)),
    "reshape": ("tl.reshape(tl.trans(tl.reshape(v, [4, 8])), [B])",
                lambda v: v.view(4, 8).t().reshape(-1)),
    "argmin": ("tl.argmin(v, 0) + v * 0", lambda v: v.argmin() + v * 0),
    "axis": ("tl.reshape(tl.sum(tl.reshape(v, [4, 8]), 1, keep_dims=True) + tl.zeros([4, 8], "
             "tl.float32), [B])", lambda v: v.view(4, 8).sum(1).repeat_interleave(8)),
}  # fmt: skip


@pytest.mark.parametrize("what", list(LANGUAGE))
def test_language(make_source: Make, what: str) -> None:
    """What `triton.language` offers beyond arithmetic, interpreted; and it compiles as well."""
    text, reference = LANGUAGE[what]
    source = make_source(
        "x:*f32 y:*f32! n:i32",
        f"i = tl.arange(0, B)\nv = tl.load(x + i)\ntl.store(y + i, {text})",
        header="from triton.language.extra import libdevice",
        B=32,
    )
    x = torch.randn(32, generator=torch.Generator().manual_seed(2))
    y = torch.zeros(32)
    LazyKernel(source)(1, x, y, 100)
    torch.testing.assert_close(y, reference(x), rtol=2e-6, atol=2e-6)
    assert compile(source, Target(90)).cubin


def test_random_numbers_do_not_depend_on_the_block(make_source: Make) -> None:
    body = "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.store(y + i, tl.rand(seed, i))"
    outs = []
    for block in (16, 64):
        y = torch.zeros(64)
        LazyKernel(make_source("y:*f32! seed:i64", body, B=block))(64 // block, y, 17)
        outs.append(y)
    assert torch.equal(*outs)
    assert outs[0].min() >= 0 and outs[0].max() < 1 and outs[0].unique().numel() > 50


def test_control_flow(make_source: Make) -> None:
    """`if`, `while` and `for` on run-time scalars, and early exits by a program's number."""
    source = make_source(
        "y:*i32! n:i32",
        """
        pid = tl.program_id(0)
        if pid >= n:
            return
        total = 0
        k = pid
        while k > 0 and total < 100:
            total += k
            k -= 1
        for j in tl.range(0, pid, num_stages=2):
            total += j
        tl.store(y + pid, total if pid % 2 == 0 else -total)
        """,
    )
    y = torch.full((8,), -7, dtype=torch.int32)
    LazyKernel(source)(8, y, 6)
    expected = [p * (p + 1) // 2 + p * (p - 1) // 2 for p in range(6)]
    assert y.tolist() == [t if p % 2 == 0 else -t for p, t in enumerate(expected)] + [-7, -7]


def test_block_pointers_and_descriptors(make_source: Make) -> None:
    source = make_source(
        "x:*f32 y:*f32! n:i32",
        """
        p = tl.make_block_ptr(x, (n, 16), (16, 1), (0, 0), (8, 16), (1, 0))
        v = tl.load(tl.advance(p, (8, 0)), boundary_check=(0,), padding_option="zero")
        d = tl.make_tensor_descriptor(y, [16, 16], [16, 1], [8, 16])
        d.store([8, 0], v + d.load([0, 0]))
        """,
    )
    x, y = torch.randn(12, 16), torch.randn(16, 16)
    expected = y.clone()
    expected[8:] = y[:8]
    expected[8:12] += x[8:]
    LazyKernel(source)(1, x, y, 12)
    assert torch.equal(y, expected)


def test_atomics(make_source: Make) -> None:
    body = "i = tl.arange(0, B)\ntl.atomic_add(y + i % 4, tl.load(x + i))"
    for kind, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16), ("i32", torch.int32)]:
        x = torch.arange(32).to(dtype)
        y = torch.zeros(4, dtype=dtype)
        LazyKernel(make_source(f"x:*{kind} y:*{kind}!", body, B=32))(1, x, y)
        assert y.tolist() == x.view(8, 4).sum(0).tolist()


def test_out_of_bounds_is_an_error_not_a_crash(add_one: KernelSource) -> None:
    x, y = torch.zeros(100), torch.zeros(100)
    with pytest.raises(errors.OutOfBounds, match="past its end"):
        LazyKernel(add_one)((1,), x, y, 128)


def test_out_of_bounds_of_a_view_means_its_storage(add_one: KernelSource) -> None:
    """A kernel may address around a view, as overlapping or padded layouts do."""
    storage = torch.zeros(256)
    y = torch.zeros(256)
    LazyKernel(add_one)((1,), storage[:10], y, 128)
    assert y[:128].eq(1).all() and y[128:].eq(0).all()


def test_errors_name_the_kernel_and_the_program(make_source: Make) -> None:
    body = "tl.static_assert(B == 3, 'B must be three')\ntl.store(y, 1)"
    with pytest.raises(errors.InterpreterError, match=r"kernel, program .0, 0, 0.*three"):
        LazyKernel(make_source("y:*i32!", body, B=4))(1, torch.zeros(1, dtype=torch.int32))
    block = "i = tl.arange(0, 4)\nif i > 2:\n    tl.store(y + i, 1)"
    with pytest.raises(errors.InterpreterError, match=r"tl\.where"):
        LazyKernel(make_source("y:*i32!", block))(1, torch.zeros(4, dtype=torch.int32))


def test_inline_assembly_says_that_it_needs_a_gpu(make_source: Make) -> None:
    body = """
    v = tl.inline_asm_elementwise("mov.b32 $0, 1;", "=r", [], tl.int32, True, 1)
    tl.store(y, v)
    """
    with pytest.raises(errors.NotInterpretable, match="GPU"):
        LazyKernel(make_source("y:*i32!", body))(1, torch.zeros(1, dtype=torch.int32))


def test_load_jit_behaves_as_a_triton_function(rows: KernelSource) -> None:
    """As torch calls it in `triton_kernel_wrapper_mutation`: a grid function, keyword constants."""
    kernel = load_jit(rows, interpret=True)
    assert kernel.arg_names == ["x", "out", "index", "n", "B"]
    assert kernel.fn.__name__ == "kernel"
    x, out = torch.ones(2, 50).bfloat16(), torch.zeros(2, 6)
    index = torch.zeros(2, dtype=torch.int32)
    kernel[lambda meta: (2 * meta["n"] // 50,)](x, out, index, n=50, B=64, num_warps=4)
    assert out[:, 2].tolist() == [50, 50]
    from triton.runtime.jit import JITFunction

    assert isinstance(load_jit(rows), JITFunction)


def test_hop_runs_an_interpreted_kernel(add_one: KernelSource) -> None:
    from torch._higher_order_ops import triton_kernel_wrap as wrap

    kernel = load_jit(add_one, interpret=True)
    index = wrap.kernel_side_table.add_kernel(kernel)
    constants = wrap.kernel_side_table.add_constant_args({"B": 128})
    x, y = torch.arange(200.0), torch.zeros(200)
    wrap.triton_kernel_wrapper_mutation(
        kernel_idx=index,
        constant_args_idx=constants,
        grid=[(2, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"x": x, "y": y, "n": 200},
    )
    assert torch.equal(y, x + 1)
