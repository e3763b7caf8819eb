"""Where eager's answer hangs on its own order of operations, and another is as good.

Each rule is as narrow as it can be said: it names operators, and the elements for which it holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

# They square what they are given.
_SQUARES = frozenset(
    """layer_norm rms_norm group_norm batch_norm instance_norm normalize norm vector_norm std var
    std_mean var_mean""".split()
)

# Of infinite complex numbers: which parts are NaN is each library's own choice.
_PRODUCTS = frozenset("mul multiply div divide true_divide truediv addcmul addcdiv".split())

_MATMULS = frozenset("mm bmm mv dot matmul tensordot einsum inner outer linear".split())
_REMAINDERS = frozenset("mod imod remainder fmod".split())

_EXTREMES = frozenset("maximum minimum max min amax amin".split())

# Which of zeros of different signs is the extreme at a place hangs on what meets there last.
_PLACED = frozenset("index_reduce scatter_reduce".split())

_SELU = 1.0507009873554805  # its scale

# On CUDA a sum of 16 bits is an addition to two neighbours, of 0 to the other: -0 becomes 0.
_SCATTERED = frozenset("scatter_add scatter_add_ index_add index_add_ index_put index_put_".split())


@torch.no_grad()
def blur(
    rng: random.Random, func: Callable[..., Any], args: Any, kwargs: dict[str, Any],
    results: Sequence[Tensor], exact: Sequence[Tensor] | None,
) -> None:  # fmt: skip
    """Changes such elements of the results at random. exact: the results in float64."""
    name = getattr(func, "__name__", "")
    given = [a.detach() for a in pytree.tree_leaves((args, kwargs)) if isinstance(a, Tensor)]
    floats = [a for a in given if a.dtype.is_floating_point and a.numel()]
    for i, result in enumerate(results):
        if name == "signbit":
            _set(rng, result, floats[0].isnan() if floats else None, not result.any())
        if result.dtype.is_complex and name.strip("_").lstrip("ri") in _PRODUCTS:
            lost = ~torch.view_as_real(result.detach().resolve_conj()).isfinite().all(-1)
            _set(rng, result, lost, complex(math.nan, math.nan))
        if not result.dtype.is_floating_point or result.numel() == 0:
            continue
        values = result.detach()
        if name.strip("_") in _MATMULS:
            _set(rng, result, _sums_of_zeros(func, args, kwargs, values), -values)
        if name.strip("_") in _REMAINDERS and isinstance(args[-1], float) and not result.is_cuda:
            # Of quotients that overflow eager's vectors make NaN, its last elements a number.
            divisor = float(torch.tensor(args[-1], dtype=values.dtype))
            rest = torch.fmod if name == "fmod" else torch.remainder
            other = rest(given[0].double(), divisor)
            _set(rng, result, values.isnan() & other.isfinite(), other)
        _set(rng, result, torch.ones_like(values, dtype=torch.bool),
             _another_rounding(name, args, given, values))  # fmt: skip
        if not floats:
            continue
        if name in ("std_mean", "var_mean") and i == 1:  # updated by differences, some of them NaN
            other = torch.mean(floats[0], *args[1:], **kwargs)
            _set(rng, result, values.isnan() & ~other.isnan(), other)
        if name == "prod":
            other = _small_ones_first(func, floats[0], args, kwargs)
            _set(rng, result, (other.isnan() != values.isnan()) & floats[0].isinf().any(), other)
        if name.startswith("max_pool") and _zeros_of_both_signs(floats[0]):
            _set(rng, result, values == 0, -values)
        if name == "clamp_min" and values.dtype == torch.float16 and 0 < args[1] < 2**-25:
            _set(rng, result, values == 0, 2.0**-24)  # a limit that f16 rounds to 0
        if name == "gelu" and not result.is_cuda:  # of vectors, which multiply by 1 + erf at first
            _set(rng, result, ~values.isfinite() & (floats[0] > 0), floats[0])
        if name == "gelu" and result.element_size() == 2:  # less than x * 2**-24 is left there
            _set(rng, result, floats[0] < -6, -(2.0**-24))
        if name == "digamma":  # beside a pole, of which rounding is one side or the other
            _set(rng, result, values.abs() > 2**-4 / torch.finfo(values.dtype).eps, -math.inf)
        if name == "cumprod" and floats[0].shape == result.shape:
            _set(rng, result, _vanish_and_overflow(floats[0], args, kwargs), math.nan)
        if name in _SCATTERED and result.is_cuda and result.element_size() == 2:
            _set(rng, result, values == 0, -values)
        if name == "grid_sample" and result.is_cuda:  # integers of no number: 0, or far outside
            nowhere = ~(args[1].detach().abs() < 1e4).all(-1).unsqueeze(1).expand_as(values)
            _set(rng, result, nowhere & values.isnan(), 0.0)
        words = {a for a in (*args, *kwargs.values()) if isinstance(a, str)}
        if name.rstrip("_") in _PLACED and words & _EXTREMES:
            mixed = _zeros_of_both_signs(torch.cat([x.reshape(-1) for x in floats]))
            _set(rng, result, values == 0 if mixed else None, -values)
        if name == "copysign" and len(floats) > 1:
            _set(rng, result, floats[1].isnan().expand(result.shape), -values)
        if name == "softshrink" and not result.is_cuda:  # its vectors and its last elements differ
            _set(rng, result, values == 0, -values)
        if name == "layer_norm" and _without_bias(args, kwargs):
            _set(rng, result, values == 0, -values)
        if name in _SQUARES:
            off = torch.zeros_like(values, dtype=torch.bool)
            if exact is not None and i < len(exact) and exact[i].shape == values.shape:
                off = _overflowed(floats, values, exact[i])
            if name in ("std", "std_mean") and i == 0 and values.dtype == torch.float32:
                # The CPU adds squares up in float64.
                limit = math.sqrt(torch.finfo(torch.float32).max / floats[0].numel())
                off = off | (values.abs() > limit)
            if result.is_cuda:
                off = off | _another_on_cpu(func, args, kwargs, i, values)
            number = torch.zeros_like(values)
            if name in ("layer_norm", "group_norm"):  # by an infinite deviation: the bias is left
                number = func(torch.zeros_like(args[0]), *args[1:], **kwargs).detach()
            if exact is not None and rng.random() < 0.5 and exact[i].shape == values.shape:
                number = exact[i].to(values.dtype)
            # An overflow, of which the gradient is none, or NaN.
            lost = math.inf if name in ("std", "var") and rng.random() < 0.5 else math.nan
            _set(rng, result, off, torch.where(values.isfinite(), lost, number))


@dataclass
class Call:
    """A call of an operator. gradients: of the loss by its results, by their number, as far as the
    backward pass has come; None by those that the loss does not read."""

    func: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    gradients: dict[int, Tensor | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return getattr(self.func, "__name__", "")

    def gradient_in_float64(self, argument: Tensor, without: bool = False) -> Tensor | None:
        """The gradient by an argument, by a backward pass in float64 from the same numbers. None
        where there is none. without: results that overflow in the type that they have count for
        nothing."""
        leaf = argument.detach().double().requires_grad_()

        def widen(value: Any) -> Any:
            if value is argument:
                return leaf
            if not isinstance(value, Tensor):
                return value
            return value.detach().double() if value.dtype.is_floating_point else value.detach()

        try:
            with torch._C.DisableTorchFunction(), torch.enable_grad():
                found = self.func(*pytree.tree_map(widen, self.args),
                                  **pytree.tree_map(widen, self.kwargs))  # fmt: skip
                flat = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)]
                known = {i: g for i, g in self.gradients.items() if g is not None}
                given = {i: g for i, g in known.items() if flat[i].requires_grad}
                if without:
                    own = pytree.tree_leaves(self.func(*self.args, **self.kwargs))
                    lost = {i: flat[i].isfinite() & ~own[i].isfinite() for i in given}
                    given = {i: g.where(~lost[i], 0.0) for i, g in given.items()}
                (gradient,) = torch.autograd.grad(
                    [flat[i] for i in given], leaf, [g.to(flat[i].dtype) for i, g in given.items()]
                )
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return None
        return gradient


def blur_gradient(rng: random.Random, call: Call, argument: Tensor, gradient: Tensor) -> Tensor:
    """An argument's gradient by the operator, or another that is as good."""
    if rng.random() < 0.5:
        return gradient
    narrow = gradient.dtype.itemsize == 2
    if narrow or (gradient.dtype == torch.float32 and not bool(gradient.isfinite().all())):
        # An infinity on the way there, of what the type does not hold; sums that 16 bits round.
        wide = call.gradient_in_float64(argument, call.name in _SQUARES and rng.random() < 0.5)
        if wide is not None and wide.shape == gradient.shape:
            limits = torch.finfo(gradient.dtype)
            near = torch.where(wide.isinf(), wide, wide.clamp(limits.min, limits.max))
            differs = (gradient.isinf() & wide.isfinite()) | (gradient.isnan() & ~wide.isnan())
            differs |= narrow & gradient.isfinite() & wide.isfinite()
            gradient = torch.where(differs, near.to(gradient.dtype), gradient)
    if call.name == "interpolate" and call.gradients.get(0) is not None:
        gradient = _without_weights_of_zero(call, argument, gradient)
    if call.name in _SQUARES and gradient.isnan().any():
        # Infinite weights meet in sums of other orders, of which some are infinite.
        others = [a for a in pytree.tree_leaves((call.args, call.kwargs)) if a is not argument]
        if any(isinstance(a, Tensor) and bool(a.isinf().any()) for a in others):
            gradient = gradient.nan_to_num(math.inf, math.inf, -math.inf)
    if call.name == "polygamma" and call.gradients.get(0) is not None:
        off = _largest_term(call.args[0] + 1, argument.detach()) * call.gradients[0]
        return gradient + torch.finfo(gradient.dtype).eps * off
    if call.name == "grid_sample" and argument is call.args[1] and not gradient.isfinite().all():
        # Eager's differences of large numbers overflow before they cancel.
        small = replace(call, args=(call.args[0].detach() * 2.0**-16, *call.args[1:]))
        wide = small.gradient_in_float64(argument)
        if wide is not None:
            gradient = gradient.where(gradient.isfinite(), (wide * 2.0**16).to(gradient.dtype))
    if call.name == "soft_margin_loss" and argument is call.args[0] and 0 in call.gradients:
        # By a quotient of exponentials, which overflow where its limit is a number.
        x, y, given = argument.detach(), call.args[1], call.gradients[0]
        mean = call.kwargs.get("reduction", "mean") == "mean"
        limit = -y * given / (x.numel() if mean else 1)
        gradient = torch.where(gradient.isnan() & ~x.isnan(), limit, gradient)
    if gradient.is_cuda:
        return gradient
    if call.name == "hardsigmoid" and gradient.dtype == torch.float64:  # by a sixth of f32
        return gradient * (1 + 2.0**-25)
    given = call.gradients.get(0)
    if call.name == "hardtanh" and given is not None and rng.random() < 0.5:
        # of NaN vectors are 0, last elements the gradient
        return torch.where(argument.detach().isnan(), given.to(gradient.dtype), gradient)
    if call.name in ("elu", "celu", "selu", "hardswish"):  # of NaN vectors are NaN, others numbers
        number = torch.zeros_like(gradient) if given is None else given.to(gradient.dtype)
        number = number * (_SELU if call.name == "selu" else 1.0)
        swapped = torch.where(gradient.isnan(), number, math.nan)
        return torch.where(argument.detach().isnan(), swapped, gradient)
    return gradient


def _sums_of_zeros(
    func: Callable[..., Any], args: Any, kwargs: dict[str, Any], values: Tensor
) -> Tensor | None:
    """Where all products are negative, so that a zero is -0 if the sum begins at the first of them,
    and 0 if it begins at 0."""

    def signs(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.where(value.detach().signbit(), -1.0, 1.0).double()

    def ones(value: Any) -> Any:
        return torch.ones_like(value, dtype=torch.float64) if isinstance(value, Tensor) else value

    with torch.no_grad():
        total, count = (
            func(*pytree.tree_map(f, args), **pytree.tree_map(f, kwargs)) for f in (signs, ones)
        )
    same = total.shape == values.shape
    return (values == 0) & (total == -count) if same else None


def _without_weights_of_zero(call: Call, argument: Tensor, gradient: Tensor) -> Tensor:
    """What is no number times a weight of 0 is NaN, where a kernel multiplies by it: a place next
    to the point, and the last one, which a point beside it reads twice."""
    given = call.gradients[0]
    assert given is not None
    odd = (~given.isfinite()).nonzero()
    one = replace(call, gradients={0: given.where(given.isfinite(), 0.0)})
    total = one.gradient_in_float64(argument) if len(odd) else None
    for at in map(tuple, odd.tolist()):
        unit = torch.zeros_like(given)
        unit[at] = 1.0
        one.gradients[0] = unit
        share = one.gradient_in_float64(argument)
        if total is None or share is None:
            return gradient
        total = total + torch.where(share == 0, 0.0, share * given[at].double())
    return gradient if total is None else total.to(gradient.dtype)


def blur_zeros(rng: random.Random, name: str, args: Any, result: Any) -> None:
    """Which of zeros of different signs is an extreme hangs on the order in which they are seen;
    of two tensors, a CPU's vectors and last elements differ in that."""
    if name not in _EXTREMES or not args:
        return
    result = pytree.tree_leaves(result)[0]
    if not result.dtype.is_floating_point:
        return
    x, y = [*args, None][:2]
    if isinstance(y, Tensor):
        x, y = (a.detach().to(result.dtype) for a in (x, y))
        other = (x == 0) & (y == 0) & (x.signbit() != y.signbit())
        _set(rng, result, None if result.is_cuda else other, -result.detach())
    else:
        mixed = _zeros_of_both_signs(x.detach())
        _set(rng, result, result.detach() == 0 if mixed else None, -result.detach())


def _set(rng: random.Random, result: Tensor, where: Tensor | None, other: Any) -> None:
    if where is None or where.shape != result.shape or not bool(where.any()):
        return
    if rng.random() < 0.5:
        new = torch.as_tensor(other, dtype=result.dtype, device=result.device)
        result.data.copy_(torch.where(where, new, result.data))


def _another_rounding(name: str, args: Any, given: Sequence[Tensor], values: Tensor) -> Tensor:
    """The same numbers by another road that float64 bears out as well: ends that cancel, terms of a
    sum that do, an exponent that is rounded to the type of the base (eager's last elements on a CPU
    do not), constants of f32 (in float64, on CUDA)."""
    eps = torch.finfo(values.dtype).eps
    if name == "linspace":
        return values + eps * values.abs().max()
    if name in ("digamma", "logsumexp", "logcumsumexp", "cosine_similarity"):
        return values + eps * values.abs().clamp(min=1.0)
    if name == "polygamma":
        return values + eps * _largest_term(args[0], given[0])
    if name == "grid_sample":
        return values + eps * given[0].nan_to_num(0.0, 0.0, 0.0).abs().max()
    if name in ("hardsigmoid", "hardswish") and values.is_cuda and values.dtype == torch.float64:
        return values * (1 + 2.0**-25)
    power = name in ("pow", "__pow__", "pow_", "float_power") and len(args) > 1
    exponent = args[1] if power else None
    if power and values.is_cuda and values.dtype == torch.float32:
        return values * (1 + eps)  # a unit that bits show, also of a power that is a short number
    if isinstance(exponent, float) and values.dtype == torch.float32:
        return given[0].double().pow(float(torch.tensor(exponent, dtype=torch.float32)))
    return values


def _largest_term(n: int, x: Tensor) -> Tensor:
    """Of the sum of both signs that eager takes for the polygamma of order n below 0."""
    near = (x - x.round()).abs()
    return torch.where(x < 0, math.factorial(n) / near ** (n + 1), 0.0)


def _small_ones_first(
    func: Callable[..., Any], x: Tensor, args: Any, kwargs: dict[str, Any]
) -> Tensor:
    """A product in another order: small factors may vanish before an infinity meets them."""
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if isinstance(dim, int):
        ordered = x.gather(dim, x.abs().argsort(dim)) if x.dim() else x
    else:
        ordered = x.reshape(-1)[x.abs().reshape(-1).argsort()].reshape(x.shape)
    return torch.as_tensor(func(ordered, *args[1:], **kwargs))


def _zeros_of_both_signs(x: Tensor) -> bool:
    signs = x[x == 0].signbit()
    return bool(signs.any()) and not bool(signs.all())


def _vanish_and_overflow(x: Tensor, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Where, of the factors so far, the product of some neighbours is infinite and that of others
    is 0: their product is NaN, if they meet before the rest joins them."""
    dim = args[1] if len(args) > 1 else kwargs["dim"]
    if not x.dim():
        return torch.zeros_like(x, dtype=torch.bool)
    lines = x.movedim(dim, -1)
    large, none = (torch.zeros_like(lines, dtype=torch.bool) for _ in range(2))
    for first in range(lines.shape[-1]):
        part = lines[..., first:].cumprod(-1)
        large[..., first:] |= part.isinf().cummax(-1).values
        none[..., first:] |= (part == 0).cummax(-1).values
    return (large & none).movedim(-1, dim)


def _without_bias(args: Any, kwargs: dict[str, Any]) -> bool:
    """A CPU adds a bias of 0, as CUDA does to rows that fill no vectors, so that -0 becomes 0; its
    kernel of vectors adds none."""
    return (args[3] if len(args) > 3 else kwargs.get("bias")) is None


def _overflowed(floats: Sequence[Tensor], values: Tensor, exact: Tensor) -> Tensor:
    """What is grossly off from float64 where a number's square is more than f32 holds: a row's mean
    or variance has overflowed, and what comes of that differs from one order of additions to
    another."""
    wide, limit = exact.detach().double(), math.sqrt(torch.finfo(torch.float32).max)
    full = [x.double().nan_to_num(0.0, 0.0, 0.0).abs() for x in floats]
    count, largest = max(x.numel() for x in full), max(float(x.max()) for x in full)
    if values.dtype == torch.float64 or largest < limit / count:
        return torch.zeros_like(values, dtype=torch.bool)
    off = (values.double() - wide).abs() > 0.5 * wide.abs()
    return wide.isfinite() & (off | ~values.isfinite())


def _another_on_cpu(
    func: Callable[..., Any], args: Any, kwargs: dict[str, Any], i: int, values: Tensor
) -> Tensor:
    """Where torch's own operator gives NaN or an infinity on one of GPU and CPU alone, from the
    same numbers."""

    def moved(value: Any) -> Any:
        return value.detach().cpu().clone() if isinstance(value, Tensor) else value

    with torch.no_grad():
        found = func(*pytree.tree_map(moved, args), **pytree.tree_map(moved, kwargs))
    host = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor)][i].to(values.device)
    return (host.isfinite() != values.isfinite()) | (host.isnan() != values.isnan())
