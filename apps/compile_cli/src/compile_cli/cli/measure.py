"""Times, memory and errors, measured the same way for the compiled model and for eager."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from compile_cli.errors import NumbersDiffer

# Largest difference to eager, over the largest eager value, that is taken for rounding: some
# tens of units in the last place of the element type, times the depth of a usual network.
TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 5e-2,
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
}


@dataclass(frozen=True)
class Comparison:
    """max_rel_err: largest `max|a - b| / max|b|` over the results; inf where they cannot be
    compared. problem: in words, where the results differ by more than rounding."""

    max_rel_err: float
    problem: str | None


def relative_error(a: Tensor, b: Tensor) -> float:
    """`max|a - b| / max|b|` in double precision, b being the reference; NaN must meet NaN."""
    if a.numel() == 0:
        return 0.0
    wide = torch.complex128 if b.is_complex() else torch.float64
    x, y = a.detach().to(wide), b.detach().to(wide)
    nan = torch.isnan(y)
    if not torch.equal(torch.isnan(x), nan):
        return float("inf")
    same = nan | (x == y)
    zero = torch.zeros((), dtype=wide, device=x.device)
    diff = torch.where(same, zero, x - y).abs().max().item()
    finite = torch.isfinite(y.real) if b.is_complex() else torch.isfinite(y)
    scale = torch.where(finite, y, zero).abs().max().item()
    return 0.0 if diff == 0 else diff / scale if scale else float("inf")


def compare(got: Any, expected: Any, what: str = "result") -> Comparison:
    """Compares two results (or `what` they are) of any nesting: same structure, dtypes and sizes,
    exact for integers and booleans, within `TOLERANCE` for floats."""
    a, a_spec = pytree.tree_flatten(got)
    b, b_spec = pytree.tree_flatten(expected)
    if a_spec != b_spec:
        return Comparison(float("inf"), f"the {what}s nest differently: {a_spec} and {b_spec}")
    worst, problem = 0.0, None
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if not isinstance(y, Tensor):
            if x != y and problem is None:
                worst, problem = float("inf"), f"{what} {i}: {x!r} instead of {y!r}"
            continue
        if x.dtype != y.dtype or x.shape != y.shape or x.device != y.device:
            return Comparison(
                float("inf"),
                f"{what} {i}: {x.dtype}{list(x.shape)} {x.device} instead of "
                f"{y.dtype}{list(y.shape)} {y.device}",
            )
        error = relative_error(x, y)
        allowed = TOLERANCE.get(y.dtype, 0.0)
        worst = max(worst, error)
        if error > allowed and problem is None:
            problem = f"{what} {i}: relative error {error:.3g}, at most {allowed:.3g} allowed"
    return Comparison(worst, problem)


def require_equal(comparison: Comparison) -> None:
    """Raises where the results differ."""
    if comparison.problem is not None:
        raise NumbersDiffer(
            "the compiled model and eager disagree\n"
            f"  where: {comparison.problem}\n"
            "  to do: compile-cli dump --stage fused|triton|wrapper shows what was run; "
            "please report this, it is a bug"
        )


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Adds up the bytes of storages made under it, and remembers the peak."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of torch
        self.live = 0
        self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {
            t.untyped_storage()._cdata
            for t in pytree.tree_leaves((args, kwargs))
            if isinstance(t, Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for tensor in pytree.tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor, inputs)
        return out

    def _add(self, tensor: Tensor, inputs: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known or key in inputs:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.live -= size


def peak_mb(call: Callable[[], Any], device: torch.device) -> float:
    """Megabytes (1e6 bytes) that a call needs above what is there before it. On a GPU what
    torch's allocator reports; on CPU the storages that torch operators make."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        torch.cuda.synchronize(device)
        return float(torch.cuda.max_memory_allocated(device) - before) / 1e6
    with _LiveStorages() as mode:
        call()
    return float(mode.peak) / 1e6
