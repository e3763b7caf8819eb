"""Reductions over the inner dimension of a tile: in one go, or accumulated in a loop.

A loop keeps one partial result per lane and folds the lanes once, after the loop."""

from loop_ir import DType, Reduce, Scan, identity
from triton_emit.errors import UnsupportedDType
from triton_emit.forms.rows import RowWriter
from triton_emit.names import BY_REDUCTION
from triton_emit.scalar_ops import ScalarOps
from triton_emit.values import (
    ADD,
    ATOM,
    COMPARE,
    F32_MAX,
    MUL,
    SMALL_FLOATS,
    TL_TYPES,
    Value,
    literal,
)

LOG2_E = 1.4426950408889634
LARGEST = {DType.f32: F32_MAX, DType.f64: 1.7976931348623157e308}


def argument(writer: RowWriter, stmt: Reduce | Scan) -> Value:
    """What is folded, in the type that the fold is computed in. Raises UnsupportedDType for element
    types that Triton cannot fold."""
    value = writer.env[stmt.args[0]]
    for dtype in (stmt.dtype, value.dtype):
        if dtype not in TL_TYPES:
            what = f"{type(stmt).__name__.lower()} {stmt.op}"
            raise UnsupportedDType(writer.kernel.name, dtype.value, what)
    return _working(writer.ops, stmt, value)


def _working(ops: ScalarOps, stmt: Reduce | Scan, value: Value) -> Value:
    """The argument in the type that the fold is computed in: f32 for narrower floats, i32 for
    bool and for integers narrower than it (whose max, min and any fit)."""
    value = ops.held(value)
    if stmt.op in ("argmax", "argmin", "any", "all"):
        target = value.dtype
        if stmt.op in ("any", "all"):
            value = ops.cast(value, DType.bool_)
            target = DType.i32
    else:
        target = stmt.dtype
    if target in SMALL_FLOATS:
        target = DType.f32
    elif not target.is_float and target.itemsize < 4:
        target = DType.i32
    return ops.cast(value, target)


def _full_axes(writer: RowWriter, value: Value) -> frozenset[str]:
    return value.axes | {writer.inner}


def masked(writer: RowWriter, value: Value, neutral: Value) -> Value:
    """`value` over the whole inner dimension, `neutral` where out of bounds."""
    key = writer.inner
    axes = _full_axes(writer, value)
    mask = writer.mask(frozenset({key}))
    if mask:
        value = whole(writer, value) if value.literal is not None else value
        return Value(f"tl.where({mask}, {value.text}, {neutral.text})", ATOM, value.dtype, axes)
    return whole(writer, value)


def whole(writer: RowWriter, value: Value) -> Value:
    """`value` as a tile over the whole inner dimension."""
    if writer.inner in value.axes:
        return value
    axes = _full_axes(writer, value)
    shape = writer.shape(axes)
    if value.literal is not None:
        filled = f"tl.full({shape}, {value.text}, {TL_TYPES[value.dtype]})"
        return Value(filled, ATOM, value.dtype, axes)
    return Value(f"tl.broadcast_to({value.text}, {shape})", ATOM, value.dtype, axes)


def fold(writer: RowWriter, call: str, axes: frozenset[str]) -> str:
    """`call` with `{axis}` filled in, one value a row; rows keep their column shape. What is the
    same in all rows is a scalar."""
    if writer.by_row:
        return call.format(axis=None if writer.turned > 1 or writer.plane else 0)
    if not axes:
        return call.format(axis=None)
    return call.format(axis=1) + "[:, None]"


def _reduce_call(op: str, value: Value) -> str:
    """Triton text that folds `value`; `{axis}` is left to be filled in."""
    text = value.text.replace("{", "{{").replace("}", "}}")
    if op == "sum":
        return f"tl.sum({text}, {{axis}})"
    if op == "prod":
        return f"tl.reduce({text}, {{axis}}, product)"
    if op == "any":
        return f"tl.max({text}, {{axis}})"
    if op == "all":
        return f"tl.min({text}, {{axis}})"
    if value.dtype.is_float:
        return f"tl.reduce({text}, {{axis}}, {op}_nan)"
    return f"tl.{op}({text}, {{axis}})"


def _row_axes(writer: RowWriter, value: Value) -> frozenset[str]:
    return value.axes - {writer.inner}


def _simple(writer: RowWriter, stmt: Reduce, value: Value) -> Value:
    """A fold of one value to one result, and the result in its declared type."""
    axes = _row_axes(writer, value)
    text = fold(writer, _reduce_call(stmt.op, value), axes)
    if stmt.op == "sum" and _is_full(writer, value):
        total = Value(f"{text} + 0.0", ADD, value.dtype, axes)
        return writer.ops.cast(total, stmt.dtype)
    if stmt.op in ("any", "all"):
        flag = Value(f"{text} != 0", COMPARE, DType.bool_, axes)
        return writer.ops.cast(flag, stmt.dtype)
    return writer.ops.cast(Value(text, ATOM, value.dtype, axes), stmt.dtype)


def _is_full(writer: RowWriter, value: Value) -> bool:
    """Of a sum of floats: whether neither a lane that is masked nor an accumulator adds the 0 that
    it starts from, so that it would be -0 where all elements are."""
    return value.dtype.is_float and not writer.looped and writer.inner not in writer.masks


def _extreme(writer: RowWriter, stmt: Reduce, value: Value, at: str) -> Value:
    """The first place of the extreme, or of a NaN: two folds of one number take fewer instructions
    than one of a number and its place."""
    axes = _row_axes(writer, value)
    if not value.text.isidentifier():
        value = writer.assign("value", value)
    text = fold(writer, _reduce_call(stmt.op[3:], value), axes)
    peak = writer.assign(BY_REDUCTION[stmt.op[3:]][0], Value(text, ATOM, value.dtype, axes))
    found = f"{value.text} == {peak.text}"
    if value.dtype.is_float:
        found = f"({found}) | ({value.text} != {value.text})"
    last = 2**63 - 1 if writer.looped and writer.bits == 64 else 2**31 - 1
    text = fold(writer, f"tl.min(tl.where({found}, {at}, {last}), {{axis}})", axes)
    return Value(f"{text}.to({TL_TYPES[stmt.dtype]})", ATOM, stmt.dtype, axes)


def _count(writer: RowWriter, dtype: DType) -> str:
    """Number of inner points as a value of a float type."""
    if writer.piece:
        return f"tl.cast({writer.piece}, {TL_TYPES[dtype]})"
    numel = writer.tiles[writer.inner].numel
    if numel.is_Integer:
        return f"{int(numel)}.0"
    return f"tl.cast({writer.write_sizes(numel)}, {TL_TYPES[dtype]})"


def _quotient(dtype: DType, a: str, b: str) -> Value:
    if dtype is DType.f64:
        return Value(f"{a} / {b}", MUL, dtype)
    return Value(f"tl.div_rn({a}, {b})", ATOM, dtype)


def persistent(writer: RowWriter, stmt: Reduce, value: Value) -> tuple[Value, ...]:
    """Results of a reduction whose row is held whole."""
    bases = BY_REDUCTION[stmt.op]
    if stmt.op == "welford":
        return _two_pass(writer, stmt, value)
    value = masked(writer, value, literal(identity(stmt.op, value.dtype), value.dtype))
    if stmt.op == "softmax":
        return _softmax(writer, stmt, writer.assign("value", value))
    if stmt.op in ("argmax", "argmin"):
        at = positions(writer, value)
        return (writer.assign(bases[0], _extreme(writer, stmt, value, at)),)
    return (writer.assign(bases[0], _simple(writer, stmt, value)),)


def positions(writer: RowWriter, value: Value) -> str:
    """The places of a tile's elements along the inner dimension, in the type of indices."""
    tile = writer.tiles[writer.inner]
    at = tile.flat
    if not (value.axes == {tile.key} and writer.by_row):
        at = f"tl.broadcast_to({at}, {writer.shape(value.axes)})"
    return f"tl.cast({at}, tl.int64)" if writer.looped and writer.bits == 64 else at


def _two_pass(writer: RowWriter, stmt: Reduce, value: Value) -> tuple[Value, ...]:
    """Mean, then the sum of squared differences from it: exact, and the row is in registers."""
    dtype = value.dtype
    zero = literal(0, dtype)
    if value.literal is None and not value.text.isidentifier():
        value = writer.assign("centered", value)
    summed = masked(writer, value, zero)
    axes = _row_axes(writer, summed)
    total = fold(writer, _reduce_call("sum", summed), axes)
    if _is_full(writer, summed):
        total = f"({total} + 0.0)"
    quotient = _quotient(dtype, total, _count(writer, dtype))
    mean = writer.assign("mean", Value(quotient.text, quotient.prec, dtype, axes))
    key = writer.inner
    diff = Value(f"{value.at(ADD)} - {mean.text}", ADD, dtype, value.axes | axes)
    inside = masked(writer, diff, zero)
    if key not in inside.axes:
        inside = Value(inside.text, inside.prec, dtype, inside.axes | {key})
    delta = writer.assign("delta", inside)
    square = Value(f"{delta.text} * {delta.text}", MUL, dtype, delta.axes)
    folded = fold(writer, _reduce_call("sum", square), axes)
    m2 = writer.assign("m2", Value(folded, ATOM, dtype, axes))
    return (writer.ops.cast(mean, stmt.dtype), writer.ops.cast(m2, stmt.dtype))


def _softmax(writer: RowWriter, stmt: Reduce, value: Value) -> tuple[Value, ...]:
    """Maximum, then the sum of the exponentials of what is below it; of a row of -inf that is 0."""
    axes = _row_axes(writer, value)
    bases = BY_REDUCTION[stmt.op]
    text = fold(writer, _reduce_call("max", value), axes)
    peak = writer.assign(bases[0], Value(text, ATOM, value.dtype, axes))
    below = _exp(value.dtype, f"{value.text} - {peak.text}")
    text = fold(writer, f"tl.sum({below}, {{axis}})", axes)
    text = f'tl.where({peak.text} == float("-inf"), 0.0, {text})'
    total = writer.assign(bases[1], Value(text, ATOM, value.dtype, axes))
    return (writer.ops.cast(peak, stmt.dtype), writer.ops.cast(total, stmt.dtype))


def _accumulator_axes(writer: RowWriter, value: Value) -> frozenset[str]:
    return frozenset(writer.shapes) & (_full_axes(writer, value) | {"x"})


def start_loop(writer: RowWriter, stmt: Reduce, value: Value) -> list[str]:
    """Accumulators of a reduction, made before the loop; their names."""
    shape = writer.shape(_accumulator_axes(writer, value))
    dtype = TL_TYPES[value.dtype]
    if stmt.op == "welford":
        names = [writer.namer.fresh("mean_acc"), writer.namer.fresh("m2_acc")]
        writer.before += [f"{n} = tl.zeros({shape}, {dtype})" for n in names]
        return names
    if stmt.op == "softmax":
        names = [writer.namer.fresh("max_acc"), writer.namer.fresh("sum_acc")]
        if (held := _held(writer, value)) > 1:
            shape = f"[{writer.shapes[writer.inner]} // {held}]"
        least = repr(-LARGEST[value.dtype])  # from where even -inf has a distance
        writer.before.append(f"{names[0]} = tl.full({shape}, {least}, {dtype})")
        writer.before.append(f"{names[1]} = tl.zeros({shape}, {dtype})")
        return names
    name = writer.namer.fresh(f"{stmt.op}_acc")
    start = literal(identity(stmt.op, value.dtype), value.dtype).text
    writer.before.append(f"{name} = tl.full({shape}, {start}, {dtype})")
    if stmt.op not in ("argmax", "argmin"):
        return [name]
    at = writer.namer.fresh("at_acc")
    # a lane whose elements are all the least value has that one first at its own place
    first = "lanes" if writer.by_row else f"tl.broadcast_to(lanes, {shape})"
    writer.before.append(f"{at} = {first}.to(tl.int64)" if writer.bits == 64 else f"{at} = {first}")
    return [name, at]


def step_loop(writer: RowWriter, stmt: Reduce, value: Value, names: list[str]) -> None:
    """One chunk into the accumulators."""
    body = writer.lines.body
    if stmt.op == "welford":
        _welford_step(writer, value, names)
        return
    held = _held(writer, value)
    value = masked(writer, value, literal(identity(stmt.op, value.dtype), value.dtype))
    acc = names[0]
    if stmt.op == "softmax":
        _softmax_step(writer, value, names, held)
    elif stmt.op in ("argmax", "argmin"):
        tile = writer.tiles[writer.inner]
        helper = f"take_{stmt.op[3:]}"  # a lane meets its elements in order
        shape = writer.shape(_accumulator_axes(writer, value))
        at = tile.flat if writer.by_row else f"tl.broadcast_to({tile.flat}, {shape})"
        if writer.bits == 64:
            at = f"tl.cast({at}, tl.int64)"
        text = value.text
        if value.axes != _accumulator_axes(writer, value):
            text = f"tl.broadcast_to({text}, {shape})"
        body.append(f"{acc}, {names[1]} = {helper}({acc}, {names[1]}, {text}, {at})")
    elif stmt.op == "sum":
        body.append(f"{acc} += {value.text}")
    elif stmt.op == "prod":
        body.append(f"{acc} *= {value.text}")
    elif stmt.op in ("any", "all"):
        body.append(f"{acc} {'|' if stmt.op == 'any' else '&'}= {value.text}")
    elif value.dtype.is_float:
        body.append(f"{acc} = {stmt.op}_nan({acc}, {value.text})")
    else:
        body.append(f"{acc} = tl.{stmt.op}imum({acc}, {value.text})")


def _softmax_step(writer: RowWriter, value: Value, names: list[str], held: int) -> None:
    """The elements of a thread (`held` of them) have a maximum, which scales the sum so far. In
    tiles of several rows each lane has its own: a new maximum scales the sum, anything else adds
    its exponential, which is one either way."""
    peak, total = names
    body = writer.lines.body
    if not value.text.isidentifier():
        value = writer.assign("value", value)
    if held > 1:
        group, larger = writer.namer.fresh("group"), writer.namer.fresh("larger")
        block = writer.shapes[writer.inner]
        body += [
            f"{group} = tl.reshape({value.text}, [{block} // {held}, {held}], can_reorder=True)",
            f"{larger} = max_nan({peak}, tl.reduce({group}, 1, max_nan))",
            f"{total} *= {_exp(value.dtype, f'{peak} - {larger}')}",
            f"{total} += tl.sum({_exp(value.dtype, f'{group} - {larger}[:, None]')}, 1)",
            f"{peak} = {larger}",
        ]
        return
    shift, e = writer.namer.fresh("above"), writer.namer.fresh("e")
    body.append(f"{shift} = {value.text} - {peak}")
    body.append(f"{e} = {_exp(value.dtype, f'-tl.abs({shift})')}")
    body.append(f"{total} = tl.where({shift} > 0.0, {total} * {e} + 1.0, {total} + {e})")
    body.append(f"{peak} = max_nan({peak}, {value.text})")


def _held(writer: RowWriter, value: Value) -> int:
    """How many elements of a row a thread has at once, which are joined before those of others;
    1 where a tile has more than one row, or all rows have the same."""
    if not writer.by_row or writer.inner not in value.axes:
        return 1
    return max(1, writer.chunk // (32 * writer.schedule.num_warps))


def _exp(dtype: DType, text: str) -> str:
    """The exponential of what is at most 0, as a term of a sum that is at least 1: powers of two
    take half the instructions, as they make subnormal results 0."""
    if dtype is DType.f64:
        return f"tl.exp({text})"
    return f"tl.exp2(({text}) * {LOG2_E})"


def _welford_step(writer: RowWriter, value: Value, names: list[str]) -> None:
    """Welford's update; every lane inside the row has seen the same number of values."""
    mean, m2 = names
    body = writer.lines.body
    fresh = writer.namer.fresh
    tile = writer.tiles[writer.inner]
    if not value.text.isidentifier() and value.literal is None:
        value = writer.assign("value", value)
    seen, delta, new_mean = fresh("seen"), fresh("delta"), fresh("new_mean")
    block = writer.shapes[tile.key]
    body.append(f"{seen} = tl.cast(start // {block} + 1, {TL_TYPES[value.dtype]})")
    body.append(f"{delta} = {value.at(ADD)} - {mean}")
    body.append(f"{new_mean} = {mean} + {delta} * (1.0 / {seen})")
    new_m2 = f"{m2} + {delta} * ({value.at(ADD)} - {new_mean})"
    mask = writer.mask(frozenset({tile.key}))
    body.append(f"{m2} = tl.where({mask}, {new_m2}, {m2})" if mask else f"{m2} = {new_m2}")
    kept = f"tl.where({mask}, {new_mean}, {mean})" if mask else new_mean
    body.append(f"{mean} = {kept}")


def finish_loop(
    writer: RowWriter, stmt: Reduce, names: list[str], dtype: DType
) -> tuple[Value, ...]:
    """Folds the lanes of the accumulators, which are of that type, after the loop."""
    axes = frozenset({"x", writer.inner}) & frozenset(writer.shapes)
    acc = Value(names[0], ATOM, dtype, axes)
    base = BY_REDUCTION[stmt.op][0]
    if stmt.op == "welford":
        return _welford_finish(writer, stmt, names, dtype, axes)
    if stmt.op == "softmax":
        return _softmax_finish(writer, stmt, acc, names[1])
    if stmt.op in ("argmax", "argmin"):
        return (writer.assign(base, _extreme(writer, stmt, acc, names[1])),)
    return (writer.assign(base, _simple(writer, stmt, acc)),)


def _softmax_finish(writer: RowWriter, stmt: Reduce, acc: Value, sums: str) -> tuple[Value, ...]:
    """Joins lanes, each of which has its own maximum. Nothing was summed: all is -inf."""
    axes = _row_axes(writer, acc)
    bases = BY_REDUCTION[stmt.op]
    text = fold(writer, _reduce_call("max", acc), axes)
    peak = writer.assign(bases[0], Value(text, ATOM, acc.dtype, axes))
    scale = _exp(acc.dtype, f"{acc.text} - {peak.text}")
    text = fold(writer, f"tl.sum({sums} * {scale}, {{axis}})", axes)
    total = writer.assign(bases[1], Value(text, ATOM, acc.dtype, axes))
    text = f'tl.where({total.text} == 0.0, float("-inf"), {peak.text})'
    peak = writer.assign(bases[0], Value(text, ATOM, acc.dtype, axes))
    return (writer.ops.cast(peak, stmt.dtype), writer.ops.cast(total, stmt.dtype))


def _welford_finish(
    writer: RowWriter, stmt: Reduce, names: list[str], dtype: DType, axes: frozenset[str]
) -> tuple[Value, ...]:
    """Joins lanes that saw `counts` values each (Chan, Golub, LeVeque 1979)."""
    tile = writer.tiles[writer.inner]
    block = writer.shapes[tile.key]
    mean_acc, m2_acc = names
    rows = axes - {tile.key}
    numel = writer.write_sizes(tile.numel)
    even = writer.inner not in writer.masks
    if even:
        steps = f"({numel}) // {block}" if not tile.numel.is_Integer else f"{numel} // {block}"
        counts = f"tl.cast({steps}, {TL_TYPES[dtype]})"
    else:
        base = f"({numel})" if not tile.numel.is_Atom else numel
        counts = f"(({base} - lanes + {block} - 1) // {block}).to({TL_TYPES[dtype]})"
    count = writer.assign("counts", Value(counts, ATOM, dtype))
    total = fold(writer, f"tl.sum({mean_acc} * {count.text}, {{axis}})", rows)
    quotient = _quotient(dtype, total, _count(writer, dtype))
    mean = writer.assign("mean", Value(quotient.text, quotient.prec, dtype, rows))
    delta = writer.assign("delta", Value(f"{mean_acc} - {mean.text}", ADD, dtype, axes))
    folded = fold(
        writer, f"tl.sum({m2_acc} + {count.text} * {delta.text} * {delta.text}, {{axis}})", rows
    )
    m2 = writer.assign("m2", Value(folded, ATOM, dtype, rows))
    return (writer.ops.cast(mean, stmt.dtype), writer.ops.cast(m2, stmt.dtype))


def join(
    writer: RowWriter, stmt: Reduce, parts: list[Value], counts: str, needed: str
) -> tuple[Value, ...]:
    """The results of a reduction of those of pieces, tiles of one number for each piece that is
    `needed`. counts: how many elements each has."""
    bases = BY_REDUCTION[stmt.op]
    value = parts[0]
    dtype = value.dtype
    if stmt.op == "welford":
        total = f"tl.sum({value.text} * {counts}.to({TL_TYPES[dtype]}), 0)"
        numel = f"{int(writer.tiles[writer.inner].numel)}.0"
        mean = writer.assign(bases[0], _quotient(dtype, total, numel))
        delta = writer.assign("delta", Value(f"{value.text} - {mean.text}", ADD, dtype))
        square = f"{counts}.to({TL_TYPES[dtype]}) * {delta.text} * {delta.text}"
        m2 = f"tl.sum({parts[1].text} + {square}, 0)"
        return mean, writer.assign(bases[1], Value(m2, ATOM, dtype))
    op = "max" if stmt.op == "softmax" else stmt.op
    neutral = literal(identity(op, dtype), dtype).text
    known = writer.assign("known", Value(f"tl.where({needed}, {value.text}, {neutral})", 0, dtype))
    text = _reduce_call(op, known).format(axis=0)
    folded = writer.assign(bases[0], Value(text, ATOM, dtype))
    if stmt.op != "softmax":
        return (folded,)
    scale = _exp(dtype, f"{known.text} - {folded.text}")
    total = f"tl.sum({parts[1].text} * {scale}, 0)"
    total = f'tl.where({folded.text} == float("-inf"), 0.0, {total})'
    return folded, writer.assign(bases[1], Value(total, ATOM, dtype))
