"""Stores, sums, products and extremes at places that are data: index_put, scatter, scatter_reduce.

A copy of the input, of which the points of the index then change elements; or the input itself
(`Call.in_place`). What is combined is so atomically: the order, and with floats the last bits of
sums and products, differ from run to run, as in eager; under `torch.use_deterministic_algorithms`
the operator runs. An index out of range is the caller's error."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy
import torch

from aten_lowering.builder import Coords, KernelBuilder, Number, Operand, at
from aten_lowering.call import Call, Result, opmath, wrap_dim
from aten_lowering.elementwise import copy_kernel
from aten_lowering.errors import require
from aten_lowering.few import is_few_a_row
from aten_lowering.lowerings import few_places
from aten_lowering.lowerings.few_places import Meeting, Part, Parts, Scatter
from aten_lowering.lowerings.indexing import Advanced, lookup
from aten_lowering.meta import expr
from aten_lowering.registry import Table, named
from aten_lowering.torch_compat import zeros_and_scatter
from loop_ir import DType, TensorRef, TensorType

aten = torch.ops.aten
table = Table()

_COMBINED = frozenset(
    (DType.f32, DType.f64, DType.i32, DType.i64, DType.f16, DType.bf16)
)  # what atomic instructions combine, or a wider copy of it

# Modes of stores by torch's names of reductions.
_MODES = {
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "mul",
    "prod": "mul",
    "amax": "max",
    "amin": "min",
}


@dataclass(frozen=True)
class Tally:
    """Slices of a dimension, and the places of points that are counted for them."""

    dim: int
    place: Callable[[KernelBuilder], Coords]


def combine(
    call: Call,
    input: Operand | None,
    points: Sequence[sympy.Expr],
    parts: Parts,
    reduce: str = "",
    include_self: bool = True,
    tally: Tally | None = None,
    few: bool = False,
    result: Result | None = None,
) -> None:
    """Stores values at places of the result (by default the call's own), several for each of the
    points, or combines them with what is there by `reduce`, one of `_MODES`; an `input` of None is
    zeros. include_self: with what the input has there, too. tally: what a mean divides by is the
    same all over slices, of which these are counted. few: no more than a few meet, so that sums of
    16 bits are right."""
    out, mode = (result or call.out).operand, _MODES.get(reduce, "set")
    require(mode == "set" or out.dtype in _COMBINED, f"scattered {reduce} of {out.dtype.value}")
    mean = reduce == "mean"
    scatter = Scatter(call, out, input, tuple(points), parts, mode, mean, include_self)
    meeting = Meeting.of(scatter)
    if meeting and not few and few_places.reduce_in_few(scatter, meeting):
        return
    require(not torch.are_deterministic_algorithms_enabled(), "its order is to be deterministic")
    require(mode != "mul" or call.on_cpu, "scattered products on a GPU are retried, unmeasured")
    marked = None
    if meeting and not (include_self or call.in_place):
        marked = few_places.marks(scatter, meeting)
    copies = not (few or mean) and (include_self or marked is not None)
    if meeting and copies and few_places.reduce_in_copies(scatter, marked, meeting):
        return
    target, counts = out, None
    wide = out.dtype if few else opmath(out.dtype)
    if mode != "set" and wide is not out.dtype:
        # Each sum is rounded once: 16-bit numbers would lose all that is small beside them. In
        # place that moves much memory for few sums, and CUDA's own operators do not either.
        require(call.on_cpu or not call.in_place, f"scattered {reduce} of 16-bit numbers in place")
        # nor are wider ones of use to extremes (H200: 1320 us, 1737 of ours)
        require(call.on_cpu or mode not in ("max", "min"), f"scattered {reduce} of 16-bit numbers")
        target = call.scratch(f"{reduce}s", wide, out.size)
    if mean:
        # sums and counts at random places take turns in L2 (H200: 3662 us, 3882 of ours)
        require(call.on_cpu or tally is not None, "CUDA's own sums first, and counts then")
        target = call.scratch("sums", wide, out.size)
        own = out.size if tally is None else (out.size[tally.dim],)
        counts = call.scratch("counts", DType.i32, own)
        k = call.kernel(own, f"{call.node.name}_self")
        k.store(counts, k.coords, k.const(int(include_self), DType.i32))
        call.emit_kernel(k)
    if target is not out or not call.in_place:
        k = call.kernel(out.size, f"{call.node.name}_start")
        start = k.const(0, target.dtype) if input is None else k.load(input, k.coords)
        if meeting and marked is not None:
            hit = k.load(marked, tuple(k.coords[d] for d in meeting.asked))
            start = hit.choose(scatter.neutral, start.to(wide))
        k.store(target, k.coords, start)
        call.emit_kernel(k)
    if 0 not in points and not include_self and marked is None:
        k = call.kernel(points, f"{call.node.name}_neutral")
        for coords, _, inside in parts(k):
            k.store(target, coords, k.const(scatter.neutral, wide), mask=inside)
        call.emit_kernel(k)
    if 0 not in points:
        k = call.kernel(points)
        for coords, value, inside in parts(k):
            k.store(target, coords, value, mode, inside)
        call.emit_kernel(k)
    if 0 not in points and counts is not None:
        k = call.kernel(points if tally is None else (points[tally.dim],), f"{call.node.name}_by")
        places = [(c, i) for c, _, i in parts(k)] if tally is None else [(tally.place(k), None)]
        for coords, inside in places:
            k.store(counts, coords, k.const(1, DType.i32), mode, inside)
        call.emit_kernel(k)
    if counts is not None:
        k = call.kernel(out.size, f"{call.node.name}_end")
        own = k.coords if tally is None else (k.coords[tally.dim],)
        count = k.load(counts, own)("maximum", 1)
        total = k.load(target, k.coords)
        k.store(out, k.coords, total("div" if wide.is_float else "floordiv", count.to(wide)))
        call.emit_kernel(k)
    elif target is not out:
        end = call.fresh(f"{call.node.name}_end")
        call.emit(copy_kernel(end, target, out, call.origin))


@table.lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    call: Call, input: Operand, indices: Sequence[Operand | None], values: Operand, accumulate: bool
) -> None:
    """A copy with the values stored, or added, at the indices; of a mask, one value."""
    masks = [i for i in indices if i is not None and i.dtype is DType.bool_]
    if masks:
        require(len(indices) == 1 and not accumulate, "several masks")
        _fill_masked(call, input, masks[0], values)
        return
    found = Advanced.of(indices, input.size)

    def parts(k: KernelBuilder) -> list[Part]:
        coords = found.places(k, k.coords)
        return [(coords, k.load_broadcast(values, found.points, k.coords), None)]

    combine(call, input, found.points, parts, "sum" if accumulate else "")


@table.lowers(zeros_and_scatter)
def sums_of_scores(call: Call, shape: object, indices: Sequence[Operand], vals: Operand) -> None:
    """Zeros with values added at the indices: the gradient of what a function of attention's scores
    has captured, of one dtype with them, which is f32."""
    found = Advanced.of(indices, call.out.operand.size)

    def parts(k: KernelBuilder) -> list[Part]:
        coords = found.places(k, k.coords)
        return [(coords, k.load_broadcast(vals, found.points, k.coords), None)]

    combine(call, None, found.points, parts, "sum", few=True)


@table.lowers(aten._unsafe_masked_index_put_accumulate.default)
def masked_sums(
    call: Call, input: Operand, mask: Operand, indices: Sequence[Operand | None], values: Operand
) -> None:
    """As `index_put` with sums, where the mask holds; elsewhere an index may be anything."""
    found = Advanced.of(indices, input.size)

    def parts(k: KernelBuilder) -> list[Part]:
        inside = k.load_broadcast(mask, found.points, k.coords)
        coords = found.places(k, k.coords, inside)
        return [(coords, k.load_broadcast(values, found.points, k.coords), inside)]

    combine(call, input, found.points, parts, "sum")


def _fill_masked(call: Call, input: Operand, mask: Operand, value: Operand) -> None:
    require(all(n == 1 for n in value.size), "a mask and several values")
    require(not call.in_place, "a mask in place")
    k = call.kernel()
    inside = k.load(mask, k.coords[: len(mask.size)])
    new = k.load(value, (sympy.S.Zero,) * len(value.size)).to(call.out.dtype)
    call.store(k, inside.choose(new, k.load(input, k.coords)))


def _few_a_row(
    call: Call, input: Operand, dim: int, index: Operand, src: Operand | Number, added: bool = False
) -> bool:
    """A copy of the input with a few elements a row replaced, or added to, at places that the index
    says: every element asks whether it is one of those."""
    out = call.out
    dim = wrap_dim(dim, len(out.size))
    if call.in_place or not is_few_a_row(index.size, out.size, dim):
        return False
    if added and out.dtype not in _COMBINED:
        return False
    require(index.dtype in (DType.i32, DType.i64), f"indices of {index.dtype.value}")
    k = call.kernel()
    wide = opmath(out.dtype) if added else out.dtype
    value, own = k.load(input, k.coords).to(wide), k.index(k.coords[dim])
    for number in range(int(index.size[dim])):
        row = at(k.coords, dim, sympy.Integer(number))
        here = k.load(index, row).to(DType.i64)("eq", own)
        new = k.read(src, row, wide).to(wide)
        value = here.choose(value + new if added else new, value)
    call.store(k, value)
    return True


@table.lowers(
    *named(
        "scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add "
        "scatter_reduce.two"
    )
)
def scatter(
    call: Call,
    input: Operand,
    dim: int,
    index: Operand,
    src: Operand | None = None,
    value: Number = 0,
    reduce: str = "",
    include_self: bool = True,
) -> None:
    """A copy with the elements of `src`, or one number, at the places that the index says along
    `dim`; or combined with what is there by `reduce`."""
    given = value if src is None else src
    added = "scatter_add" in str(call.op)
    reduce = "sum" if added else reduce
    if (added or not reduce) and _few_a_row(call, input, dim, index, given, added):
        return
    dim = wrap_dim(dim, len(input.size))

    def parts(k: KernelBuilder) -> list[Part]:
        own: Coords = ()  # of one element, which is the place
        if input.size:
            own = at(k.coords, dim, lookup(k, index, k.coords, input.size[dim]))
        return [(own, k.read(given, k.coords, input.dtype), None)]

    combine(call, input, index.size, parts, reduce, include_self)


@table.lowers(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor, aten.index_reduce.default)
def index_reduce(
    call: Call,
    input: Operand,
    dim: int,
    index: Operand,
    value: Operand | Number = 0,
    source: Operand | None = None,
    reduce: str = "",
    include_self: bool = True,
) -> None:
    """A copy with one number in the slices of `dim` at the indices; or the slices of `source`
    combined with those."""
    dim = wrap_dim(dim, len(input.size))
    points = input.size if source is None else source.size
    if source is None and points:
        points = at(points, dim, index.size[0] if index.size else sympy.S.One)

    def slice_(k: KernelBuilder, number: sympy.Expr) -> sympy.Expr:
        return lookup(k, index, (number,) if index.size else (), input.size[dim])

    def parts(k: KernelBuilder) -> list[Part]:
        own = at(k.coords, dim, slice_(k, k.coords[dim])) if input.size else ()
        new = k.read(value, (), input.dtype) if source is None else k.load(source, k.coords)
        return [(own, new, None)]

    tally = Tally(dim, lambda k: (slice_(k, k.coords[0]),)) if input.size else None
    combine(call, input, points, parts, reduce, include_self, tally)


@table.lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    call: Call, input: Operand, src: Operand, offset: int, dim1: int, dim2: int
) -> None:
    """Every element asks whether it lies on the diagonal."""
    out, k = call.out, call.kernel()
    dims = wrap_dim(dim1, len(out.size)), wrap_dim(dim2, len(out.size))
    row, column = (k.coords[d] for d in dims)
    here = k.index(column - row)("eq", offset)
    rest = tuple(c for d, c in enumerate(k.coords) if d not in dims)
    new = k.load(src, (*rest, row if offset >= 0 else column), here).to(out.dtype)
    call.store(k, here.choose(new, k.load(input, k.coords)))


@table.lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    call: Call,
    input: Operand,
    src: Operand,
    size: Sequence[sympy.Expr],
    stride: Sequence[sympy.Expr],
    storage_offset: sympy.Expr | None,
) -> None:
    """A copy of the memory of the input, in which `src` replaces what a view of it sees."""
    out = call.out.operand
    start = expr(call.out.fake.storage_offset())
    first = sympy.S.Zero if storage_offset is None else storage_offset - start
    sizes, strides = (tuple(map(sympy.sympify, n)) for n in (size, stride))
    type = TensorType(out.dtype, sizes, strides, out.type.device, first)
    room = sympy.expand(out.type.extent - first - type.extent)
    inside = first.is_nonnegative and room.is_nonnegative
    require(bool(inside) or 0 in sizes, "it reaches out of its tensor")
    k = call.kernel(out.size, f"{call.node.name}_start")
    k.store(out, k.coords, k.load(input, k.coords))
    call.emit_kernel(k)
    if 0 not in sizes:
        view = Operand(TensorRef(out.ref.buffer, type), out.storage)
        call.emit(copy_kernel(call.fresh(f"{call.node.name}_part"), src, view, call.origin))
