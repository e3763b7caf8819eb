"""Kernels of a schedule each, to be measured against each other: what they are named by."""

import hashlib
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from functools import cache
from importlib.metadata import version

import triton_rt
from loop_ir import Kernel
from planner.sources import source_digest
from symexpr import evaluate
from triton_emit import Schedule, TritonEmitError, TritonKernel, emit

Hints = Mapping[str, int]


def like(first: TritonKernel, kernel: Kernel, schedule: Schedule) -> TritonKernel | None:
    """The kernel under another schedule, where it can be emitted so and takes the same arguments: a
    dynamic size is one only where a mask needs it."""
    try:
        made = emit(kernel, schedule)
    except TritonEmitError:
        return None
    return made if _takes(made) == _takes(first) else None


def _takes(emitted: TritonKernel) -> Hashable:
    return emitted.params, emitted.args, emitted.zeroed


def prefetch(
    kernel: triton_rt.LazyKernel, emitted: TritonKernel, hints: Hints
) -> Future[triton_rt.Binary]:
    """Of the variant for pointers that allocators align."""
    return kernel.prefetch(alignment=usual_alignment(emitted, hints))


def usual_alignment(emitted: TritonKernel, hints: Hints) -> int:
    """Which parameters are divisible by 16, as allocators align pointers: a mask."""
    mask = 0
    for i, (arg, (_, kind, _)) in enumerate(zip(emitted.args, emitted.params, strict=True)):
        whole = isinstance(arg, str) or (kind[0] in "iu" and int(evaluate(arg, hints)) % 16 == 0)
        mask |= whole << i
    if emitted.zeroed is not None:
        mask |= 1 << len(emitted.args)
    return mask


def anonymous(emitted: TritonKernel) -> tuple[Hashable, ...]:
    """Equal for kernels that differ in names and origins alone."""
    lines = (line for line in emitted.source.splitlines() if not line.startswith("#"))
    text = "\n".join(lines).replace(f"def {emitted.name}(", "def kernel(")
    return text, repr(emitted.constants), emitted.schedule


def digest(guess: TritonKernel) -> str:
    """Of a kernel, of what makes candidates of it, and of what compiles them."""
    parts = (*anonymous(guess), guess.grid, _makers())
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:32]


@cache
def _makers() -> str:
    return f"triton {version('triton')}, {source_digest('triton_emit')}"
