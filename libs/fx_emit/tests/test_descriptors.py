"""Tensor descriptors, as each launch takes them."""

from __future__ import annotations

import torch

from fx_emit import emit, host
from wrapper_ir import parse_program

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


BLOCKS = """  kernel double(t: tensordesc<f32[4,8]>, u: tensordesc<f32[4,8]> mutated) warps 4 stages 3 ctas 2:
    import triton
    import triton.language as tl


    @triton.jit
    def double(t, u):
        at = [tl.program_id(0) * 4, 0]
        u.store(at, t.load(at) * 2)
  end
"""  # noqa: E501


def test_descriptors(check):
    """One node for the same tensor and block; views and blocks of `if` too."""
    modules = check(
        HEAD + BLOCKS + "  a = alloc f32[s0, 8] cpu\n  d = describe x block (4, 8)  # m.py:2\n"
        "  e = describe a block (4, 8)\n  launch double grid (CeilDiv(s0, 4), 1, 1) (d, e)\n"
        "  launch double grid (CeilDiv(s0, 4), 1, 1) (e, e)\n"
        "  w = alloc f32[s0, 12] cpu\n  extern aten.fill_.Scalar(w, 1) mutates (w,)\n"
        "  v = view w f32[s0, 8] cpu stride (12, 1) offset 4\n  f = describe v block (4, 8)\n"
        "  if n > 0:\n    launch double grid (CeilDiv(s0, 4), 1, 1) (d, f)\n"
        "    g = describe w block (4, 8)\n    launch double grid (CeilDiv(s0, 4), 1, 1) (g, g)\n"
        "  free a\n  return (w,)\n",
        inputs(2), inputs(9, -1), inputs(5),
    )  # fmt: skip
    code = modules["direct"].code
    assert code.count("fx_emit_host_describe(") == 3 and "# m.py:2" in code
    launches = [n for n in modules["hop"].graph.nodes if n.name.startswith("launch_double")]
    blocks = {"t": ("stable", ([4, 8],)), "u": ("stable", ([4, 8],))}
    assert [n.kwargs["tma_descriptor_metadata"] for n in launches] == [blocks] * 2
    assert [str(n) for n in launches[1].kwargs["kwargs"].values()] == ["a", "a"]


def test_descriptors_of_the_callers(load_launcher):
    made = []

    def describe(tensor, block):
        made.append((tensor.shape, block))
        return host.describe(tensor, block)

    text = HEAD + BLOCKS + "  a = alloc f32[s0, 8] cpu\n  d = describe x block (4, 8)\n"
    text += "  e = describe a block (4, 8)\n  launch double grid (1, 1, 1) (d, e)\n  return (a,)\n"
    gm = emit(parse_program(text), "direct", load_kernel=load_launcher, describe=describe)
    (a,) = gm(*inputs(3))
    assert torch.equal(a, inputs(3)[0] * 2) and made == [((3, 8), (4, 8))] * 2


def test_launchers_that_take_tensors_for_descriptors(load_launcher):
    """They get the very view that is described, though others lie at the same address."""
    given = []

    def load(kernel):
        launch = load_launcher(kernel)

        def described(grid, *args):
            given.append([(a.shape, a.stride()) for a in args])
            launch(grid, *(host.describe(a, (4, 8)) for a in args))

        return described

    text = (
        HEAD + BLOCKS + "  w = alloc f32[s0, 16] cpu\n  v = view w f32[s0, 8] cpu stride (16, 1)\n"
    )
    text += "  d = describe x block (4, 8)\n  e = describe v block (4, 8)\n"
    text += "  launch double grid (1, 1, 1) (d, e)\n"
    text += "  if n > 0:\n    launch double grid (1, 1, 1) (e, e)\n  return (v,)\n"
    gm = emit(parse_program(text), "direct", load_kernel=load, describe=None)
    (v,) = gm(*inputs(3))
    assert torch.equal(v, inputs(3)[0] * 4) and "describe" not in gm.code
    assert given == [[((3, 8), (8, 1)), ((3, 8), (16, 1))], [((3, 8), (16, 1))] * 2]
