"""Descriptors in compiled kernels: layouts, parameters, what is written; and their workspaces."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from triton_rt import (
    Binary,
    KernelSource,
    Target,
    TensorMap,
    Workspace,
    compile,
    errors,
    set_allocator,
    use_allocator,
)
from triton_rt.launch import workspace
from triton_rt.launch.slots import slots_of, split
from triton_rt.tma.layout import MapLayout

Make = Callable[..., KernelSource]

COPY = """
i = tl.program_id(0) * x.block_shape[0]
j = tl.program_id(1) * x.block_shape[1]
y.store([i, j], x.load([i, j]))
"""


GATHER = """
rows = tl.load(index + tl.arange(0, 32))
y.scatter(x.gather(rows, 8) * 2, rows, 0)
"""


MADE = """
a = tl.make_tensor_descriptor(x, [m, n], [stride, 1], [16, 32])
b = tl.make_tensor_descriptor(y, [m, n], [stride, 1], [16, 32])
for i in range(0, m, 16):
    for j in range(0, n, 32):
        b.store([i, j], a.load([i, j]) * 3)
"""
MADE_SIGNATURE = "x:*f32 y:*f32! m:i32 n:i32 stride:i64"


def test_layouts_by_target(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<bf16[64,128]> y:tensordesc<bf16[64,128]>!", COPY)
    hopper = compile(source, Target(90))
    assert hopper.tensor_maps == (MapLayout(3, 9, 2, (64, 64)),) * 2
    assert [s.head for s in slots_of(hopper)] == [128, 128]
    for other in (compile(source, Target(80)), compile(replace(source, tma=False), Target(90))):
        assert other.tensor_maps == () and [s.head for s in slots_of(other)] == [8, 8]
    assert Binary.from_bytes(hopper.to_bytes()) == hopper


def test_a_binary_without_its_layouts_is_refused(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<f32[16,32]> y:tensordesc<f32[16,32]>!", COPY)
    binary = compile(source, Target(90))
    header = {"tensor_maps": [m.to_record() for m in binary.tensor_maps]}
    record = json.loads(re.search(rb"\{.*\}", binary.to_bytes().split(b"\x7fELF")[0])[0])  # type: ignore[index]
    assert record["tensor_maps"] == json.loads(json.dumps(header["tensor_maps"]))
    del record["tensor_maps"][0]["swizzle"]
    with pytest.raises(errors.BadBinary, match="swizzle"):
        Binary._from_record(record, binary.cubin, "")
    del record["tensor_maps"]
    with pytest.raises(errors.BadBinary, match="lacks tensor_maps"):
        Binary._from_record(record, binary.cubin, "")


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tma", [True, False])
def test_slots_are_what_the_kernel_takes(
    rank: int, tma: bool, kernel_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of the kernel's parameters as PTX declares them."""
    monkeypatch.setattr("triton_rt.launch.native.extension", lambda: None)
    monkeypatch.setattr("triton_rt.launch.slots.encode", lambda *a: bytes(128))
    block = (2, 2, 4, 4, 16)[5 - rank :]
    zeros = ", ".join("0" * rank)
    body = f"tl.store(o, tl.sum(x.load([{zeros}]).reshape({math.prod(block)}), 0))"
    source = kernel_of(f"x:tensordesc<f16[{','.join(map(str, block))}]> o:*f16!", body, tma=tma)
    binary = compile(source, Target(90), keep_ptx=True)
    declared = re.findall(
        r"\.param [^\n]*?\.(?:b8 \w+\[(\d+)\]|[usb](\d+) )", binary.ptx.split("{")[0]
    )
    sizes = [int(a) if a else int(b) // 8 for a, b in declared]
    x = torch.zeros(block, dtype=torch.float16)
    (slot,) = slots_of(binary)
    ours = [len(v) for v in split(slot(TensorMap(x, block)), slot.head)]
    assert len(ours) == len(sizes) - 3  # o, and two kinds of scratch
    assert all(theirs in (size, 1, 4) for size, theirs in zip(ours, sizes, strict=False))


def test_cubins_are_those_of_triton(kernel_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from triton_rt import load_jit

    source = kernel_of("x:tensordesc<f32[16,32]> y:tensordesc<f32[16,32]>!", COPY)
    theirs = triton.compile(
        ASTSource(load_jit(source), source.signature(), {}, {}), target=GPUTarget("cuda", 90, 32)
    )
    assert compile(source, Target(90)).cubin == theirs.asm["cubin"]


def test_gathers_need_blackwell(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<f32[1,32]> y:tensordesc<f32[1,32]>! index:*i32", GATHER)
    with pytest.raises(errors.NoTmaGather, match=r"kernel for sm_90 .*gather4.*tma=False"):
        compile(source, Target(90))
    assert not compile(replace(source, tma=False), Target(90)).tensor_maps
    assert len(compile(source, Target(100)).tensor_maps) == 2


def test_sixteen_bit_minima_compile_without_a_gpu(kernel_of: Make) -> None:
    """Triton asks the machine's driver whether the chip has TMA; here, the target is asked."""
    desc = "tensordesc<bf16[16,32]>"
    compile(kernel_of(f"x:{desc} y:{desc}!", "y.atomic_min([0, 0], x.load([0, 0]))"), Target(90))


MADE_INSIDE = """
d = tl.make_tensor_descriptor(p, [16, 32], [32, 1], [16, 32])
d.store([0, 0], a.load([0, 0]))
"""
CHOSEN = """
d = a
for i in range(n):
    if i > 3:
        d = b
    else:
        d = c
d.store([0, 0], tl.zeros((16, 32), tl.float32))
"""
WRITES = [
    ("b.store([0, 0], a.load([0, 0]))", [False, True, False]),
    ("for i in range(3):\n    c.atomic_add([i, 0], a.load([0, 0]))", [False, False, True]),
    ("put(t, a.load([0, 0]))", [False, False, True]),
    (MADE_INSIDE, [False, False, False]),
    (CHOSEN, [True, True, True]),
]


@pytest.mark.parametrize(("body", "written"), WRITES)
def test_what_is_written_is_found(body: str, written: list[bool], make_source: Make) -> None:
    """Whatever is declared, the binary knows which descriptors the kernel writes through."""
    desc = "tensordesc<f32[16,32]>"
    header = "@triton.jit\ndef put(t, v):\n    t[0].store([0, 0], v)\n"
    source = make_source(
        f"a:{desc} b:{desc} c:{desc} p:*f32 n:i32", "t = (c,)\n" + body, header=header
    )
    binary = compile(source, Target(90))
    assert [p.mutated for p in binary.params[:3]] == written


# -- workspaces ---------------------------------------------------------------


def test_workspaces(kernel_of: Make) -> None:
    binary = compile(kernel_of(MADE_SIGNATURE, MADE), Target(90), alignment=0)
    space = Workspace.of(binary, num_programs=10)
    assert space.num_descriptors == 2 and space.nbytes() == 10 * 2 * 128
    buffer = torch.empty(space.nbytes(), dtype=torch.uint8)
    space._memory[0, 9] = (space.nbytes(), buffer)
    assert space.memory(2560, 0, 9) is buffer
    with pytest.raises(errors.WorkspaceTooSmall, match=r"needs 2561 bytes.*2560.*10 programs x 2"):
        space.memory(2561, 0, 9)
    with pytest.raises(errors.WorkspaceTooSmall, match="multiples of 256"):
        space(128, 256, 0)
    with space.use():
        assert workspace.allocate(256, 0, 9) is buffer
    space.clear()
    assert not space._memory
    for wrong in ((0, None), (1, 0)):
        with pytest.raises(errors.WorkspaceTooSmall, match="empty"):
            Workspace(*wrong)


def test_workspaces_default_to_the_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda d: type("P", (), {"multi_processor_count": 132})
    )
    assert Workspace(3).nbytes(0) == 132 * 3 * 128


def test_allocators_are_of_the_context() -> None:
    import contextvars

    first, second = Workspace(1, 1), Workspace(1, 2)
    for space in (first, second):
        space._memory[0, 0] = (space.nbytes(), torch.empty(space.nbytes(), dtype=torch.uint8))

    def run() -> None:
        set_allocator(first)
        assert workspace.allocate(8, 0, 0).nbytes == 128
        with use_allocator(second):
            assert workspace.allocate(8, 0, 0).nbytes == 256
        assert workspace.allocate(8, 0, 0).nbytes == 128

    contextvars.copy_context().run(run)
    assert workspace._allocator.get() is None
