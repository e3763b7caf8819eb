"""Kernels of `triton.experimental.gluon`: compiled like any other, never interpreted."""

from __future__ import annotations

import pytest
import torch

from triton_rt import KernelParam, KernelSource, LazyKernel, Target, compile, errors, load_jit
from triton_rt.wire import source_from_record, source_to_record

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
    assert source_from_record(source_to_record(source)) == source
    assert source.fingerprint != _source(max_registers=128).fingerprint


def test_what_a_gluon_kernel_cannot_be() -> None:
    with pytest.raises(errors.BadSource, match="no form without TMA"):
        compile(_source(tma=False), Target(90))
    with pytest.raises(errors.NotInterpretable, match="use CUDA tensors"):
        load_jit(_source(), interpret=True)
    with pytest.raises(errors.NotInterpretable, match=r"kernel is a @gluon\.jit kernel"):
        LazyKernel(_source())((1,), torch.zeros(128), torch.zeros(128), 100)
