"""Subgraphs and control of them: what the emitted modules do is what the interpreter does."""

from __future__ import annotations

import pytest
import torch

KERNEL = """\
    kernel {name}(x: *f32 mutated, n: i32) constants (B=16) warps 4 stages 1:
      import triton
      import triton.language as tl

      @triton.jit
      def {name}(x, n, B: tl.constexpr):
          i = tl.arange(0, B)
          tl.store(x + i, tl.load(x + i, i < n) * {by} + 1, i < n)
    end
"""
BODY = """\
  subgraph {name}(x: f32[n] cpu, n: int):
{kernel}    y = extern aten.clone.default(x) -> f32[n] cpu
    launch {name} grid (1, 1, 1) (y, n)
    return (y,)
"""


def body(name: str, by: int) -> str:
    return BODY.format(name=name, kernel=KERNEL.format(name=name, by=by))


TEXT = (
    """\
program main(x: f32[s0] cpu, p: bool[] cpu):
  where s0 in [1, 16] hint 4
  symbol s0 = x.size(0)
"""
    + body("double", 2)
    + body("triple", 3)
    + """\
  subgraph small(x: f32[n] cpu, n: int):
    s = extern aten.max.default(x) -> f32[] cpu
    y = extern aten.lt.Scalar(s, 90.0) -> bool[] cpu
    return (y,)
  subgraph step(c: f32[] cpu, x: f32[] cpu):
    y = extern aten.add.Tensor(c, x) -> f32[] cpu
    z = extern aten.neg.default(y) -> f32[] cpu
    return (y, z)
  subgraph choose = if (double, triple)
  subgraph loop = while (small, double) carries 1
  subgraph running = scan (step,) carries 1 over 1
  (a,) = extern subgraph.double(x, s0) -> (f32[s0] cpu,)
  (b,) = extern subgraph.choose(p, a, s0) -> (f32[s0] cpu,)
  (c,) = extern subgraph.loop(b, s0) -> (f32[s0] cpu,)
  total = extern aten.sum.default(a) -> f32[] cpu
  (_, e) = extern subgraph.running(total, c) -> (_, f32[s0] cpu)
  if s0 < 4:
    (f,) = extern subgraph.triple(e, s0) -> (f32[s0] cpu,)
    copy f -> x
  return (a, b, c, e)
"""
)


def test_what_subgraphs_do(check):
    inputs = [[torch.rand(n), torch.tensor(p)] for n, p in ((3, True), (8, False), (1, True))]
    inputs.append([torch.full((5,), 50.0), torch.tensor(False)])
    made = check(TEXT, *inputs)
    for gm in made.values():
        calls = [n for n in gm.graph.nodes if n.op == "call_module"]
        assert len(calls) == 4
        assert len({id(m) for n, m in gm.named_modules() if type(m).__name__ == "double"}) == 1
        gm.graph.eliminate_dead_code()
        gm.recompile()
        x = torch.tensor([1.0, 2.0])
        torch.testing.assert_close(gm(x, torch.tensor(True))[1], torch.tensor([7.0, 11.0]))


@pytest.mark.parametrize("launch", ["hop", "direct"])
def test_kernels_are_loaded_once(load_jit, load_launcher, launch):
    from fx_emit import emit
    from wrapper_ir import parse_program

    loaded: list[str] = []

    def load(kernel):
        loaded.append(kernel.name)
        return (load_jit if launch == "hop" else load_launcher)(kernel)

    emit(parse_program(TEXT), launch, load_kernel=load)
    assert sorted(loaded) == ["double", "triple"]
