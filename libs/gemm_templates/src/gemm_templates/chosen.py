"""Run the fastest way that is known for a problem; measure it the first time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from gemm_templates.choice import choose
from gemm_templates.launch import Bound, Inputs, default_build
from gemm_templates.problem import Config, Problem
from gemm_templates.store import default_store


@dataclass(frozen=True)
class Task:
    """One product on tensors.

    problem: None where only `extern` computes it. inputs: `out` is to be written. extern: returns
    a result of its own. examples: the tensors that are measured, where these inputs will not do.
    """

    problem: Problem | None
    inputs: Inputs
    extern: Callable[[Inputs], torch.Tensor]
    examples: Callable[[], Inputs] | None = None


# What a process has chosen already; dropped whole when it grows past its bound.
_MOST = 4096
_chosen: dict[tuple[Problem, torch.device, Config | None], tuple[Bound | None]] = {}


def run_task(task: Task, config: Config | None = None) -> torch.Tensor:
    """`inputs.out`, filled by the chosen template, or what `extern` returns: on the CPU, and where
    it is faster. A config given is taken."""
    inputs = task.inputs
    out, device = inputs.out, inputs.a.device
    assert out is not None
    if task.problem is None or (config is None and device.type != "cuda"):
        return task.extern(inputs)
    known = _chosen.get((task.problem, device, config))
    if known is None:
        taken = config or _choose(task, task.problem, device)
        if len(_chosen) >= _MOST:
            _chosen.clear()
        known = (None if taken is None else default_build()(task.problem, taken),)
        _chosen[task.problem, device, config] = known
    if known[0] is None:
        return task.extern(inputs)
    known[0](inputs)
    return out


def _choose(task: Task, problem: Problem, device: torch.device) -> Config | None:
    if torch.cuda.is_current_stream_capturing():
        return None
    deterministic = torch.are_deterministic_algorithms_enabled()
    choice = choose(
        problem, task.examples or task.inputs, task.extern, device=device, store=default_store(),
        build=default_build(), deterministic=deterministic,
    )  # fmt: skip
    return choice.from_python()


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether torch's own functions must run, so that gradients flow."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def aligned(**tensors: torch.Tensor | None) -> frozenset[str]:
    """The names of those that begin at a multiple of 16 bytes."""
    return frozenset(
        name for name, t in tensors.items() if t is not None and t.data_ptr() % 16 == 0
    )
