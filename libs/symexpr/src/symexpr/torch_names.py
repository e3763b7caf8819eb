"""Translation to and from `torch.utils._sympy.functions`, by class name: torch is not imported."""

from typing import Any

import sympy

from symexpr.errors import UnknownFunction
from symexpr.floors import replace_floor
from symexpr.functions import FUNCTIONS
from symexpr.structure import symbol

_TO_TORCH = {"Mod": "PythonMod"}
_TO_TORCH |= {f"Bitwise{op}": f"BitwiseFn_bitwise_{op.lower()}" for op in ("And", "Or", "Xor")}
_ALIASES = {"CleanDiv": "FloorDiv", "floor": "FloorToInt", "ceiling": "CeilToInt"}
_ALIASES |= {theirs: own for own, theirs in _TO_TORCH.items()}


def from_torch(e: Any) -> Any:
    """Functions of torch, and sympy's own Min, Max, Mod and floor, as ours; symbols as
    `symbol(name)`. Takes also a plain int, or a SymInt (by its `node.expr`).

    Raises UnknownFunction for a node that has no counterpart."""
    node = getattr(e, "node", None)
    if node is not None and hasattr(node, "expr"):
        e = node.expr
    e = sympy.sympify(e)
    return _convert(replace_floor(_symbols(e)), {})


def _symbols(e: sympy.Basic) -> sympy.Basic:
    old = [s for s in e.free_symbols if s != symbol(s.name)]
    return e.xreplace({s: symbol(s.name) for s in old}) if old else e


def _convert(e: sympy.Basic, memo: dict[sympy.Basic, Any]) -> Any:
    if e in memo:
        return memo[e]
    name = type(e).__name__
    out: Any
    if not e.args:
        known = sympy.Symbol | sympy.Rational | sympy.Float | sympy.NumberSymbol
        if not isinstance(e, known | sympy.logic.boolalg.BooleanAtom):
            raise UnknownFunction(name, f"from_torch `{e}`")
        out = e
    else:
        args = [_convert(a, memo) for a in e.args]
        if name == "Identity":
            out = args[0]
        elif name == "FloatPow":
            out = sympy.Pow(*args)
        elif _ALIASES.get(name, name) in FUNCTIONS:
            out = FUNCTIONS[_ALIASES.get(name, name)](*args)
        elif isinstance(e, sympy.Function):
            raise UnknownFunction(name, f"from_torch `{e}`")
        else:
            out = e.func(*args)
    memo[e] = out
    return out


def to_torch(e: Any, functions: Any) -> Any:
    """The expression in torch's functions, looked up by name in the namespace `functions`
    (`torch.utils._sympy.functions`). Symbols stay integer symbols without a sign.

    Raises UnknownFunction where the namespace lacks one."""
    e = sympy.sympify(e)
    if not e.args:
        return e
    args = [to_torch(a, functions) for a in e.args]
    if not isinstance(e, sympy.Function) or isinstance(e, sympy.logic.boolalg.Boolean):
        return e.func(*args)
    name = type(e).__name__
    if name == "CeilDiv":  # torch's own becomes a floor division that is wrong for b < 0
        return -_lookup("FloorDiv", functions)(-args[0], args[1])
    return _lookup(_TO_TORCH.get(name, name), functions)(*args)


def _lookup(name: str, functions: Any) -> Any:
    found = getattr(functions, name, None)
    if found is None:
        raise UnknownFunction(name, "to_torch", "the namespace given has no such function")
    return found
