"""What was got against what eager gives: kinds, dtypes, sizes, strides, storages, values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

# Relative and absolute, as `torch.testing.assert_close` has them.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
EAGERS_ERROR = 3.0  # so many times the largest error of eager against float64 is no fault
ULPS = 4.0  # so many times the spacing of numbers at the largest result is none either


@dataclass(frozen=True)
class Verdict:
    """kind: `ok`, or the first of `wrong dtype strides alias` that was found."""

    kind: str
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a call left. results: its flat results. inputs: the tensors that it was given, after
    it. gradients: of the inputs that take one."""

    results: list[Any]
    inputs: list[Tensor]
    gradients: list[Tensor | None]
    spec: Any


def compare(got: Outcome, expected: Outcome, exact: Outcome | None, values: bool = True) -> Verdict:
    """exact: the same in float64, a second judge of numbers. values: off for what is random."""
    if len(got.results) != len(expected.results):
        return Verdict("wrong", f"{len(got.results)} results, not {len(expected.results)}")
    found = [_kinds(a, b) for a, b in zip(got.results, expected.results, strict=True)]
    found.append(_aliases(got, expected))
    found += [_kinds(a, b, "gradient") for a, b in _gradients(got, expected)]
    if values:
        groups = [("result", got.results, expected.results, exact and exact.results)]
        groups.append(("input", got.inputs, expected.inputs, exact and exact.inputs))
        groups.append(("gradient", got.gradients, expected.gradients, exact and exact.gradients))
        for what, a, b, c in groups:
            found += _values(what, a, b, c)
    for kind in ("wrong", "dtype", "alias", "strides"):
        for verdict in found:
            if verdict is not None and verdict.kind == kind:
                return verdict
    return Verdict("ok")


def _gradients(got: Outcome, expected: Outcome) -> list[tuple[Any, Any]]:
    return list(zip(got.gradients, expected.gradients, strict=True))


def _kinds(got: Any, expected: Any, what: str = "result") -> Verdict | None:
    if not isinstance(expected, Tensor):
        same = type(got) is type(expected)
        return None if same else Verdict("wrong", f"{what} {_name(got)}, not {_name(expected)}")
    if not isinstance(got, Tensor):
        return Verdict("wrong", f"{what} {_name(got)}, not a tensor")
    for name in ("shape", "device", "layout", "requires_grad"):
        a, b = getattr(got, name), getattr(expected, name)
        if a != b:
            return Verdict("wrong", f"{what} of another {name}: {a}, not {b}")
    if got.dtype != expected.dtype:
        return Verdict("dtype", f"{what} is {got.dtype}, not {expected.dtype}")
    if expected.layout == torch.strided and expected.numel():
        a, b = _strides(got), _strides(expected)
        if a != b:
            shape = tuple(got.shape)
            return Verdict("strides", f"{what} of {shape} has strides {a}, not {b}")
    for bit in ("is_conj", "is_neg"):
        if getattr(got, bit)() != getattr(expected, bit)():
            return Verdict("alias", f"{what}: {bit} differs")
    return None


def _strides(t: Tensor) -> list[int | None]:
    """Strides, None where no step is taken."""
    return [s if n > 1 else None for n, s in zip(t.shape, t.stride(), strict=True)]


def _name(value: Any) -> str:
    return type(value).__name__


def _storage(value: Any) -> int | None:
    if isinstance(value, Tensor) and value.layout == torch.strided and value.numel():
        return value.untyped_storage()._cdata
    return None


def shared(outcome: Outcome) -> list[list[str]]:
    """For each result, the inputs (with its offset in them) and the earlier results with which
    it shares storage."""
    out = []
    for i, result in enumerate(outcome.results):
        at = _storage(result)
        if at is None:
            out.append([])
            continue
        names = [
            f"input {k} at {result.storage_offset()}"
            for k, t in enumerate(outcome.inputs)
            if _storage(t) == at
        ]
        names += [f"result {k}" for k in range(i) if _storage(outcome.results[k]) == at]
        out.append(names)
    return out


def _aliases(got: Outcome, expected: Outcome) -> Verdict | None:
    for i, (a, b) in enumerate(zip(shared(got), shared(expected), strict=True)):
        if a != b:
            return Verdict("alias", f"result {i} shares storage with {a or 'nothing'}, not {b}")
    return None


def _values(
    what: str, got: Sequence[Any], expected: Sequence[Any], exact: Sequence[Any] | None
) -> list[Verdict]:
    found = []
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        c = exact[i] if exact is not None and len(exact) == len(got) else None
        problem = differs(a, b, c)
        if problem:
            found.append(Verdict("wrong", f"{what} {i}: {problem}"))
    return found


def differs(got: Any, expected: Any, exact: Any = None) -> str | None:
    """What is wrong with a value, if anything."""
    if not isinstance(expected, Tensor) or not isinstance(got, Tensor):
        same = got == expected or (got != got and expected != expected)
        return None if same else f"{got!r}, not {expected!r}"
    if got.shape != expected.shape or got.layout != expected.layout:
        return None  # said before
    if got.is_quantized:
        got, expected = got.dequantize(), expected.dequantize()
    if expected.layout != torch.strided:
        got, expected, exact = got.to_dense(), expected.to_dense(), None
    got, expected = got.detach(), expected.detach()
    dtype = expected.dtype
    if dtype not in TOLERANCES:
        bad = got != expected
        if isinstance(exact, Tensor) and exact.shape == got.shape:
            bad &= got != exact.to(dtype)
        return f"{int(bad.sum())} of {bad.numel()} differ" if bool(bad.any()) else None
    wide = torch.complex128 if dtype.is_complex else torch.float64
    a, b = got.to(wide), expected.to(wide)
    rtol, atol = TOLERANCES[dtype]
    bad = ~torch.isclose(a, b, rtol, atol, equal_nan=True)
    if not bool(bad.any()):
        return None
    said = f"{int(bad.sum())} of {bad.numel()} differ, by {float((a - b).abs()[bad].max()):.3g}"
    if isinstance(exact, Tensor) and exact.shape == got.shape:
        c = exact.detach().to(dtype).to(wide)
        eagers = (b - c).abs()
        eagers = eagers[torch.isfinite(eagers)]
        slack = EAGERS_ERROR * float(eagers.max()) if eagers.numel() else 0.0
        size = c.abs()[torch.isfinite(c)]
        if size.numel():
            slack += ULPS * torch.finfo(dtype).eps * float(size.max())
        bad &= ~torch.isclose(a, c, rtol, atol + slack, equal_nan=True)
        if not bool(bad.any()):
            return None
        error = float((a - c).abs()[bad].max())
        said += f"; from float64 by {error:.3g}, eager by {slack / EAGERS_ERROR:.3g}"
    at = tuple(int(n) for n in bad.nonzero()[0])
    return f"{said}; first {got[at].item()!r}, not {expected[at].item()!r} at {at}"


def flatten(results: Any) -> tuple[list[Any], Any]:
    return pytree.tree_flatten(results)
