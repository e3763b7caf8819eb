"""Inner axes whose last one is padded to a power of two, so that no lane divides."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from loop_ir import parse_kernel
from triton_emit import Schedule, emit
from triton_emit.schedule import Kind

# means over the second and the last of four dimensions
TEXT = """\
kernel means(
    x: {dtype}[3, s0, 5, {n}] cuda:0,
    w: f32[s0] cuda:0,
    out y: f32[3, 5] cuda:0,
    out z: f32[3, 5] cuda:0,
):
  where s0 in [0, 64] hint 6
  parallel i0 < 3, i1 < 5:
    over r0 < s0, r1 < {n}:
      v0 = load x[i0*s0*{row} + r0*{row} + i1*{n} + r1] : {dtype}
      v1 = cast(v0) : f32
      v2 = load w[r0] : f32
      v3 = mul(v1, v2) : f32
      v4 = reduce sum(v3) : f32
      v5 = reduce {op}(v1) : {result}
    once:
      v6 = cast(v5) : f32
      store y[i0*5 + i1] = v4
      store z[i0*5 + i1] = v6
"""


def means(n: int, op: str = "max", dtype: str = "bf16") -> str:
    result = {"any": "bool", "argmax": "i64"}.get(op, "f32")
    return TEXT.format(n=n, row=5 * n, op=op, result=result, dtype=dtype)


SCHEDULES: list[tuple[Kind, int]] = [("looped", 16), ("persistent", 512)]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("kind", "block"), SCHEDULES)
@pytest.mark.parametrize("op", ["max", "min", "prod", "any"])
@pytest.mark.parametrize("count", [6, 1])
def test_folds(kind: Kind, block: int, op: str, count: int, tools: SimpleNamespace) -> None:
    """Lanes without an element count for none, whatever is folded, and rows may be any number."""
    kernel = parse_kernel(means(7, op))
    emitted = tools.check(kernel, Schedule(kind, 1, block), symbols={"s0": count}, ulp=16.0)
    assert "rindex % 8 < 7" in emitted.source and "% 7" not in emitted.source


def test_blocks_of_whole_rows(tools: SimpleNamespace) -> None:
    """What is left of the mask is the padding alone."""
    text = means(7).replace("  where s0 in [0, 64] hint 6\n", "").replace("s0", "4")
    kernel = parse_kernel(text)
    emitted = tools.check(kernel, Schedule("looped", 1, 16))
    assert "rmask = rindex % 8 < 7\n" in emitted.source


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (means(5), 1),  # more than an eighth of the lanes would have nothing
        (means(8), 1),  # a power of two
        (means(7), 2),  # a row shares its places with others
        (means(7, "argmax", "f32"), 1),  # places are those of elements
        (means(120, dtype="f32"), 1),  # all moves in vectors
        (means(7).replace("s0", "s1").replace("7", "s0"), 1),  # any number
    ],
)
def test_what_is_not_padded(text: str, rows: int) -> None:
    source = emit(parse_kernel(text), Schedule("looped", rows, 64)).source
    assert "rmask = rindex < " in source


def test_blocks_that_padded_rows_do_not_fit() -> None:
    text = means(7).replace("  where s0 in [0, 64] hint 6\n", "").replace("s0", "9")
    source = emit(parse_kernel(text), Schedule("persistent", 1, 64)).source
    assert "rmask = rindex < 63" in source
