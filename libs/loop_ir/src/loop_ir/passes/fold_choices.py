"""Drops choices that those around them have made already."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import sympy

import symexpr
from loop_ir.ir.masks import definitions, mask_tests
from loop_ir.ir.names import Name, operands, renamed, results, statements
from loop_ir.ir.nodes import Compute, Kernel, Stmt
from loop_ir.ir.rewrite import ranges_of
from loop_ir.passes.dead_code import drop_dead_statements


def fold_choices(kernel: Kernel) -> Kernel:
    """What is joined of parts that were joined or padded before as one tower of choices:

    m = lt(i0, 30); n = lt(i0, 60); a = where(m, x, y); v = where(n, a, 0); w = where(n, v, z)
     ->
    a = where(m, x, y); w = where(n, a, z)

    and(m, n) is m. Tests are of places, and nothing else may read what is chosen (`v`)."""
    if sum(map(_is_choice, statements(kernel))) < 2:
        return kernel
    made, ranges = definitions(kernel), dict(ranges_of(kernel))
    readers = Counter(name for s in statements(kernel) for name in operands(s))
    facts: dict[Name, list[sympy.Expr]] = {}  # by value, what is >= 0 wherever it is taken
    names: dict[Name, Name] = {}

    def follows(test: sympy.Expr | None, known: Sequence[sympy.Expr]) -> bool:
        """Whether it is >= 0 where those are."""
        if test is None:
            return False
        lows = (symexpr.bounds(sympy.expand(test - k), ranges)[0] for k in (0, *known))
        return any(low is not None and low >= 0 for low in lows)

    def not_yet(mask: str, known: Sequence[sympy.Expr]) -> list[sympy.Expr | None]:
        """The tests of a mask that do not follow."""
        return [t for t in mask_tests(made, mask) if not follows(t, known)]

    def holding(mask: str) -> list[sympy.Expr]:
        return [t for t in mask_tests(made, mask) if t is not None]

    def take(name: str, known: list[sympy.Expr]) -> None:
        if readers[name] == 1:
            facts[name] = known

    def choice(stmt: Compute) -> None:
        mask, one, other = stmt.args
        known = facts.get(stmt.out, [])
        left = not_yet(mask, known)
        fails = any(t is not None and follows(-1 - t, known) for t in left)
        if fails or not left:
            names[stmt.out] = other if fails else one
            take(names[stmt.out], known)
        else:
            take(one, [*known, *holding(mask)])
            (test, *more) = left
            take(other, known if more or test is None else [*known, -1 - test])

    for stmt in reversed(list(statements(kernel))):
        if _is_choice(stmt):
            choice(stmt)
        elif isinstance(stmt, Compute) and stmt.op == "and":
            for one, other in (stmt.args, stmt.args[::-1]):
                if not not_yet(other, holding(one)):
                    names[stmt.out] = one
    if not names:
        return kernel

    def last(name: Name) -> Name:
        while name in names:
            name = names[name]
        return name

    ends = {name: last(name) for name in names}
    phases = tuple(
        replace(
            p, body=tuple(renamed(s, ends) for s in p.body if names.keys().isdisjoint(results(s)))
        )
        for p in kernel.phases
    )
    return drop_dead_statements(replace(kernel, phases=phases)) or kernel


def _is_choice(stmt: Stmt) -> TypeGuard[Compute]:
    return isinstance(stmt, Compute) and stmt.op == "where"
