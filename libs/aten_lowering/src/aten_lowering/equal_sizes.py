"""Sizes that torch's guards say are equal get one form: two tensors of these sizes then show it."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils._sympy.functions import FloorDiv, Max

from aten_lowering.symbols import sizes_of
from aten_lowering.torch_compat import sym_max


def equal_sizes(graph: fx.Graph) -> None:
    """Writes sizes in the fake tensors of what a graph computes in the simplest form that guards
    give them, of symbols that its inputs have.

    (a + 2)//3, a guard says `(a + 2)//3 == b`      ->  b
    a - (a + 2)//3*2, and `a - (a + 2)//3*2 == b`   ->  b
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
        if node.op not in ("placeholder", "output"):
            values, spec = tree_flatten(node.meta.get("val"))
            if any(map(sizes_of, values)):
                node.meta["val"] = tree_unflatten(list(map(written, values)), spec)


class _Equalities:
    """What guards and checks of a ShapeEnv say that sizes are. rules: quotients and the like;
    multiples: such a one times a number; zeros: sums of symbols."""

    def __init__(self, env: ShapeEnv, given: set[Any]) -> None:
        self.env, self.given = env, given
        self.rules: dict[Any, Any] = {}
        self.multiples: dict[Any, tuple[Any, Any]] = {}
        self.zeros: list[Any] = []
        said: list[Any] = [guard.expr for guard in env.guards]
        said += (d.expr for each in env.deferred_runtime_asserts.values() for d in each)
        for equal in said:
            if isinstance(equal, sympy.Eq):
                self._add(env.replace(equal.lhs - equal.rhs))

    def _add(self, zero: Any) -> None:
        zero = sympy.expand(self.simplest(zero))
        found = zero.atoms(sympy.Function)
        if zero.free_symbols and not found:
            self.zeros.append(zero)
        for f in sorted(found, key=lambda f: (-f.count_ops(), str(f))):
            factor = zero.coeff(f)
            other = sympy.expand(factor * f - zero)
            if not factor.is_Integer or other.has(f) or not self._has(other, f):
                continue
            value = sympy.expand(other / factor)
            if all(c.is_Integer for c in value.as_coefficients_dict().values()):
                self.rules[f] = value
            else:
                self.multiples[f] = factor, other
            return

    def _has(self, new: Any, old: Any) -> bool:
        """No symbol comes in that no input has."""
        return bool(new.free_symbols <= old.free_symbols | self.given)

    def simplest(self, e: Any) -> Any:
        """The form of an expression that the guards so far give it."""
        if e.is_Symbol or e.is_Integer:
            return e
        for part in e.atoms(FloorDiv):  # x*y//y
            whole, rest = sympy.fraction(sympy.together(sympy.cancel(part.args[0] / part.args[1])))
            e = e.xreplace({part: whole}) if rest == 1 else e
        for part in e.atoms(Max):
            for n in part.args:
                if all(self.env.bound_sympy(n - other).lower >= 0 for other in part.args):
                    e = e.xreplace({part: n})
        for _ in range(2):  # what a rule leaves may be what another is of
            e = e.xreplace(self.rules)
            if self.multiples:
                e = e.replace(lambda part: part.is_Mul, self._whole)
        fewer = [n for zero in self.zeros for n in (e + zero, e - zero) if self._has(n, e)]
        return min((e, *fewer), key=lambda n: n.count_ops())

    def _whole(self, product: Any) -> Any:
        count, rest = product.as_coeff_Mul()
        for f in rest.args if rest.is_Mul else (rest,):
            if f in self.multiples and count % self.multiples[f][0] == 0:
                factor, value = self.multiples[f]
                return count / factor * value * rest / f
        return product
