"""What planning is told: which kernels to choose from, what to measure, where to keep it."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Settings of a compilation that planning reads; a record of more may inherit from it.

    gemm: `auto` measures templates against the vendor's call on a GPU; `extern` and `template`
        force one. multikernel: `auto`, `off`, `persistent` or `looped`. tune: `auto`, `max` or
        `off`. channels_last, streams: `auto`, `on` or `off`. emit: the host program's form; `hop`
        can say less than others. cpu_kernels: what runs kernels on CPU tensors: `cpp`, C++ where it
        can say their loops, `interpreter`, Triton's, or `auto`, C++ where there is a compiler.
        cuda_graphs: calls are replayed from graphs, and cost the host nothing each. cache_dir: a
        folder for kernels and measured times. jobs: processes that compile; 0 is the number of
        cores. tune_at: `compile`, on tensors that are made up, or `first_call`, on those of that.
        num_splits: the parts of K that programs of one matmul share, where they do; 0 leaves that
        open, 1 keeps K whole."""

    gemm: str = "auto"
    multikernel: str = "auto"
    tune: str = "auto"
    tune_at: str = "compile"
    channels_last: str = "auto"
    streams: str = "auto"
    emit: str = "fx"
    cpu_kernels: str = "interpreter"
    cuda_graphs: bool = False
    cache_dir: str | None = None
    jobs: int = 0
    num_splits: int = 0

    @property
    def cache_path(self) -> Path:
        """The directory for everything that is kept on disk."""
        return Path(self.cache_dir or Path.home() / ".cache" / "planner")

    @property
    def workers(self) -> int:
        """How many processes compile kernels: `jobs`, or one for each core that is ours."""
        return self.jobs or len(os.sched_getaffinity(0))
