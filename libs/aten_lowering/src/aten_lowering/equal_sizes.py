"""Sizes that torch's guards say are equal get one form: two tensors of these sizes then show it."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from sympy.core.function import Application
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils._sympy.functions import FloorDiv, Max

from aten_lowering.symbols import sizes_of
from aten_lowering.torch_compat import sym_max


def equal_sizes(graph: fx.Graph) -> None:
    """Writes sizes in a graph's fake tensors, its inputs' among them, in the simplest form that
    guards give them, of symbols that its inputs have.

    (a + 2)//3, a guard says `(a + 2)//3 == b`      ->  b
    a, and `a - (a + 2)//3*2 == b`                  ->  3*b
    c//32*32, a guard says `c//32*32 == c`          ->  c"""
    given: set[Any] = set()
    for node in graph.find_nodes(op="placeholder"):
        given |= {n.node.expr for n in sizes_of(node.meta.get("val"))}
    known: dict[int, _Equalities] = {}
    forms: dict[tuple[int, Any], Any] = {}

    def simplest(n: Any) -> Any:
        if not isinstance(n, torch.SymInt):
            return n
        env, expr = n.node.shape_env, n.node.expr
        known[id(env)] = equalities = known.get(id(env)) or _Equalities(env, given)
        if (id(env), expr) not in forms:
            forms[id(env), expr] = equalities.simplest(expr)
        form = forms[id(env), expr]
        return n if form == expr else env.create_symintnode(form, hint=n.node.hint)

    def written(value: Any) -> Any:
        old = sizes_of(value)
        new = list(map(simplest, old))
        if all(a is b for a, b in zip(old, new, strict=True)):
            return value
        if isinstance(value, torch.SymInt):
            return new[0]
        size, stride = ([simplest(n) for n in ns] for ns in (value.shape, value.stride()))
        first = simplest(value.storage_offset())
        last = first + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        end = sym_max(last, -1) + 1  # below where a size is 0
        with value.fake_mode, old[0].node.shape_env.suppress_guards():
            made = torch.empty((end,), dtype=value.dtype, device=value.device)
            return made.as_strided(size, stride, first)

    for node in graph.nodes:
        bound = node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt)
        if node.op != "output" and not bound:
            values, spec = tree_flatten(node.meta.get("val"))
            if any(map(sizes_of, values)):
                node.meta["val"] = tree_unflatten(list(map(written, values)), spec)


class _Equalities:
    """What guards and checks of a ShapeEnv say that sizes are. rules: quotients and the like, and
    symbols that guards give; multiples: such a one times a number; zeros: sums of symbols."""

    def __init__(self, env: ShapeEnv, given: set[Any]) -> None:
        self.env, self.given = env, given
        self.rules: dict[Any, Any] = {}
        self.multiples: dict[Any, tuple[Any, Any]] = {}
        self.zeros: list[Any] = []
        said: list[Any] = [(guard.expr, given) for guard in env.guards]
        for each in env.deferred_runtime_asserts.values():
            said += ((d.expr, set()) for d in each)
        for equal, symbols in said:
            if isinstance(equal, sympy.Eq):
                self._add(env.replace(equal.lhs - equal.rhs), symbols)

    def _add(self, zero: Any, symbols: set[Any]) -> None:
        zero = sympy.expand(self.simplest(zero))
        found = zero.atoms(Application) or {
            s for s in zero.free_symbols & symbols if abs(zero.coeff(s)) == 1
        }
        for f in sorted(found, key=lambda f: (-f.count_ops(), str(f))):
            factor = zero.coeff(f)
            other = sympy.expand(factor * f - zero)
            if not factor.is_Integer or other.has(f) or not self._has(other, f):
                continue
            value = sympy.expand(other / factor)
            counts = value.as_coefficients_dict().values()
            if f.is_Symbol and min(counts, default=-1) < 0:
                continue  # of two sizes, the larger one has the form
            if all(c.is_Integer for c in counts):
                self.rules = {old: form.xreplace({f: value}) for old, form in self.rules.items()}
                self.rules[f] = value
                self._divides(f, value, symbols)
            else:
                self.multiples[f] = factor, other
            return
        if not zero.atoms(Application) and zero.free_symbols:
            self.zeros.append(zero)

    def _divides(self, f: Any, value: Any, symbols: set[Any]) -> None:
        """x//d and (x + d - 1)//d have the same value only where d divides x."""
        if isinstance(f, FloorDiv) and f.args[1].is_Integer:
            x, d = f.args
            for whole in (x, x - d + 1):
                if {FloorDiv(whole, d), FloorDiv(whole + d - 1, d)} <= {
                    g for g in self.rules if self.rules[g] == value
                }:
                    self._add(whole - d * value, symbols)

    def _has(self, new: Any, old: Any) -> bool:
        """No symbol comes in that no input has."""
        return bool(new.free_symbols <= old.free_symbols | self.given)

    def simplest(self, e: Any) -> Any:
        """The form of an expression that the guards so far give it."""
        for _ in range(2):  # what a rule leaves may be what another is of
            for part in e.atoms(FloorDiv):  # x*y//y
                quotient = sympy.cancel(part.args[0] / part.args[1])
                whole, rest = sympy.fraction(sympy.together(quotient))
                e = e.xreplace({part: whole}) if rest == 1 else e
            for part in e.atoms(Max):
                for n in part.args:
                    if all(self.env.bound_sympy(n - other).lower >= 0 for other in part.args):
                        e = e.xreplace({part: n})
            e = e.xreplace(self.rules)
            if self.multiples:
                e = e.replace(lambda part: part.is_Mul, self._whole)
            if self.multiples or self.zeros:
                e = e.replace(lambda part: part.is_Add, self._part)
        return min((e, sympy.expand(e)), key=lambda n: n.count_ops())

    def _part(self, total: Any) -> Any:
        zeros = [count * f - value for f, (count, value) in self.multiples.items() if total.has(f)]
        zeros += self.zeros
        near = (n for zero in zeros for n in (total + zero, total - zero) if self._has(n, total))
        forms = (total, *near)
        return min(forms, key=lambda n: n.count_ops())

    def _whole(self, product: Any) -> Any:
        count, rest = product.as_coeff_Mul()
        for f in rest.args if rest.is_Mul else (rest,):
            if f in self.multiples and count % self.multiples[f][0] == 0:
                factor, value = self.multiples[f]
                return count / factor * value * rest / f
        return product
