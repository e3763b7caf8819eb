"""What masks say of the points where they hold."""

from collections.abc import Iterator, Mapping

import sympy

from loop_ir.ir.names import defined_values, statements
from loop_ir.ir.nodes import Compute, Const, Index, Kernel, Stmt


def definitions(kernel: Kernel) -> dict[str, Stmt]:
    """The statement that defines each value."""
    return {name: s for s in statements(kernel) for name in defined_values(s)}


def mask_tests(made: Mapping[str, Stmt], mask: str) -> Iterator[sympy.Expr | None]:
    """Expressions that are all >= 0 where `mask` holds, and only there: `and` of comparisons of
    indices and constants, such as the mask of a padded or concatenated load. None for a part that
    is anything else. made: the statement that defines each value."""

    def number(name: str) -> sympy.Expr | None:
        stmt = made.get(name)
        if isinstance(stmt, Index):
            return stmt.expr
        if isinstance(stmt, Const) and isinstance(stmt.value, int):
            return sympy.Integer(int(stmt.value))
        return None

    stack = [mask]
    while stack:
        stmt = made.get(stack.pop())
        if isinstance(stmt, Compute) and stmt.op == "and":
            stack += stmt.args
        elif isinstance(stmt, Compute) and stmt.op in ("lt", "le", "gt", "ge"):
            low, high = map(number, stmt.args if stmt.op[0] == "l" else stmt.args[::-1])
            if low is None or high is None:
                yield None
            else:
                yield sympy.expand(high - low - (1 if stmt.op[1] == "t" else 0))
        else:
            yield None
