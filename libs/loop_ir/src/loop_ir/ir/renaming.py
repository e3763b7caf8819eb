"""Names of values, symbols and buffers: fresh ones, other ones, and the union of two kernels'."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count

import sympy

import symexpr
from loop_ir.ir.names import Name, defined_values, renamed, results, statements, value_names
from loop_ir.ir.nodes import Buffer, Indirect, Kernel, Load, Origin, Store
from loop_ir.ir.rewrite import map_statements
from tensor_ir import Device, DType, Symbol, TensorType, contiguous_strides


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


def new_buffer(name: str, dtype: DType, size: tuple[sympy.Expr, ...], device: Device) -> Buffer:
    """A contiguous buffer that a kernel writes."""
    return Buffer(name, TensorType(dtype, size, contiguous_strides(size), device), True)


def rename_apart(kernel: Kernel, other: Kernel) -> Kernel:
    """`kernel` with values and indirect symbols that differ from those of `other`."""
    taken, own = value_names(other), value_names(kernel)
    indirect = {s.symbol.name for s in statements(other) if isinstance(s, Indirect)}
    symbols = indirect | {s.name for s in (*kernel.symbols, *other.symbols)}
    values = (f"v{n}" for n in count(len(taken) + len(own)) if f"v{n}" not in taken | own)
    names: dict[Name, Name] = {}
    for stmt in statements(kernel):
        if isinstance(stmt, Indirect):
            names[stmt.symbol] = symexpr.symbol(fresh_name(stmt.symbol.name, symbols))
        names.update((name, next(values)) for name in defined_values(stmt) if name in taken)
    return map_statements(kernel, lambda s: renamed(s, names))


def renumber(kernel: Kernel) -> Kernel:
    """Values called `v<number>` and indirect symbols numbered in order of definition."""
    taken = {s.name for s in kernel.symbols} | {a.symbol.name for a in kernel.axes}
    values, symbols = (f"v{n}" for n in count()), fresh_symbols("t", taken)
    names: dict[Name, Name] = {}
    for name in (n for s in statements(kernel) for n in results(s)):
        if isinstance(name, sympy.Symbol):
            names[name] = next(symbols)
        elif re.fullmatch(r"v\d+", name):
            names[name] = next(values)
    return map_statements(kernel, lambda s: renamed(s, names))


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
