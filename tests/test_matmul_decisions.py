"""What is decided for matmuls from given times, as text: rungs, ways and prologues."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import gemm_templates
import triton_rt
from aten_lowering import lower_with_report
from compile_cli import Options
from compile_cli.capture import capture, export
from gemm_templates.launch import expected_alignment
from loop_ir import FuseOptions, Graph, Matmul, fuse_with_report, serve_one
from planner.kernels import Kernels, expected_variants, kernel_source
from planner.matmul.chooser import MatmulChooser
from planner.matmul.decide import MatmulPlanner
from planner.matmul.joined import JoinedTask
from planner.matmul.problem import MatmulTask
from planner.plan import MatmulPlan
from planner.planning import Planned, plan_graph
from planner.program import assemble
from planner.schedules.chosen import Chosen
from planner.schedules.tuning import ScheduleTuner
from tuning import MARGINS


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def mlp(x: Any, w: Any, b: Any, v: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, w, b)), v) + x


def int8(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(x @ (q.to(torch.bfloat16) * s).t())


def bf16(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.bfloat16)


def narrow(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.int8)


# Name -> function, its arguments, and the dimensions of these that are dynamic.
Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], Mapping[int, set[int]]]
CASES: dict[str, Case] = {
    "alone": (lambda a, b: a @ b, lambda: (bf16(512, 256), bf16(256, 768)), {}),
    "few rows": (lambda a, b: (a @ b).relu(), lambda: (bf16(16, 8192), bf16(8192, 512)), {}),
    "one row": (lambda a, b: a @ b, lambda: (bf16(1, 4096), bf16(4096, 4096)), {}),
    "mlp": (
        mlp, lambda: (bf16(256, 512), bf16(2048, 512), bf16(2048), bf16(512, 2048)), {},
    ),
    "mlp of any rows": (
        mlp, lambda: (bf16(256, 512), bf16(2048, 512), bf16(2048), bf16(512, 2048)), {0: {0}},
    ),
    "mlp of any batch": (
        mlp, lambda: (bf16(8, 32, 512), bf16(2048, 512), bf16(2048), bf16(512, 2048)), {0: {0}},
    ),
    "int8": (int8, lambda: (bf16(64, 1024), narrow(512, 1024), bf16(512, 1)), {}),
    "int8 of any rows": (
        int8, lambda: (bf16(64, 1024), narrow(512, 1024), bf16(512, 1)), {0: {0}},
    ),
    "batched": (
        lambda a, b: torch.bmm(a, b).relu(), lambda: (bf16(8, 256, 64), bf16(8, 64, 256)), {},
    ),
    "batched, any batch": (
        lambda a, b: torch.bmm(a, b).relu(), lambda: (bf16(8, 256, 64), bf16(8, 64, 256)),
        {0: {0}, 1: {0}},
    ),
    "f32": (
        lambda a, b: (a @ b).tanh(), lambda: (torch.zeros(512, 256), torch.zeros(256, 384)), {},
    ),
    "groups of any rows": (
        lambda a, b, ends: torch._grouped_mm(a, b.mT, offs=ends),
        lambda: (bf16(512, 256), bf16(8, 384, 256), torch.zeros(8, dtype=torch.int32)), {0: {0}},
    ),
    "long": (lambda a, b: a @ b, lambda: (bf16(128, 16384), bf16(16384, 128)), {}),
}  # fmt: skip


def given_times(choose: Any) -> Any:
    """A choice by times that hang on the problem and the config alone: the model's, up to half
    more or less."""

    def chosen(self: MatmulChooser, task: Any, *_: Any) -> gemm_templates.Choice:
        problem = task.problem
        found = self.candidates(task) or gemm_templates.candidates(problem, self.device)
        times = {}
        for candidate in found:
            text = f"{problem.m} {problem.n} {problem.k} {candidate.label}".encode()
            share = int.from_bytes(hashlib.sha256(text).digest()[:4], "big") / 2**32
            times[candidate.label] = candidate.predicted * (0.5 + share)
        best = min(times, key=lambda label: times[label])
        if times[best] > (1 - MARGINS.vendor) * times["extern"]:
            best = "extern"
        config = next(c.config for c in found if c.label == best)
        return gemm_templates.Choice(problem, config, tuple(found), tuple(times.items()))

    return chosen


def plans(case: Case, folder: Path, workers: bool = False) -> tuple[Graph, Planned]:
    """Of a graph on a GPU."""
    function, make, dynamic = case
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        graph = capture(export(Function(function), make(), dynamic)).graph
    loop = serve_one(lower_with_report(graph).graph)
    fused, _ = fuse_with_report(loop, FuseOptions(epilogue=True, prologue=True))
    options = Options(cache_dir=str(folder), jobs=8)
    kernels = Kernels(options)
    with kernels.compiling() if workers else nullcontext():
        return fused, plan_graph(fused, options, kernels)


def decisions(case: Case, folder: Path) -> list[str]:
    """What runs each matmul of a graph on a GPU, and what its kernels are called."""
    planned = plans(case, folder)[1]
    said = planned.explain().partition("\nschedules:")[0].splitlines()
    lines = [f"  {line.strip()}" for line in said[1:]]
    for label, choice in planned.measured.items():
        lines.append(f"  {label} -> {choice.config or 'extern'} of {len(choice.times)}")
    for plan in planned.plans:
        for condition, choice in getattr(plan, "choices", ()):
            steps = getattr(choice, "steps", (choice,))
            names = [s.define.name if hasattr(s, "define") else s.target for s in steps]
            line = f"  {condition}: {', '.join(names)}"
            lines.append(re.sub(r"(matmul_\w+?)_[0-9a-f]{8}", r"\1", line))  # digests of texts
    lines += [f"  aligned: {', '.join(sorted(planned.aligned))}"]
    return lines


def test_decisions_from_given_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MatmulChooser, "choose", given_times(MatmulChooser.choose))
    text = "".join(
        f"{name}\n" + "".join(f"{line}\n" for line in decisions(case, tmp_path))
        for name, case in CASES.items()
    )
    path = Path(__file__).parent / "golden" / "matmul_decisions.txt"
    assert text == path.read_text(), f"if the change is wanted, rewrite {path.name}"


def test_groups_are_held_against_the_call_with_its_copy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where one of several ways runs them, by whichever question is the first: what is measured is
    remembered."""
    choose, seen = given_times(MatmulChooser.choose), dict[str, list[str]]()

    def chosen(self: MatmulChooser, task: Any, hints: Any, peer: Any = None, *_: Any) -> Any:
        seen.setdefault(task.key, [s.target for s in peer()[0].steps] if peer else [])
        return choose(self, task, hints)

    monkeypatch.setattr(MatmulChooser, "choose", chosen)
    plans(CASES["groups of any rows"], tmp_path)
    assert len(seen) > 10
    both = ["aten._grouped_mm.default", "aten.copy_.default"]
    assert all(targets == both for targets in seen.values())


def test_a_set_that_was_not_measured_runs_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At rungs that there was no time for, as at those where each by itself is the fastest."""
    choose = given_times(MatmulChooser.choose)

    def chosen(self: MatmulChooser, task: Any, *_: Any) -> Any:
        if not isinstance(task, JoinedTask):
            return gemm_templates.Choice(task.problem, None, (), (("extern", 1.0),))
        choice = choose(self, task)
        if task.problem.m > 16:
            return gemm_templates.Choice(task.problem, None, (), reason="no time")
        config = next(c.config for c in choice.candidates if c.config is not None)
        return replace(choice, config=config, times=((str(config), 0.5), ("extern", 1.0)))

    monkeypatch.setattr(MatmulChooser, "choose", chosen)
    linear = torch.nn.functional.linear
    case: Case = (
        lambda x, *w: tuple(linear(x, each) for each in w),
        lambda: (bf16(512, 256), *(bf16(256, 256) for _ in range(3))),
        {0: {0}},
    )
    found = plans(case, tmp_path)[1].decided
    assert "of 3 products" in str(found) and "None of" not in str(found)


def stack(x: Any, w: Any, v: Any, u: Any) -> Any:
    for weight in (w, v, u):
        x = (x @ weight).tanh()
    return x


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_was_compiled_to_be_measured_is_what_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dynamic: bool
) -> None:
    """Alike matmuls share it, whatever they are called."""
    monkeypatch.setattr(MatmulChooser, "choose", given_times(MatmulChooser.choose))
    rows = 512
    case = (
        stack, lambda: (bf16(rows, 256), *(bf16(256, 256) for _ in range(3))),
        {0: {0}} if dynamic else {},
    )  # fmt: skip
    fused, planned = plans(case, tmp_path)
    variants = expected_variants(assemble(fused, planned.plans))
    run = {(kernel_source(define), mask) for define, mask in variants if "matmul" in define.name}
    measured = set()
    for choice in planned.measured.values():
        for candidate in choice.candidates:
            if candidate.config is not None:
                for kernel in gemm_templates.bind(choice.problem, candidate.config).plan.steps:
                    measured.add((kernel.source, expected_alignment(choice.problem, kernel)))
    assert run & measured
    if not dynamic:
        assert run <= measured and len({source.name for source, _ in run}) == 1
    else:  # other numbers of rows may be no multiples of 16
        assert {source for source, _ in run} <= {source for source, _ in measured}


def test_workers_have_all_to_do_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where there is a GPU: kernels and matmuls' candidates are begun, in this order, then
    other schedules; a matmul is measured while candidates of the next one may be compiled."""
    events: list[str] = []

    def prefetch(self: triton_rt.LazyKernel, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if "matmul" not in self.source.name:
            future.set_result(None)
        events.append("matmul" if self.source.name.startswith("matmul") else "kernel")
        return future

    def measure(self: ScheduleTuner, job: Any, ready: float) -> Chosen:
        events.append("time")
        return Chosen(job.schedules[0], job.schedules[0])

    choose = given_times(MatmulChooser.choose)

    def chosen(self: MatmulChooser, *args: Any) -> Any:
        events.append("choose")
        return choose(self, *args)

    monkeypatch.setattr(triton_rt.LazyKernel, "prefetch", prefetch)
    monkeypatch.setattr(MatmulChooser, "choose", chosen)
    monkeypatch.setattr(ScheduleTuner, "_why_not", lambda self: "")
    monkeypatch.setattr(ScheduleTuner, "_measure", measure)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr("gemm_templates.choice.device_info", lambda _: gemm_templates.H200)

    def model(x: Any, w: Any, v: Any) -> Any:
        return ((x @ w).softmax(-1) @ v).softmax(-1)

    case: Case = model, lambda: (bf16(4096, 1024), bf16(1024, 4096), bf16(4096, 2048)), {}
    plans(case, tmp_path, workers=True)
    order = [name for name, _ in itertools.groupby(events)]
    assert order == ["kernel", "matmul", "kernel", "choose", "time"]


def test_what_there_was_no_time_for_compiles_for_the_next_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Or the vendor's calls that ran instead would be kept for ever: only candidates that are late
    say that a kept graph is to be decided again."""
    seen: list[Kernels] = []
    begun: list[Future[Any]] = []

    def prefetch(self: triton_rt.LazyKernel, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(None)
        if self.source.name.startswith("matmul"):
            begun.append(future)
        return future

    def spent(self: Kernels) -> bool:
        seen.append(self)
        return True

    monkeypatch.setattr(triton_rt.LazyKernel, "prefetch", prefetch)
    monkeypatch.setattr(Kernels, "spent", spent)
    monkeypatch.setattr(ScheduleTuner, "measure", lambda self: None)
    monkeypatch.setattr(ScheduleTuner, "_why_not", lambda self: "")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    monkeypatch.setattr("gemm_templates.choice.device_info", lambda _: gemm_templates.H200)

    def model(x: Any, *weights: Any) -> Any:
        for w, v in zip(weights[::2], weights[1::2], strict=True):
            x = torch.mm(x, w, out_dtype=torch.float32).tanh().bfloat16()
            x = torch.nn.functional.linear(x, v).tanh()
        return x

    widths = range(1024, 2560, 256)
    made = [size for w in widths for size in ((w, w + 128), (w + 256, w + 128))]
    case: Case = model, lambda: (bf16(4096, 1024), *(bf16(*size) for size in made)), {}
    planned = plans(case, tmp_path, workers=True)[1]
    reasons = [choice.reason for choice in planned.measured.values()]
    assert reasons == ["no time"] * len(made) and not seen[0].late
    before = len(begun)  # of those that multiply most
    planned.finish()
    assert len(begun) > before > 0 and seen[0].late == begun[before:]
    assert len(seen[0].late) >= 2 * len(made)


def test_a_matmul_passes_nine_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files of the planner with a function that was given a matmul, its task, or what was
    measured of it."""
    monkeypatch.setattr(MatmulChooser, "choose", given_times(MatmulChooser.choose))
    planner = plan_graph.__code__.co_filename.removesuffix("planning.py")
    of_a_matmul = Graph, Matmul, MatmulTask, MatmulPlanner, gemm_templates.Choice, MatmulPlan
    passed: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(planner) and file not in passed:
            given = frame.f_locals.values()
            passed.update({file} if any(isinstance(value, of_a_matmul) for value in given) else ())

    sys.setprofile(note)
    try:
        decisions(CASES["int8"], tmp_path)
    finally:
        sys.setprofile(None)
    assert "matmul/problem.py" in {file.removeprefix(planner) for file in passed}
    assert len(passed) <= 9, ", ".join(sorted(passed))
