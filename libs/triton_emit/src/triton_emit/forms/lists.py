"""Several kernels that do the same to different buffers, as one: `a.add_(1), b.add_(1), ...`.

    program = tl.program_id(0)
    if program < 4:                     # the programs of the first kernel
        inout0 = inout0_0
        first = 0
        s0 = 4000
    else:
        inout0 = inout0_1
        first = 4
        s0 = 900
    xindex = (program - first) * XBLOCK + tl.arange(0, XBLOCK)

What they do is written, and compiled, once, as a kernel of dynamic sizes is; a program finds its
buffers and sizes in a tree of comparisons."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import gcd
from typing import TypeAlias

import sympy

from loop_ir import (
    Axis,
    Compute,
    Const,
    DType,
    Index,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Symbol,
)
from loop_ir.ir import linear, map_statements, statements
from symexpr import symbol
from triton_emit.forms.kernel import KernelWriter, indented
from triton_emit.schedule import Schedule, default_schedule, index_bits
from triton_emit.tiles import divides
from triton_emit.values import TL_TYPES, literal_text
from triton_emit.vectors import vector

_LISTED = (Load, Store, Const, Index, Compute, Indirect, Reduce)
_VECTOR = 16  # elements: sizes that are multiples of it need no narrower accesses
_WHOLE = 1 << 31  # below it, what a constant is may be held as a size is

Number: TypeAlias = int | float
Values: TypeAlias = Mapping[sympy.Expr, tuple[Number, ...]]
# What a number is written as: of a size, whether it says where vectors begin; of a constant, its
# type.
Written: TypeAlias = Callable[[Number, bool | DType], sympy.Expr]


def likeness(kernel: Kernel) -> Hashable | None:
    """A key that is equal for kernels that `emit_list` can make one kernel of: they do the same to
    different buffers, or to different parts of one buffer, and may differ in their sizes and
    constants. None for a kernel that no list takes: one that scans or draws random numbers, or one
    of dynamic sizes."""
    if kernel.symbols or not all(isinstance(s, _LISTED) for s in statements(kernel)):
        return None
    roles, starts = _roles(kernel), _starts(kernel)
    wide, other = symbol("wide"), symbol("any")
    like = _written(kernel, lambda n, kind: wide if kind is True and n % _VECTOR == 0 else other)
    body = tuple(
        (
            phase.axes,
            replace(s, buffer=roles[s.buffer], index=s.index - starts[s.buffer])
            if isinstance(s, Load | Store)
            else s,
        )
        for phase in like.phases
        for s in phase.body
    )
    types = frozenset((roles[b.name], b.type.dtype, b.type.device) for b in kernel.buffers)
    return like.axes, str(body), types  # as text: 1, 1.0 and True differ


def common(kernels: Sequence[Kernel]) -> tuple[Kernel, Values]:
    """The first of some kernels that are alike, with symbols for the sizes and constants that they
    do not have in common, whose hints are those of the kernel of the most points; the numbers that
    each symbol is, kernel by kernel."""
    each = zip(*map(_numbers, kernels), strict=True)
    values: dict[sympy.Expr, tuple[Number, ...]] = {}
    known: dict[tuple[Hashable, ...], sympy.Expr] = {}

    def chosen(n: Number, kind: bool | DType) -> sympy.Expr:
        own = next(each)
        if len(set(own)) == 1:
            return sympy.sympify(n)
        whole = all(float(v).is_integer() and abs(v) < _WHOLE for v in own)
        own = tuple(map(int, own)) if whole else own
        name = f"own{len(values)}"
        new = symbol(name) if whole else sympy.Symbol(name, real=True)
        found = known.setdefault((own, None if whole else kind), new)
        values[found] = own
        return found

    first = _written(kernels[0], chosen)
    axes = (*first.axes, *(a for p in first.phases for a in p.axes))
    points = _of_each(sympy.Mul(*(a.extent for a in axes)), values, len(kernels))
    most = points.index(max(points))
    ranges = [(str(s), list(map(int, own))) for s, own in values.items() if s.is_integer]
    symbols = tuple(Symbol(name, min(own), max(own), own[most]) for name, own in ranges)
    return replace(first, symbols=symbols), values


def _numbers(kernel: Kernel) -> list[Number]:
    """What may differ between kernels that are alike, in the order in which it is written."""
    found: list[Number] = []

    def noted(n: Number, kind: bool | DType) -> sympy.Expr:
        found.append(n)
        return sympy.S.One

    _written(kernel, noted)
    return found


def _of_each(e: sympy.Expr, values: Values, count: int) -> list[Number]:
    """What an expression of the symbols of `common` is for each of so many kernels."""
    known = [{s: sympy.sympify(own[n]) for s, own in values.items()} for n in range(count)]
    exact = [sympy.sympify(e).xreplace(own) for own in known]
    return [int(x) if x.is_integer else float(x) for x in exact]


def _written(kernel: Kernel, number: Written) -> Kernel:
    """The kernel with what `number` gives for its extents, its constants, and the steps and places
    of indices that are linear; not for steps of one, along which memory is read side by side."""
    wide = _side_by_side(kernel)

    def axes(own: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(replace(a, extent=number(int(a.extent), a.symbol in wide)) for a in own)

    starts = _starts(kernel)

    def index(e: sympy.Expr, start: int = 0) -> sympy.Expr:
        terms = _terms(e - start if start else e)
        if terms is None:
            return e
        parts = [n if abs(n) < 2 else number(n, True) for _, n in terms]
        return sympy.Add(start, *(n * s for (s, _), n in zip(terms, parts, strict=True)))

    def stmt(s: Stmt) -> Stmt:
        if isinstance(s, Load | Store):
            return replace(s, index=index(s.index, starts[s.buffer]))
        if isinstance(s, Index):
            return replace(s, expr=index(s.expr))
        if isinstance(s, Indirect):
            return replace(s, extent=number(int(s.extent), False))
        if isinstance(s, Const) and _varies(s):
            new = number(s.value, s.dtype)
            return s if new.is_number else Index(s.out, new, s.dtype)
        return s

    like = map_statements(replace(kernel, axes=axes(kernel.axes)), stmt)
    return replace(like, phases=tuple(replace(p, axes=axes(p.axes)) for p in like.phases))


def _varies(const: Const) -> bool:
    """Whether another number may stand here: not for those that operations make less of."""
    n, dtype = const.value, const.dtype
    simple = not math.isfinite(n) or n in (0, 1, -1, 2, 0.5)
    held = dtype.itemsize > 1 if dtype.is_float else dtype.is_int and abs(n) < _WHOLE
    return held and not simple


@lru_cache(1024)
def _terms(e: sympy.Expr) -> tuple[tuple[sympy.Expr, int], ...] | None:
    """Symbols of an index with their steps, and 1 with its place; None where it is not linear."""
    form = linear(e, tuple(sorted(e.free_symbols, key=str)))
    numbers = None if form is None else (*form.terms, (sympy.S.One, form.rest))
    if numbers is None or not all(n.is_Integer for _, n in numbers):
        return None
    return tuple((s, int(n)) for s, n in numbers)


def _side_by_side(kernel: Kernel) -> set[sympy.Expr]:
    """The axes along which tensors of the most axes are read and written side by side."""
    indices = [_terms(s.index) or () for s in statements(kernel) if isinstance(s, Load | Store)]
    most = max(map(len, indices), default=0)
    return {s for terms in indices if len(terms) == most for s, n in terms if n == 1}


def _roles(kernel: Kernel) -> dict[str, str]:
    """Buffers by the order in which the kernel uses them."""
    used = [s.buffer for s in statements(kernel) if isinstance(s, Load | Store)]
    return {name: f"b{n}" for n, name in enumerate(dict.fromkeys(used))}


def _starts(kernel: Kernel) -> dict[str, int]:
    """The least number that an index of each buffer begins with, in the order of `_roles`."""
    found: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, Load | Store):
            start = int(sympy.expand(s.index).as_coeff_Add()[0])
            found[s.buffer] = min(start, found.get(s.buffer, start))
    return found


def list_schedule(kernels: Sequence[Kernel], hints: Mapping[str, int]) -> Schedule:
    """The schedule of a kernel with the points of all of them, each for itself: in a list some
    sizes may be odd, and what it moves is small."""
    first, values = common(kernels)
    step = _VECTOR
    if len(first.axes) == 1 and not any(p.axes for p in first.phases):
        extents = [int(k.axes[0].extent) for k in kernels]
        first = replace(first, axes=(replace(first.axes[0], extent=sympy.Integer(sum(extents))),))
        step = gcd(*extents, _VECTOR)
    schedule = default_schedule(first, hints)
    if values:
        schedule = replace(schedule, index_bits=max(map(index_bits, kernels)))
    if schedule.pairs:
        schedule = replace(schedule, pairs=False, vector=vector(first))
    return schedule if step == _VECTOR else replace(schedule, vector=step)


def list_form(form: type[KernelWriter]) -> type[ListWriter]:
    """The form of a list of kernels, each of which has `form`."""
    return type(f"List{form.__name__}", (ListWriter, form), {})


class ListWriter(KernelWriter):
    """Writes the first of some kernels for the buffers and sizes of all (`list_form`)."""

    def __init__(
        self,
        first: Kernel,
        kernels: Sequence[Kernel],
        values: Values,
        schedule: Schedule,
    ) -> None:
        super().__init__(first, schedule)
        self.kernels = kernels
        self.values = values
        self.types = {s.expr: s.dtype for s in statements(first) if isinstance(s, Index)}

    def each(self, e: sympy.Expr) -> list[Number]:
        """What an expression is for each kernel."""
        return _of_each(e, self.values, len(self.kernels))

    def divides(self, block: int, numel: sympy.Expr) -> bool:
        return all(divides(block, sympy.Integer(n)) for n in self.each(numel))

    def program(self) -> str:
        return "(program - first)"

    @property
    def starts(self) -> list[int]:
        """The first program of each kernel, and the number of all."""
        return list(accumulate(map(int, self.each(super().programs())), initial=0))

    def programs(self) -> sympy.Expr:
        return sympy.Integer(self.starts[-1])

    @cached_property
    def own(self) -> list[list[tuple[str, str, str, int]]]:
        """For each kernel: what the body calls a buffer, the parameter, the buffer, and by how much
        later than the first kernel's this one's part of it begins. What kernels share is one
        parameter; what all of them share as it is needs no other name."""
        roles = _roles(self.kernels[0])
        names = {roles[buffer]: name for buffer, name in self.params.buffers.items()}
        begins = [_starts(k) for k in self.kernels]
        buffers = [{role: b for b, role in _roles(k).items()} for k in self.kernels]
        params: dict[tuple[str, str], str] = {}
        found: list[list[tuple[str, str, str, int]]] = [[] for _ in self.kernels]
        for role, name in names.items():
            each = [own[role] for own in buffers]
            starts = [begin[buffer] for begin, buffer in zip(begins, each, strict=True)]
            if len({*zip(each, starts, strict=True)}) == 1:
                params[name, each[0]] = name
            for n, (buffer, start) in enumerate(zip(each, starts, strict=True)):
                param = params.setdefault((name, buffer), f"{name}_{n}")
                found[n].append((name, param, buffer, start - starts[0]))
        return found

    def parameters(self) -> tuple[list[tuple[str, str, bool]], list[str | sympy.Expr]]:
        kinds = {name: (kind, written) for name, kind, written in super().parameters()[0]}
        every = {p: (name, buffer) for items in self.own for name, p, buffer, _ in items}
        params = [(param, *kinds[name]) for param, (name, _) in every.items()]
        return params, [buffer for _, buffer in every.values()]

    def prelude(self) -> list[str]:
        choices: list[list[str]] = []
        sizes = {param.name: (e, self.each(e)) for e, param in self.params.sizes.items()}
        for number, (own, first) in enumerate(zip(self.own, self.starts, strict=False)):
            lines = [
                f"{name} = {param}" + (f" {'-' if n < 0 else '+'} {abs(n)}" if n else "")
                for name, param, _, n in own
                if name != param
            ]
            if self.kernel.axes:
                lines.append(f"first = {first}")
            lines += [f"{s} = {self.number(e, n[number])}" for s, (e, n) in sizes.items()]
            choices.append(lines)
        wide = ".to(tl.int64)" if self.bits == 64 else ""
        return [f"program = tl.program_id(0){wide}", *_tree(choices, self.starts, 0)]

    def number(self, e: sympy.Expr, n: Number) -> str:
        """A size, or a number of some type, as text."""
        if e.is_integer:
            return str(n) if self.bits == 32 else f"tl.full((), {n}, tl.int64)"
        dtype = self.types[e] if e.is_Symbol else DType.f64
        return f"tl.full((), {literal_text(float(n), dtype)}, {TL_TYPES[dtype]})"


def _tree(choices: Sequence[list[str]], starts: Sequence[int], first: int) -> Iterator[str]:
    """Lines that run the choice whose programs `program` is one of."""
    if len(choices) == 1:
        yield from choices[0]
        return
    middle = len(choices) // 2
    yield f"if program < {starts[first + middle]}:"
    yield from indented(list(_tree(choices[:middle], starts, first)))
    yield "else:"
    yield from indented(list(_tree(choices[middle:], starts, first + middle)))
