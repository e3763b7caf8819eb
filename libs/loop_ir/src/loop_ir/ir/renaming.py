"""Names of values, symbols and buffers: fresh ones, other ones, and the union of two kernels'."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

import sympy

import symexpr
from loop_ir.ir.affine import substitute
from loop_ir.ir.analysis import defined_values, statements, used_values
from loop_ir.ir.nodes import (
    Buffer,
    Compute,
    Const,
    Index,
    Indirect,
    Kernel,
    Load,
    Origin,
    Reduce,
    Scan,
    Stmt,
    Store,
)
from loop_ir.ir.rewrite import map_expressions, map_statements, substitute_axes
from tensor_ir import Symbol


def fresh_name(base: str, taken: set[str]) -> str:
    """`base`, or `base_1`, `base_2`, ...: the first that is not in `taken`, which it joins."""
    name, n = base, 0
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name


def fresh_symbols(letter: str, taken: Collection[str]) -> Iterator[sympy.Symbol]:
    """`i0, i1, ...` without the names in `taken`."""
    return (symexpr.symbol(f"{letter}{n}") for n in count() if f"{letter}{n}" not in taken)


def rename_uses(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with the values that it uses renamed."""
    if names.keys().isdisjoint(used_values(stmt)):
        return stmt
    match stmt:
        case Load():
            return stmt if stmt.mask is None else replace(stmt, mask=_get(names, stmt.mask))
        case Compute() | Reduce() | Scan():
            return replace(stmt, args=tuple(_get(names, a) for a in stmt.args))
        case Indirect():
            return replace(stmt, value=_get(names, stmt.value))
        case Store():
            mask = None if stmt.mask is None else _get(names, stmt.mask)
            return replace(stmt, value=_get(names, stmt.value), mask=mask)
        case Index() | Const():
            return stmt


def rename_defs(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement with the values that it defines renamed."""
    match stmt:
        case Load() | Index() | Const() | Compute() | Scan():
            return replace(stmt, out=_get(names, stmt.out))
        case Reduce():
            return replace(stmt, outs=tuple(_get(names, o) for o in stmt.outs))
        case Indirect() | Store():
            return stmt


def _get(names: Mapping[str, str], name: str) -> str:
    return names.get(name, name)


def rename_apart(kernel: Kernel, other: Kernel) -> Kernel:
    """`kernel` with values and indirect symbols that differ from those of `other`."""
    taken = {n for s in statements(other) for n in defined_values(s)}
    taken_symbols = {s.symbol.name for s in statements(other) if isinstance(s, Indirect)}
    taken_symbols |= {s.name for s in (*kernel.symbols, *other.symbols)}
    own = {n for s in statements(kernel) for n in defined_values(s)}
    names: dict[str, str] = {}
    symbols: dict[sympy.Symbol, sympy.Symbol] = {}
    count = len(taken) + len(own)
    for stmt in statements(kernel):
        if isinstance(stmt, Indirect):
            old = stmt.symbol.name
            symbols[stmt.symbol] = symexpr.symbol(fresh_name(old, taken_symbols))
        for name in defined_values(stmt):
            if name in taken:
                while f"v{count}" in taken or f"v{count}" in own:
                    count += 1
                names[name] = f"v{count}"
                taken.add(f"v{count}")
    mapping = tuple(symbols.items())

    def rewrite(stmt: Stmt) -> Stmt:
        stmt = rename_defs(rename_uses(stmt, names), names)
        if isinstance(stmt, Indirect):
            return replace(stmt, symbol=symbols[stmt.symbol])
        return stmt

    phases = tuple(replace(p, body=tuple(map(rewrite, p.body))) for p in kernel.phases)
    out = replace(kernel, phases=phases)
    return substitute_axes(out, mapping, ()) if mapping else out


def renumber(kernel: Kernel) -> Kernel:
    """Values called `v<number>` and indirect symbols numbered in order of definition."""
    names: dict[str, str] = {}
    symbols: list[tuple[sympy.Symbol, sympy.Symbol]] = []
    taken = {s.name for s in kernel.symbols} | {a.symbol.name for a in kernel.axes}
    count = 0
    fresh = (f"t{n}" for n in range(1 << 30) if f"t{n}" not in taken)
    for stmt in statements(kernel):
        if isinstance(stmt, Indirect):
            symbols.append((stmt.symbol, symexpr.symbol(next(fresh))))
        for name in defined_values(stmt):
            if re.fullmatch(r"v\d+", name):
                names[name] = f"v{count}"
                count += 1
    mapping = tuple((a, b) for a, b in symbols)
    table = dict(symbols)

    def rewrite(stmt: Stmt) -> Stmt:
        stmt = rename_defs(rename_uses(stmt, names), names)
        if isinstance(stmt, Indirect):
            return replace(stmt, symbol=table[stmt.symbol])
        return map_expressions(stmt, lambda e: substitute(e, mapping))

    return map_statements(kernel, rewrite)


def used_buffers(kernel: Kernel) -> Kernel:
    """The kernel with the declarations of unused buffers dropped, and `written` made true."""
    loaded: set[str] = set()
    stored: set[str] = set()
    for stmt in statements(kernel):
        if isinstance(stmt, Load):
            loaded.add(stmt.buffer)
        elif isinstance(stmt, Store):
            stored.add(stmt.buffer)
    buffers = tuple(
        replace(b, written=b.name in stored)
        for b in kernel.buffers
        if b.name in loaded or b.name in stored
    )
    return kernel if buffers == kernel.buffers else replace(kernel, buffers=buffers)


def union_buffers(first: Sequence[Buffer], second: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Buffers that are read, then those that are written, each once."""
    merged: dict[str, Buffer] = {}
    for b in (*first, *second):
        old = merged.get(b.name)
        merged[b.name] = b if old is None else replace(old, written=old.written or b.written)
    return (
        *(b for b in merged.values() if not b.written),
        *(b for b in merged.values() if b.written),
    )


def union_symbols(first: Sequence[Symbol], second: Sequence[Symbol]) -> tuple[Symbol, ...]:
    """The size symbols of both, each once; the second one's bounds and hint count."""
    return tuple({s.name: s for s in (*first, *second)}.values())


def union_origins(first: Sequence[Origin], second: Sequence[Origin]) -> tuple[Origin, ...]:
    """The origins of both in order, each once."""
    return tuple(dict.fromkeys((*first, *second)))
