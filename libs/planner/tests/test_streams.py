"""Two streams where they are faster: what is measured, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import planner.streams
from planner import Settings
from planner.streams import Overlap, gives_alone, overlap
from wrapper_ir import DefineKernel, ExternCall, KernelParam, Program, parse_program
from wrapper_ir.passes import InsertFrees, OverlapBranches, PlanMemory, run_passes


def programs(size: int, between: str = "") -> tuple[Program, Program]:
    """Two chains of products, and the product of both, on one stream and on two."""
    type = f"f32[{size}, {size}] cuda:0"
    text = f"program p(x: {type}, w: {type}):\n{between}"
    for name, *read in ("axw", "bax", "cbx", "dww", "edx", "fex", "gcf"):
        text += f"  {name} = extern aten.mm.default({', '.join(read)}) -> {type}\n"
    text += "  return (g,)\n"
    one = parse_program(text)
    memory = [InsertFrees(), PlanMemory()]
    return run_passes(one, memory), run_passes(OverlapBranches().run(one), memory)


@pytest.mark.parametrize(
    ("size", "between", "why"),
    [
        (1024, "", "no GPU"),
        (1024, "", "more memory"),
        (
            1024,
            "  r = extern aten.rand.default((4,)) -> f32[4] cuda:0\n",
            "rand.default may do more",
        ),
        (1024, "  extern eager.part0.default(x) mutates (x,)\n", "may do more"),
        (1024, '  s = comm_alloc f32[4] cuda:0 group "0"\n  comm_free s\n', "ranks decide alike"),
    ],
)
def test_what_is_not_measured(
    size: int, between: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(planner.streams, "_FEW", 0 if "memory" in why else 1 << 40)
    one, two = programs(size, between)

    def runs() -> Any:
        raise AssertionError("nothing is called")

    found = overlap(one, two, runs, Settings(cache_dir=str(tmp_path)))
    assert why in found.missing and not found.pays and why in str(found)


@pytest.mark.parametrize(("kind", "reads"), [("*i64", True), ("*f32", False), ("i64", False)])
def test_users_kernels_get_no_made_up_addresses(kind: str, reads: bool, tmp_path: Path) -> None:
    users = [DefineKernel("theirs", "", (KernelParam("p", kind),))]
    one, two = programs(1024)
    found = overlap(one, two, lambda: (), Settings(cache_dir=str(tmp_path)), users)
    assert ("theirs reads integers" in found.missing) is reads


def test_noise_is_no_gain() -> None:
    assert Overlap(1e-4, 0.9e-4).pays and not Overlap(1e-4, 0.99e-4).pays
    assert str(Overlap(1e-4, 0.9e-4)).endswith("90.0 us in place of 100.0 -> two streams")


@pytest.mark.parametrize(
    ("call", "alone"),
    [
        ("y = extern aten.mm.default(x, x) -> f32[4, 4] cpu", True),
        ("extern aten.mm.out(x, x, out=o) mutates (o,)", True),
        ("y = extern aten.cumsum.default(x, 0) -> f32[4, 4] cpu", True),
        ("extern aten.zero_.default(o) mutates (o,)", False),
        ('extern aten._assert_async.msg(x, "is true")', False),
        ('extern aten._linalg_check_errors.default(x, "cholesky", is_matrix=True)', False),
        ("y = extern aten.bernoulli.default(x) -> f32[4, 4] cpu", False),
        ("y = extern aten.t.default(x) alias x -> f32[4, 4] cpu", False),
        ("y = extern aten._unsafe_view.default(x, (16,)) -> f32[16] cpu", False),
        ("y = extern aten.nonzero.default(x) binds (u0,) -> i64[u0, 2] cpu", False),
        ("y = extern aten_lowering.seeds.default(2) -> i64[2] cpu", False),
        ("(y, _, _, _) = extern aten._scaled_dot_product_efficient_attention.default(x, x, x, None,"
         " False) -> (f32[4, 4] cpu, _, _, _)", True),
        ("(y, _, _, _) = extern aten._scaled_dot_product_efficient_attention.default(x, x, x, None,"
         " False, 0.5) -> (f32[4, 4] cpu, _, _, _)", False),
    ],
)  # fmt: skip
def test_what_may_run_beside_others(call: str, alone: bool) -> None:
    text = "program p(x: f32[4, 4] cpu, o: f32[4, 4] cpu):\n  where u0 in [0, 16]\n"
    program = parse_program(f"{text}  {call}\n  return (o,)\n")
    op = program.ops[0]
    assert isinstance(op, ExternCall) and gives_alone(op) is alone
