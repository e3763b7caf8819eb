"""Scans along the inner dimension of a tile: in one go, or chunk by chunk with a carry.

A loop carries what all chunks before the current one fold to, a number (and a place) a row. Sums of
exponentials are pairs: the largest exponent, and the sum as seen from there, less its own 1 (of
one number -0, which keeps the sign of a zero)."""

from collections.abc import Sequence
from dataclasses import dataclass

from loop_ir import DType, Scan, Stmt, identity
from triton_emit.forms.reductions import argument, fold, masked, positions, whole
from triton_emit.forms.rows import RowWriter
from triton_emit.names import BY_SCAN
from triton_emit.values import ADD, ATOM, TL_TYPES, Value, literal

_FOLDS = {"sum": "{a} + {b}", "prod": "{a} * {b}"}
_HELPERS = {"prod": "product", "max": "later_max", "min": "later_min"}


@dataclass(frozen=True)
class _Part:
    """One of the numbers of a pair. text: at each point; start: of no points; fold: a call that
    gives of one number and starts that number."""

    name: str
    text: str
    start: str
    dtype: DType
    fold: str


def write(writer: RowWriter, stmt: Scan, body: Sequence[Stmt]) -> None:
    """The lines of a scan, one of the statements of `body`. The running extremes of a value come
    with their places where both are wanted."""
    value = argument(writer, stmt)
    if stmt.reverse:  # what is out of bounds comes first
        value = masked(writer, value, literal(identity(stmt.op, value.dtype), value.dtype))
    value = _of_all_rows(writer, whole(writer, value))
    extreme = stmt.op.removeprefix("arg")
    twins = {s.op: s for s in body if isinstance(s, Scan) and s.args == stmt.args}
    if f"arg{extreme}" in twins:
        _with_places(writer, extreme, value, twins)
        return
    if stmt.op == "logsumexp":
        _exponentials(writer, stmt, value)
        return
    value = _turned(writer, value)
    if writer.looped and not value.text.isidentifier():
        value = writer.assign("value", value)
    if writer.steps > 1:
        _in_steps(writer, stmt, value)
        return
    result = _running(writer, stmt, value)
    result = _turned_back(writer, result)
    writer.env[stmt.out] = writer.ops.cast(writer.assign(BY_SCAN[stmt.op], result), stmt.dtype)
    if writer.looped and not writer.shares:
        carry = writer.carries[stmt]
        total = fold(writer, _over(stmt.op, "reduce", value, ""), value.axes - {writer.inner})
        writer.lines.body.append(f"{carry} = {_join(stmt.op, carry, total)}")


def _turned(writer: RowWriter, value: Value) -> Value:
    """A tile whose vectors are in reverse order, in that of the scan."""
    if writer.turned == 1:
        return value
    turned = f"tl.reshape(tl.flip({value.text}, 1), [{writer.shapes[writer.inner]}])"
    return Value(turned, ATOM, value.dtype, value.axes)


def _turned_back(writer: RowWriter, value: Value) -> Value:
    if writer.turned == 1:
        return value
    turned = f"tl.reshape({value.text}, {writer.shape(value.axes)})"
    return Value(f"tl.flip({turned}, 1)", ATOM, value.dtype, value.axes)


def _running(writer: RowWriter, stmt: Scan, value: Value) -> Value:
    """The scanned tile, with what comes before it."""
    tail = ", reverse=True" if stmt.reverse and writer.turned == 1 else ""
    text = _over(stmt.op, "scan", value, tail).format(axis=_axis(writer))
    if not writer.looped:
        return Value(text, ATOM, value.dtype, value.axes)
    start = literal(identity(stmt.op, value.dtype), value.dtype).text
    if writer.shares:
        own, join = writer.namer.fresh("own"), _HELPERS.get(stmt.op, "plus")
        total = _over(stmt.op, "reduce", value, "").format(axis=0)
        totals = [(value.dtype, start, total)]
        (carry,) = writer.before_chunk(join, totals, [f"{own} = {text}"])
        text = own
    else:
        carry = writer.carries[stmt] = _carry(writer, "carry", start, TL_TYPES[value.dtype])
    joined = _join(stmt.op, carry, text)
    return Value(joined, ADD, value.dtype, _with_rows(writer, value))


def _in_steps(writer: RowWriter, stmt: Scan, value: Value) -> None:
    """A tile of warps by rows by columns: each thread scans its rows, then come those of the warps
    before, and of the chunks before. The tile of a reverse scan has its rows in reverse."""
    op, body, fresh = stmt.op, writer.lines.body, writer.namer.fresh
    start = literal(identity(op, value.dtype), value.dtype).text
    dtype = TL_TYPES[value.dtype]
    own, total, before = fresh("own"), fresh("total"), fresh("before")
    carry = writer.carries[stmt] = _carry(writer, "carry", start, dtype)
    neutral = f"tl.full([RBLOCK // STEPS, XBLOCK], {start}, {dtype})"
    body.append(f"{own} = {_over(op, 'scan', value, '').format(axis=1)}")
    body.append(f"{total} = {_over(op, 'reduce', value, '').format(axis=1)}")
    scanned = f"tl.associative_scan(({neutral}, {total}), 0, before_{_HELPERS.get(op, op)})"
    body.append(f"{before} = {scanned}[0]")
    joined = _join(op, _join(op, carry, f"{before}[:, None, :]"), own)
    result = Value(joined, ADD, value.dtype, _with_rows(writer, value))
    writer.env[stmt.out] = writer.ops.cast(writer.assign(BY_SCAN[op], result), stmt.dtype)
    whole_chunk = _over(op, "reduce", Value(total, ATOM, value.dtype), "").format(axis=0)
    body.append(f"{carry} = {_join(op, carry, f'{whole_chunk}[None, None, :]')}")


def _axis(writer: RowWriter) -> int:
    return 0 if writer.by_row else 1


def _with_rows(writer: RowWriter, value: Value) -> frozenset[str]:
    """The dimensions of a value that is joined with a carry."""
    return frozenset(writer.shapes) & (value.axes | {"x"})


def _carry(writer: RowWriter, base: str, start: str, dtype: str) -> str:
    """A number a row, made before the loop; its name."""
    name = writer.namer.fresh(base)
    rows = frozenset({"x"} & writer.shapes.keys())
    shape = "()" if writer.by_row else writer.shape(rows)
    writer.before.append(f"{name} = tl.full({shape}, {start}, {dtype})")
    return name


def _join(op: str, a: str, b: str) -> str:
    pattern = _FOLDS.get(op)
    return pattern.format(a=a, b=b) if pattern else f"{_HELPERS[op]}({a}, {b})"


def _over(op: str, kind: str, value: Value, tail: str) -> str:
    """The call that scans ("scan") or folds ("reduce") a tile along `{axis}`."""
    text = value.text.replace("{", "{{").replace("}", "}}")
    if op == "sum":
        return f"tl.{'cumsum' if kind == 'scan' else 'sum'}({text}, {{axis}}{tail})"
    name = "associative_scan" if kind == "scan" else "reduce"
    return f"tl.{name}({text}, {{axis}}, {_HELPERS[op]}{tail})"


def _with_places(writer: RowWriter, extreme: str, value: Value, twins: dict[str, Scan]) -> None:
    """Running extremes and the places of the last ones, together."""
    value = _named(writer, value)
    start = literal(identity(extreme, value.dtype), value.dtype).text
    only = (
        f"tl.reduce({{}}, {{}}, {extreme}_nan)"
        if value.dtype.is_float
        else f"tl.{extreme}({{}}, {{}})"
    )
    place = DType.i64 if writer.bits == 64 else DType.i32
    parts = (
        _Part(f"running_{extreme}", value.text, start, value.dtype, only),
        _Part(f"at_{extreme}", positions(writer, value), "-1", place, "tl.max({}, {})"),
    )
    best, at = _pairs(writer, parts, f"next_{extreme}", f"last_{extreme}", False)
    axes = _with_rows(writer, value) if writer.looped else value.axes
    if (stmt := twins.get(extreme)) is not None:
        writer.env[stmt.out] = writer.ops.cast(Value(best, ATOM, value.dtype, axes), stmt.dtype)
    stmt = twins[f"arg{extreme}"]
    writer.env[stmt.out] = Value(f"{at}.to(tl.int64)", ATOM, stmt.dtype, axes)


def _exponentials(writer: RowWriter, stmt: Scan, value: Value) -> None:
    """Running logarithms of sums of exponentials."""
    value = _named(writer, _turned(writer, value))
    dtype = TL_TYPES[value.dtype]
    shape = writer.shape(value.axes)
    if writer.turned > 1:
        shape = f"[{writer.shapes[writer.inner]}]"
    none = f"tl.full({shape}, 0.0, {dtype}) * -1.0"  # tl.full drops the sign of a zero
    parts = (
        _Part("peak", value.text, 'float("-inf")', value.dtype, "tl.reduce({}, {}, max_nan)"),
        _Part("others", none, "-1.0", value.dtype, "tl.max({}, {})"),
    )
    backwards = stmt.reverse and writer.turned == 1 and writer.steps == 1
    peak, total = _pairs(writer, parts, "add_exponentials", "add_exponentials", backwards)
    axes = _with_rows(writer, value) if writer.looped else value.axes
    log = f"{peak} + log1p_{value.dtype.value}({total})"
    result = _turned_back(writer, Value(log, ADD, value.dtype, axes))
    writer.env[stmt.out] = writer.ops.cast(writer.assign(BY_SCAN[stmt.op], result), stmt.dtype)


def _of_all_rows(writer: RowWriter, value: Value) -> Value:
    """Also of one that is the same in all rows: Triton has no scans of tiles that are less than
    what its threads hold."""
    axes = _with_rows(writer, value)
    if writer.by_row or axes == value.axes:
        return value
    text = f"tl.broadcast_to({value.text}, {writer.shape(axes)})"
    return Value(text, ATOM, value.dtype, axes)


def _named(writer: RowWriter, value: Value) -> Value:
    return value if value.text.isidentifier() else writer.assign("value", value)


def _pairs(
    writer: RowWriter, parts: tuple[_Part, _Part], then: str, join: str, backwards: bool
) -> tuple[str, str]:
    """The lines that scan pairs; the names of the results. then: the helper that joins a run to the
    one before it; join: the one for runs in any order."""
    body, fresh, axis = writer.lines.body, writer.namer.fresh, _axis(writer)

    def pair(bases: tuple[str, str], text: str) -> tuple[str, str]:
        names = fresh(bases[0]), fresh(bases[1])
        body.append(f"{', '.join(names)} = {text}")
        return names

    def shaped(names: Sequence[str], subscript: str) -> str:
        return ", ".join(f"{name}{subscript}" for name in names)

    results = parts[0].name, parts[1].name
    tail = ", reverse=True" if backwards else ""
    scan = f"tl.associative_scan(({parts[0].text}, {parts[1].text}), {axis}, {then}{tail})"
    if not writer.looped:
        return pair(results, scan)
    types = [TL_TYPES[p.dtype] for p in parts]
    starts = [] if writer.shares else list(zip(parts, types, strict=True))
    carry = [_carry(writer, "carry", p.start, dtype) for p, dtype in starts]
    before = shaped(carry, "")
    own = pair(("own", "own"), scan)
    block = "STEPS" if writer.steps > 1 else writer.shapes[writer.inner]
    over = "[None, :, None]" if writer.steps > 1 else "" if writer.by_row else "[None, :]"
    end = fresh("end")
    place = "0" if backwards else f"{block} - 1"
    writer.before.append(f"{end} = tl.arange(0, {block}){over} == {place}")

    def last(names: Sequence[str]) -> list[str]:
        """What the last point of a run has: the whole run."""
        both = zip(names, parts, strict=True)
        return [p.fold.format(f"tl.where({end}, {name}, {p.start})", axis) for name, p in both]

    if writer.shares:
        numbers = [(p.dtype, p.start, t) for p, t in zip(parts, last(own), strict=True)]
        before = shaped(writer.before_chunk(join, numbers, ()), "")
        return pair(results, f"{then}({before}, {shaped(own, '')})")
    if writer.steps == 1:
        running = pair(results, f"{then}({before}, {shaped(own, '')})")
        column = "" if writer.by_row else "[:, None]"
        body += [f"{c} = {text}{column}" for c, text in zip(carry, last(running), strict=True)]
        return running
    totals = pair(("total", "total"), ", ".join(last(own)))
    neutral = [
        f"tl.full([RBLOCK // STEPS, XBLOCK], {p.start}, {dtype})"
        for p, dtype in zip(parts, types, strict=True)
    ]
    warps = f"tl.associative_scan(({shaped((*neutral, *totals), '')}), 0, before_{join})[:2]"
    head = shaped(pair(("before", "before"), warps), "[:, None, :]")
    head = shaped(pair(("head", "head"), f"{join}({before}, {head})"), "")
    running = pair(results, f"{then}({head}, {shaped(own, '')})")
    chunk = pair(("chunk", "chunk"), f"tl.reduce(({shaped(totals, '')}), 0, {join})")
    body.append(f"{before} = {join}({before}, {shaped(chunk, '[None, None, :]')})")
    return running
