"""What becomes of attention scores is a device function over a tile of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from loop_ir import Kernel, parse_kernel
from triton_emit import BadEpilogue, emit_scores

ALIBI = """
kernel alibi(
    score: f32[2, 3, 64, 100] cpu stride (19695, 6565, 101, 1),
    slopes: f32[3] cpu,
    rows: f32[64] cpu,
    out scores: f32[2, 3, 64, 100] cpu,
):
  parallel i0 < 2, i1 < 3, i2 < 64, i3 < 100:
    once:
      v0 = load score[i0*19695 + i1*6565 + i2*101 + i3] : f32
      v1 = load slopes[i1] : f32
      v2 = load rows[i2] : f32
      v3 = mul(v1, v2) : f32
      v4 = add(v0, v3) : f32
      v5 = tanh(v4) : f32
      store scores[i0*19200 + i1*6400 + i2*100 + i3] = v5
"""


def body(kernel: Kernel, **options: bool) -> list[str]:
    source = emit_scores(kernel, ("score",), "full", **options)
    return source.text.partition("def full(")[2].splitlines()


def test_a_function_of_scores() -> None:
    source = emit_scores(parse_kernel(ALIBI), ("score",), "full")
    assert source.operands == (("full_in0", "*f32"), ("full_in1", "*f32"))
    assert source.args == ("slopes", "rows")
    assert body(parse_kernel(ALIBI)) == [
        "score, batch, head, rm, rn, mask, operands):",
        "    full_in0 = operands[0]",
        "    full_in1 = operands[1]",
        "    full_x0 = tl.load(full_in0 + head)",
        "    full_x1 = tl.load(full_in1 + rm, rm < 64)",
        "    return tanh_f32(score + full_x0 * full_x1)",
    ]


def test_scores_on_their_way_to_16_bits_are_near() -> None:
    assert body(parse_kernel(ALIBI), rounded=True)[-1].startswith("    return tanh_near(")


MANY = "    once:\n      v6 = {index} : i64\n      v7 = cast(v6) : f32\n"


@pytest.mark.parametrize("index", ["index i2*65536 + i3", "index i2"])
def test_many_scores_need_no_wide_places(index: str) -> None:
    """But numbers of them do, which are no places."""
    text = ALIBI.replace("64", "65536").replace("100]", "65536]").replace("i3 < 100", "i3 < 65536")
    text = text.replace("(19695, 6565, 101, 1)", "(12885098499, 4295032833, 65537, 1)")
    text = text.replace("i0*19695 + i1*6565 + i2*101", "i0*12885098499 + i1*4295032833 + i2*65537")
    text = text.replace("    once:\n", MANY.format(index=index)).replace("tanh(v4)", "add(v4, v7)")
    assert ("int64" in "".join(body(parse_kernel(text)))) is ("i3" in index)


def test_scores_of_other_places_are_refused() -> None:
    with pytest.raises(BadEpilogue, match="other places"):
        emit_scores(
            parse_kernel(ALIBI.replace("load score[i0*19695", "load score[")), ("score",), "f"
        )
    kernel = parse_kernel(ALIBI)
    with pytest.raises(BadEpilogue):
        emit_scores(replace(kernel, axes=kernel.axes[1:]), ("score",), "f")
