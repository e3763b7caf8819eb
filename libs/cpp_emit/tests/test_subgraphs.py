"""Subgraphs, control of them, and sizes that hang on data: functions of one library, in both modes
against the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import cpp_emit
from cpp_emit.errors import UnsupportedArgument, UnsupportedOp
from wrapper_ir import parse_program

TEXT = """\
program subgraphs(x: f32[s0] cpu, p: bool[] cpu):
  where s0 in [1, 64] hint 4
  where u0 in [0, *]
  where u1 in [0, 64]
  where u2 in [0, *]
  symbol s0 = x.size(0)
  subgraph double(x: f32[n] cpu, n: int):
    where n in [1, 64]
    list = constant f32[] cpu "two"
    run = extern aten.mul.Tensor(x, list) -> f32[n] cpu
    return (run, n)
  subgraph around(x: f32[n] cpu, n: int):
    subgraph double(x: f32[m] cpu, m: int):
      y = extern aten.mul.Tensor(x, x) -> f32[m] cpu
      return (y,)
    (y,) = extern subgraph.double(x, n) -> (f32[n] cpu,)
    limit = constant f32[] cpu "limit"
    z = extern aten.minimum.default(y, limit) -> f32[n] cpu
    return (z, 7)
  subgraph more(x: f32[n] cpu, n: int):
    limit = constant f32[] cpu "limit"
    m = extern aten.max.default(x) -> f32[] cpu
    y = extern aten.lt.Tensor(m, limit) -> bool[] cpu
    return (y,)
  subgraph never(x: f32[n] cpu, n: int):
    return (n < 0,)
  subgraph once(x: f32[n] cpu, n: int):
    y = extern aten.clone.default(x) -> f32[n] cpu
    return (y,)
  subgraph twice(x: f32[n] cpu, n: int):
    two = constant f32[] cpu "two"
    y = extern aten.mul.Tensor(x, two) -> f32[n] cpu
    return (y,)
  subgraph step(c: f32[] cpu, x: f32[] cpu, w: f32[] cpu):
    y = extern aten.mul.Tensor(c, x) -> f32[] cpu
    z = extern aten.maximum.default(y, w) -> f32[] cpu
    return (y, z)
  subgraph choose = if (double, around)
  subgraph loop = while (more, twice) carries 1
  subgraph steps = trace (more, twice) carries 1
  subgraph still = while (never, once) carries 1
  subgraph running = scan (step,) carries 1 over 1
  (a, _) = extern subgraph.choose(p, x, s0) -> (f32[s0] cpu, _)
  (b, _) = extern subgraph.choose(s0 > 3, a, s0) -> (f32[s0] cpu, _)
  (c,) = extern subgraph.loop(b, s0) -> (f32[s0] cpu,)
  (d,) = extern subgraph.steps(b, s0) binds (u0,) -> (f32[u0, s0] cpu,)
  (e,) = extern subgraph.still(x, s0) -> (f32[s0] cpu,)
  total = extern aten.prod.default(x) -> f32[] cpu
  (f, g) = extern subgraph.running(total, c, total) -> (f32[] cpu, f32[s0] cpu)
  at = extern aten.nonzero.default(x) binds (u1,) -> i64[u1, 1] cpu
  last = extern aten.max.default(at) -> i64[] cpu
  symbol u2 = last.item()
  assert u2 < s0 "a place"
  if s0 > 5:
    (h,) = extern subgraph.once(c, s0) -> (f32[s0] cpu,)
    copy h -> x
  return (a, b, c, d, e, f, g, at, u0*u1 + u2)
"""
CONSTANTS = {"two": torch.tensor(2.0), "limit": torch.tensor(90.0)}


@pytest.mark.parametrize("mode", ["lazy", "aot"])
def test_what_subgraphs_do(both: Callable[..., Any], mode: str) -> None:
    p = both(TEXT, constants=CONSTANTS, mode=mode)
    assert "call_python" not in p.text
    for n, truth in ((3, True), (8, False), (1, True)):
        p.check(torch.rand(n) + 0.5, torch.tensor(truth))
    p.check(torch.full((6,), 200.0), torch.tensor(False))  # no loop runs


def test_a_loop_that_never_runs_gives_memory_of_its_own(both: Callable[..., Any]) -> None:
    x = torch.rand(4) + 0.5
    e = both(TEXT, constants=CONSTANTS).run(x, torch.tensor(True))[4]
    assert torch.equal(e, x) and e.data_ptr() != x.data_ptr()


def test_errors_within_a_subgraph_name_it(both: Callable[..., Any]) -> None:
    text = TEXT.replace("n in [1, 64]", "n in [1, 2]", 1)
    with pytest.raises(RuntimeError, match=r"double: symbol n: expected .*\[1, 2\], got 3"):
        both(text, constants=CONSTANTS).run(torch.ones(3), torch.tensor(True))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("subgraph.loop(b, s0)", "subgraph.loop(s0, b)", UnsupportedArgument),
        ("(b, _) = extern subgraph.choose(s0 > 3, a, s0) -> (f32[s0] cpu, _)",
         "(b, bad) = extern subgraph.choose(s0 > 3, a, s0) -> (f32[s0] cpu, f32[] cpu)",
         UnsupportedArgument),
        ("(a, _) = extern subgraph.choose(p, x, s0) -> (f32[s0] cpu, _)",
         "(a,) = extern subgraph.choose(p, x, s0) -> (f32[s0] cpu,)", UnsupportedOp),
    ],
)  # fmt: skip
def test_calls_without_a_cpp_form_are_named(old: str, new: str, error: type[Exception]) -> None:
    assert old in TEXT
    with pytest.raises(error, match="subgraph"):
        cpp_emit.emit(parse_program(TEXT.replace(old, new)), schemas=cpp_emit.torch_schema)


BODY = """\
  subgraph f{by}(x: f32[n] cuda:0, n: int):
    kernel {name}(a: *f32 mutated, n: i32) constants (BY={by}) warps 4 stages 3:
      def {name}(a, n, BY): ...
    end
    y = extern aten.clone.default(x) -> f32[n] cuda:0
    launch {name} grid (1, 1, 1) (y, n)
    return (y,)
"""
ON_GPU = f"""\
program main(x: f32[s0] cuda:0, p: bool[] cuda:0):
  symbol s0 = x.size(0)
{BODY.format(name="double", by=2)}{BODY.format(name="triple", by=3)}\
  subgraph pick = if (f2, f3)
  (y,) = extern subgraph.pick(p, x, s0) -> (f32[s0] cuda:0,)
  return (y,)
"""


def test_kernels_of_subgraphs_are_in_one_table(folder: Path) -> None:
    program = parse_program(ON_GPU)
    numbers = dict.fromkeys(
        ("alignment", "shared_bytes", "global_scratch_bytes", "profile_scratch_bytes"), 0
    )
    params = tuple(SimpleNamespace(name=name) for name in "an")
    one = {"cubin": b"\x7fELF", "num_warps": 4, "num_ctas": 1, "global_scratch_align": 1}
    binaries = {
        name: SimpleNamespace(
            name=f"{name}_0", params=params, cooperative=False, pdl=False, **one, **numbers
        )
        for name in ("double", "triple")
    }
    text = cpp_emit.emit(program, "aot", schemas=cpp_emit.torch_schema, binaries=binaries)
    assert "call_python" not in text
    for number, name in enumerate(binaries):
        assert f'launch(self, stream, {number}, {{1, 1, 1}}, "launch {name}"' in text
    run = cpp_emit.load(cpp_emit.build(text, folder, "picked"), program)
    with pytest.raises(RuntimeError, match="parameter x: expected f32 of rank 1 on cuda:0, got"):
        run(torch.ones(3), torch.tensor(True))
