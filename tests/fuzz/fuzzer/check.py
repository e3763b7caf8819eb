"""Compiles a printed program, calls it, and holds everything it does against eager."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor

import compile_cli
from fuzzer.judge import Perturbed, difference, perturbed_runs, zero_signs
from fuzzer.observe import EagerRefused, Seen, eager, observe
from fuzzer.program import Loaded, Sizes

torch._functorch.config.enable_autograd_cache = False  # each program is compiled

# What a compiler may refuse by name, though eager runs it.
_REFUSED = ("share memory, and the model writes to", "an order that its result would hang on")
_RUNS = (0, 2, 6, 40)  # of eager under perturbations, until the answer is accepted


@dataclass(frozen=True)
class Failure:
    """kind: what differs, or in which phase an error was raised; where: of which value, or the
    error's class and place; text: in words. Two failures with the same kind and class are one."""

    kind: str
    where: str
    text: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.where}" if self.kind in ("compile", "call") else self.kind


@dataclass(frozen=True)
class Outcome:
    """failure: None where all is right. refused: why no comparison was made, for the sizes of
    some or all calls: by eager, or by the compiler, by an error that names the reason."""

    failure: Failure | None = None
    refused: tuple[str, ...] = ()
    calls: int = 0


def check(loaded: Loaded, cache_dir: str, compiler: str = "ours") -> Outcome:
    """compiler: `ours`, or `peer`: torch's own capture, run without a compiler."""
    torch._dynamo.reset()
    make_runner = _ours if compiler == "ours" else _peer
    refused: list[str] = []
    runner: Callable[..., Any] | None = None
    module = loaded.module()
    calls = 0
    host = loaded if loaded.device == "cpu" else Loaded(loaded.source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sizes in loaded.calls:
            try:
                if host is not loaded:
                    eager(host, sizes)  # what a CPU refuses may stop a GPU for good
                expected = eager(loaded, sizes)
            except EagerRefused as error:
                if runner is None:
                    return Outcome(None, (f"eager: {error}",))
                refused.append(f"eager: {error}")
                continue
            if runner is None:
                try:
                    runner = make_runner(loaded, module, cache_dir)
                except Exception as error:  # whatever a compiler raises is what is looked for
                    if _may_refuse(error):
                        return Outcome(None, (f"{type(error).__name__}: {error}",))
                    return Outcome(_raised("compile", error))
            try:
                restored = _restore(loaded, module)
                got = observe(loaded, restored, sizes, runner)
            except Exception as error:  # likewise
                other = type(error).__name__ == "BadInput" and sizes != loaded.calls[0]
                if other or _may_refuse(error) or _hangs_on_rounding(loaded, sizes, error):
                    refused.append(f"{type(error).__name__}: {error}")
                    continue
                return Outcome(_raised("call", error), tuple(refused), calls)
            failure = _compare(loaded, sizes, got, expected)
            if failure is not None:
                return Outcome(failure, tuple(refused), calls)
            calls += 1
    return Outcome(None, tuple(refused), calls)


def _ours(loaded: Loaded, module: Any, cache_dir: str) -> Callable[..., Any]:
    setting = loaded.setting
    options = setting.options(cache_dir)
    if setting.entry == "backend":
        return torch.compile(
            module, backend="compile_cli", options=options,
            dynamic=True if setting.dynamic else None,
        )  # fmt: skip
    with torch.no_grad():
        args = tuple(loaded.inputs(loaded.calls[0]))
    return compile_cli.compile(module, args, dynamic=_dynamic(loaded), options=options)


def _peer(loaded: Loaded, module: Any, cache_dir: str) -> Callable[..., Any]:
    from compile_cli.capture import export

    if loaded.setting.entry == "backend":
        dynamic = True if loaded.setting.dynamic else None
        traced: Callable[..., Any] = torch.compile(module, backend="aot_eager", dynamic=dynamic)
        return traced
    args = tuple(loaded.inputs(loaded.calls[0]))
    captured = export(module, args, _dynamic(loaded) or {})
    return captured.run_decompositions({}).module()


def _dynamic(loaded: Loaded) -> dict[int | str, set[int]] | None:
    """The dimensions of arguments that named sizes change."""
    if not loaded.setting.dynamic:
        return None
    first = loaded.inputs(loaded.calls[0])
    out: dict[int | str, set[int]] = {}
    other = {k: v + 3 + 2 * i for i, (k, v) in enumerate(loaded.calls[0].items())}
    for i, (a, b) in enumerate(zip(first, loaded.inputs(other), strict=True)):
        for d in range(a.dim()):
            if a.shape[d] != b.shape[d]:
                out.setdefault(i, set()).add(d)
    return out


def _restore(loaded: Loaded, module: Any) -> Any:
    """The compiled module with its buffers as they were at first."""
    for buffer, value in zip(module.buffers(), loaded.module().buffers(), strict=True):
        with torch.no_grad():
            buffer.copy_(value)
    return module


def _eager_values(loaded: Loaded, sizes: Sizes) -> list[Any] | None:
    """None where eager raises: a moved value has become what it refuses."""
    try:
        return [v for _, v in eager(loaded, sizes).values]
    except EagerRefused:
        return None


def _hangs_on_rounding(loaded: Loaded, sizes: Sizes, error: Exception) -> bool:
    """Eager raises the same where a number that the language does not define is another: an integer
    from an infinity, by which is divided."""
    for seed in range(1000, 1006):
        try:
            with Perturbed(seed):
                eager(loaded, sizes)
        except EagerRefused as refused:
            if str(error).splitlines()[0] in str(refused):
                return True
    return False


def _compare(loaded: Loaded, sizes: Sizes, got: Seen, expected: Seen) -> Failure | None:
    failure: Failure | None = None
    others: list[list[Any]] = []
    for done, runs in pairwise((0, *_RUNS)):  # most answers need none
        seeds = range(1000 + done, 1000 + runs)
        others += perturbed_runs(lambda: _eager_values(loaded, sizes), seeds)
        failure = _differences(got, expected, others)
        if failure is None:
            return None
    if sizes and failure is not None:
        failure = Failure(failure.kind, failure.where, f"{failure.text}, at {sizes}")
    return failure


def _differences(got: Seen, expected: Seen, others: list[list[Any]]) -> Failure | None:
    if got.spec != expected.spec:
        return Failure("structure", "results", f"{got.spec} and not {expected.spec}")
    if len(got.values) != len(expected.values):
        return Failure("gradients", "all", f"{len(got.values)} values, not {len(expected.values)}")
    soft: Failure | None = None
    for i, ((name, a), (_, b)) in enumerate(zip(got.values, expected.values, strict=True)):
        if b is None and name.startswith("gradient") and isinstance(a, Tensor) and not a.any():
            continue  # a compiled graph is one function: what no loss reads has gradient 0
        if not isinstance(b, Tensor) or not isinstance(a, Tensor):
            if type(a) is not type(b) or (a != b and a == a):
                return Failure("constant", name, f"{a!r} and not {b!r}")
            continue
        for what in ("dtype", "shape", "device", "requires_grad"):
            if getattr(a, what) != getattr(b, what):
                return Failure(what, name, f"{getattr(a, what)} and not {getattr(b, what)}")
        group = [run[i] for run in others]
        kind = name.split()[0]
        problem = difference(a, b, group)
        if problem is not None:
            return Failure({"result": "numbers"}.get(kind, kind), name, problem)
        if kind != "gradient" and soft is None:
            soft = _soft(name, a, b, group)
    alias = _aliases(got, expected)
    return alias or soft


def _soft(name: str, a: Tensor, b: Tensor, others: list[Tensor]) -> Failure | None:
    """Strides and signs of zero. The stride of a dimension of size 1 says nothing of where an
    element lies, and torch's own fake tensors have another than its operators: any will do."""
    strides = zip(b.shape, a.stride(), b.stride(), strict=True)
    if b.numel() and any(s != t for n, s, t in strides if n > 1):
        return Failure("stride", name, f"{a.stride()} and not {b.stride()} of {list(b.shape)}")
    problem = zero_signs(a, b, others)
    return None if problem is None else Failure("sign of zero", name, problem)


def _aliases(got: Seen, expected: Seen) -> Failure | None:
    """Which values share memory, and where in it they begin."""

    def relations(seen: Seen) -> dict[tuple[str, str], Any]:
        tensors = [
            (n, v)
            for n, v in seen.values
            if isinstance(v, Tensor) and v.numel() and not n.startswith("gradient")
        ]
        return {
            (n, m): w.storage_offset() - v.storage_offset()
            for i, (n, v) in enumerate(tensors)
            for m, w in tensors[i + 1 :]
            if v.untyped_storage().data_ptr() == w.untyped_storage().data_ptr()
        }  # fmt: skip

    ours, theirs = relations(got), relations(expected)
    for pair in ours.keys() | theirs.keys():
        if ours.get(pair) != theirs.get(pair):
            said = [f"share memory, {r[pair]} apart" if pair in r else "share none"
                    for r in (ours, theirs)]  # fmt: skip
            return Failure("alias", " and ".join(pair), f"{said[0]}, in eager {said[1]}")
    return None


def _may_refuse(error: BaseException) -> bool:
    return any(why in str(error) for why in _REFUSED)


def _raised(phase: str, error: BaseException) -> Failure:
    """Backends' errors come wrapped: the innermost cause says most."""
    while error.__cause__ is not None and type(error).__name__ in ("BackendCompilerFailed",):
        error = error.__cause__
    frames = [f for f in traceback.extract_tb(error.__traceback__)
              if "/src/" in f.filename and "/site-packages/" not in f.filename]  # fmt: skip
    last = frames[-1] if frames else None
    place = f"{last.filename.split('/src/')[-1]}:{last.name}" if last else "outside"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    inner = next((x for x in lines if x.split(":")[0].endswith(("Error", "Exception"))), "")
    text = " | ".join(lines[:4])[:600]
    return Failure(phase, f"{type(error).__name__} at {place}", f"{text} {inner}"[:700])
