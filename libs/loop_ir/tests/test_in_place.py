"""Kernels that read what they write: which are right in any order of their points."""

from __future__ import annotations

import pytest

from loop_ir import TakeOver, parse_graph, parse_kernel, verify
from loop_ir.fusion import take_over
from loop_ir.ir.analysis import reads, writes
from loop_ir.ir.in_place import can_share, hazard
from loop_ir.passes.read_written import ReadWritten
from loop_ir.splitting.split_reductions import choose_cut

HEAD = """\
kernel k(
    n: i64[8] cuda:0,
    out x: f32[8, 8] cuda:0,
    out y: f32[8, 8] cuda:0,
):
  parallel i0 < 8:
"""
ROW = """\
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce sum(v0) : f32
"""


def kernel(body: str):
    return parse_kernel(HEAD + body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ROW + """\
    over r0 < 8:
      v2 = div(v0, v1) : f32
      store x[i0*8 + r0] = v2
      store y[i0*8 + r0] = v0
""", None),
        (ROW + """\
    over r0 < 8:
      v2 = load x[r0*8 + i0] : f32
      store x[i0*8 + r0] = v2
      store y[i0*8 + r0] = v1
""", "read at other points"),
        (ROW + """\
    over r0 < 8:
      store x[i0*8 + r0] = v1
    over r0 < 8:
      v2 = add(v0, v1) : f32
      store y[i0*8 + r0] = v2
""", "needed after it is written"),
        ("""\
    once:
      v0 = load x[0] : f32
      store x[0] = v0
      store y[i0] = v0
""", "several points may write"),
        ("""\
    once:
      v0 = load n[i0] : i64
      t0 = indirect v0 < 8
      v1 = load x[t0*8] : f32
      store x[t0*8] = v1
      store y[i0] = v1
""", "several points may write"),
        ("""\
    once:
      v0 = load x[i0] : f32
      store x[i0] += v0
      store y[i0] = v0
""", "is added to and read"),
        ("""\
    once:
      v0 = load y[i0] : f32
      store x[i0] = v0
      v1 = load x[i0] : f32
      store y[i0] = v1
""", "is read after it is written"),
    ],
)  # fmt: skip
def test_hazards(body, why) -> None:
    found = hazard(kernel(body))
    assert found is None if why is None else why in found


def test_rows_that_are_written_once_may_be_shared() -> None:
    """Running statistics do not keep a reduction whole, nor what is written at inner points, but
    where these would be read again."""
    text = """\
kernel k(
    x: f32[1048576] cuda:0,
    out s: f32[1] cuda:0,
):
  single:
    over r0 < 1048576:
      v0 = load x[r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      v2 = load s[0] : f32
      v3 = add(v1, v2) : f32
      store s[0] = v3
"""
    once = parse_kernel(text)
    assert can_share(once) and choose_cut(once, {}) is not None
    inside = """\
kernel k(
    out x: f32[1048576] cuda:0,
    out s: f32[1] cuda:0,
):
  single:
    over r0 < 1048576:
      v0 = load x[r0] : f32
      v1 = exp(v0) : f32
      store x[r0] = v1
      v2 = reduce sum(v1) : f32
    once:
      store s[0] = v2
"""
    summed = parse_kernel(inside)
    assert can_share(summed) and choose_cut(summed, {}) is not None
    spread = parse_kernel(inside.replace("v2 = reduce sum", "v2, v3 = reduce welford"))
    assert not can_share(spread) and choose_cut(spread, {}) is None


TWICE = """\
graph g(
    x: f32[8, 8] cuda:0,
    z: f32[8, 8] cuda:0,
):
  kernel k(
      z: f32[8, 8] cuda:0,
      out x: f32[8, 8] cuda:0,
      out y: f32[8, 8] cuda:0,
  ):
    parallel i0 < 64:
      once:
        v0 = load x[i0] : f32
        v1 = load z[i0] : f32
        v2 = add(v0, v1) : f32
        store x[i0] = v2
        store y[i0] = v2
  kernel m(
      y: f32[8, 8] cuda:0,
      out z: f32[8, 8] cuda:0,
      out w: f32[8] cuda:0,
  ):
    parallel i0 < 8:
      over r0 < 8:
        v0 = load y[i0*8 + r0] : f32
        v1 = reduce sum(v0) : f32
        store z[i0*8 + r0] = v0
      once:
        store w[i0] = v1
  return (w: f32[8] cuda:0)
"""


@pytest.mark.parametrize("changed", [False, True])
def test_what_an_input_has_too_is_read_there(changed: bool) -> None:
    """Unless the reader changes the input."""
    text = TWICE.replace("out z", "out x").replace("store z", "store x") if changed else TWICE
    graph = parse_graph(text)
    _, reader = ReadWritten().run(graph).nodes
    assert reads(reader) == (("y",) if changed else ("x",))
    assert verify(ReadWritten().run(graph)) is None


DYING = """\
graph g(
    x: f32[8, 8] cuda:0,
    z: f32[8, 8] cuda:0,
):
  kernel k(
      z: f32[8, 8] cuda:0,
      x: f32[8, 8] cuda:0,
      out y: f32[8, 8] cuda:0,
  ):
    parallel i0 < 8:
      once:
        v0 = load z[i0] : f32
      over r0 < 8:
        v1 = load x[i0*8 + r0] : f32
        v2 = mul(v0, v1) : f32
        store y[i0*8 + r0] = v2
  kernel m(
      y: f32[8, 8] cuda:0,
      z: f32[8, 8] cuda:0,
      out w: f32[8, 8] cuda:0,
  ):
    parallel i0 < 64:
      once:
        v0 = load y[i0] : f32
        v1 = load z[i0] : f32
        v2 = add(v0, v1) : f32
        store w[i0] = v2
  return (w: f32[8, 8] cuda:0)
"""
ALONE = "    parallel i0 < 8:\n      once:\n        v0 = load z[i0] : f32\n      over r0 < 8:\n"


LATER = "load y[i0] : f32\n        v1 = load %s[i0] : f32"
OTHERS = "      %s: f32[8, 8] cuda:0,\n      out w"


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, ["x", "x"]),
        ({LATER % "z": LATER % "x", OTHERS % "z": OTHERS % "x"}, ["y", "y"]),
        ({"return (w": "return (x: f32[8, 8] cuda:0, z: f32[8, 8] cuda:0, w"}, ["y", "y"]),
        ({"load x[i0*8 + r0]": "load x[r0*8 + i0]"}, ["y", "y"]),
        ({"z: f32[8, 8]": "z: f32[8, 9]"}, ["x", "x"]),
        ({ALONE: ALONE + """\
        v4 = load x[i0*8 + r0] : f32
        v3 = reduce sum(v4) : f32
      over r0 < 8:
"""}, ["x", "x"]),
    ],
    ids=["both", "read later", "returned", "other points", "other size", "read twice"],
)  # fmt: skip
def test_what_dies_is_taken_over(changes, written, monkeypatch) -> None:
    """Each by one result; others are made as before."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    text = DYING
    for old, new in changes.items():
        text = text.replace(old, new)
    graph = parse_graph(text)
    verify(graph)
    after = TakeOver(frozenset("xz")).run(graph)
    verify(after)
    assert [name for node in after.nodes for name in writes(node)] == written
    monkeypatch.setattr(take_over, "programs_of_row", lambda kernel, hints: 2)
    assert TakeOver(frozenset("xz")).run(graph) is graph
    monkeypatch.undo()
    monkeypatch.setattr(take_over, "LEAST", 0)
    alone = TakeOver(frozenset()).run(graph)
    assert [name for node in alone.nodes for name in writes(node)] == ["y", "y"]


BUSY = """\
graph g(
    x: f32[64] cuda:0,
):
  extern %s(x: f32[64] cuda:0)
    out r: f32[64] cuda:0
  kernel k(
      x: f32[64] cuda:0,
      out y: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      once:
        v0 = load x[i0] : f32
        v1 = exp(v0) : f32
        store y[i0] = v1
  extern _c10d_functional.wait_tensor.default(r: f32[64] cuda:0)
    out w: f32[64] cuda:0
  return (y: f32[64] cuda:0, w: f32[64] cuda:0)
"""


@pytest.mark.parametrize(
    ("call", "written"),
    [("aten.sin.default", "x"), ("_c10d_functional.all_to_all_single.default", "y")],
)
def test_what_a_communication_still_reads_is_not_taken_over(call, written, monkeypatch) -> None:
    """Other ranks read it until somebody waits."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    _, kernel, _ = TakeOver(frozenset("x")).run(parse_graph(BUSY % call)).nodes
    assert writes(kernel) == (written,)


MADE = """\
graph g(
    x: f32[64] cuda:0,
):
  extern %s(x: f32[64] cuda:0)
    out t: f32[64] cuda:0
  kernel k(
      t: f32[64] cuda:0,
      out y: f32[64] cuda:0,
  ):
    parallel i0 < 64:
      once:
        v0 = load t[i0] : f32
        v1 = exp(v0) : f32
        store y[i0] = v1
  return (y: f32[64] cuda:0)
"""


@pytest.mark.parametrize(
    ("call", "written"), [("aten.convolution.default", "t"), ("aten.contiguous.default", "y")]
)
def test_what_a_call_may_share_is_not_taken_over(call, written, monkeypatch) -> None:
    """What it returns may be what it was given."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    _, kernel = TakeOver(frozenset()).run(parse_graph(MADE % call)).nodes
    assert writes(kernel) == (written,)
