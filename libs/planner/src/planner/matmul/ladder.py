"""Sizes at which a matmul with a dynamic number of rows is tuned, and what to run between them.

M is unknown until the program runs, and no tile is good for 1 row and for 8192. So the matmul is
tuned at each rung of a ladder of M; rungs that one candidate serves within `MARGINS.rung` of their
best share it; the program compares M with the rungs:

    M == 1 -> a    M <= 64 -> b    M <= 1024 -> the vendor's call    else -> c

A size between two rungs takes the choice of the upper one: it then never costs more than the
upper rung itself, however a tile made for fewer rows would do there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from multikernel import fewest_runs
from symexpr import evaluate, symbol
from tuning import MARGINS
from wrapper_ir import Symbol

# With the hint, at most so many and one variants of one matmul are compiled into a program. Between
# 256 and 4096 rows the tiles fill the multiprocessors a few times over: there the last, partly
# empty wave counts, and rungs are half an octave apart or less.
LADDER = (1, 16, 32, 64, 128, 256, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096, 8192)


@dataclass(frozen=True)
class Rung:
    """A number of rows, and sizes that give it.

    condition: what holds where this is the nearest rung from above, and all higher ones' too
    (None: the highest). exact: the sizes are known there, not only bounded."""

    rows: int
    hints: Mapping[str, int]
    condition: sympy.logic.boolalg.Boolean | None
    exact: bool = False


def rungs(rows: sympy.Expr, symbols: Sequence[Symbol], hints: Mapping[str, int]) -> list[Rung]:
    """From the lowest: those of `LADDER` that the ranges of the sizes allow, and the hints'. Only
    the hints' where `rows` is no product of sizes, which is known to grow with each."""
    product = _product(rows, {s.name for s in symbols})
    if product is None or not product.powers:
        return [Rung(int(evaluate(rows, hints)), dict(hints), None)]
    names = sorted(product.powers)
    ranges = {s.name: s for s in symbols if s.name in names}
    typical = product.at(hints)
    found = {typical: dict(hints)} if typical > 0 else {}
    for target in LADDER:
        env = _sizes_for(product, target, ranges, hints)
        found.setdefault(product.at(env), env)
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
    """For each rung the name of what runs there: as few changes as `MARGINS.rung` allows, and in a
    run of rungs the candidate that loses least. `times`: seconds of each candidate of each rung;
    only candidates that were measured at all rungs of a run can serve it.

    >>> share([{"a": 1.0, "b": 1.01}, {"a": 2.0, "b": 1.0}, {"c": 1.0}])
    ['b', 'b', 'c']
    """
    chosen: list[str] = []
    for count, losses in fewest_runs([_losses(rung) for rung in times]):
        chosen += [min(losses, key=lambda name: (losses[name], name))] * count
    return chosen


def last_of_runs(labels: Sequence[str]) -> list[int]:
    """The rungs that serve those below with the same label.

    >>> last_of_runs(["a", "a", "b"])
    [1, 2]
    """
    return [i for i, label in enumerate(labels) if labels[i + 1 : i + 2] != [label]]


def _losses(rung: Mapping[str, float]) -> dict[str, float]:
    """Of the candidates within `MARGINS.rung` of a rung's best, their times over the best."""
    best = min(rung.values())
    limit = best * (1 + MARGINS.rung)
    return {name: time / (best or 1.0) for name, time in rung.items() if time <= limit}


@dataclass(frozen=True)
class _Product:
    """`factor * size**power * ...`, which grows with each size."""

    factor: int
    powers: Mapping[str, int]

    def at(self, env: Mapping[str, int]) -> int:
        return prod((int(env[n] ** power) for n, power in self.powers.items()), start=self.factor)


def _product(rows: sympy.Expr, sizes: set[str]) -> _Product | None:
    factor, rest = rows.as_coeff_Mul()
    powers = {str(base): power for base, power in rest.as_powers_dict().items() if base != 1}
    whole = all(power.is_Integer and power > 0 for power in powers.values())
    if not factor.is_Integer or factor < 1 or not whole or not powers.keys() <= sizes:
        return None
    return _Product(int(factor), {name: int(power) for name, power in powers.items()})


def _sizes_for(
    rows: _Product, target: int, ranges: Mapping[str, Symbol], hints: Mapping[str, int]
) -> dict[str, int]:
    """Sizes in range that give at most `target` rows, or the fewest there are: one after the
    other, the small ones first, is as large as hinted if that fits; then as large as fits."""
    low = {name: max(1, each.low or 0) for name, each in ranges.items()}
    env = {**hints, **low}
    for name in sorted(ranges, key=lambda n: (hints[n], n)):
        env[name] = _largest(rows, target, name, env, max(low[name], hints[name]))
    for name, each in sorted(ranges.items()):
        env[name] = _largest(rows, target, name, env, target if each.high is None else each.high)
    return env


def _largest(rows: _Product, target: int, name: str, env: Mapping[str, int], high: int) -> int:
    """The largest value of a size, from what it is up to `high`, with at most `target` rows; what
    it is where that has more."""
    low = env[name]
    while low < high:
        middle = (low + high + 1) // 2
        if rows.at({**env, name: middle}) <= target:
            low = middle
        else:
            high = middle - 1
    return low
