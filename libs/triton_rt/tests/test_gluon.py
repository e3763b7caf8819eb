"""Kernels of `triton.experimental.gluon`: compiled like any other, never interpreted."""

from __future__ import annotations

import re

import pytest
import torch
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from triton_rt import KernelParam, KernelSource, LazyKernel, Target, compile, errors, load_jit
from triton_rt.element_types import torch_dtype, triton_type

_TEXT = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def send(memory, ready):
    mbarrier.arrive(ready)


@gluon.jit
def receive(memory, ready, y, n, B: gl.constexpr):
    mbarrier.wait(ready, 0)
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.arange(0, B, layout)
    gl.store(y + i, memory.load(layout) + 1.0, mask=i < n)


@gluon.jit
def kernel(x, y, n, B: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    memory = gl.allocate_shared_memory(gl.float32, [B], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    i = gl.arange(0, B, layout)
    memory.store(gl.load(x + i, mask=i < n, other=0.0))
    gl.warp_specialize(
        [(receive, (memory, ready, y, n, B)), (send, (memory, ready))], [1], [24]
    )
"""
_PARAMS = (
    KernelParam("x", "*f32"),
    KernelParam("y", "*f32", mutated=True),
    KernelParam("n", "i32"),
)


def _source(tma: bool = True, max_registers: int | None = 168) -> KernelSource:
    return KernelSource(
        "kernel", _TEXT, _PARAMS, (("B", 128),), num_warps=4, tma=tma, max_registers=max_registers
    )


def test_a_kernel_whose_warps_specialise_compiles_without_a_gpu() -> None:
    binary = compile(_source(), Target(90), keep_ptx=True)
    assert binary.num_warps == 8  # those of the second role are added, in groups of four
    assert ".maxnreg 168" in binary.ptx and "setmaxnreg.dec" in binary.ptx
    assert [p.mutated for p in binary.params] == [False, True, False]


def test_the_number_of_registers_is_part_of_the_source() -> None:
    source = _source()
    assert KernelSource.from_record(source.to_record()) == source
    assert source.fingerprint != _source(max_registers=128).fingerprint


def test_what_a_gluon_kernel_cannot_be() -> None:
    with pytest.raises(errors.BadSource, match="no form without TMA"):
        compile(_source(tma=False), Target(90))
    with pytest.raises(errors.NotInterpretable, match="use CUDA tensors"):
        load_jit(_source(), interpret=True)
    with pytest.raises(errors.NotInterpretable, match=r"kernel is a @gluon\.jit kernel"):
        LazyKernel(_source())((1,), torch.zeros(128), torch.zeros(128), 100)


_COPY = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma


@gluon.jit
def take(source, memory, ready):
    mbarrier.expect(ready, source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [0, 0], ready, memory)


@gluon.jit
def give(target, memory, ready):
    mbarrier.wait(ready, 0)
    tma.async_copy_shared_to_global(target, [0, 0], memory)
    tma.store_wait(0)


@gluon.jit
def kernel(n, y, x, p, MADE: gl.constexpr, FIRST: gl.constexpr):
    memory = gl.allocate_shared_memory(x.dtype, x.block_type.shape, x.layout)
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    if MADE:
        into = tma.make_tensor_descriptor(p, [n, 64], [64, 1], x.block_type.shape, x.layout)
    else:
        into = y
    if FIRST:
        gl.warp_specialize(
            [(give, (into, memory, ready)), (take, (x, memory, ready))], [1], [24]
        )
    else:
        gl.warp_specialize(
            [(take, (x, memory, ready)), (give, (into, memory, ready))], [1], [24]
        )
"""


# A map by value, its sizes and its strides: what the launcher passes (slots.py).
_MAP = [".align 64 .b8", ".u32", ".u32", ".u64", ".u64"]


def _copies(made: bool = False, first: bool = True, kind: str = "bf16[128,64]") -> KernelSource:
    params = (
        KernelParam("n", "i32"), KernelParam("y", f"tensordesc<{kind}>"),
        KernelParam("x", f"tensordesc<{kind}>"), KernelParam("p", f"*{kind.partition('[')[0]}"),
    )  # fmt: skip
    return KernelSource(
        "kernel", _COPY, params, (("MADE", made), ("FIRST", first)), max_registers=168
    )


@pytest.mark.parametrize(
    ("kind", "block", "swizzle"),
    [
        ("bf16", [128, 64], 128), ("f16", [64, 32], 64), ("f8e4m3", [16, 32], 32),
        ("f32", [1, 16, 32], 128), ("i8", [4, 128], 0),
    ],
)  # fmt: skip
def test_descriptors_are_named_as_gluon_names_its_own(
    kind: str, block: list[int], swizzle: int
) -> None:
    """With the layout in shared memory that is the default of their block."""
    base = torch.zeros([1] * (len(block) - 1) + [256], dtype=torch_dtype(kind))
    layout = gl.NVMMASharedLayout.get_default_for(block, triton_type(kind))
    assert layout.swizzle_byte_width == swizzle
    theirs = TensorDescriptor.from_tensor(base, block, layout)
    name, _ = native_specialize_impl(BaseBackend, theirs, False, True, True)
    text = ",".join(map(str, block))
    assert _copies(kind=f"{kind}[{text}]").signature()["x"] == name


@pytest.mark.parametrize("first", [True, False], ids=["default", "partition"])
def test_descriptors_that_the_host_makes(first: bool) -> None:
    """By value, as those of other kernels; what is written is found in any role."""
    binary = compile(_copies(first=first), Target(90), keep_ptx=True)
    assert re.findall(r"\.param (.*) kernel_param_", binary.ptx) == [
        ".u32", *(_MAP * 2), ".u64 .ptr .global .align 1", *[".u64 .ptr .global .align 1"] * 2
    ]  # fmt: skip
    assert [(m.swizzle, m.box) for m in binary.tensor_maps] == [(3, (128, 64))] * 2
    assert [p.mutated for p in binary.params] == [False, True, False, False]
    assert binary.global_scratch_bytes == 0 and "tensormap.replace" not in binary.ptx
    made = compile(_copies(True, first), Target(90), keep_ptx=True)
    assert [p.mutated for p in made.params] == [False, False, False, False]
    assert made.global_scratch_bytes > 0 and "tensormap.replace" in made.ptx
