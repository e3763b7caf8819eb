"""Images that are enlarged, reduced or padded with what they hold: every point reads its places.

    upsample_nearest2d(x, 2)   ->   for n, c, h, w: x[n, c, h // 2, w // 2]
    reflection_pad1d(x, 3)     ->   for n, i: x[n, min(|i - 3|, 2 extent - 2 - |i - 3|)]

Places are integers as far as eager's floats are shown to give them. A gradient is a sum over the
points that may have read a place: nothing is written twice."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, mul
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from aten_lowering.builder import KernelBuilder, Operand, Value
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.lowerings.lines import Rule, gathered, lines
from aten_lowering.lowerings.windows import Along, kind, store_gradient
from aten_lowering.registry import Table, named, of_ranks
from symexpr import Max, Min

aten = torch.ops.aten
table = Table()

Sizes = Sequence[sympy.Expr]
# Of a place, its coordinate in the result, and an element of the result there: what it gives.
Share = Callable[[KernelBuilder, Sizes, Sizes, Value], Value]
# An expression, and the least and the most that it may be.
Test = tuple[sympy.Expr, sympy.Expr, sympy.Expr]


def _nearest(name: str) -> list[OpOverload]:
    return of_ranks(name, 1, 2, 3)


def _scales(more: dict[str, Any]) -> list[Any]:
    """`scales`, or those of depth, height and width."""
    return [more[n] for n in ("scales", "scales_d", "scales_h", "scales_w") if n in more]


def _by_lines(call: Call, x: Operand, factors: Sequence[Any]) -> bool:
    """Whether eager's kernel of vectors runs on a CPU, which shifts by no factor what it doubles:
    of four channels and more that lie last, and of small images."""
    step, last = sympy.S.One, x.size[1]
    for d in (1, *range(len(x.size) - 1, 1, -1), 0):
        if x.size[d] != 1 and x.type.stride[d] != step:
            last = sympy.S.Zero
        step = step * x.size[d]
    points = sum(call.out.size[2:]) if len(factors) == 2 else sympy.Integer(129)
    odd = any(f and 1 < f < 3 and f != 2 for f in factors)
    require(not odd or bool(last.is_Integer and points.is_Integer), "factors of unknown sizes")
    return odd and len(factors) > 1 and bool(last > 3 or points <= 128)


@table.lowers(*_nearest("upsample_nearest{}d"), *_nearest("_upsample_nearest_exact{}d"))
def upsample_nearest(call: Call, input: Operand, output_size: Sizes, **scales: Any) -> None:
    """The nearest element, or the one that torch's older rule takes for it."""
    rule: Rule = "exact" if "exact" in str(call.op) else "nearest"
    k, factors = call.kernel(), _scales(scales)
    times: tuple[int, ...] = (1,) if len(factors) == 2 else ()
    if call.on_cpu:
        times = (1, 2) if rule == "nearest" and _by_lines(call, input, factors) else ()
    along = lines(input.size, call.out.size, factors, rule, times=times)
    own = k.coords[-len(along) :]
    at = [line.place(k, o) for line, o in zip(along, own, strict=True)]
    call.store(k, k.load(input, (*k.coords[: -len(along)], *at)))


@table.lowers(*named("upsample_linear1d upsample_bilinear2d upsample_trilinear3d"))
def upsample_linear(
    call: Call, input: Operand, output_size: Sizes, align_corners: bool, **scales: Any
) -> None:
    """`(1 - h) * ((1 - w) * a + w * b) + h * ((1 - w) * c + w * d)`, as eager, in the opmath
    type."""
    require(input.dtype.is_float, "linear upsampling of integers")
    k = call.kernel()
    rule: Rule = "aligned" if align_corners else "linear"
    acc = opmath(input.dtype)
    along = lines(input.size, call.out.size, _scales(scales), rule, acc, (1,), call.on_cpu)
    own = k.coords[-len(along) :]
    sides = [line.pair(k, o, acc) for line, o in zip(along, own, strict=True)]

    def mixed(at: Sizes) -> Value:
        if len(at) == len(k.coords):
            return k.load(input, tuple(at)).to(acc)
        low, high, weight = sides[len(at) - len(k.coords)]
        first = (1 - weight) * mixed((*at, low))
        return weight("fma", mixed((*at, high)), first)

    call.store(k, mixed(k.coords[: -len(along)]))


@table.lowers(
    *_nearest("upsample_nearest{}d_backward"), *_nearest("_upsample_nearest_exact{}d_backward")
)
def upsample_nearest_backward(
    call: Call, grad_output: Operand, output_size: Sizes, input_size: Sizes, **scales: Any
) -> None:
    """The sum of the gradients of the points that took an element."""
    rule: Rule = "exact" if "exact" in str(call.op) else "nearest"
    factors, sizes = _scales(scales), (call.out.size, grad_output.size)
    if call.on_cpu:
        along = lines(*sizes, factors, rule, times=(1, 2) if rule == "nearest" else ())
    else:
        along = lines(*sizes, factors, rule, times=(1,) if len(factors) == 2 else (), alone=False)
    points = [gathered(line, by_factor=not call.on_cpu) for line in along]
    _gradient(call, grad_output, points, _as_it_is)


@table.lowers(
    *named(
        "upsample_linear1d_backward upsample_bilinear2d_backward", "upsample_trilinear3d_backward"
    )
)
def upsample_linear_backward(
    call: Call,
    grad_output: Operand,
    output_size: Sizes,
    input_size: Sizes,
    align_corners: bool,
    **scales: Any,
) -> None:
    """The sum of the gradients of the points that an element is part of, times its weights."""
    rule: Rule = "aligned" if align_corners else "linear"
    acc = opmath(grad_output.dtype)
    along = lines(call.out.size, grad_output.size, _scales(scales), rule, acc, (1,), call.on_cpu)

    def weighted(k: KernelBuilder, own: Sizes, at: Sizes, value: Value) -> Value:
        found = zip(along, own, at, strict=True)
        sides = [line.weight(k, place, point, acc) for line, place, point in found]
        reads = reduce(and_, (reads for reads, _ in sides))
        return reduce(mul, (weight for _, weight in sides)) * reads.choose(value, 0)

    _gradient(call, grad_output, [gathered(line) for line in along], weighted)


def _gradient(
    call: Call, gradient: Operand, alongs: Sequence[Callable[[sympy.Expr], Along]], share: Share
) -> None:
    """At each place the sum of what those give it that may have read it."""
    acc = opmath(gradient.dtype)

    def given(k: KernelBuilder, at: Sizes, inside: Value | None) -> Value:
        loaded = k.load(gradient, (*k.coords[: -len(at)], *at), inside)
        return share(k, k.coords[-len(at) :], at, loaded.to(acc))

    store_gradient(call, alongs, given)


def _as_it_is(k: KernelBuilder, own: Sizes, at: Sizes, value: Value) -> Value:
    return value


# -- padding


def _pads(padding: Sequence[Any]) -> list[tuple[int, int]]:
    """Before and behind each dimension, the last of which `padding` has first."""
    require(all(isinstance(n, int) for n in padding), "padding of a size that is not known")
    return list(zip(padding[-2::-2], padding[::-2], strict=True))


def _reflected(at: sympy.Expr, extent: sympy.Expr, pads: tuple[int, int]) -> sympy.Expr:
    at = Max(at, -at) if pads[0] > 0 else at
    return Min(at, 2 * (extent - 1) - at) if pads[1] > 0 else at


def _replicated(at: sympy.Expr, extent: sympy.Expr, pads: tuple[int, int]) -> sympy.Expr:
    at = Max(at, sympy.S.Zero) if pads[0] > 0 else at
    return Min(at, extent - 1) if pads[1] > 0 else at


def _pad(call: Call, x: Operand, padding: Sequence[Any], rule: Callable[..., sympy.Expr]) -> None:
    k = call.kernel()
    pads = _pads(padding)
    own, size = k.coords[-len(pads) :], x.size[-len(pads) :]
    sides = zip(own, size, pads, strict=True)
    at = [rule(o - pad[0], extent, pad) for o, extent, pad in sides]
    call.store(k, k.load(x, (*k.coords[: -len(pads)], *at)))


@table.lowers(*of_ranks("reflection_pad{}d", 1, 2, 3))
def reflection_pad(call: Call, input: Operand, padding: Sequence[Any]) -> None:
    """Around the input its mirror image, without the edge."""
    _pad(call, input, padding, _reflected)


@table.lowers(*of_ranks("replication_pad{}d", 1, 2, 3))
def replication_pad(call: Call, input: Operand, padding: Sequence[Any]) -> None:
    """Around the input its edge."""
    _pad(call, input, padding, _replicated)


def _mirrors(extent: sympy.Expr, pads: tuple[int, int]) -> Callable[[sympy.Expr], Along]:
    """The point itself, and its reflections before the first and behind the last place, as far as
    negative padding on the other side leaves them."""
    before, behind = (sympy.Integer(n) for n in pads)

    def along(place: sympy.Expr) -> Along:
        points: list[sympy.Expr] = [place + before]
        whole = (place, Max(-before, 0), Min(extent - 1 + behind, extent - 1))
        tests: list[Test | None] = [whole if min(pads) < 0 else None]
        if before > 0:
            points.append(before - place)
            tests.append((place, Max(1 - extent - behind, 1), before))
        if behind > 0:
            points.append(before + 2 * (extent - 1) - place)
            tests.append((place, extent - 1 - behind, Min(before + 2 * (extent - 1), extent - 2)))
        return _listed(points, tests)

    return along


def _listed(points: Sequence[sympy.Expr], tests: Sequence[Test | None]) -> Along:
    """These points; each counts where an expression lies between two others."""

    def inside(k: KernelBuilder, _point: sympy.Expr, i: sympy.Expr) -> Value | None:
        test = tests[int(i)]
        if test is None:
            return None
        number = kind(*(e for e in test[1:]))
        value, low, high = (k.index(e, number) for e in test)
        return (value >= low) & (value <= high)

    return Along(len(points), lambda i: points[int(i)], inside)


@table.lowers(*of_ranks("reflection_pad{}d_backward", 1, 2, 3))
def reflection_pad_backward(
    call: Call, grad_output: Operand, input: Operand, padding: Sequence[Any]
) -> None:
    """The sum of the gradients of an element and of its mirror images."""
    pads = _pads(padding)
    sides = zip(call.out.size[-len(pads) :], pads, strict=True)
    _gradient(call, grad_output, [_mirrors(n, pad) for n, pad in sides], _as_it_is)
