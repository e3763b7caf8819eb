"""Views: over parameters and storages, as other elements, and which of them launches need."""

from __future__ import annotations

import pytest
import torch

from fx_emit import emit
from wrapper_ir import parse_program

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


def test_view_counts_from_the_first_element_of_a_parameter(check):
    base = torch.arange(200, dtype=torch.float32)
    offset = [base[37:101].reshape(8, 8), 3]
    modules = check(
        HEAD + "  v = view x f32[8, s0] cpu stride (1, 8)\n"
        "  w = view v f32[s0, 3] cpu stride (8, 1) offset 5\n"
        "  i = view w i32[s0, 8] cpu\n  h = view x bf16[s0*8] cpu stride (2,) offset 1\n"
        "  b = extern aten.mul.Tensor(w, n) -> f32[s0, 3] cpu\n"
        "  extern aten.add_.Scalar(w, 1) mutates (w,)\n  return (v, w, i, h, b)\n",
        inputs(4), offset,
    )  # fmt: skip
    out = modules["direct"](*offset)
    assert out[0].storage_offset() == 37 and out[1].storage_offset() == 42


def test_view_of_an_unaligned_parameter_as_larger_elements(check, load_jit):
    text = "program p(x: bf16[8] cpu):\n  v = view x f32[4] cpu\n  return (v,)\n"
    check(text, [torch.arange(8.0).bfloat16()], [torch.arange(20.0).bfloat16()[2:10]])
    gm = emit(parse_program(text), load_kernel=load_jit)
    with pytest.raises(Exception, match="starts at byte 2"):
        gm(torch.arange(20.0).bfloat16()[1:9])


def test_views_that_are_seen_outside_are_torchs_own(check):
    """The writes of their owner count for them, and the other way around."""
    modules = check(
        HEAD + "  v = view x f32[8, s0] cpu stride (1, 8)\n  w = view v f32[s0*8] cpu\n"
        "  extern aten.relu_.default(w) mutates (w,)\n"
        "  a = extern aten.mul.Tensor(w, 2) -> f32[8*s0] cpu\n  u = view a f32[s0, 8] cpu\n"
        "  return (v, u)\n",
        inputs(2),
    )  # fmt: skip
    for gm in modules.values():
        x, n = inputs(2)
        version = x._version
        v, u = gm(x, n)
        assert v._base is x and v._version == x._version == version + 1
        assert u._base is None  # of a tensor that nobody else has


def test_a_returned_view_is_no_argument(check):
    """Nor another result, though it has its layout: eager gives objects of their own."""
    text = HEAD + "  v = view x f32[s0, 8] cpu\n  a = alloc f32[s0, 8] cpu\n  copy x -> a\n"
    modules = check(text + "  w = view a f32[s0, 8] cpu\n  return (v, a, w)\n", inputs(2))
    for gm in modules.values():
        x, n = inputs(2)
        v, a, w = gm(x, n)
        assert v is not x and v._base is x and w is not a and w._base is None


def test_a_view_between_storages_keeps_the_right_one(check):
    """An element type comes back after another one, and begins where the storage does."""
    check(
        HEAD + "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(a, 1) mutates (a,)\n"
        "  b = reuse a i32[s0*2] cpu\n  extern aten.fill_.Scalar(b, 7) mutates (b,)\n"
        "  c = reuse b f32[s0] cpu\n  extern aten.fill_.Scalar(c, 3) mutates (c,)\n"
        "  v = view c f32[2] cpu offset 1\n  e = extern aten.exp.default(v) -> f32[2] cpu\n"
        "  return (e, c)\n",
        inputs(3),
    )


def test_a_view_of_memory_that_is_used_again_is_written_to(check):
    """No node stands for the storage itself: nothing but the view is asked for."""
    check(
        HEAD + "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(a, 1) mutates (a,)\n"
        "  b = reuse a f32[s0*8] cpu\n  v = view b f32[8, s0] cpu\n"
        "  extern aten.fill_.Scalar(v, 7) mutates (v,)\n  return (v,)\n",
        inputs(3),
    )
