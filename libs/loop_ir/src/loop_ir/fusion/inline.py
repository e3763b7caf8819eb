"""A cheap pointwise producer computed where it is loaded, at whatever point that is.

mask = where(m[i0] == 0, -inf, 0), i0 < 64      (own kernel, stored)
s[i0*64 + i1] + mask[i1], i0, i1 < 64   ->   s[i0*64 + i1] + where(m[i1] == 0, -inf, 0)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import sympy

from loop_ir.fusion.common_domain import Mismatch, stays_apart
from loop_ir.ir import renaming
from loop_ir.ir.affine import linear, nonnegative, nonnegative_over, quotient, substitute
from loop_ir.ir.analysis import inner_axes, is_pointwise, lows_of
from loop_ir.ir.in_place import hazard, is_in_place
from loop_ir.ir.masks import definitions, mask_tests
from loop_ir.ir.names import behind, map_expressions, renamed, statements, value_names
from loop_ir.ir.nodes import Axis, Compute, Const, Indirect, Kernel, Load, Phase, Stmt, Store
from loop_ir.ir.points import mixed_radix
from loop_ir.ir.rewrite import RangeItems, Substitution, ranges_of, simplify_with
from loop_ir.ir.staging import Unstageable, items_of, stage
from loop_ir.passes import cse
from symexpr import FloorDiv, Mod
from tensor_ir import DType

_LONGEST = 128  # numbers, symbols and operations of a point that is found by division

Lows = tuple[tuple[sympy.Symbol, int], ...]


def inline(producer: Kernel, consumer: Kernel, buffer: str) -> Kernel | Mismatch:
    """`consumer` with its loads of `buffer` replaced by what `producer` stores there, at points
    that are found by division where its axes do not tell them."""
    if apart := stays_apart(producer, consumer):
        return apart
    if not is_pointwise(producer):
        return Mismatch(f"{producer.name} reduces, so it is not computed again")
    if is_in_place(producer):
        return Mismatch(f"{producer.name} changes a buffer in place")
    stores = [s for s in statements(producer) if isinstance(s, Store) and s.buffer == buffer]
    if len(stores) != 1 or stores[0].mode != "set" or stores[0].mask is not None:
        return Mismatch(f"{producer.name} writes {buffer} in part or adds to it")
    store = stores[0]
    found = _inlined(producer, consumer, store)
    if isinstance(found, Mismatch):
        again = _inlined(producer, consumer, store, divide=True)
        return found if isinstance(again, Mismatch) else again
    return found


def _inlined(
    producer: Kernel, consumer: Kernel, store: Store, divide: bool = False
) -> Kernel | Mismatch:
    buffer = store.buffer
    written = {s.buffer for s in statements(consumer) if isinstance(s, Store)}
    body = behind((store.value,), statements(producer))
    if any(isinstance(s, Load) and s.buffer in written for s in body):
        return Mismatch(f"{consumer.name} changes what {producer.name} reads")
    lows = lows_of(renaming.union_symbols(producer.symbols, consumer.symbols))
    indirect = [Axis(s.symbol, s.extent) for s in statements(consumer) if isinstance(s, Indirect)]
    phases: list[Phase] = []
    for phase in consumer.phases:
        out: list[Stmt] = []
        axes = (*consumer.axes, *phase.axes, *indirect)
        for stmt in phase.body:
            if not (isinstance(stmt, Load) and stmt.buffer == buffer):
                out.append(stmt)
                continue
            here = replace(phase, body=tuple(out))
            facts = _facts(replace(consumer, phases=(*phases, here)), stmt.mask)
            point = locate(store.index, producer.axes, stmt.index, axes, lows, facts)
            if point is None and divide:
                point = _divided(store.index, producer.axes, stmt.index)
            if point is None:
                return Mismatch(
                    f"the index [{stmt.index}] of {buffer} gives no point of {producer.name}"
                )
            shell = replace(consumer, phases=(*consumer.phases, *phases, here))
            ranges = _where(ranges_of(shell), facts, lows)
            out += _copy(producer, body, store, stmt, point, shell, ranges)
        phases.append(replace(phase, body=tuple(out)))
    kernel = replace(
        consumer,
        buffers=renaming.union_buffers(
            [replace(b, written=False) for b in producer.buffers], consumer.buffers
        ),
        phases=tuple(phases),
        symbols=renaming.union_symbols(producer.symbols, consumer.symbols),
        origins=renaming.union_origins(producer.origins, consumer.origins),
    )
    inner = inner_axes(kernel)
    if inner:
        try:
            kernel = replace(kernel, phases=stage(items_of(kernel), inner))
        except Unstageable as e:
            return Mismatch(str(e))
    kernel = renaming.used_buffers(cse.eliminate(kernel))
    why = hazard(kernel)
    return kernel if why is None else Mismatch(f"in {consumer.name}, {why}")


def _copy(
    producer: Kernel,
    body: Sequence[Stmt],
    store: Store,
    load: Load,
    point: Substitution,
    shell: Kernel,
    ranges: RangeItems,
) -> list[Stmt]:
    """The producer's statements at `point`, the last one named as `load`. ranges: of what is read
    where `load` reads."""
    part = replace(producer, phases=(replace(producer.phases[0], body=(*body, store)),))
    part = renaming.rename_apart(part, shell)
    taken = value_names(part, shell)
    out: list[Stmt] = []
    for stmt in part.phases[0].body[:-1]:
        stmt = map_expressions(stmt, lambda e: simplify_with(substitute(e, point), ranges))
        if isinstance(stmt, Load) and load.mask is not None:
            if stmt.mask is None:
                stmt = replace(stmt, mask=load.mask)
            else:
                both = renaming.fresh_name(f"{stmt.out}_mask", taken)
                out.append(Compute(both, "and", (stmt.mask, load.mask), DType.bool_))
                stmt = replace(stmt, mask=both)
        out.append(stmt)
    last = part.phases[0].body[-1]
    assert isinstance(last, Store)
    if load.mask is not None:
        other = renaming.fresh_name(f"{load.out}_other", taken)
        out.append(Const(other, load.other, load.dtype))
        out.append(Compute(load.out, "where", (load.mask, last.value, other), load.dtype))
        return out
    return [renamed(s, {last.value: load.out}) for s in out]


def locate(
    store: sympy.Expr,
    producer: Sequence[Axis],
    load: sympy.Expr,
    axes: Sequence[Axis],
    lows: Lows,
    facts: Sequence[sympy.Expr] = (),
) -> Substitution | None:
    """The producer's point, in terms of the consumer's axes, at which `store` equals `load`.

    The store index must be a mixed-radix number of the producer's axes (each stride the next
    one times its extent); the terms of the load index are then its digits. Digits are found
    without division: each term goes to the largest stride that divides its coefficient, the
    constant where it fits, and every digit must stay in its range, by the extents of the axes
    or by `facts`: expressions that are >= 0 wherever the load reads anything."""
    # The two kernels may use the same symbols for different axes.
    radix = {a.symbol: a.extent for a in producer}
    digits = mixed_radix(store, radix)
    given = linear(load, tuple(a.symbol for a in axes))
    if digits is None or given is None:
        return None
    extents = {a.symbol: a.extent for a in axes}
    parts: dict[sympy.Symbol, sympy.Expr] = {s: sympy.S.Zero for s, _ in digits}
    for axis, coefficient in given.terms:
        if extents[axis] == 1:
            continue
        for digit, stride in digits:
            scale = quotient(coefficient, stride)
            if scale is not None:
                parts[digit] += scale * axis
                break
        else:
            return None
    for shares in _split_constant(given.rest, digits):
        point = {s: sympy.expand(e + shares.get(s, 0)) for s, e in parts.items()}
        if all(
            _holds(e, extents, lows, facts)
            and _holds(sympy.expand(radix[s] - 1 - e), extents, lows, facts)
            for s, e in point.items()
        ):
            return tuple((a.symbol, point.get(a.symbol, sympy.S.Zero)) for a in producer)
    return None


def _divided(store: sympy.Expr, producer: Sequence[Axis], load: sympy.Expr) -> Substitution | None:
    """As `locate`, with digits that are found by division; None where that is so long a formula
    (of sizes that nobody knows) that reading what was stored is less work."""
    radix = {a.symbol: a.extent for a in producer}
    digits = mixed_radix(store, radix)
    if digits is None:
        return None
    point: dict[sympy.Symbol, sympy.Expr] = {}
    for number, (symbol, stride) in enumerate(digits):
        at = sympy.sympify(FloorDiv(load, stride))
        point[symbol] = sympy.sympify(Mod(at, radix[symbol])) if number else at
    if sum(1 for e in point.values() for _ in sympy.preorder_traversal(e)) > _LONGEST:
        return None
    return tuple((a.symbol, point.get(a.symbol, sympy.S.Zero)) for a in producer)


def _split_constant(
    rest: sympy.Expr, digits: Sequence[tuple[sympy.Symbol, sympy.Expr]]
) -> Iterator[dict[sympy.Symbol, sympy.Expr]]:
    """Ways to write the constant of an index as digits: all in one, or as a number, with digits
    rounded down or to the nearest; each also with one of a digit carried to or from the next."""
    known = all(stride.is_Integer for _, stride in digits)
    for shares in _plain_shares(rest, digits):
        yield shares
        for (outer, wide), (inner, narrow) in pairwise(digits) if known else ():
            for carry in (1, -1):
                moved = {outer: carry, inner: -carry * (wide // narrow)}
                yield shares | {s: shares.get(s, sympy.S.Zero) + n for s, n in moved.items()}


def _plain_shares(
    rest: sympy.Expr, digits: Sequence[tuple[sympy.Symbol, sympy.Expr]]
) -> Iterator[dict[sympy.Symbol, sympy.Expr]]:
    if rest == 0:
        yield {}
        return
    for digit, stride in digits:
        share = quotient(rest, stride)
        if share is not None:
            yield {digit: share}
    if not (rest.is_Integer and all(stride.is_Integer for _, stride in digits)):
        return
    for nearest in (False, True):
        left = int(rest)
        shares: dict[sympy.Symbol, sympy.Expr] = {}
        for digit, stride in digits:
            n = int(stride)
            count = (2 * left + n) // (2 * n) if nearest else left // n
            shares[digit] = sympy.Integer(count)
            left -= count * n
        if left == 0:
            yield shares


def _holds(
    expr: sympy.Expr,
    extents: Mapping[sympy.Symbol, sympy.Expr],
    lows: Lows,
    facts: Sequence[sympy.Expr],
) -> bool:
    """Whether `expr >= 0`, by the extents of its axes, or because it is no less than a fact."""
    return any(
        nonnegative_over(sympy.expand(expr - fact), extents, lows)
        for fact in (sympy.S.Zero, *facts)
    )


def _where(ranges: RangeItems, facts: Sequence[sympy.Expr], lows: Lows) -> RangeItems:
    """Ranges of the points at which `facts` hold, which may be fewer for an axis alone."""
    found = dict(ranges)
    axes = found.keys() - dict(lows)
    lows = tuple((s, found[s][0] or low) for s, low in lows if s in found)  # where points are
    for fact in facts:
        inner = fact.free_symbols & axes
        for axis in inner if len(inner) == 1 else ():
            low, high = found[axis]
            end = sympy.expand(axis - fact * fact.coeff(axis))
            if low is None or high is None or end.has(axis):
                continue
            if all(nonnegative(sympy.expand(e), lows) for e in (end - low, high - end)):
                found[axis] = (end, high) if fact.coeff(axis) == 1 else (low, end)
    return tuple(found.items())


def _facts(kernel: Kernel, mask: str | None) -> list[sympy.Expr]:
    """Expressions that are >= 0 wherever `mask` holds."""
    tests = () if mask is None else mask_tests(definitions(kernel), mask)
    return [e for e in tests if e is not None]
