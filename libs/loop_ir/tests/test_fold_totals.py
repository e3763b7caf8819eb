"""Numbers of a crowd of kernels are folded by those that read them; what is split is few parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loop_ir import (
    Compute,
    DType,
    Graph,
    GraphInput,
    Index,
    Kernel,
    Store,
    Symbol,
    fuse,
    interpret_graph,
    parse_graph,
    print_graph,
    verify,
)
from loop_ir.fusion.fold_totals import FoldTotals
from loop_ir.splitting.crowds import CROWD, FEW
from symexpr import symbol

MEMBER = """
  kernel total{n}(
      p{n}: f32[{parts}] cuda:0,
      out t{n}: f32[] cuda:0,
  ):
    single:
      over r0 < {parts}:
        v0 = load p{n}[r0] : f32
        v1 = reduce {fold}(v0) : f32
      once:
        v2 = abs(v1) : f32
        store t{n}[0] = v2
  kernel apply{n}(
      x{n}: f32[40, 30] cuda:0,
      t{n}: f32[] cuda:0,
      out {out}: f32[40, 30] cuda:0,
  ):
    parallel r0 < 40, r1 < 30:
      once:
        v0 = load x{n}[30*r0 + r1] : f32
        v1 = load t{n}[0] : f32
        v2 = div(v0, v1) : f32
        store {out}[30*r0 + r1] = v2
"""


def graph(count: int, parts: int, fold: str = "sum", result: str = "", out: str = "y{n}") -> Graph:
    """So many totals of so many numbers, each of which one kernel reads."""
    outs = [out.format(n=n) for n in range(count)]
    inputs = "".join(
        f"    p{n}: f32[{parts}] cuda:0,\n    x{n}: f32[40, 30] cuda:0,\n" for n in range(count)
    )
    members = (
        MEMBER.format(n=n, parts=parts, fold=fold, out=o).replace("x{n}", f"x{n}")
        for n, o in enumerate(outs)
    )
    returned = ", ".join([*(f"{o}: f32[40, 30] cuda:0" for o in outs), *filter(None, [result])])
    return parse_graph(f"graph g(\n{inputs}):{''.join(members)}  return ({returned})\n")


def numbers(g: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        i.name: rng.standard_normal([int(n) for n in i.type.size]).astype(np.float32)
        for i in g.inputs
        if i.type is not None
    }


@pytest.mark.parametrize("fold", ["sum", "max"])
def test_totals_are_folded_by_those_that_read_them(fold: str) -> None:
    before = graph(CROWD, 37, fold)
    after = FoldTotals().run(before)
    verify(after)
    assert len(after.nodes) == CROWD
    given = numbers(before)
    for got, want in zip(
        interpret_graph(after, dict(given)), interpret_graph(before, dict(given)), strict=True
    ):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "kept",
    [
        graph(CROWD // 2 - 1, 37),  # no crowd
        graph(CROWD, FEW + 1),  # too many numbers for each program
        graph(CROWD, 37, result=", ".join(f"t{n}: f32[] cuda:0" for n in range(CROWD))),
    ],
    ids=["few kernels", "many numbers", "results"],
)
def test_others_stay(kept: Graph) -> None:
    assert FoldTotals().run(kept) is kept or FoldTotals().run(kept) == kept


def of_rows(g: Graph, extent: int) -> Graph:
    """The graph with kernels that each fold rows of so many, too, which they read by the total."""
    rows = f"""over r2 < {extent}:
        v3 = load x{{n}}[r2 + 30*r0] : f32
        v4 = reduce sum(v3) : f32
      """
    text = print_graph(g)
    for n in range(CROWD):
        head, tail = text.split(f"  kernel apply{n}(", 1)
        tail = tail.replace("once:", rows.format(n=n) + "once:", 1)
        tail = tail.replace(
            "v2 = div(v0, v1)", "v5 = add(v0, v4) : f32\n        v2 = div(v5, v1)", 1
        )
        text = f"{head}  kernel apply{n}({tail}"
    return parse_graph(text)


@pytest.mark.parametrize(("extent", "folded"), [(30, True), (25, False)])
def test_short_rows_do_not_fold_longer_totals(extent: int, folded: bool) -> None:
    before = of_rows(graph(CROWD, 30), extent)
    after = FoldTotals().run(before)
    verify(after)
    assert len(after.nodes) == (CROWD if folded else 2 * CROWD)


def test_what_a_total_is_of_is_not_written_meanwhile() -> None:
    """A program would read what another one wrote."""
    kernels = "".join(
        MEMBER.format(n=n, parts=200, fold="sum", out=f"p{n}")
        .replace(f"x{n}[30*r0 + r1]", f"p{n}[30*r0 + r1]")
        .replace(f"      x{n}: f32[40, 30] cuda:0,\n", "")
        .replace("40, 30", "200")
        .replace("parallel r0 < 40, r1 < 30", "parallel r0 < 200")
        .replace("30*r0 + r1", "r0")
        for n in range(CROWD)
    )
    inputs = "".join(f"    p{n}: f32[200] cuda:0,\n" for n in range(CROWD))
    before = parse_graph(f"graph g(\n{inputs}):{kernels}  return ()\n")
    assert FoldTotals().run(before) == before


def test_what_a_total_knows_of_sizes_comes_with_it() -> None:
    """A mean of rows of any length, by which something of a static size is divided."""
    before = graph(CROWD, 37)
    sized = (Symbol("s0", 1, 4096, 100),)
    s0 = symbol("s0")

    def of_rows(k: Kernel) -> Kernel:
        (folds, once) = k.phases
        *_, store = once.body
        assert isinstance(store, Store)
        mean = (Index("n", s0, DType.i64), Compute("f", "cast", ("n",), DType.f32),
                Compute("m", "div", ("v1", "f"), DType.f32), replace(store, value="m"))  # fmt: skip
        return replace(k, phases=(folds, replace(once, body=mean)), symbols=sized)

    nodes = tuple(
        of_rows(k) if isinstance(k, Kernel) and k.name.startswith("total") else k
        for k in before.nodes
    )
    first = before.inputs[0].type
    assert first is not None
    rows = GraphInput("rows", replace(first, size=(s0,)))
    before = replace(before, nodes=nodes, inputs=(*before.inputs, rows), symbols=sized)
    verify(before)
    after = FoldTotals().run(before)
    verify(after)
    assert len(after.nodes) == CROWD


LARGE = """
  kernel k{n}(
      x{n}: f32[{rows}, 768] cuda:0,
      out y{n}: f32[{rows}, 768] cuda:0,
  ):
    single:
      over r0 < {rows}, r1 < 768:
        v0 = load x{n}[768*r0 + r1] : f32
        v1 = mul(v0, v0) : f32
        v2 = reduce sum(v1) : f32
      over r0 < {rows}, r1 < 768:
        v3 = load x{n}[768*r0 + r1] : f32
        v4 = div(v3, v2) : f32
        store y{n}[768*r0 + r1] = v4
"""


def levels(sizes: list[int]) -> list[list[Kernel]]:
    """Matrices scaled by their squares, of so many rows, fused and split; those that may be one
    launch together."""
    inputs = "".join(f"    x{n}: f32[{rows}, 768] cuda:0,\n" for n, rows in enumerate(sizes))
    text = "".join(LARGE.format(n=n, rows=rows) for n, rows in enumerate(sizes))
    outs = ", ".join(f"y{n}: f32[{rows}, 768] cuda:0" for n, rows in enumerate(sizes))
    g = fuse(parse_graph(f"graph g(\n{inputs}):{text}  return ({outs})\n"))
    made: dict[str, int] = {}
    found: dict[int, list[Kernel]] = {}
    for k in g.nodes:
        assert isinstance(k, Kernel)
        level = max((made.get(b.name, -1) for b in k.buffers), default=-1) + 1
        made |= {b.name: level for b in k.buffers if b.written}
        found.setdefault(level, []).append(k)
    return list(found.values())


def test_a_crowd_is_split_into_two_launches() -> None:
    """Alone each is three: partial sums, what they fold to, and what is done with that."""
    assert len(levels([3072])) == 3
    many = levels([768, 3072, 2304, 8000] * 4)
    assert len(many) == 2
    programs = [int(k.axes[0].extent) for k in many[0]]
    assert max(programs) <= FEW and 500 < sum(programs) < 3000
    assert programs[3] > 4 * programs[0]  # each has as much to do
    assert len(levels([768, 3072, 2304, 8000] * 4 + [50257])) == 2


def test_a_crowd_that_fills_the_machine_is_not_split() -> None:
    """Small ones, and so many that each may take as long as all together."""
    assert len(levels([4] * 30)) == 1
    assert len(levels([768] * 400)) == 1
    assert len(levels([768] * 20)) == 2


def test_a_total_that_does_something_else_still_does_it() -> None:
    """`clip_grad_norm_`: what all are scaled by, a number is scaled by in the same kernel."""
    inputs = "".join(f"    x{n}: f32[40] cuda:0,\n" for n in range(CROWD))
    total = """
  kernel total(
      p: f32[9] cuda:0,
      out q: f32[1] cuda:0,
      out t: f32[] cuda:0,
  ):
    single:
      over r0 < 9:
        v0 = load p[r0] : f32
        v1 = reduce sum(v0) : f32
      once:
        v2 = load q[0] : f32
        v3 = mul(v2, v1) : f32
        store q[0] = v3
        store t[0] = v1
"""
    scaled = "".join(
        f"""
  kernel k{n}(
      t: f32[] cuda:0,
      out x{n}: f32[40] cuda:0,
  ):
    {where}:
      once:
        v0 = load x{n}[{at}] : f32
        v1 = load t[0] : f32
        v2 = mul(v0, v1) : f32
        store x{n}[{at}] = v2
"""
        for n, (where, at) in enumerate([("single", "7"), *[("parallel i0 < 40", "i0")] * 7])
    )
    head = f"    p: f32[9] cuda:0,\n    q: f32[1] cuda:0,\n{inputs}"
    results = ", ".join(["q: f32[1] cuda:0", *(f"x{n}: f32[40] cuda:0" for n in range(CROWD))])
    before = parse_graph(f"graph g(\n{head}):{total}{scaled}  return ({results})\n")
    after = FoldTotals().run(before)
    verify(after)
    assert len(after.nodes) == len(before.nodes)
    assert not any(b.name == "t" for k in after.nodes if isinstance(k, Kernel) for b in k.buffers)
    given = numbers(before)
    outs = [interpret_graph(g, {k: v.copy() for k, v in given.items()}) for g in (after, before)]
    for got, want in zip(*outs, strict=True):
        np.testing.assert_array_equal(got, want)
