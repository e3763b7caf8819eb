"""What planning is told: which kernels to choose from, what to measure, where to keep it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class Settings(Protocol):
    """Settings of a compilation that planning reads, whatever else the record of them holds.

    gemm: `auto` measures templates against the vendor's call on a GPU; `extern` and `template`
        force one. multikernel: `auto`, `off`, `persistent` or `looped`. tune: `auto`, `max` or
        `off`. channels_last: `auto`, `on` or `off`. emit: the host program's form; `hop` can say
        less than others. cuda_graphs: calls are replayed from graphs, and cost the host nothing
        each. cache_path: a folder for kernels and measured times. workers: processes that
        compile."""

    @property
    def gemm(self) -> str:
        """How matmuls run: `auto`, `extern` or `template`."""

    @property
    def multikernel(self) -> str:
        """Whether kernels of dynamic sizes become several: `auto`, `off`, or a kind to force."""

    @property
    def tune(self) -> str:
        """How much is measured of schedules: `auto`, `max` or `off`."""

    @property
    def channels_last(self) -> str:
        """Whether convolutions run on channels-last tensors: `auto`, `on` or `off`."""

    @property
    def emit(self) -> str:
        """The form of the host program: `fx`, `hop` or `cpp`."""

    @property
    def cuda_graphs(self) -> bool:
        """Whether calls are replayed from CUDA graphs."""

    @property
    def cache_path(self) -> Path:
        """The folder for everything that is kept on disk."""

    @property
    def workers(self) -> int:
        """How many processes compile."""


@dataclass(frozen=True)
class PlannerSettings:
    """`Settings` for who has no record of their own. Fields are those of `Settings`."""

    gemm: str = "auto"
    multikernel: str = "auto"
    tune: str = "auto"
    channels_last: str = "auto"
    emit: str = "fx"
    cuda_graphs: bool = False
    cache_path: Path = Path.home() / ".cache" / "planner"
    workers: int = os.cpu_count() or 1
