"""The one place that reads the environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """Where files go, and which tools build the launcher.

    Read from TRITON_RT_CACHE_DIR, TRITON_RT_CACHE_MAX_BYTES, TRITON_RT_NATIVE_LAUNCHER (0 turns
    the native launcher off), CC; otherwise the user's cache folder and 4 GiB."""

    cache_dir: Path
    cache_max_bytes: int = 4 << 30
    native_launcher: bool = True
    compiler: str = "cc"

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The settings of `os.environ`, or of the mapping given."""
        env = os.environ if environment is None else environment
        home = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cls(
            cache_dir=Path(env.get("TRITON_RT_CACHE_DIR") or home / "triton_rt"),
            cache_max_bytes=int(env.get("TRITON_RT_CACHE_MAX_BYTES") or 4 << 30),
            native_launcher=env.get("TRITON_RT_NATIVE_LAUNCHER", "1") != "0",
            compiler=env.get("CC") or "cc",
        )


def line_info() -> bool:
    """Whether kernels say of which line of their source each instruction is, as profilers show:
    only where TRITON_DISABLE_LINE_INFO is 0 (it is half of a cubin and a tenth of its making)."""
    return os.environ.get("TRITON_DISABLE_LINE_INFO") == "0"


#: What workers do without: the interpreter, and what a test runner changes at every test.
_NOT_FOR_WORKERS = frozenset({"TRITON_INTERPRET", "PYTEST_CURRENT_TEST"})


def worker_environment() -> dict[str, str]:
    """The environment of a compile worker: ours, without the interpreter and without a GPU (a
    worker must not open one), and with this process's import path."""
    env = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_WORKERS}
    env["CUDA_VISIBLE_DEVICES"] = ""
    env["PYTHONPATH"] = os.pathsep.join(p or str(Path.cwd()) for p in sys.path)
    return env
