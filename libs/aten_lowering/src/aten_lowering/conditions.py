"""What capturing a graph assumed of its sizes: the guards of torch's ShapeEnvs, as conditions."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sympy
from torch import fx

from aten_lowering.symbols import shape_envs
from symexpr import SymexprError, UnknownFunction, evaluate, from_torch


@dataclass(frozen=True)
class Conditions:
    """A graph is right for sizes for which all of `known` hold. Ranges of symbols are no part of
    them: a symbol says its own.

    unsaid: guards that have no words here, as text. Where there are any, the conditions do not
    suffice. checked: what a call finds out, of sizes that hang on data, and stops where it is not
    so."""

    known: tuple[Any, ...] = ()
    unsaid: tuple[str, ...] = ()
    checked: tuple[Any, ...] = ()

    def hold(self, sizes: dict[str, int]) -> bool:
        """Whether the graph is known to be right for these sizes (symbol name -> value). A
        condition that has no value there (a division by zero) does not hold."""
        try:
            return not self.unsaid and all(bool(evaluate(c, sizes)) for c in self.known)
        except (SymexprError, ArithmeticError):
            return False


def assumed(gm: fx.GraphModule, bound: Collection[str], asserted: Iterable[Any] = ()) -> Conditions:
    """The guards in the ShapeEnvs of a graph's values, those of its decomposition and lowering
    included. bound: the symbols that a call of the graph gives a value; others are replaced by
    what torch found them equal to. asserted: what the graph itself says."""
    asserted = dict.fromkeys(asserted)
    known: dict[Any, None] = {}
    unsaid: list[str] = []
    for env in shape_envs(gm):
        equal = {s: env.replace(s) for s in env.replacements if s.name not in bound}
        for guard in env.guards:
            text = str(guard.expr)
            try:
                condition = from_torch(guard.expr.xreplace(equal))
            except UnknownFunction:
                unsaid.append(text)
                continue
            if condition == sympy.true:
                continue
            if {s.name for s in condition.free_symbols} <= set(bound):
                known[condition] = None
            else:
                unsaid.append(text)
        for deferred in (d for each in env.deferred_runtime_asserts.values() for d in each):
            with suppress(UnknownFunction):
                asserted[from_torch(deferred.expr.xreplace(equal))] = None
    checked = [c for c in asserted if {str(s) for s in c.free_symbols} <= set(bound)]
    return Conditions(tuple(known), tuple(unsaid), tuple(c for c in checked if c != sympy.true))
