"""Sizes at which a matmul with a dynamic number of rows is tuned, and what to run between them.

M is unknown until the program runs, and no tile is good for 1 row and for 8192. So the matmul is
tuned at each rung of a ladder of M; rungs that one candidate serves within `TOLERANCE` of their
best share it; the program compares M with the rungs:

    M == 1 -> a    M <= 64 -> b    M <= 1024 -> the vendor's call    else -> c

A size between two rungs takes the choice of the upper one: it then never costs more than the
upper rung itself, however a tile made for fewer rows would do there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from symexpr import evaluate, symbol
from wrapper_ir.ops import Symbol

# With the hint, at most eleven variants of one matmul are compiled into a program.
LADDER = (1, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192)

# A candidate this much slower than a rung's best serves it, too, if that saves a branch: less is
# noise.
TOLERANCE = 0.02


@dataclass(frozen=True)
class Rung:
    """A number of rows, and sizes that give it.

    condition: what holds where this is the nearest rung from above (None: the highest). exact:
    the sizes are known there, not only bounded.
    """

    rows: int
    hints: Mapping[str, int]
    condition: sympy.logic.boolalg.Boolean | None
    exact: bool = False


def rungs(rows: sympy.Expr, symbols: Sequence[Symbol], hints: Mapping[str, int]) -> list[Rung]:
    """From the lowest: those of `LADDER` that the ranges of the sizes allow, and the hints'. Only
    the hints' where `rows` is no product of sizes, which is known to grow with each."""
    names = sorted(str(s) for s in rows.free_symbols)
    ranges = {s.name: s for s in symbols if s.name in names}
    if not names or len(ranges) != len(names) or not _grows(rows, names):
        return [Rung(int(evaluate(rows, hints)), dict(hints), None)]
    typical = int(evaluate(rows, hints))
    found = {typical: dict(hints)} if typical > 0 else {}
    for target in LADDER:
        env = _sizes_for(rows, target, names, ranges, hints)
        found.setdefault(int(evaluate(rows, env)), env)
    order = sorted(found)
    out = []
    for at in order[:-1]:
        alone = at == 1 and rows.is_Symbol
        condition = sympy.Eq(rows, 1) if alone else sympy.Le(rows, at)
        if len(names) == 1 and not alone:
            condition = sympy.Le(symbol(names[0]), found[at][names[0]])
        out.append(Rung(at, found[at], condition, alone))
    return [*out, Rung(order[-1], found[order[-1]], None)]


def share(times: Sequence[Mapping[str, float]]) -> list[str]:
    """For each rung the name of what runs there: as few changes as `TOLERANCE` allows, and in a
    run of rungs the candidate that loses least. `times`: seconds of each candidate of each rung;
    only candidates that were measured at all rungs of a run can serve it.

    >>> share([{"a": 1.0, "b": 1.01}, {"a": 2.0, "b": 1.0}, {"c": 1.0}])
    ['b', 'b', 'c']
    """
    chosen: list[str] = []
    run: list[Mapping[str, float]] = []
    able: set[str] = set()
    for rung in times:
        best = min(rung.values())
        good = {name for name, time in rung.items() if time <= best * (1 + TOLERANCE)}
        if run and not able & good:
            chosen += [_least_loss(run, able)] * len(run)
            run, able = [], set()
        able = able & good if run else good
        run.append(rung)
    return chosen + [_least_loss(run, able)] * len(run)


def _least_loss(run: Sequence[Mapping[str, float]], able: set[str]) -> str:
    def loss(name: str) -> tuple[float, str]:
        return sum(rung[name] / (min(rung.values()) or 1.0) for rung in run), name

    return min(able, key=loss)


def _grows(rows: sympy.Expr, names: Sequence[str]) -> bool:
    """A product of sizes, each a symbol to a power, and a positive number."""
    factor, rest = rows.as_coeff_Mul()
    powers = rest.as_powers_dict()
    return bool(
        factor.is_Integer
        and factor > 0
        and all(base.is_Symbol and e.is_Integer and e > 0 for base, e in powers.items())
        and {str(base) for base in powers} == set(names)
    )


def _sizes_for(
    rows: sympy.Expr,
    target: int,
    names: Sequence[str],
    ranges: Mapping[str, Symbol],
    hints: Mapping[str, int],
) -> dict[str, int]:
    """Sizes in range that give at most `target` rows, or the fewest there are: one size after the
    other is made as large as it may be, the others as hinted as far as they fit."""
    env = dict(hints)
    low = {n: max(1, ranges[n].low or 0) for n in names}
    for n in names:
        env[n] = low[n]
    for n in sorted(names, key=lambda n: (hints[n], n)):
        env[n] = _largest(rows, target, n, env, low[n], max(low[n], hints[n]))
    for n in names:
        high = ranges[n].high
        env[n] = _largest(rows, target, n, env, env[n], target if high is None else high)
    return env


def _largest(
    rows: sympy.Expr, target: int, name: str, env: Mapping[str, int], low: int, high: int
) -> int:
    """The largest value of a size in [low, high] with at most `target` rows; else `low`."""
    at = symbol(name)
    others = {symbol(k): v for k, v in env.items() if k != name}
    of = rows.subs(others)
    while low < high:
        middle = (low + high + 1) // 2
        if int(of.subs(at, middle)) <= target:
            low = middle
        else:
            high = middle - 1
    return low
