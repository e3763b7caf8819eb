"""When memory is let go of."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fx_emit import Run, emit
from wrapper_ir import parse_program

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


class Alive(TorchDispatchMode):
    """Whether the storage of the first operator's first argument is alive at each later call."""

    def __init__(self):
        super().__init__()
        self.storage = None
        self.alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.storage is not None:
            self.alive[str(func)] = not self.storage.expired()
        elif str(func) == "aten.fill_.Scalar":
            self.storage = StorageWeakRef(args[0].untyped_storage())
        return func(*args, **(kwargs or {}))


def test_free_drops_the_memory(check):
    text = HEAD + (
        "  a = alloc f32[s0, 8] cpu\n  v = view a f32[4] cpu\n"
        "  extern aten.fill_.Scalar(v, 1) mutates (v,)\n"
        "  extern aten.add_.Scalar(a, 1) mutates (a,)\n  free a\n"
        "  extern aten.relu_.default(x) mutates (x,)\n  return ()\n"
    )
    for gm in check(text, inputs(2)).values():
        free = next(n for n in gm.graph.nodes if n.name == "free_a")
        assert [str(a) for a in free.args] == ["a"] and "a = free_a = None" in gm.code
        gc.collect()
        with Alive() as seen:
            gm(*inputs(2))
        assert seen.alive == {"aten.add_.Scalar": True, "aten.relu_.default": False}


def test_a_boxed_run_lets_go_of_its_arguments(load_launcher):
    text = HEAD + (
        "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(x, 2) mutates (x,)\n"
        "  copy x -> a\n  b = extern aten.mul.Tensor(a, n) -> f32[s0, 8] cpu\n  return (b,)\n"
    )
    gm = emit(parse_program(text), "direct", load_kernel=load_launcher)
    run = Run(gm)
    for call, alive in ((run.boxed, False), (lambda args: run(*args), True)):
        args = inputs(3)
        with Alive() as seen:
            (b,) = call(args)
        assert torch.equal(b, torch.full((3, 8), 6.0)) and args == ([] if not alive else args)
        assert seen.alive == {"aten.copy_.default": True, "aten.mul.Tensor": alive}
    (mul,) = [n for n in gm.graph.nodes if n.name == "b"]
    mul.target = torch.ops.aten.add.Tensor
    gm.recompile()
    for result in (run.boxed(inputs(3)), run(*inputs(3)), gm(*inputs(3))):
        assert torch.equal(result[0], torch.full((3, 8), 5.0)), "an edit is followed"
    with pytest.raises(ValueError, match="expected 2"):
        run.boxed(inputs(3)[:1])
    nothing = Run(emit(parse_program("program p():\n  return ()\n"), load_kernel=load_launcher))
    assert nothing.boxed([]) == nothing() == ()
