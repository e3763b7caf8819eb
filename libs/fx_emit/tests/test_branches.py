"""Branches and assertions."""

from __future__ import annotations

import copy

import pytest
import torch

from fx_emit import host, is_impure
from wrapper_ir.errors import AssertionFailed

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""
SCALE = """  kernel scale(x: *f32, out: *f32 mutated, by: f32, n: i32) constants (BLOCK=16, PLUS=1) warps 4 stages 3:
    import triton
    import triton.language as tl


    @triton.jit
    def scale(x, out, by, n, BLOCK: tl.constexpr, PLUS: tl.constexpr):
        i = (tl.program_id(0) + tl.program_id(1)) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) * by + PLUS, mask=i < n)
  end
"""  # noqa: E501


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


IF = (
    HEAD
    + SCALE
    + """  a = alloc f32[s0, 8] cpu
  extern aten.fill_.Scalar(a, 1) mutates (a,)
  if s0*s0 <= 9 and n > 0 and n < 8:
    t = alloc f32[s0] cpu
    launch scale grid (1, 1, 1) (x, t, 3.0, s0)
    v = view a f32[s0] cpu stride (8,) offset n
    extern aten.add_.Tensor(v, t) mutates (v,)
    free t
    if n == 2:
      launch scale grid (s0, 1, 1) (a, x, 1.0, s0*8)
  else:
    w = view x f32[s0, 4] cpu stride (8, 1) offset 4
    extern aten.mul_.Scalar(w, n) mutates (w,)
  return (a,)
"""
)


def test_if(check):
    base = torch.arange(100, dtype=torch.float32)
    offset = [base[10:34].reshape(3, 8), 2]
    modules = check(IF, inputs(2, 2), inputs(2, 1), inputs(4), inputs(2, -3), offset)
    for gm in modules.values():
        before = gm(*inputs(2, 2))[0]
        gm.graph.eliminate_dead_code(is_impure)
        gm.recompile()
        assert torch.equal(gm(*inputs(2, 2))[0], before)


CHAIN = (
    HEAD
    + """  if s0 <= 1:
    extern aten.add_.Scalar(x, 1) mutates (x,)
  else:
    if n <= 0:
      extern aten.add_.Scalar(x, 2) mutates (x,)
    else:
      if s0 <= 3:
        extern aten.add_.Scalar(x, 4) mutates (x,)
      else:
        if FloorDiv(8, n) <= 2:
          extern aten.add_.Scalar(x, 8) mutates (x,)
  return (x,)
"""
)


def test_a_chain_of_ifs_is_one_call(check):
    """But for conditions that an earlier one may guard: 8 // n is not looked at where n is 0."""
    modules = check(
        CHAIN, inputs(1, 5), inputs(2, 0), inputs(3, 1), inputs(4, 3), inputs(4, 2), inputs(5, 0)
    )
    for gm in modules.values():
        assert [name for name, _ in gm.named_children()] == [
            "then_0",
            "then_1",
            "then_2",
            "orelse_0",
        ]
        (call,) = [n for n in gm.graph.nodes if n.target is host.branch]
        assert len(call.args[0]) == 3 and "floordiv" not in gm.code
        other = copy.deepcopy(gm)
        other.then_0 = other.then_1  # an edit of what runs
        before = inputs(1, 5)[0]
        assert torch.equal(other(*inputs(1, 5))[0], before + 2)
        assert torch.equal(gm(*inputs(1, 5))[0], before + 1)


def test_assert(check):
    modules = check(HEAD + '  assert s0*n < 20 "too much"\n  return ()\n', inputs(2))
    for gm in modules.values():
        with pytest.raises(AssertionFailed, match=r"too much \(n=3, s0=9\)"):
            gm(*inputs(9))
