"""Moving elements: cat, pad, flip, repeat, triangles, writes into a slice of a copy."""

from collections.abc import Sequence

import sympy
import torch

from aten_lowering.builder import KernelBuilder, Number, Operand, Value, at
from aten_lowering.call import Call, wrap_dim
from aten_lowering.errors import require
from aten_lowering.registry import Lowering, Table
from loop_ir import DType
from symexpr import FloorDiv, Mod

aten = torch.ops.aten
table = Table()

# So many inputs are a chain of masked loads; where the parts are shorter than `_INTERLEAVED`
# elements, or the whole is but a few numbers (`_NUMBERS`), as many as this. Of more, a kernel joins
# each so many, up to `_MAX_KERNELS`: one call of `aten.cat` copies any number. So it does of inputs
# in runs that are no multiples of `_VECTOR` bytes, each element of which would be a load of its own
# from every part (20 inputs of 100 to 233 of bf16 by 4000 on an H100: 77 us, eager 33).
_MAX_CAT = 8
_VECTOR = 16
_MAX_INTERLEAVED = 16
_INTERLEAVED = 8
_MAX_NUMBERS = 128
_NUMBERS = 1024
_MAX_KERNELS = 4


def _within(k: KernelBuilder, c: sympy.Expr, low: sympy.Expr, high: sympy.Expr) -> Value:
    """`low <= c < high`."""
    i = k.index(c)
    return (i >= k.index(low)) & (i < k.index(high))


@table.lowers(aten.cat.default)
def cat(call: Call, tensors: Sequence[Operand], dim: int) -> None:
    """Each input is loaded where the output index falls in its part."""
    out = call.out
    # Eager skips empty tensors of rank 1, whatever the rank of the others.
    parts = [t for t in tensors if not (len(t.size) == 1 and t.size[0] == 0)]
    require(all(len(t.size) == len(out.size) for t in parts), "cat of several ranks")
    dim = wrap_dim(dim, len(out.size))
    runs = [sympy.Mul(*t.size[dim:]) for t in parts]
    interleaved = dim > 0 and all(r.is_Integer and r < _INTERLEAVED for r in runs)
    numel = sympy.Mul(*out.size)
    few = numel.is_Integer and numel <= _NUMBERS
    most = _MAX_NUMBERS if few else _MAX_INTERLEAVED if interleaved else _MAX_CAT
    require(0 < len(parts) <= _MAX_KERNELS * most, f"cat of {len(parts)} tensors")
    given = len(parts) > most and all(n.op == "placeholder" for n in call.node.all_input_nodes)
    odd = any(r.is_Integer and r * out.dtype.itemsize % _VECTOR != 0 for r in runs)
    require(few or interleaved or not (given and odd), f"cat of {len(parts)} odd inputs")
    first: sympy.Expr = sympy.S.Zero
    for number in range(0, len(parts), most):
        some = parts[number : number + most]
        length = sympy.Add(*(t.size[dim] for t in some))
        k = call.kernel(at(out.size, dim, length), f"{call.node.name}_more" if number else "")
        value = _joined(k, some, dim, out.dtype)
        call.store(k, value, at(k.coords, dim, k.coords[dim] + first))
        first = first + length


def _joined(k: KernelBuilder, parts: Sequence[Operand], dim: int, dtype: DType) -> Value:
    """At each point the element of the part that it falls in."""
    c = k.coords[dim]
    start: sympy.Expr = sympy.S.Zero
    result: Value | None = None
    for t in parts:
        end = start + t.size[dim]
        inside = _within(k, c, start, end) if len(parts) > 1 else None
        here = sympy.S.Zero if t.size[dim] == 1 else c - start
        loaded = k.load(t, at(k.coords, dim, here), mask=inside).to(dtype)
        result = loaded if result is None or inside is None else inside.choose(loaded, result)
        start = end
    assert result is not None
    return result


@table.lowers(aten.constant_pad_nd.default)
def constant_pad_nd(call: Call, input: Operand, pad: Sequence[Number], value: Number) -> None:
    """`pad` has pairs (before, after), the last dimension first; negative numbers crop."""
    out = call.out
    k = call.kernel(out.size)
    coords = list(k.coords)
    mask: Value | None = None
    for i in range(len(pad) // 2):
        d = len(coords) - 1 - i
        before, after = sympy.sympify(pad[2 * i]), sympy.sympify(pad[2 * i + 1])
        coords[d] = coords[d] - before
        if before == 0 and after == 0:
            continue
        inside = _within(k, coords[d], sympy.S.Zero, input.size[d])
        mask = inside if mask is None else mask & inside
    fill = k.number(value, out.dtype)
    loaded = k.load(input, tuple(coords), mask=mask)
    call.store(k, loaded if mask is None else mask.choose(loaded, fill))


@table.lowers(aten.flip.default)
def flip(call: Call, input: Operand, dims: Sequence[int]) -> None:
    """The elements of these dimensions in the opposite order."""
    out, k = call.out, call.kernel()
    coords = k.coords
    for d in {wrap_dim(d, len(out.size)) for d in dims if out.size}:
        coords = at(coords, d, out.size[d] - 1 - coords[d])
    call.store(k, k.load(input, coords))


@table.lowers(aten.repeat.default)
def repeat(call: Call, input: Operand, repeats: Sequence[Number]) -> None:
    """Coordinates modulo the input's size; `repeats` shows in the size of the result."""
    out = call.out
    k = call.kernel(out.size)
    own = k.coords[len(out.size) - len(input.size) :]
    full = out.size[len(out.size) - len(input.size) :]
    coords = tuple(
        c if n == m else sympy.S.Zero if n == 1 else Mod(c, n)
        for c, n, m in zip(own, input.size, full, strict=True)
    )
    call.store(k, k.load(input, coords))


def _triangle(kept: str) -> Lowering:
    """What lies on the diagonal and above it ("ge") or below it ("le"), 0 elsewhere."""

    def lowering(call: Call, input: Operand, diagonal: Number) -> None:
        k = call.kernel()
        row, column = k.coords[-2:]
        distance, limit = k.index(column - row), k.index(sympy.sympify(diagonal))
        keep = distance(kept, limit)
        x = k.load(input, k.coords)
        call.store(k, keep.choose(x, 0))

    return lowering


table.add(aten.triu.default, _triangle("ge"))
table.add(aten.tril.default, _triangle("le"))


@table.lowers(aten.diag_embed.default)
def diag_embed(call: Call, input: Operand, offset: Number, dim1: int, dim2: int) -> None:
    """The last dimension of the input on a diagonal of `dim1` and `dim2`, 0 elsewhere."""
    rank = len(call.out.size)
    k = call.kernel(call.out.size)
    first, second = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    row, column, start = k.coords[first], k.coords[second], sympy.sympify(offset)
    others = (c for d, c in enumerate(k.coords) if d not in (first, second))
    here = k.index(column - row)("eq", k.index(start))
    place = row if start.is_nonnegative else column
    call.store(k, here.choose(k.load(input, (*others, place), mask=here), 0))


@table.lowers(aten.select_scatter.default)
def select_scatter(call: Call, input: Operand, src: Operand, dim: int, index: Number) -> None:
    """A copy of the input with `src` at `index` of `dim`."""
    out = call.out
    dim = wrap_dim(dim, len(out.size))
    i = _from_end(index, out.size[dim])
    k = call.kernel(out.size)
    here = k.index(k.coords[dim])("eq", k.index(i))
    coords = (*k.coords[:dim], *k.coords[dim + 1 :])
    new = k.load_broadcast(src, (*out.size[:dim], *out.size[dim + 1 :]), coords).to(out.dtype)
    call.store(k, here.choose(new, k.load(input, k.coords)))


@table.lowers(aten.slice_scatter.default)
def slice_scatter(
    call: Call,
    input: Operand,
    src: Operand,
    dim: int,
    start: Number | None,
    end: Number | None,
    step: Number,
) -> None:
    """A copy of the input with `src` in the slice; `end` shows in the size of `src`."""
    out = call.out
    dim = wrap_dim(dim, len(out.size))
    require(len(src.size) == len(out.size), "a source of another rank")
    require(at(src.size, dim, out.size[dim]) == out.size, "a source that is broadcast")
    first = _from_end(0 if start is None else start, out.size[dim])
    length = src.size[dim]
    k = call.kernel(out.size)
    offset = k.coords[dim] - first
    inside = _within(k, offset, sympy.S.Zero, length * step)
    if step != 1:
        remainder = k.index(Mod(offset, sympy.sympify(step)))
        inside = inside & remainder("eq", 0)
        offset = FloorDiv(offset, sympy.sympify(step))
    new = k.load(src, at(k.coords, dim, offset), mask=inside).to(out.dtype)
    call.store(k, inside.choose(new, k.load(input, k.coords)))


def _from_end(index: Number, size: sympy.Expr) -> sympy.Expr:
    """An index as Python counts it: negative from the end, never before the start."""
    i = sympy.sympify(index)
    require(bool(i.is_Integer), f"an index {i} whose sign is unknown")
    if i >= 0:
        return i
    require(bool(size.is_Integer), f"an index {i} from the end of {size}")
    return max(size + i, sympy.S.Zero)
