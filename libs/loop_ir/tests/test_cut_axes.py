"""Axes are cut where a quotient of them is read across the rest."""

from __future__ import annotations

import numpy as np
import pytest

from loop_ir import interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.passes.cut_axes import cut

# frames of 64 every 32, as many as fit into 640 + 32, added up
TEXT = """
kernel k(
    x: f32[3, 64, 20] cuda:0,
    out y: f32[3, 672] cuda:0,
):
  parallel i0 < 3, i1 < 672:
    once:
      v0 = index i1//32 : i32
      v1 = const 1 : i32
      v2 = ge(v0, v1) : bool
      v3 = const 20 : i32
      v4 = lt(v0, v3) : bool
      v5 = load x[i0*1280 + i1*20 - i1//32*639 + 639] if v2 else 0 : f32
      v6 = load x[i0*1280 + i1*20 - i1//32*639] if v4 else 0 : f32
      v7 = add(v5, v6) : f32
      store y[i0*672 + i1] = v7
"""


def test_windows_are_tiles() -> None:
    kernel = parse_kernel(TEXT)
    apart = cut(kernel)
    KernelVerifier(apart).run()
    text = print_kernel(apart)
    assert "parallel i0 < 3, i2 < 32, i3 < 21:" in text
    assert "load x[i0*1280 + i2*20 + i3]" in text and "store y[i0*672 + i3*32 + i2]" in text
    x = np.random.default_rng(0).standard_normal((3, 64, 20)).astype(np.float32)
    want = np.zeros((3, 672), np.float32)
    for frame in range(20):
        want[:, frame * 32 : frame * 32 + 64] += x[:, :, frame]
    for each in (kernel, apart):
        np.testing.assert_allclose(interpret_kernel(each, {"x": x})["y"], want, rtol=1e-6)


def test_as_many_windows_as_there_are() -> None:
    """s0 of them, of which the last one ends with the line."""
    text = TEXT.replace("x: f32[3, 64, 20]", "x: f32[3, 64, s0]")
    text = text.replace("672", "(s0*32 + 32)").replace(
        "y: f32[3, (s0*32 + 32)]", "y: f32[3, s0*32 + 32]"
    )
    text = (
        text.replace("i0*1280", "i0*s0*64")
        .replace("i1*20", "i1*s0")
        .replace("const 20", "index s0")
    )
    text = text.replace("i1//32*639 + 639", "i1//32*(s0*32 - 1) + s0*32 - 1")
    text = text.replace("i1//32*639", "i1//32*(s0*32 - 1)")
    text = text.replace("  parallel", "  where s0 in [17, 4096] hint 64\n  parallel")
    kernel = parse_kernel(text)
    apart = cut(kernel)
    KernelVerifier(apart).run()
    assert "i2 < 32, i3 < s0 + 1:" in print_kernel(apart)
    x = np.random.default_rng(0).standard_normal((3, 64, 20)).astype(np.float32)
    want = interpret_kernel(kernel, {"x": x}, {"s0": 20})["y"]
    np.testing.assert_array_equal(interpret_kernel(apart, {"x": x}, {"s0": 20})["y"], want)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("//32", "//48"),  # does not divide the axis in whole tiles
        ("i1//32*639", "i1//8*159"),  # tiles of 8
        ("i1*20 - i1//32*639", "i1//32"),  # the same along the rest: a factor of each block
        ("i0*1280 + i1*20", "i1*20"),  # the same for all rows: a table
    ],
)
def test_what_stays_whole(old: str, new: str) -> None:
    kernel = parse_kernel(TEXT.replace(old, new))
    assert cut(kernel) == kernel
