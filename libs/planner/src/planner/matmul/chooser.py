"""Which templates a matmul may run as, and what is measured of them."""

import functools
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

import gemm_templates
import triton_rt
from gemm_templates import is_legal, offered
from loop_ir import TensorType
from planner.kernels import Kernels
from planner.matmul.joined import JoinedTask
from planner.matmul.problem import Hints, MatmulTask, is_launchable
from planner.matmul.ways import layouts_of, runner, vendor_alone
from planner.plan import Steps
from planner.settings import Settings
from planner.torch_compat import unset_fake_temporarily
from tuning import MARGINS

# Steps, and the layouts of the buffers that they make.
Peer: TypeAlias = tuple[Steps, Mapping[str, TensorType]]

# Calls of the vendor's that refuse no operands.
_ALWAYS = frozenset(
    f"aten.{name}.{form}"
    for name in ("mm", "addmm", "bmm", "baddbmm", "linear")
    for form in ("default", "dtype")
)


@dataclass
class MatmulChooser:
    """Candidates of tasks, compiled side by side and measured once each."""

    options: Settings
    kernels: Kernels
    _measured: dict[str, gemm_templates.Choice] = field(default_factory=dict)
    _offered: dict[str, list[gemm_templates.Candidate] | None] = field(default_factory=dict)
    _untried: list[MatmulTask | JoinedTask] = field(default_factory=list)

    @functools.cached_property
    def store(self) -> gemm_templates.Store:
        """Choices on disk."""
        return gemm_templates.Store(self.options.cache_path / "gemm")

    @property
    def device(self) -> gemm_templates.DeviceInfo:
        """The GPU that is decided for: this machine's, or an H200 where there is none."""
        if torch.cuda.is_available():
            return gemm_templates.device_info("cuda")
        return gemm_templates.H200

    @functools.cached_property
    def pool(self) -> triton_rt.CompilePool | None:
        """What compiles candidates: workers that leave some to the kernels of the program. Nobody
        closes it, so that a compilation does not wait for candidates that are late."""
        if self.kernels.pool is None or self.options.tune == "max":
            return self.kernels.pool
        return triton_rt.shared_pool(max(1, self.options.workers - 2))

    def prefetch(self, tasks: Iterable[MatmulTask | JoinedTask]) -> list[Future[triton_rt.Binary]]:
        """Begins to compile, side by side, all candidates that will be measured, in the order of
        the tasks."""
        asked = {task.problem: task for task in tasks}
        pool, cache = self.pool, self.kernels.cache
        if not asked or pool is None:
            return []
        offered = {p: found for p, t in asked.items() if (found := self.candidates(t)) is not None}
        return gemm_templates.prefetch(
            asked, pool=pool, cache=cache, store=self.store, found=offered
        )

    def finish(self) -> None:
        """At the end of a compilation: candidates that it had no time for begin to compile, for the
        next."""
        self.kernels.late.extend(self.prefetch(self._untried))
        self._untried = []

    def candidates(self, task: MatmulTask | JoinedTask) -> list[gemm_templates.Candidate] | None:
        """What may be measured, where that is not what the library proposes by itself."""
        if task.key not in self._offered:
            problem = task.problem
            info = self.device
            found: list[gemm_templates.Candidate] | None = None
            usual = gemm_templates.candidates(problem, info)
            if not all(c.config is None or self.sayable(task, c.config) for c in usual):
                configs = [
                    config
                    for config in offered(problem, info)
                    if is_legal(problem, config, info) and self.sayable(task, config)
                ]
                found = gemm_templates.candidates(problem, info, configs=configs)
            self._offered[task.key] = found
        return self._offered[task.key]

    def sayable(self, task: MatmulTask | JoinedTask, config: gemm_templates.Config) -> bool:
        """Whether the program can run a config for all sizes that it may meet."""
        if config.split_k > 1 and self.options.num_splits not in (0, config.split_k):
            return False
        moving = "K" in task.problem.dynamic or task.batch.free_symbols
        if moving and config.template != "tiled":
            # K may be 0, and descriptors of nothing are invalid; other texts have the batch.
            return False
        return is_launchable(task.problem, config, self.options.emit)

    def best_config(self, task: MatmulTask) -> gemm_templates.Config | None:
        """The model's; None where no config fits."""
        found = self.candidates(task)
        found = found or gemm_templates.candidates(task.problem, self.device)
        return next((c.config for c in found if c.config is not None), None)

    def choose(
        self,
        task: MatmulTask | JoinedTask,
        hints: Hints,
        peer: Callable[[], Peer] | None = None,
        called: bool = False,
    ) -> gemm_templates.Choice:
        """What is the fastest. `peer` makes what a template is held against: by default the
        vendor's call. called: that is part of it (`as_called`)."""
        if task.key not in self._measured:
            waits = self.options.tune == "max" or self.pool is None
            build = functools.partial(
                gemm_templates.bind,
                pool=self.pool,
                cache=self.kernels.cache,
                in_time=None if waits else self.kernels.in_time,
            )
            there = self.options.cuda_graphs or not (called or peer is None)
            # Under torch.compile fake tensors are in force; what is measured is real.
            with unset_fake_temporarily():
                choice = gemm_templates.choose(
                    task.problem,
                    lambda: task.inputs(hints, self.kernels.given),
                    self.run(task, hints, *(peer() if peer else _vendor(task, hints))),
                    self.candidates(task),
                    build=build,
                    store=self.store,
                    spent=None if waits or not _always_runs(task) else self.kernels.spent,
                )
            if choice.reason == "no time" and not choice.late:
                self._untried.append(task)
            self._measured[task.key] = choice if there else as_called(choice)
        return self._measured[task.key]

    def run(
        self,
        task: MatmulTask | JoinedTask,
        hints: Hints,
        steps: Steps,
        layouts: Mapping[str, TensorType],
    ) -> Callable[[gemm_templates.Inputs], object]:
        """A function of a task's inputs that runs other steps for it: its results."""
        run = runner(self.kernels, steps, layouts, hints)
        return lambda inputs: task.outputs(run(task.named(inputs)), hints)


def as_called(choice: gemm_templates.Choice) -> gemm_templates.Choice:
    """What is the fastest where the host queues each call. A vendor's call keeps it for
    `MARGINS.vendor_call` and more, a template for a launch: one that takes the GPU less counts as
    that, beside templates that take it hardly more."""
    times = dict(choice.times)
    vendor = times.get("extern", MARGINS.vendor_call)
    if vendor >= MARGINS.vendor_call:
        return choice
    most = vendor * (1 + MARGINS.hardly)
    times = {label: time for label, time in times.items() if time <= most}
    times["extern"] = MARGINS.vendor_call
    why = f"takes the GPU over {MARGINS.hardly:.0%} longer than the vendor's call"
    return choice.among(times, why, margin=0.0)


def _always_runs(task: MatmulTask | JoinedTask) -> bool:
    """Whether the vendor's library runs whatever templates are held against."""
    nodes = (task.node,) if isinstance(task, MatmulTask) else task.nodes
    return all(node.extern.target in _ALWAYS for node in nodes)


def _vendor(task: MatmulTask | JoinedTask, hints: Hints) -> Peer:
    assert isinstance(task, MatmulTask)
    return vendor_alone(task.node, hints), layouts_of(task.node)
