"""Options of a compilation, typed and in one place. No other module reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compile_cli.errors import UnknownOption
from planner import Settings

if TYPE_CHECKING:
    from fx_emit import FxBackend

_CHOICES: dict[str, tuple[str, ...]] = {
    "emit": ("fx", "hop", "cpp"),
    "cpu_kernels": ("auto", "cpp", "interpreter"),
    "gemm": ("auto", "extern", "template"),
    "multikernel": ("auto", "off", "persistent", "looped"),
    "channels_last": ("auto", "on", "off"),
    "streams": ("auto", "on", "off"),
    "random": ("fast", "eager"),
    "tune_at": ("compile", "first_call"),
    "tune": ("auto", "off", "max"),
    "saved": (
        *("exact", "float8_e5m2", "float8_e4m3fn"),
        *("scaled_float8_e5m2", "scaled_float8_e4m3fn"),
    ),
}

WIDE = ("float32", "bfloat16", "float16")

# The emitter by the launches of an `FxBackend`.
_FORMS = {"hop": "hop", "direct": "fx"}

# Modes of `torch.compile`. Matmuls, convolutions and some kernels are measured in all of them.
MODES: dict[str | None, dict[str, Any]] = {
    None: {},
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "tune": "max"},
    "max-autotune-no-cudagraphs": {"tune": "max"},
}


@dataclass(frozen=True)
class Options(Settings):
    """What `compile`, `torch.compile(..., options=...)` and the command line take.

    emit: the host program as FX with direct launches (`fx`), as FX with Triton's higher-order
        op for out-of-tree consumers (`hop`), or as a C++ library (`cpp`).
    fx_backend: a subclass of `fx_emit.FxBackend`, whose `compile_graph` gets each host program as
        FX, in the form that its `launch` says, in place of `emit`.
    cpu_kernels: what runs kernels on CPU tensors: `cpp`, C++ loops, but for what these cannot say,
        `interpreter`, the Triton kernels of a GPU, interpreted, or `auto`, which is C++ where there
        is a compiler, and the program is not for others to launch.
    gemm: `auto` measures templates against the vendor call on a GPU and uses the vendor call on
        CPU; `extern` and `template` force one. Templates are measured that are compiled when
        the program's own kernels are, or within a fifth of the time until then, at most a second,
        and as many as there is time for, those of matmuls that multiply most first; later
        compilations find more of them compiled. With `tune="max"` all are waited for.
    multikernel: `auto` compiles a kernel of dynamic sizes up to three times where sizes want
        different schedules, and decides a matmul for each of several ranges of rows. `persistent`
        and `looped` have reductions hold their rows whole, or walk over them, where they can: to
        find faults of either.
    fuse: join loop nests; off shows the kernels of single operators.
    plan_memory: let a dead buffer's storage serve a later one.
    verify: check both IRs after every pass.
    cache_dir: where compiled kernels, libraries and tuning results are kept; None is the user's
        cache directory.
    jobs: compile workers; 0 is the number of cores.
    num_splits: in how many parts matmuls may share K among programs (split-K, decompose-K, and the
        last tiles of others), where they do; 0 leaves that to measuring, 1 keeps K whole.
    cuda_graphs: from the second call with the same layouts on, replay a CUDA graph. Worth it where
        the host is slower than the GPU: small batches. Takes memory for each layout. What training
        keeps for a backward pass stays in the graph's memory; a forward pass that comes before that
        backward pass runs without a graph.
    not_captured: operators, such as `mylib.lookup` or `aten.sort.default`, that no CUDA graph is to
        hold. There, at work on the CPU, at sizes that hang on data and at communication a program
        is cut, and each part is a graph of its own.
    channels_last: `on`: convolutions on a GPU get their operands, and give their
        results, with the channels side by side in memory; results of the graph keep their strides.
        `auto` measures both ways, and takes this one where it is faster.
    streams: `on`: branches that do not hang on each other run on two streams of a GPU. `auto`
        measures both ways, for CUDA graphs and with `tune="max"`, and takes two where they are
        faster and hold hardly more memory.
    random: `fast`: random numbers (dropout, `rand`, ...) are computed in the kernels that use
        them: eager's distributions, decided by torch's generators, whose state moves on, but other
        numbers than eager's. `eager`: the very numbers of eager, by calls of its operators.
    nan_asserts: stop (`NotFinite`) at the first kernel or operator that makes a NaN or an infinity
        of finite numbers, and at inputs that hold one; for debugging: every result is read back.
    tune: `auto` measures a few schedules of kernels that move more than a megabyte, where the guess
        is in doubt, within a tenth of the time that a compilation takes; `max` measures all
        candidates of all such kernels, and has channels-last convolutions of one place be products
        of matrices; `off` none. What was measured is kept in the cache.
    tune_at: what kernels are measured on: with `compile`, tensors that are made up; with
        `first_call`, what the first call is given, in place (`torch.compile`: a graph is compiled
        when it is first called), and tensors that are made up for what it computes.
    saved: what training keeps between forward and backward: `exact`, or floats as 8-bit floats,
        which takes a half or a quarter, and makes gradients of parameters as coarse; results,
        inputs and parameters are as they are. `scaled_`: by factors of rows, of which none is then
        out of the range of the type.
    saved_from: bytes from which on a tensor is kept as `saved` says.
    saved_of: types of floats that are."""

    cpu_kernels: str = "auto"
    fuse: bool = True
    plan_memory: bool = True
    verify: bool = True
    random: str = "fast"
    nan_asserts: bool = False
    saved: str = "exact"
    saved_from: int = 1 << 16
    saved_of: tuple[str, ...] = WIDE
    not_captured: tuple[str, ...] = ()
    fx_backend: type[FxBackend] | None = None

    def __post_init__(self) -> None:
        if self.fx_backend is not None:
            launch = getattr(self.fx_backend, "launch", None)
            if not hasattr(self.fx_backend, "compile_graph") or launch not in _FORMS:
                raise UnknownOption(
                    f"option fx_backend={self.fx_backend!r} is not known\n"
                    f"  expected: a subclass of fx_emit.FxBackend with launch in {sorted(_FORMS)}"
                )
            object.__setattr__(self, "emit", _FORMS[launch])
        if self.cpu_kernels == "auto":
            chosen = os.environ.get("COMPILE_CLI_CPU_KERNELS") or "auto"
            if self.emit == "hop" or self.fx_backend is not None:
                chosen = "interpreter"
            object.__setattr__(self, "cpu_kernels", chosen)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise UnknownOption(
                    f"option {name}={getattr(self, name)!r} is not known\n"
                    f"  expected: one of {', '.join(choices)}"
                )
        for name in ("fuse", "plan_memory", "verify", "cuda_graphs", "nan_asserts"):
            if not isinstance(getattr(self, name), bool):
                raise UnknownOption(
                    f"option {name}={getattr(self, name)!r} is not known\n  expected: True or False"
                )
        if (self.emit, self.cpu_kernels) == ("hop", "cpp"):
            raise UnknownOption(
                "options emit='hop' and cpu_kernels='cpp' exclude each other\n"
                "  why:   Triton's operator launches Triton kernels\n"
                "  to do: leave one of them out"
            )
        types = self.saved_of
        if not isinstance(types, list | tuple) or not set(types) <= set(WIDE):
            raise UnknownOption(
                f"option saved_of={types!r} is not known\n  expected: of {', '.join(WIDE)}"
            )
        object.__setattr__(self, "saved_of", tuple(types))
        names = self.not_captured
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise UnknownOption(
                f"option not_captured={names!r} is not known\n  expected: names of operators"
            )
        object.__setattr__(self, "not_captured", tuple(names))
        for name in ("jobs", "num_splits", "saved_from"):
            number = getattr(self, name)
            if not isinstance(number, int) or isinstance(number, bool) or number < 0:
                raise UnknownOption(
                    f"option {name}={number!r} is not known\n  expected: a whole number from 0"
                )
        if self.nan_asserts and self.cuda_graphs:
            raise UnknownOption(
                "options nan_asserts=True and cuda_graphs=True exclude each other\n"
                "  why:   a replayed CUDA graph does not stop at the kernel that made a NaN\n"
                "  to do: leave one of them out"
            )

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> Options:
        """Options by name; an unknown name is refused with the names that exist."""
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(options or {}) - known)
        if unknown:
            raise UnknownOption(
                f"unknown option {unknown[0]!r} for backend compile_cli\n"
                f"  known:   {', '.join(sorted(known))}"
            )
        return cls(**(options or {}))

    @staticmethod
    def of_mode(mode: str | None) -> dict[str, Any]:
        """What a mode of `torch.compile` asks for."""
        if mode not in MODES:
            known = ", ".join(name for name in MODES if name is not None)
            raise UnknownOption(f"mode={mode!r} is not known\n  expected: one of {known}")
        return dict(MODES[mode])

    @property
    def cache_path(self) -> Path:
        """The directory for everything that is kept on disk."""
        if self.cache_dir is not None:
            return Path(self.cache_dir)
        base = os.environ.get("COMPILE_CLI_CACHE_DIR")
        if base:
            return Path(base)
        home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(home) / "compile_cli"
