"""What statements name: the values and symbols that they use and define, and the same statements
under other names.

A name is that of a value, or the symbol of an `Indirect`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import sympy

from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import substitute
from symexpr import free_symbols
from tensor_ir import DType, once

Name: TypeAlias = str | sympy.Symbol


class _Fields(NamedTuple):
    """Of a kind of statement: the fields with names that it uses, the one with those that it
    defines, and the one with an index or expression that runs over axes."""

    uses: tuple[str, ...] = ()
    defines: str = ""
    expression: str = ""


_FIELDS: dict[type[ir.Stmt], _Fields] = {
    ir.Load: _Fields(("mask",), "out", "index"),
    ir.Index: _Fields((), "out", "expr"),
    ir.Const: _Fields((), "out"),
    ir.Compute: _Fields(("args",), "out"),
    ir.Indirect: _Fields(("value",), "symbol"),
    ir.Reduce: _Fields(("args",), "outs"),
    ir.Scan: _Fields(("args",), "out"),
    ir.Store: _Fields(("value", "mask"), "", "index"),
}


def _names(stmt: ir.Stmt, fields: Iterable[str]) -> Iterator[Any]:
    for field in fields:
        value = getattr(stmt, field)
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value


@once
def used_values(stmt: ir.Stmt) -> tuple[str, ...]:
    """Values that a statement uses, its mask included."""
    return tuple(_names(stmt, _FIELDS[type(stmt)].uses))


@once
def results(stmt: ir.Stmt) -> tuple[Any, ...]:
    """Values or the symbol that a statement defines."""
    field = _FIELDS[type(stmt)].defines
    return tuple(_names(stmt, (field,))) if field else ()


def defined_values(stmt: ir.Stmt) -> tuple[str, ...]:
    """Names of the values that a statement defines."""
    return () if isinstance(stmt, ir.Indirect) else results(stmt)


def expression(stmt: ir.Stmt) -> sympy.Expr | None:
    """The index or expression of a statement that runs over axes."""
    field = _FIELDS[type(stmt)].expression
    return getattr(stmt, field) if field else None


@once
def operands(stmt: ir.Stmt) -> tuple[Name, ...]:
    """Values that a statement uses, and symbols of its index or expression."""
    expr = expression(stmt)
    return (*used_values(stmt), *(free_symbols(expr) if expr is not None else ()))


def map_expressions(stmt: ir.Stmt, rewrite: Callable[[sympy.Expr], sympy.Expr]) -> ir.Stmt:
    """The statement with its index or expression rewritten, if it has one."""
    expr = expression(stmt)
    if expr is None or (new := rewrite(expr)) is expr:
        return stmt
    return replace(stmt, **{_FIELDS[type(stmt)].expression: new})


def renamed(stmt: ir.Stmt, names: Mapping[Any, Any]) -> ir.Stmt:
    """The statement with other names in the place of those that it uses and defines."""
    if not names or names.keys().isdisjoint((*operands(stmt), *results(stmt))):
        return stmt
    fields = _FIELDS[type(stmt)]
    changes: dict[str, Any] = {}
    for field in (*fields.uses, *filter(None, (fields.defines,))):
        old = getattr(stmt, field)
        several = isinstance(old, tuple)
        new = tuple(names.get(n, n) for n in old) if several else names.get(old, old)
        if new != old:
            changes[field] = new
    stmt = replace(stmt, **changes) if changes else stmt

    def moved(expr: sympy.Expr) -> sympy.Expr:
        own = tuple((s, names[s]) for s in free_symbols(expr) if s in names)
        return substitute(expr, own) if own else expr

    return map_expressions(stmt, moved)


def statements(kernel: ir.Kernel) -> Iterator[ir.Stmt]:
    """Every statement of the kernel, in order."""
    for phase in kernel.phases:
        yield from phase.body


def varying(body: Iterable[ir.Stmt], symbol: sympy.Symbol, over: bool = True) -> set[Name]:
    """An axis, and what differs between its points: a reduction over it does not. over: whether
    those of the statements are."""
    found: set[Name] = {symbol}
    for stmt in body:
        if not ((over and isinstance(stmt, ir.Reduce)) or found.isdisjoint(operands(stmt))):
            found.update(results(stmt))
    return found


def behind(
    names: Iterable[Name], body: Iterable[ir.Stmt], ends: type[ir.Stmt] | None = None
) -> list[ir.Stmt]:
    """The statements of a body that these names are made by, in order. ends: statements of this
    kind, and those behind them, too."""
    needed, found = set(names), list[ir.Stmt]()
    for stmt in reversed(list(body)):
        if (ends and isinstance(stmt, ends)) or not needed.isdisjoint(results(stmt)):
            needed.update(operands(stmt))
            found.append(stmt)
    return found[::-1]


def value_names(*kernels: ir.Kernel) -> set[str]:
    """The values that kernels define."""
    return {n for k in kernels for s in statements(k) for n in defined_values(s)}


def value_types(kernel: ir.Kernel) -> dict[str, DType]:
    """The element type of each value that a kernel defines."""
    typed = (s for s in statements(kernel) if not isinstance(s, ir.Indirect | ir.Store))
    return {name: s.dtype for s in typed for name in defined_values(s)}


def free_names(kernel: ir.Kernel) -> set[str]:
    """The symbols of a kernel that are no axes: its sizes, and those of its `Indirect`s."""
    indirect = (s.symbol.name for s in statements(kernel) if isinstance(s, ir.Indirect))
    return {*(s.name for s in kernel.symbols), *indirect}


def symbol_names(kernel: ir.Kernel) -> set[str]:
    """All symbols of a kernel."""
    axes = (*kernel.axes, *(a for p in kernel.phases for a in p.axes))
    return free_names(kernel) | {a.symbol.name for a in axes}
