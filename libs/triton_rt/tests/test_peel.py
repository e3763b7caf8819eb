"""Kernels shifted to aligned accesses: same results, wide accesses, and what is refused."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from triton_rt import (
    KernelParam,
    KernelSource,
    LazyKernel,
    PeeledKernel,
    Ref,
    Target,
    compile,
    errors,
    overlapped,
    peel,
)
from triton_rt.launch.args import is_congruent

Make = Callable[..., KernelSource]

ADD = """
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = i < n
    tl.store(x + i, tl.load(x + i, mask) + tl.load(y + i, mask), mask)
"""
SCALED = """
    pid = tl.program_id(axis=0)
    start = pid * B
    offsets = start + tl.arange(0, B)
    tl.store(y + offsets, tl.load(x + offsets) * tl.load(s) + 1)
"""


@triton.jit
def imported(x, y, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(y + i, twice(tl.load(x + i, i < n, other=0)), mask=(i < n) & (n > 2))


@triton.jit
def twice(v):
    return v * 2


def accesses(source: KernelSource, alignment: int) -> list[str]:
    ptx = compile(source, Target(90), alignment=alignment, keep_ptx=True).ptx
    return sorted(re.findall(r"(?:ld|st)\.global[\w.:]*", ptx))


def test_the_shifted_kernel_has_wide_accesses(make_source: Make) -> None:
    source = make_source("x:*f16! y:*f16 n:i32", ADD, B=1024)
    wide = ["ld.global.v4.b32", "ld.global.v4.b32", "st.global.v4.b32"]
    assert accesses(source, 0b111) == wide
    assert not set(wide) & set(accesses(source, 0))
    shifted = peel(source)
    assert shifted.shifts == (2, 2, 0)
    found = accesses(shifted.source, 0)
    assert [a for a in found if "v4" in a] == wide
    assert len(found) == 3 + 6, "and one narrow access each before and after"


def test_every_element_is_computed_once(make_source: Make) -> None:
    """In place, so that an element computed twice would show; past the end nothing is written."""
    kernel = LazyKernel(peel(make_source("x:*f16! y:*f16 n:i32", ADD, B=64)).source)

    @settings(max_examples=60, deadline=None)
    @given(offset=st.integers(0, 9), n=st.integers(1, 300), spare=st.integers(0, 3))
    def check(offset: int, n: int, spare: int) -> None:
        x = torch.arange(offset + n + 5, dtype=torch.float16)
        y = torch.full((offset + n + 5,), 3.0, dtype=torch.float16)
        before = x.clone()
        kernel(-(-n // 64) + spare, x[offset:], y[offset:], n)
        before[offset : offset + n] += 3
        assert torch.equal(x, before)

    check()


def test_elements_of_several_sizes_and_no_mask(make_source: Make) -> None:
    shifted = peel(make_source("x:*f16 y:*f32! s:*f32", SCALED, B=64))
    assert shifted.shifts == (2, 4, 0)
    kernel = LazyKernel(shifted.source)
    for offset in range(9):
        x, y = torch.randn(300).half(), torch.zeros(300)
        kernel(3, x[offset:], y[offset:], torch.tensor([2.0]))
        expected = torch.zeros(300)
        expected[offset : offset + 192] = x[offset : offset + 192].float() * 2 + 1
        assert torch.equal(y, expected)


def test_a_kernel_that_another_module_defines() -> None:
    kinds = {"x": "*f32", "y": "*f32", "n": "i64"}
    source = KernelSource.from_jit(imported, kinds, {"B": 64}, mutated=("y",))
    kernel = LazyKernel(peel(source).source)
    x, y = torch.randn(103), torch.zeros(103)
    kernel(2, x[3:], y[3:], 100)
    assert torch.equal(y[3:], 2 * x[3:]) and y[:3].eq(0).all()


ODD = {
    "is a value": "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.store(x + i, i, i < n)",
    "x % 8": "i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "tl.store(x + i, tl.load(y + i % 8), i < n)",
    "max": "i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "tl.store(x + i, tl.max(tl.load(y + i, i < n)), i < n)",
    "two sizes": "i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "tl.store(x + i, tl.load(y + i, i < n), i < 2 * n)",
    "program": "p = tl.program_id(0)\ni = p * B + tl.arange(0, B)\ntl.store(x + i, p, i < n)",
    "second axis": "i = tl.program_id(1) * B + tl.arange(0, B)\ntl.store(x + i, 1, i < n)",
    "or": "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.store(x + i, 1, (i < n) | (n > 3))",
    "store past the size": "i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "tl.store(x + i, tl.load(y + i, i < n))",
    "pointer both ways": "i = tl.program_id(0) * B + tl.arange(0, B)\n"
    "tl.store(x + i, tl.load(y + i, i < n) + tl.load(y), i < n)",
    "random": "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.store(x + i, tl.rand(n, i), i < n)",
    "atomic": "i = tl.program_id(0) * B + tl.arange(0, B)\ntl.atomic_add(x + i, 1.0, i < n)",
    "several tiles": "for k in range(4):\n"
    "    i = tl.program_id(0) * B + tl.arange(0, B)\n    tl.store(x + i, k, i < n)",
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD.keys())
def test_what_might_see_where_a_tile_starts_is_refused(make_source: Make, body: str) -> None:
    source = make_source("x:*f32! y:*f32 n:i32", textwrap.indent(body, "    "), B=64)
    with pytest.raises(errors.NotPeelable, match="kernel cannot be shifted"):
        peel(source)
    with pytest.raises(errors.NotPeelable):
        PeeledKernel(source)


def test_congruent_pointers() -> None:
    def ask(sizes: tuple[int, ...], *addresses: int) -> bool:
        return is_congruent(sizes, [a.to_bytes(8, "little") for a in addresses])

    assert ask((2, 2), 0x1002, 0x2012) and not ask((2, 2), 0x1002, 0x2004)
    assert not ask((2, 2), 0x1000, 0x2000), "aligned already"
    assert ask((2, 4), 0x1002, 0x2004) and ask((4, 2), 0x2004, 0x100A)
    assert not ask((2, 4), 0x1002, 0x2008)
    assert not ask((2, 2), 0x1001, 0x2001), "not even whole elements"
    assert ask((2, 0, 2), 0x1002, 77, 0x2002)


@pytest.mark.parametrize("early", [False, True])
def test_overlapped_kernels_wait_before_they_touch_memory(make_source: Make, early: bool) -> None:
    source = make_source("x:*f16! y:*f16 n:i32", ADD, B=1024)
    made = overlapped(source, early=early)
    binary = compile(made, Target(90), alignment=0b111, keep_ptx=True)
    order = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global", binary.ptx)
    first = ["griddepcontrol.launch_dependents"] if early else []
    assert order == [*first, "griddepcontrol.wait", "ld.global", "ld.global", "st.global"]
    assert binary.pdl and binary.name == "kernel_overlapped"
    assert re.findall(r"v\d\.b32", binary.ptx) == ["v4.b32"] * 3, "as wide as before"
    x, y = torch.arange(100).half(), torch.ones(100, dtype=torch.float16)
    LazyKernel(made)(1, x, y, 100)
    assert torch.equal(x, torch.arange(1, 101).half())


def test_overlapped_kernels_that_another_module_defines() -> None:
    kinds = {"x": "*f32", "y": "*f32", "n": "i64"}
    source = KernelSource.from_jit(imported, kinds, {"B": 64}, mutated=("y",))
    kernel = PeeledKernel(source, overlap="early")
    assert compile(kernel.peeled.source, Target(90)).pdl
    x, y = torch.randn(100), torch.zeros(100)
    kernel(2, x, y, 100)
    assert torch.equal(y, 2 * x)


def test_overlapped_tuples_and_defaults(make_source: Make) -> None:
    text = """
import triton
import triton.language as tl
@triton.jit
def kernel(t, n, B: tl.constexpr, ADD: tl.constexpr = 3):
    i = tl.arange(0, B)
    tl.store(t[0] + i, tl.load(t[0] + i, i < n) * t[1] + ADD, i < n)
"""
    params = (KernelParam("t.0", "*f32", True), KernelParam("n", "i32"))
    made = overlapped(KernelSource("kernel", text, params, (("t.1", 2), ("B", 64))))
    x = torch.ones(50)
    LazyKernel(made)(1, (x,), 50)
    assert x.eq(5).all() and compile(made, Target(90)).pdl


def test_overlapped_epilogues_and_gluon() -> None:
    text = """
import triton
import triton.language as tl
from triton.experimental import gluon
@triton.jit
def twice(v):
    return 2 * v
@triton.jit
def kernel(x, n, B: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(x + i, F(tl.load(x + i, i < n)), i < n)
@gluon.jit
def other(x):
    pass
"""
    params = (KernelParam("x", "*f32", True), KernelParam("n", "i32"))
    source = KernelSource("kernel", text, params, (("B", 64), ("F", Ref("twice"))))
    made, x = overlapped(source), torch.ones(50)
    LazyKernel(made)(1, x, 50)
    assert x.eq(2).all() and compile(made, Target(90)).pdl
    with pytest.raises(errors.BadSource, match=r"other is a @gluon\.jit kernel"):
        overlapped(KernelSource("other", text, params[:1]))


def test_a_kernel_that_waits_by_itself_is_shifted(make_source: Make) -> None:
    body = "    tl.extra.cuda.gdc_wait()\n" + ADD
    kernel = LazyKernel(peel(make_source("x:*f16! y:*f16 n:i32", body, B=64)).source)
    x, y = torch.zeros(71, dtype=torch.float16), torch.ones(71, dtype=torch.float16)
    kernel(2, x[1:], y[1:], 70)
    assert x.tolist() == [0.0] + [1.0] * 70


def test_cpu_tensors_run_the_kernel_as_it_was(make_source: Make) -> None:
    kernel = PeeledKernel(make_source("x:*f16! y:*f16 n:i32", ADD, B=64))
    x, y = torch.zeros(70, dtype=torch.float16), torch.ones(70, dtype=torch.float16)
    kernel(2, x[1:], y[1:], 69)
    assert x.tolist() == [0.0] + [1.0] * 69
