"""The inverse of `sstr`: Python's expression grammar, with sympy's meaning of `/`."""

import ast
from functools import lru_cache
from typing import Any

import sympy

from symexpr.choice import Where
from symexpr.division import FloorDiv, Mod
from symexpr.errors import ParseError, SymexprError
from symexpr.functions import FUNCTIONS
from symexpr.limits import MAX_DEPTH, MAX_TEXT, check_bits, checked_number, finite
from symexpr.scalars import BitwiseAnd, BitwiseOr, BitwiseXor, LShift, RShift, power
from symexpr.structure import symbol, times, total

_BINARY: dict[type[ast.operator], Any] = {
    ast.FloorDiv: FloorDiv,
    ast.Mod: Mod,
    ast.LShift: LShift,
    ast.RShift: RShift,
    ast.BitAnd: BitwiseAnd,
    ast.BitOr: BitwiseOr,
    ast.BitXor: BitwiseXor,
    ast.Pow: power,
}
_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}
_ALIASES = {"min": "Min", "max": "Max"}


@lru_cache(maxsize=10_000)
def parse(text: str) -> Any:
    """A sympy expression or boolean. Names are integer symbols.

    Raises ParseError, with the position, for text that is no expression, an unknown function or
    a wrong number of arguments, and for text that is longer or deeper than `symexpr.limits` says;
    TooLarge; and what the functions raise for their arguments.

    >>> parse("s0*32 + i0//4")
    32*s0 + FloorDiv(i0, 4)
    """
    if len(text) > MAX_TEXT:
        raise ParseError(text, MAX_TEXT, f"{len(text)} characters; at most {MAX_TEXT} are read")
    stripped = text.strip()
    offset = text.find(stripped) if stripped else 0
    try:
        tree = ast.parse(stripped, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as err:
        column: int = getattr(err, "offset", None) or len(stripped) + 1  # 0: at the end
        position = offset + column - 1
        raise ParseError(
            text, min(position, len(text)), getattr(err, "msg", None) or str(err) or "too deep"
        ) from None
    return _Reader(text, stripped, offset).read(tree.body)


def _product(factors: list[Any]) -> Any:
    numbers = (f for f in factors if f.is_Rational)
    check_bits(sum(max(f.p.bit_length(), f.q.bit_length()) for f in numbers), "product")
    if len(factors) == 2 and factors[0].is_Symbol and factors[1].is_Integer:
        return times(int(factors[1]), factors[0])
    return sympy.Mul(*factors)


class _Reader:
    def __init__(self, text: str, stripped: str, offset: int) -> None:
        self.text, self.stripped, self.offset = text, stripped, offset
        self.depth = 0

    def error(self, node: ast.AST, reason: str) -> ParseError:
        lines = self.stripped.split("\n")
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        start = sum(len(x) + 1 for x in lines[: line - 1])
        column = len(lines[line - 1].encode()[:column].decode())
        return ParseError(self.text, self.offset + start + column, reason)

    def read(self, node: ast.expr) -> Any:
        method = getattr(self, f"read_{type(node).__name__}", None)
        if method is None:
            raise self.error(node, f"{type(node).__name__} has no meaning here")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(node, f"nested more than {MAX_DEPTH} deep")
        value = method(node)
        self.depth -= 1
        return checked_number(value, "parse")

    def integer_like(self, node: ast.expr) -> Any:
        value = self.read(node)
        if not isinstance(value, sympy.Expr):
            raise self.error(node, "a condition stands where a number is due")
        return value

    def condition(self, node: ast.expr) -> Any:
        value = self.read(node)
        if not isinstance(value, sympy.logic.boolalg.Boolean) or value.is_Symbol:
            raise self.error(node, "a number stands where a condition is due")
        return value

    def read_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, bool):
            return sympy.true if node.value else sympy.false
        if isinstance(node.value, int):
            return sympy.Integer(node.value)
        if isinstance(node.value, float):
            return sympy.Float(finite(node.value, "parse"))
        raise self.error(node, f"{node.value!r} is no number")

    def read_Name(self, node: ast.Name) -> Any:
        return symbol(node.id)

    def read_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return sympy.Not(self.condition(node.operand))
        if isinstance(node.op, ast.USub):
            return _product(self.factors(node))
        if isinstance(node.op, ast.UAdd):
            return self.integer_like(node.operand)
        raise self.error(node, "`~` has no meaning here")

    def factors(self, node: ast.expr) -> list[Any]:
        """Factors of a chain of `*`, `/` and unary minus, so that one Mul is built of all."""
        out: list[Any] = []
        while True:
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                out += reversed(self.factors(node.right))
                node = node.left
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                out.append(sympy.Pow(self.integer_like(node.right), -1))
                node = node.left
            elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
                out.append(sympy.S.NegativeOne)
                node = node.operand
            else:
                out.append(self.integer_like(node))
                return out[::-1]

    def terms(self, node: ast.expr) -> list[Any]:
        """Terms of a chain of `+` and `-`; a chain of thousands is no deeper than one of two."""
        out: list[Any] = []
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            if isinstance(node.op, ast.Sub):
                out.append(sympy.Mul(-1, *self.factors(node.right)))
            else:
                out += reversed(self.terms(node.right))
            node = node.left
        return [self.integer_like(node), *reversed(out)]

    def read_BinOp(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, ast.Mult | ast.Div):
            return _product(self.factors(node))
        if isinstance(node.op, ast.Add | ast.Sub):
            return total(self.terms(node))
        make = _BINARY.get(type(node.op))
        if make is None:
            raise self.error(node, f"{type(node.op).__name__} has no meaning here")
        return make(self.integer_like(node.left), self.integer_like(node.right))

    def read_BoolOp(self, node: ast.BoolOp) -> Any:
        make = sympy.And if isinstance(node.op, ast.And) else sympy.Or
        return make(*map(self.condition, node.values))

    def read_Compare(self, node: ast.Compare) -> Any:
        values = [self.integer_like(n) for n in (node.left, *node.comparators)]
        parts = []
        for op, a, b in zip(node.ops, values, values[1:], strict=False):
            if type(op) not in _COMPARE:
                raise self.error(node, f"{type(op).__name__} has no meaning here")
            parts.append(_COMPARE[type(op)](a, b))
        return sympy.And(*parts)

    def read_IfExp(self, node: ast.IfExp) -> Any:
        a, b = self.integer_like(node.body), self.integer_like(node.orelse)
        return Where(self.condition(node.test), a, b)

    def read_Call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise self.error(node, "a call is `Function(arguments)`")
        name = _ALIASES.get(node.func.id, node.func.id)
        function = FUNCTIONS.get(name)
        if function is None:
            raise self.error(node, f"unknown function `{node.func.id}`")
        args = [self.read(a) for a in node.args]
        for i, (a, value) in enumerate(zip(node.args, args, strict=True)):
            if name == "Where" and i == 0:
                self.condition(a)
            elif not isinstance(value, sympy.Expr):
                raise self.error(a, "a condition stands where a number is due")
        try:
            return function(*args)
        except SymexprError:
            raise
        except TypeError as err:
            raise self.error(node, f"{name}: {err}") from None
