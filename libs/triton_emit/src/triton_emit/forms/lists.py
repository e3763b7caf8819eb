"""Kernels that do not need each other as one launch: `a.add_(1), b.add_(1), c.sum(), ...`.

    def step_0(program, XBLOCK, ALIGNED):    # all that do the same to different buffers
        at = ...                             # the words of the kernel whose program this is
        first = number(at)
        in0 = argument(at + 1)
        s0 = number(at + 2)
        xindex = (program - first) * XBLOCK + tl.arange(0, XBLOCK)

    def step(w0, w1, w2, ...):
        program = tl.program_id(0)
        if program < 4000: step_0(program, ...) else: step_1(program, ...)

What they do is written, and compiled, once, as a kernel of dynamic sizes is. A program finds its
buffers and sizes among the arguments, by their places: a choice of names would hold all pointers
in registers (100 steps of AdamW at once took 3.6 ms so)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from math import gcd
from typing import TypeAlias

import sympy

import loop_ir as ir
from loop_ir.ir import form, linear, map_statements, once, statements
from symexpr import symbol
from triton_emit.forms.kernel import KernelWriter, indented
from triton_emit.schedule import Schedule, default_schedule, folds_alike, index_bits
from triton_emit.tiles import divides
from triton_emit.values import TL_TYPES
from triton_emit.vectors import vector

_LISTED = (ir.Load, ir.Store, ir.Const, ir.Index, ir.Compute, ir.Indirect, ir.Reduce)
_VECTOR = 16  # elements: sizes that are multiples of it need no narrower accesses
_WIDEST = 128  # of the powers of two that sizes are known to be multiples of
_WHOLE = 1 << 31  # below it, what a constant is may be held as a size is

Number: TypeAlias = int | float
Values: TypeAlias = Mapping[sympy.Expr, tuple[Number, ...]]
# What a number is written as: of a size, whether it says where vectors begin; of a constant, its
# type.
Written: TypeAlias = Callable[[Number, bool | ir.DType], sympy.Expr]


@once
def likeness(kernel: ir.Kernel) -> Hashable | None:
    """A key that is equal for kernels that `emit_list` can make one kernel of: they do the same to
    different buffers, or to different parts of one buffer, and may differ in their sizes and
    constants. None for a kernel that no list takes: one that scans or draws random numbers, or one
    of dynamic sizes."""
    if kernel.symbols or not all(isinstance(s, _LISTED) for s in statements(kernel)):
        return None
    roles, starts = _roles(kernel), _starts(kernel)
    wide, other = symbol("wide"), symbol("any")
    like = _written(kernel, lambda n, kind: wide if kind is True and n % _VECTOR == 0 else other)

    def moved(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.Load | ir.Store) or not starts[s.buffer]:
            return s
        return replace(s, index=s.index - starts[s.buffer])

    structure = form(replace(map_statements(like, moved), buffers=())).structure
    types = frozenset((roles[b.name], b.type.dtype, b.type.device) for b in kernel.buffers)
    return structure, types


def common(kernels: Sequence[ir.Kernel]) -> tuple[ir.Kernel, Values]:
    """The first of some kernels that are alike, with symbols for the sizes and constants that they
    do not have in common, whose hints are those of the kernel of the most points; the numbers that
    each symbol is, kernel by kernel."""
    each = zip(*map(_numbers, kernels), strict=True)
    values: dict[sympy.Expr, tuple[Number, ...]] = {}
    known: dict[tuple[Hashable, ...], sympy.Expr] = {}

    def chosen(n: Number, kind: bool | ir.DType) -> sympy.Expr:
        own = next(each)
        if len(set(own)) == 1:
            return sympy.sympify(n)
        constant = isinstance(kind, ir.DType)
        whole = not constant or all(float(v).is_integer() and abs(v) < _WHOLE for v in own)
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
    symbols = tuple(ir.Symbol(name, min(own), max(own), own[most]) for name, own in ranges)
    return replace(first, symbols=symbols), values


def _numbers(kernel: ir.Kernel) -> list[Number]:
    """What may differ between kernels that are alike, in the order in which it is written."""
    found: list[Number] = []

    def noted(n: Number, kind: bool | ir.DType) -> sympy.Expr:
        found.append(n)
        return sympy.S.One

    _written(kernel, noted)
    return found


def _of_each(e: sympy.Expr, values: Values, count: int) -> list[Number]:
    """What an expression of the symbols of `common` is for each of so many kernels."""
    known = [{s: sympy.sympify(own[n]) for s, own in values.items()} for n in range(count)]
    exact = [sympy.sympify(e).xreplace(own) for own in known]
    return [int(x) if x.is_integer else float(x) for x in exact]


def _written(kernel: ir.Kernel, number: Written) -> ir.Kernel:
    """The kernel with what `number` gives for its extents, its constants, and the steps and places
    of indices that are linear; not for steps of one, along which memory is read side by side."""
    wide = _side_by_side(kernel)

    def axes(own: tuple[ir.Axis, ...]) -> tuple[ir.Axis, ...]:
        return tuple(replace(a, extent=number(int(a.extent), a.symbol in wide)) for a in own)

    starts = _starts(kernel)

    def index(e: sympy.Expr, start: int = 0) -> sympy.Expr:
        terms = _terms(e - start if start else e)
        if terms is None:
            return e
        parts = [n if abs(n) < 2 else number(n, True) for _, n in terms]
        return sympy.Add(start, *(n * s for (s, _), n in zip(terms, parts, strict=True)))

    def stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Load | ir.Store):
            return replace(s, index=index(s.index, starts[s.buffer]))
        if isinstance(s, ir.Index):
            return replace(s, expr=index(s.expr))
        if isinstance(s, ir.Indirect):
            return replace(s, extent=number(int(s.extent), False))
        if isinstance(s, ir.Const) and _varies(s):
            new = number(s.value, s.dtype)
            return s if new.is_number else ir.Index(s.out, new, s.dtype)
        return s

    like = map_statements(replace(kernel, axes=axes(kernel.axes)), stmt)
    return replace(like, phases=tuple(replace(p, axes=axes(p.axes)) for p in like.phases))


def _varies(const: ir.Const) -> bool:
    """Whether another number may stand here: not for those that operations make less of."""
    n, dtype = const.value, const.dtype
    simple = not math.isfinite(n) or n in (0, 1, -1, 2, 0.5)
    held = dtype.itemsize > 1 if dtype.is_float else dtype.is_int and abs(n) < _WHOLE
    return held and not simple


@lru_cache(1024)
def _terms(e: sympy.Expr) -> tuple[tuple[sympy.Expr, int], ...] | None:
    """Symbols of an index with their steps, and 1 with its place; None where it is not linear."""
    form = linear(e, tuple(sorted(e.free_symbols, key=lambda s: s.name)))
    numbers = None if form is None else (*form.terms, (sympy.S.One, form.rest))
    if numbers is None or not all(n.is_Integer for _, n in numbers):
        return None
    return tuple((s, int(n)) for s, n in numbers)


def _side_by_side(kernel: ir.Kernel) -> set[sympy.Expr]:
    """The axes along which tensors of the most axes are read and written side by side."""
    indices = [
        _terms(s.index) or () for s in statements(kernel) if isinstance(s, ir.Load | ir.Store)
    ]
    most = max(map(len, indices), default=0)
    return {s for terms in indices if len(terms) == most for s, n in terms if n == 1}


def _roles(kernel: ir.Kernel) -> dict[str, str]:
    """Buffers by the order in which the kernel uses them."""
    used = [s.buffer for s in statements(kernel) if isinstance(s, ir.Load | ir.Store)]
    return {name: f"b{n}" for n, name in enumerate(dict.fromkeys(used))}


def _starts(kernel: ir.Kernel) -> dict[str, int]:
    """The least number that an index of each buffer begins with, in the order of `_roles`."""
    found: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, ir.Load | ir.Store):
            terms = _terms(s.index)
            start = int(sympy.expand(s.index).as_coeff_Add()[0]) if terms is None else terms[-1][1]
            found[s.buffer] = min(start, found.get(s.buffer, start))
    return found


def list_schedule(kernels: Sequence[ir.Kernel], hints: Mapping[str, int]) -> Schedule:
    """The schedule of a kernel with the points of all of them, each for itself: in a list some
    sizes may be odd, and what it moves is small."""
    first, _ = common(kernels)
    step = _VECTOR
    points = not any(p.axes for p in first.phases) or folds_alike(first)
    if len(first.axes) == 1 and points:
        extents = [int(k.axes[0].extent) for k in kernels]
        first = replace(first, axes=(replace(first.axes[0], extent=sympy.Integer(sum(extents))),))
        step = gcd(*extents, _VECTOR)
    bits = max(map(index_bits, kernels))
    schedule = replace(default_schedule(first, hints), index_bits=bits)
    if schedule.pairs:
        schedule = replace(schedule, pairs=False, vector=vector(first))
    return schedule if step == _VECTOR else replace(schedule, vector=step)


def words_of(kernels: Sequence[ir.Kernel]) -> int:
    """About how many arguments kernels that are alike have in a launch: of each its first program,
    the buffers, places and sizes that they do not have in common, and products of sizes."""
    buffers = map(list, map(_roles, kernels))
    starts = (_starts(k).values() for k in kernels)
    columns = [*zip(*map(_numbers, kernels), strict=True)]
    own = [len({*each}) > 1 for found in (buffers, starts) for each in zip(*found, strict=True)]
    sizes = {each for each in columns if len({*each}) > 1}
    inner = sum(len(p.axes) for p in kernels[0].phases) if kernels else 0
    return len(kernels) * (1 + sum(own) + len(sizes) + inner)


def list_form(form: type[KernelWriter]) -> type[ListWriter]:
    """The form of a list of kernels, each of which has `form`."""
    return type(f"List{form.__name__}", (ListWriter, form), {})


@dataclass(frozen=True)
class Word:
    """An argument of eight bytes, to which programs come by its place: a buffer or a number."""

    kind: str
    value: str | float
    written: bool = False


class ListWriter(KernelWriter):
    """Writes the first of some kernels as a function for the buffers and sizes of all
    (`list_form`). begin: the first of its programs in the launch; place: that of its first word."""

    def __init__(
        self,
        first: ir.Kernel,
        kernels: Sequence[ir.Kernel],
        values: Values,
        schedule: Schedule,
        begin: int,
        place: int,
    ) -> None:
        super().__init__(first, schedule)
        self.kernels = kernels
        self.values = values
        self.begin = begin
        self.place = place
        self.types = {s.expr: s.dtype for s in statements(first) if isinstance(s, ir.Index)}

    def function(self, name: str) -> tuple[str, list[str]]:
        """The signature of the function and its lines; its parameters are the program, what all
        share, and its constants."""
        self.define_tiles()
        self.write_body()
        shared = [name for name, _ in self.shared]
        constants = [f"{c}: tl.constexpr" for c in (*dict(self.constants), "ALIGNED")]
        signature = f"{name}({', '.join(['program', *shared, *constants])})"
        return signature, [*self.prelude(), *self.top.text()]

    def call(self, name: str, shared: Sequence[str]) -> str:
        """The call of the function. shared: the names of what all share."""
        constants = [f"{c}={n}" for c, n in self.constants] + ["ALIGNED=TRITON_RT_ALIGNED"]
        return f"{name}({', '.join(['program', *shared, *constants])})"

    def each(self, e: sympy.Expr) -> list[Number]:
        """What an expression is for each kernel."""
        return _of_each(e, self.values, len(self.kernels))

    def divides(self, block: int, numel: sympy.Expr) -> bool:
        return all(divides(block, sympy.Integer(n)) for n in self.each(numel))

    def program(self) -> str:
        return "(program - first)"

    @property
    def starts(self) -> list[int]:
        """The first program of each kernel, and what follows the last."""
        return list(accumulate(map(int, self.each(super().programs())), initial=self.begin))

    @cached_property
    def parts(self) -> dict[str, list[tuple[str, int]]]:
        """For each buffer of the body: that of each kernel, and by how much later than the first
        kernel's this one's part of it begins."""
        roles = _roles(self.kernels[0])
        begins = [_starts(k) for k in self.kernels]
        buffers = [{role: b for b, role in _roles(k).items()} for k in self.kernels]
        found: dict[str, list[tuple[str, int]]] = {}
        for buffer, name in self.params.buffers.items():
            each = [own[roles[buffer]] for own in buffers]
            starts = [begin[b] for begin, b in zip(begins, each, strict=True)]
            found[name] = [(b, start - starts[0]) for b, start in zip(each, starts, strict=True)]
        return found

    @property
    def shared(self) -> list[tuple[str, Word]]:
        """The buffers that all kernels have in common, by their names in the body."""
        return [(name, self.word(name, p[0][0])) for name, p in self.parts.items() if _one(p)]

    def word(self, name: str, buffer: str) -> Word:
        """The argument for a buffer of the body."""
        kinds = {name: (kind, written) for name, kind, written in super().parameters()[0]}
        kind, written = kinds[name]
        return Word(kind, buffer, written)

    @cached_property
    def columns(self) -> tuple[list[list[Word]], list[str]]:
        """The words of all kernels, as columns after that of their first programs; the lines that
        read them."""
        columns: list[list[Word]] = [[Word("f64", float(n)) for n in self.starts[:-1]]]
        wide = f".to(tl.int{self.bits})"
        lines = [f"first = number(at){wide}"] if self.kernel.axes else []

        def number(values: Sequence[Number]) -> str:
            columns.append([Word("f64", float(n)) for n in values])
            return f"number(at + {len(columns) - 1})"

        for name, parts in self.parts.items():
            begins, size = [n for _, n in parts], self.params.dtypes[parts[0][0]].itemsize
            text = name
            if not _one(parts):
                columns.append([self.word(name, buffer) for buffer, _ in parts])
                element = TL_TYPES[self.params.dtypes[parts[0][0]]]
                text = f"argument(at + {len(columns) - 1}).to(tl.pointer_type({element}))"
            if any(begins):
                text += f" + {number(begins)}{wide}"
            if text != name and not any(n * size % 16 for n in begins):
                text = f"tl.multiple_of({text}, ALIGNED)"
            if text != name:
                lines.append(f"{name} = {text}")
        for e, param in self.params.sizes.items():
            values = self.each(e)
            if not e.is_integer:
                dtype = self.types[e] if e.is_Symbol else ir.DType.f64
                lines.append(f"{param.name} = {number(values)}.to({TL_TYPES[dtype]})")
                continue
            step = gcd(*map(int, values), _WIDEST)
            lines.append(f"{param.name} = tl.multiple_of({number(values)}{wide}, {step})")
        return columns, lines

    @property
    def words(self) -> int:
        """How many it has."""
        return len(self.columns[0]) * len(self.kernels)

    def prelude(self) -> list[str]:
        """Finds the words of the kernel whose program this is, by halves, and reads them."""
        columns, lines = self.columns
        width, count = len(columns), len(self.kernels)
        last = self.place + width * (count - 1)
        found = [f"at = {self.place}"]
        step = 1 << (count - 1).bit_length() >> 1
        while step:
            found.append(f"later = tl.minimum(at + {width * step}, {last})")
            found.append("at = tl.where(program < number(later), at, later)")
            step >>= 1
        wide = ["program = program.to(tl.int64)"] if self.bits == 64 else []
        return [*found, *wide, *lines]


def _one(parts: Sequence[tuple[str, int]]) -> bool:
    return len({buffer for buffer, _ in parts}) == 1


def entry(name: str, writers: Sequence[ListWriter]) -> tuple[str, list[str], dict[str, Word]]:
    """The kernel of a launch, its signature and lines, which calls the functions of the writers,
    named after it; its arguments by parameter."""
    words = [word for w in writers for row in zip(*w.columns[0], strict=True) for word in row]
    params = {f"w{n}": word for n, word in enumerate(words)}
    branches: list[list[str]] = []
    for n, w in enumerate(writers):
        shared = {f"{own}_{n}": word for own, word in w.shared}
        params |= shared
        branches.append([w.call(f"{name}_{n}", [*shared])])
    begins = [w.begin for w in writers]
    lines = ["program = tl.program_id(0)", *_tree(branches, begins, 0)]
    typed = (f"{p}: tl.float64" if word.kind == "f64" else p for p, word in params.items())
    return f"{name}({', '.join([*typed, 'TRITON_RT_ALIGNED: tl.constexpr'])})", lines, params


def arguments_of(name: str) -> str:
    """Functions that read the arguments of a kernel by their places, which are as many times eight
    bytes behind its first (PTX ISA, "ld.param": kernel parameters have addresses)."""
    return f"""@triton.jit
def argument(place):
    return tl.inline_asm_elementwise(
        "{{ .reg .b64 at; mov.b64 at, {name}_param_0; add.s64 at, at, $1;"
        " ld.param.b64 $0, [at]; }}",
        "=l,l", [tl.full((), 8, tl.int64) * place], dtype=tl.int64, is_pure=True, pack=1,
    )


@triton.jit
def number(place):
    return argument(place).to(tl.float64, bitcast=True)"""


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
