"""Kernels that do the same to different buffers, as one launch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import triton_rt
from loop_ir import Kernel, parse_kernel
from triton_emit import (
    BadSchedule,
    TritonKernel,
    default_schedule,
    emit_list,
    likeness,
    list_schedule,
)
from triton_rt import load_jit

TEXT = """\
kernel k{n}(
    x{n}: f32[{size}] cuda:0,
    c: f32[1] cuda:0,
    out y{n}: f32[{size}] cuda:0,
):
  parallel i0 < {size}:
    once:
      v0 = load x{n}[i0] : f32
      v1 = load c[0] : f32
      v2 = load y{n}[i0] : f32
      v3 = fma(v0, v1, v2) : f32
      store y{n}[i0] = v3
"""


def kernels(*sizes: int) -> tuple[Kernel, ...]:
    return tuple(parse_kernel(TEXT.format(n=n, size=size)) for n, size in enumerate(sizes))


def test_what_is_alike() -> None:
    a, b, c = kernels(16, 4096, 17)
    assert likeness(a) == likeness(b) is not None
    assert likeness(a) != likeness(c)  # its accesses are narrower
    other = parse_kernel(TEXT.format(n=1, size=16).replace("fma(v0, v1, v2)", "fma(v0, v2, v1)"))
    assert likeness(other) != likeness(a)


@pytest.mark.parametrize("sizes", [(16, 4096, 32), (5, 1, 1000, 77, 3), (2048, 1024)])
def test_each_program_finds_its_buffers(tools: SimpleNamespace, sizes: tuple[int, ...]) -> None:
    nests = kernels(*sizes)
    kernel = emit_list([nests], [list_schedule(nests, {})])
    tensors = {"c": torch.tensor([3.0])}
    for n, size in enumerate(sizes):
        tensors[f"x{n}"] = torch.arange(size) + n + 0.5
        tensors[f"y{n}"] = torch.full((size,), float(n))
    want = {f"y{n}": tensors[f"x{n}"] * 3 + n for n in range(len(sizes))}
    pointers = [kind for _, kind, _ in kernel.params if kind == "*f32"]
    assert len(pointers) == 2 * len(sizes) + 1  # what all share is one parameter
    tools.launch(kernel, tensors, {})
    for name, value in want.items():
        torch.testing.assert_close(tensors[name], value)
    assert ("xmask" in kernel.source) == any(n % kernel.schedule.xblock for n in sizes)


def test_sizes_are_whole_however_large() -> None:
    large = kernels((1 << 31) + 32, 4096)
    source = emit_list([large], [list_schedule(large, {})]).source
    assert "s0 = tl.multiple_of(number(at + 3).to(tl.int64), 32)" in source


PART = """\
kernel k{n}(
    x: f32[64, 48] cuda:0,
    out y{n}: f32[64, {width}] cuda:0,
):
  parallel i0 < 64, i1 < {width}:
    once:
      v0 = load x[48*i0 + i1 + {start}] : f32
      v1 = add(v0, v0) : f32
      store y{n}[{width}*i0 + i1] = v1
"""


@pytest.mark.parametrize(("width", "access"), [(16, ".v4"), (15, "")])
def test_parts_of_one_buffer(tools: SimpleNamespace, width: int, access: str) -> None:
    """A program reads its part; parts that begin at multiples of a vector are read by vectors."""
    starts = (width, 0, 2 * width)
    texts = (PART.format(n=n, width=width, start=s) for n, s in enumerate(starts))
    nests = tuple(map(parse_kernel, texts))
    assert len({likeness(k) for k in nests}) == 1
    other = parse_kernel(PART.format(n=9, width=width, start=0).replace("48*i0", "47*i0"))
    assert likeness(other) != likeness(nests[0])
    kernel = emit_list([nests], [list_schedule(nests, {})])
    x = torch.arange(64.0 * 48).view(64, 48)
    tensors = {"x": x} | {f"y{n}": torch.zeros(64, width) for n in range(3)}
    tools.launch(kernel, tensors, {})
    for n, start in enumerate(starts):
        torch.testing.assert_close(tensors[f"y{n}"], 2 * x[:, start : start + width])
    assert f"ld.global{access}.b32" in ptx(tools, kernel)


def test_parts_that_begin_beyond_32_bits() -> None:
    """One part of each length: the first alone counts in 32."""
    text = PART.replace("f32[64, 48]", "f32[64, 67108864]").replace("48*i0", "67108864*i0")
    text = text.replace("i0 < 64", "i0 < 2").replace("out y{n}: f32[64,", "out y{n}: f32[2,")
    starts = (0, 60 * 67108864)
    nests = [parse_kernel(text.format(n=n, width=16, start=s)) for n, s in enumerate(starts)]
    assert likeness(nests[0]) == likeness(nests[1])
    assert list_schedule(nests[:1], {}).index_bits == 32
    schedule = list_schedule(nests, {})
    assert schedule.index_bits == 64
    assert "number(at + 1).to(tl.int64)" in emit_list([nests], [schedule]).source


@pytest.mark.parametrize(("sizes", "width"), [((16, 4096, 48), ".v4"), ((15, 4096, 47), "")])
def test_accesses_are_as_wide_as_all_sizes_allow(
    tools: SimpleNamespace, sizes: tuple[int, ...], width: str
) -> None:
    """That the buffers of a program are chosen in it does not hide that they are aligned."""
    nests = kernels(*sizes)
    kernel = emit_list([nests], [list_schedule(nests, {})])
    assert f"st.global{width}.b32" in ptx(tools, kernel)


def ptx(tools: SimpleNamespace, kernel: TritonKernel) -> str:
    """Of tensors that begin at multiples of 16 bytes."""
    source = tools.kernel_source(kernel)
    pointers = {(i,): [["tt.divisibility", 16]] for i, p in enumerate(source.params)
                if p.is_pointer}  # fmt: skip
    ast = ASTSource(load_jit(source), source.signature(), dict(source.constants), pointers)
    target = GPUTarget("cuda", 90, 32)
    binary = triton.compile(ast, target=target, options={"num_warps": source.num_warps})
    return str(binary.asm["ptx"])


UPDATE = """\
kernel k{n}(
    g{n}: f32[{size}] cuda:0,
    rates: f32[3] cuda:0,
    out m{n}: f32[{size}] cuda:0,
    out p{n}: f32[{size}] cuda:0,
):
  parallel i0 < {size}:
    once:
      v0 = load m{n}[i0] : f32
      v1 = load g{n}[i0] : f32
      v2 = add(v0, v1) : f32
      v3 = load rates[{n}] : f32
      v4 = div(v2, v3) : f32
      v5 = sqrt(v4) : f32
      v6 = load p{n}[i0] : f32
      v7 = sub(v6, v5) : f32
      store m{n}[i0] = v2
      store p{n}[i0] = v7
"""


def test_updates_ask_for_all_they_read_first(tools: SimpleNamespace) -> None:
    """Divisions and roots branch: a load after them would wait for those before. A number of each
    member is a part of one buffer, and one parameter."""
    sizes = (64, 4096, 16)
    nests = [parse_kernel(UPDATE.format(n=n, size=s)) for n, s in enumerate(sizes)]
    kernel = emit_list([nests], [list_schedule(nests, {})])
    text = kernel.source
    body = text[text.index("xindex = ") :]
    assert body.count("tl.load(") == 4 and body.rindex("tl.load(") < body.index("total = ")
    assert kernel.schedule.xblock == 128 * kernel.schedule.num_warps
    assert len([kind for _, kind, _ in kernel.params if kind == "*f32"]) == 3 * 3 + 1
    assert ptx(tools, kernel).count("ld.global.v4.b32") == 3
    tensors = {"rates": torch.tensor([2.0, 3.0, 5.0])}
    tensors |= {f"{b}{n}": torch.rand(s) for n, s in enumerate(sizes) for b in "gmp"}
    wanted = dict(tensors)
    for n, rate in enumerate((2.0, 3.0, 5.0)):
        wanted[f"m{n}"] = tensors[f"m{n}"] + tensors[f"g{n}"]
        wanted[f"p{n}"] = tensors[f"p{n}"] - (wanted[f"m{n}"] / rate).sqrt()
    tools.launch(kernel, tensors, {})
    torch.testing.assert_close(tensors, wanted)


HALVES = """\
kernel k{n}(
    x{n}: f32[{half}] cuda:0,
    out y{n}: f32[{size}] cuda:0,
):
  parallel i0 < {size}:
    once:
      v0 = load x{n}[i0//2] : f32
      store y{n}[i0] = v0
"""


@pytest.mark.parametrize("sizes", [(16, 4096, 48), (14, 15, 4001)])
def test_points_of_a_list_are_no_pairs(tools: SimpleNamespace, sizes: tuple[int, ...]) -> None:
    """One such kernel alone would do two neighbours at once."""
    nests = [parse_kernel(HALVES.format(n=n, size=s, half=(s + 1) // 2))
             for n, s in enumerate(sizes)]  # fmt: skip
    assert default_schedule(nests[0], {}).pairs
    schedule = list_schedule(nests, {})
    tensors = {f"x{n}": torch.randn((s + 1) // 2) for n, s in enumerate(sizes)}
    tensors |= {f"y{n}": torch.full((s,), torch.nan) for n, s in enumerate(sizes)}
    tools.launch(emit_list([nests], [schedule]), tensors, {})
    for n, s in enumerate(sizes):
        want = tensors[f"x{n}"].repeat_interleave(2)[:s]
        torch.testing.assert_close(tensors[f"y{n}"], want, rtol=0, atol=0)
    with pytest.raises(BadSchedule, match="has no pairs"):
        emit_list([nests], [replace(schedule, pairs=True)])


NORMS = """\
kernel k{n}(
    x{n}: f32[{rows}, {columns}] cuda:0,
    c: f32[] cuda:0,
    out y{n}: f32[{rows}, {columns}] cuda:0,
    out s{n}: f32[{rows}] cuda:0,
):
  parallel i0 < {rows}:
    once:
      v0 = load c[0] : f32
    over r0 < {columns}:
      v1 = load x{n}[i0*{columns} + r0] : f32
      v2 = mul(v0, v1) : f32
      store y{n}[i0*{columns} + r0] = v2
      v3 = mul(v2, v2) : f32
      v4 = reduce sum(v3) : f32
    once:
      v5 = const {columns}.0 : f32
      v6 = div(v4, v5) : f32
      v7 = const {least} : f32
      v8 = maximum(v6, v7) : f32
      store s{n}[i0] = v8
"""


SHAPES = {
    "of equal sizes": [(3, 64)] * 3,
    "of several sizes": [(3, 64), (5, 48), (1, 112), (70, 16)],
    "of odd sizes": [(5, 33), (3, 70), (1, 5), (2, 127)],
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", ["persistent", "looped"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_reductions(tools: SimpleNamespace, kind: str, shapes: list[tuple[int, int]]) -> None:
    """Sizes and constants that differ are found beside the buffers; what all have in common is
    written as it is."""
    nests = [parse_kernel(NORMS.format(n=n, rows=r, columns=c, least=c / 3))
             for n, (r, c) in enumerate(shapes)]  # fmt: skip
    other = parse_kernel(NORMS.format(n=9, rows=3, columns=64, least=0).replace("sum(", "max("))
    steps = [c % 16 for _, c in shapes]
    assert len({*map(likeness, nests)}) == len({step == 0 for step in steps})
    assert likeness(other) != likeness(nests[0]) is not None
    rblock = 128 if kind == "persistent" else 16
    for xblock in (1, 2):
        schedule = replace(list_schedule(nests, {}), kind=kind, xblock=xblock, rblock=rblock)
        kernel = emit_list([nests], [schedule])
        assert ("s0 = " in kernel.source) == (len({*shapes}) > 1)
        tensors = {"c": torch.tensor(3.0)}
        for n, (rows, columns) in enumerate(shapes):
            tensors[f"x{n}"] = torch.randn(rows, columns)
            tensors[f"y{n}"] = torch.full((rows, columns), torch.nan)
            tensors[f"s{n}"] = torch.full((rows,), torch.nan)
        tools.launch(kernel, tensors, {})
        for n, (_, columns) in enumerate(shapes):
            want = tensors[f"x{n}"] * 3
            torch.testing.assert_close(tensors[f"y{n}"], want)
            total = want.square().sum(-1) / columns
            torch.testing.assert_close(tensors[f"s{n}"], total.maximum(torch.tensor(columns / 3)))


COLUMNS = """\
kernel k{n}(
    x{n}: bf16[{rows}, {columns}] cuda:0,
    r{n}: f32[{rows}] cuda:0,
    out y{n}: f32[{columns}] cuda:0,
):
  parallel i0 < {columns}:
    over r0 < {rows}:
      v0 = load x{n}[i0 + r0*{columns}] : bf16
      v1 = cast(v0) : f32
      v2 = load r{n}[r0] : f32
      v3 = mul(v1, v2) : f32
      v4 = reduce max(v3) : f32
    once:
      store y{n}[i0] = v4
"""
POINTS = """\
kernel k{n}(
    x{n}: bf16[{rows}, {columns}] cuda:0,
    r{n}: f32[{rows}] cuda:0,
    out y{n}: f32[{columns}, {rows}] cuda:0,
):
  parallel i0 < {columns}, i1 < {rows}:
    once:
      v0 = load x{n}[i0 + i1*{columns}] : bf16
      v1 = cast(v0) : f32
      v2 = load r{n}[i1] : f32
      v3 = mul(v1, v2) : f32
      store y{n}[i0*{rows} + i1] = v3
"""


@pytest.mark.parametrize("text", [COLUMNS, POINTS], ids=["columns", "points"])
@pytest.mark.parametrize("shapes", [[(48, 64), (16, 32), (96, 16)], [(7, 33), (50, 5), (3, 9)]])
def test_matrices_of_several_sizes(
    tools: SimpleNamespace, text: str, shapes: list[tuple[int, int]]
) -> None:
    """Columns are reduced, and matrices turned around, under the schedule of the largest."""
    texts = (text.format(n=n, rows=r, columns=c) for n, (r, c) in enumerate(shapes))
    nests = [parse_kernel(t) for t in texts]
    assert len({*map(likeness, nests)}) == 1
    tensors = {}
    for n, (rows, columns) in enumerate(shapes):
        tensors[f"x{n}"] = torch.randn(rows, columns).bfloat16()
        tensors[f"r{n}"] = torch.rand(rows)
        tensors[f"y{n}"] = torch.full((columns,) if text is COLUMNS else (columns, rows), torch.nan)
    kernel = emit_list([nests], [list_schedule(nests, {})])
    tools.launch(kernel, tensors, {})
    for n in range(len(shapes)):
        want = tensors[f"x{n}"].float() * tensors[f"r{n}"][:, None]
        want = want.amax(0) if text is COLUMNS else want.T
        torch.testing.assert_close(tensors[f"y{n}"], want, rtol=0, atol=0)
    assert "ld.global" in ptx(tools, kernel)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_lists_of_several_kinds_are_one_launch(tools: SimpleNamespace, count: int) -> None:
    """Each with its schedule; a program finds its kernel whatever their number is."""
    sizes = [(5 + n, 40 + n) for n in range(count)]
    norms = [parse_kernel(NORMS.format(n=n, rows=r, columns=c, least=0.5))
             for n, (r, c) in enumerate(sizes)]  # fmt: skip
    points = [parse_kernel(TEXT.format(n=n, size=s).replace("x", "a").replace(" y", " b"))
              for n, s in enumerate((3000, 17, 2048)[:count])]  # fmt: skip
    lists = [points, norms, points[:1]]
    lists[2] = [parse_kernel(UPDATE.format(n=0, size=100))]
    kernel = emit_list(lists, [list_schedule(nests, {}) for nests in lists])
    tensors = {"c": torch.tensor([3.0]), "rates": torch.tensor([2.0, 3.0, 5.0])}
    for n, (r, c) in enumerate(sizes):
        tensors |= {f"x{n}": torch.randn(r, c), f"y{n}": torch.zeros(r, c), f"s{n}": torch.zeros(r)}
    for n, k in enumerate(points):
        size = int(k.axes[0].extent)
        tensors |= {f"a{n}": torch.randn(size), f"b{n}": torch.randn(size)}
    tensors |= {name: torch.rand(100) for name in ("g0", "m0", "p0")}
    before = {name: t.clone() for name, t in tensors.items()}
    tools.launch(kernel, tensors, {})
    for n, (_, c) in enumerate(sizes):
        torch.testing.assert_close(tensors[f"y{n}"], before[f"x{n}"] * 3)
        total = (before[f"x{n}"] * 3).square().sum(-1) / c
        torch.testing.assert_close(tensors[f"s{n}"], total.clamp(min=0.5))
    for n in range(len(points)):
        torch.testing.assert_close(tensors[f"b{n}"], before[f"a{n}"] * 3 + before[f"b{n}"])
    total = before["m0"] + before["g0"]
    torch.testing.assert_close(tensors["p0"], before["p0"] - (total / 2).sqrt())


def test_pointers_of_many_kernels_are_not_held_in_registers(tools: SimpleNamespace) -> None:
    """All of them would be spilled: 128 steps took 25 times as long as four launches of 32. Where
    one begins elsewhere than at a multiple of 16 bytes, accesses are narrow."""
    nests = [parse_kernel(UPDATE.format(n=n, size=4096).replace(f"rates[{n}]", "rates[0]"))
             for n in range(128)]  # fmt: skip
    source = tools.kernel_source(emit_list([nests], [list_schedule(nests, {})]))
    mask = sum(1 << n for n, p in enumerate(source.params) if p.is_pointer)
    wide, narrow = (
        triton_rt.compile(source, triton_rt.Target(90), alignment=m, keep_ptx=True).ptx
        for m in (mask, mask & ~2)
    )
    assert ".local" not in wide and wide.count("ld.param") < 20
    assert ".v4" in wide and ".v4" not in narrow
