"""Every pointwise operator at special values: the numbers, the calls and the comparison.

The list of operators is read from the table of lowerings and from torch's decompositions, so that
a new one is swept by itself. `tests/test_special_values.py` runs them on the CPU,
`tests/gpu/test_special_values.py` on a GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import decompositions
from aten_lowering.lowerings import (
    activations,
    arithmetic,
    bessel,
    division,
    logic,
    selection,
    special,
)

aten = torch.ops.aten
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTS, torch.bool)

_FAMILIES = (arithmetic, division, logic, activations, selection, special, bessel)
# Operators of the swept families that are no function of single elements.
_NOT_POINTWISE = frozenset({
    aten.clone.default, aten.contiguous.default, aten._to_copy.default,
    aten.lift_fresh_copy.default, aten.detach_copy.default, aten.alias_copy.default,
    aten.view_copy.dtype, aten.copy.default,
    aten.frexp.Tensor,  # of two results: `tests/test_special_functions.py`
})  # fmt: skip
# Decompositions of operators whose result is random, or whose domain needs more than a number.
_NO_SWEEP = frozenset({aten.native_dropout_backward.default, aten.rrelu.default})


def operators() -> list[OpOverload]:
    """Pointwise operators that become kernels: those with a lowering, and those that torch
    decomposes into such."""
    lowered = {op for family in _FAMILIES for op, _ in family.table}
    decomposed = {
        op for op in decompositions()
        if torch.Tag.pointwise in op.tags and op.namespace == "aten" and not op._schema.is_mutable
    }  # fmt: skip
    return sorted((lowered | decomposed) - _NOT_POINTWISE - _NO_SWEEP, key=str)


def numbers(dtype: torch.dtype) -> list[Any]:
    """Special values of an element type, as Python numbers."""
    if dtype is torch.bool:
        return [False, True]
    if dtype.is_floating_point:
        f = torch.finfo(dtype)
        least = f.smallest_normal * f.eps  # the least subnormal
        plain = [0.0, 1.0, 0.5, 1.5, 2.5, 2.0, 3.0, 1 / 3, 7.25, 7.3, 20.5, 100.0, 1 + f.eps, least,
                 f.smallest_normal, f.smallest_normal - least, f.max, math.inf]  # fmt: skip
        return [*plain, *(-v for v in plain), math.nan]
    i = torch.iinfo(dtype)
    wanted = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, 127, -1, -2, -3, -7, -8, -100, i.max, i.min,
              i.max - 1, i.min + 1, 2**31 - 1, 2**31, 2**53 + 1, -(2**31), -(2**53)]  # fmt: skip
    return [v for v in dict.fromkeys(wanted) if i.min <= v <= i.max]


@dataclass(frozen=True)
class Case:
    """One call. `args`: "x", "y" and "z" stand for tensors, the rest are what they are."""

    op: OpOverload
    args: tuple[Any, ...]

    def __call__(self, tensors: dict[str, torch.Tensor]) -> Any:
        return self.op(*(tensors[a] if isinstance(a, Tensor) else a for a in self.args))

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


class Tensor(str):
    """Names a tensor of the grid."""


def tensors(dtype: torch.dtype, device: str = "cpu") -> dict[str, torch.Tensor]:
    """`x` and `y` hold all pairs of special values, `z` some third one; `c` is a condition."""
    values = numbers(dtype)
    third = values[::-1][: len(values) - 1]  # another length, so that triples differ
    pairs = list(itertools.product(values, values))
    columns = {
        "x": [a for a, _ in pairs],
        "y": [b for _, b in pairs],
        "z": [third[i % max(len(third), 1)] for i in range(len(pairs))],
    }
    found = {k: torch.tensor(v, dtype=dtype).to(device) for k, v in columns.items()}
    found["c"] = torch.arange(len(pairs), device=device) % 3 > 0
    return found


_FLOAT_SCALARS = (7.3, -0.0, math.nan, 0.0, -1.0, 0.5, 2.0, math.inf, -math.inf)
_INT_SCALARS = (2**53 + 1, -7, 2.5, 0, 1, -1, 3, 2**31 + 1)
_EXPONENTS = (0.5, 1.7, 3, -0.5, 0, 1, 2, 4, -1, -2, -3, 31, 64, math.nan, math.inf, -math.inf)
_SHIFTS = (7, 64, -1, 0, 1, 8, 15, 31, 32, 63, 100)
_CHOICES: dict[str, tuple[Any, ...]] = {
    "alpha": (1, 2, -1), "value": (1, 2, 0.7, math.nan), "exponent": _EXPONENTS,
    "rounding_mode": (None, "floor", "trunc"), "approximate": ("none", "tanh"),
    "threshold": (0, 0.5, 20), "beta": (1, 2.5), "training": (False,), "eps": (None, 0.25),
    "lambd": (0.5, 0.0), "p": (2,), "scale": (1, 1.5), "input_scale": (1,), "lower": (0.1,),
    "upper": (0.3,), "negative_slope": (0.01, -1.5, 0.0), "nan": (None, 7.3),
    "n": (0, 2, 3), "decimals": (0, 2, -3), "posinf": (None, 9.5),
    "neginf": (None,), "min_val": (-1.0, -0.0, 0.0), "max_val": (0.5, 0.0),
}  # fmt: skip


def _choices(op: OpOverload, argument: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    """What an argument of the schema is given."""
    kind, name = str(argument.type), argument.name
    if kind in ("Tensor", "Optional[Tensor]"):
        return ()
    if "shift" in op.name():
        return _SHIFTS
    if name in _CHOICES:
        return _CHOICES[name]
    if kind in ("number", "Optional[number]", "float"):
        if dtype.is_floating_point:
            return (
                *_FLOAT_SCALARS,
                5 * torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps,
            )
        return _INT_SCALARS
    raise NotImplementedError(f"{op}: say what its argument {name}: {kind} is swept with")


def cases(dtype: torch.dtype, most: int | None = None) -> Iterator[Case]:
    """The calls for an element type, `most` of each operator."""
    for op in operators():
        names = iter("xyz")
        given: list[tuple[Any, ...]] = []
        for argument in op._schema.arguments:
            if str(argument.type) in ("Tensor", "Optional[Tensor]"):
                bool_only = argument.name == "condition" or argument.name == "mask"
                given.append((Tensor("c" if bool_only else next(names)),))
            else:
                given.append(_choices(op, argument, dtype))
        for args in _combined(given)[:most]:
            yield Case(op, args)


def _combined(given: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """All combinations if they are few, else each choice of each argument beside two others."""
    every = list(itertools.product(*given))
    if len(every) <= 16:
        return every
    longest = max(map(len, given))
    rows = [
        tuple(choices[(k + n * step) % len(choices)] for n, choices in enumerate(given))
        for step in (0, 1) for k in range(longest)
    ]  # fmt: skip
    return list({repr(row): row for row in rows}.values())


@dataclass(frozen=True)
class Traced:
    """One graph of many calls. `failed`: what torch's tracing refused, with the error."""

    graph: Any
    cases: list[Case]
    failed: dict[str, str]


def runs(case: Case, tensors: dict[str, torch.Tensor]) -> bool:
    """Whether eager has an answer."""
    try:
        case(tensors)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, ZeroDivisionError):
        return False
    return True


def trace(cases: Sequence[Case], tensors: dict[str, torch.Tensor]) -> Traced:
    """Traces all calls into one graph of ATen operators."""
    failed: dict[str, str] = {}
    done: list[Case] = []

    def fn(*inputs: torch.Tensor) -> list[torch.Tensor]:
        named = dict(zip(tensors, inputs, strict=True))
        results = []
        for case in cases:
            try:
                results.append(case(named))
            except (RuntimeError, TypeError, ValueError, NotImplementedError) as e:
                failed[str(case)] = f"{type(e).__name__}: {e}"
            else:
                done.append(case)
        return results

    traced: Callable[..., Any] = make_fx(
        fn, decomposition_table=decompositions(), tracing_mode="fake"
    )
    return Traced(traced(*tensors.values()), done, failed)


_INTS_OF = {8: torch.int64, 4: torch.int32, 2: torch.int16}
# In units of the result's last place: what functions of two roundings may be off.
_ULP = {torch.float64: 8, torch.float32: 8, torch.float16: 2, torch.bfloat16: 2}
# Sums that may cancel: an error counts beside the larger operand.
_CANCELS = frozenset({aten.logaddexp.default, aten.logaddexp2.default})
# Sums that may cancel, too.
_SPECIAL = frozenset(op for family in (special, bessel) for op, _ in family.table)
# Eager's series lack a coefficient (it is 5e-6 off), and it rounds what it takes the cosine of:
# `tests/test_special_functions.py` holds these against mpmath.
_WAVES = frozenset({
    aten.special_bessel_j0.default, aten.special_bessel_j1.default, aten.special_airy_ai.default,
    aten.special_bessel_y0.default, aten.special_bessel_y1.default,
})  # fmt: skip
# Of subnormal numbers eager takes the logarithm of a half, which is not one.
_OF_NORMALS = frozenset(
    getattr(aten, f"special_{scaled}modified_bessel_k{order}").default
    for scaled in ("", "scaled_") for order in (0, 1)
)  # fmt: skip
# C leaves it open which of two zeros these give; eager's vectors differ from its loops.
_EITHER_ZERO = frozenset({
    aten.maximum.default, aten.minimum.default, aten.fmax.default, aten.fmin.default,
    aten.max.other, aten.min.other,
})  # fmt: skip
_DIVIDE = frozenset({"floor_divide", "remainder", "fmod", "div"})
# Gradients are only asked about at what the forward gives, `y`: its range.
_OF_RESULTS = {aten.sigmoid_backward.default: (0, 1), aten.tanh_backward.default: (-1, 1)}


def wrong(
    case: Case, got: torch.Tensor, tensors: dict[str, torch.Tensor], wants: list[torch.Tensor]
) -> torch.Tensor:
    """Where `got` is none of what eager gives (whose vectors and loops may differ): the sign of
    zeros, infinities and NaN must be the same, other numbers be near one of `wants` or the value
    in float64 on the CPU: CUDA's `hardsigmoid` multiplies by a sixth in f32 whatever the type."""
    off = torch.ones(got.shape, dtype=torch.bool, device=got.device)
    for want in wants:
        off &= _unlike(got, want, case.op)
    if got.dtype.is_floating_point and off.any():
        here = {k: v.cpu() for k, v in tensors.items()}
        wide = {k: v.double() if v.is_floating_point() else v for k, v in here.items()}
        exact = case(wide).to(got)
        plain = got.isfinite() & exact.isfinite() & ~((got == 0) & (exact == 0))
        off &= ~(plain & ~_unlike(got, exact, case.op))
    if not got.dtype.is_floating_point and case.op.name().split("::")[1].split(".")[0] in _DIVIDE:
        divisor = case.args[1]
        value = tensors[divisor] if isinstance(divisor, Tensor) else divisor
        off &= torch.as_tensor(value != 0, device=off.device)  # what CUDA gives has no meaning
    if case.op in _OF_RESULTS:
        low, high = _OF_RESULTS[case.op]
        off &= (tensors["y"] >= low) & (tensors["y"] <= high)
    if case.op in _OF_NORMALS and got.dtype == tensors["x"].dtype:
        off &= ~((tensors["x"] != 0) & (tensors["x"].abs() < torch.finfo(got.dtype).tiny))
    if case.op in _SPECIAL and got.dtype in (torch.float32, torch.float64):
        part = 5e-6 if case.op in _WAVES else 32 * torch.finfo(got.dtype).eps
        near = (got - wants[0]).abs() <= part * wants[0].abs().clamp_min(1.0)
        off &= ~(near & got.isfinite())
    if case.op in _WAVES:
        off &= tensors["x"].double().abs() < 64
    if case.op in _CANCELS:
        size = torch.maximum(tensors["x"].abs(), tensors["y"].abs()).clamp_min(1.0)
        near = (got - wants[0]).abs() <= 4 * torch.finfo(got.dtype).eps * size
        off &= ~near
    return off


def _unlike(got: torch.Tensor, want: torch.Tensor, op: OpOverload) -> torch.Tensor:
    if not got.dtype.is_floating_point:
        return got != want
    zeros = (got == 0) & (want == 0)
    same = (got == want) | (got.isnan() & want.isnan())
    if op not in _EITHER_ZERO:
        same &= ~zeros | (got.signbit() == want.signbit())
    finite = got.isfinite() & want.isfinite() & ~zeros
    distance = (_steps(got) - _steps(want)).abs()
    return ~(same | (finite & (distance <= _ULP[got.dtype])))


def _steps(x: torch.Tensor) -> torch.Tensor:
    """Floats in order as integers: neighbours differ by one."""
    bits = x.contiguous().view(_INTS_OF[x.element_size()]).long()
    return torch.where(bits < 0, -(2 ** (8 * x.element_size() - 1)) - bits, bits)


def faults(
    cases: Sequence[Case], results: Sequence[torch.Tensor], tensors: dict[str, torch.Tensor]
) -> list[str]:
    """A line for each case whose result is not eager's."""
    apart = {k: torch.stack([v, v], 1)[:, 0] for k, v in tensors.items()}  # no vectors here
    found: list[str] = []
    for case, got in zip(cases, results, strict=True):
        want = case(tensors)
        if (got.dtype, got.shape, got.stride()) != (want.dtype, want.shape, want.stride()):
            found.append(f"{case}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}")
            continue
        off = wrong(case, got, tensors, [want, case(apart)]).reshape(-1).nonzero().flatten()
        if len(off):
            at = int(off[0])
            inputs = {str(a): tensors[a][at].item() for a in case.args if isinstance(a, Tensor)}
            number = f"{got[at].item()}, not {want[at].item()}"
            found.append(f"{case} at {inputs}: {number} ({len(off)} of {got.numel()})")
    return found
