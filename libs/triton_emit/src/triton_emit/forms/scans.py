"""Scans along the inner dimension of a tile: in one go, or chunk by chunk with a carry.

A loop carries what all chunks before the current one fold to, a number (and a place) a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from loop_ir import Scan, Stmt, identity
from triton_emit.forms.reductions import argument, fold, masked, positions, whole
from triton_emit.forms.rows import RowWriter
from triton_emit.names import BY_SCAN
from triton_emit.values import ADD, ATOM, TL_TYPES, Value, literal

_FOLDS = {"sum": "{a} + {b}", "prod": "{a} * {b}"}
_HELPERS = {"prod": "product", "max": "later_max", "min": "later_min"}


def write(writer: RowWriter, stmt: Scan, body: Sequence[Stmt]) -> None:
    """The lines of a scan, one of the statements of `body`. The running extremes of a value come
    with their places where both are wanted."""
    value = argument(writer, stmt)
    if stmt.reverse:  # what is out of bounds comes first
        value = masked(writer, value, literal(identity(stmt.op, value.dtype), value.dtype))
    value = whole(writer, value)
    extreme = stmt.op.removeprefix("arg")
    twins = {s.op: s for s in body if isinstance(s, Scan) and s.args == stmt.args}
    if f"arg{extreme}" in twins:
        _with_places(writer, extreme, value, twins)
        return
    if writer.turned > 1:
        block = writer.shapes[writer.inner]
        turned = f"tl.reshape(tl.flip({value.text}, 1), [{block}])"
        value = Value(turned, ATOM, value.dtype, value.axes)
    if writer.looped and not value.text.isidentifier():
        value = writer.assign("value", value)
    if writer.steps > 1:
        _in_steps(writer, stmt, value)
        return
    result = _running(writer, stmt, value)
    if writer.turned > 1:
        turned = f"tl.reshape({result.text}, {writer.shape(value.axes)})"
        result = Value(f"tl.flip({turned}, 1)", ATOM, result.dtype, result.axes)
    writer.env[stmt.out] = writer.ops.cast(writer.assign(BY_SCAN[stmt.op], result), stmt.dtype)
    if writer.looped:
        carry = writer.carries[stmt]
        total = fold(writer, _over(stmt.op, "reduce", value, ""), value.axes - {writer.inner})
        writer.lines.body.append(f"{carry} = {_join(stmt.op, value, carry, total)}")


def _running(writer: RowWriter, stmt: Scan, value: Value) -> Value:
    """The scanned tile, with the carry of a loop."""
    tail = ", reverse=True" if stmt.reverse and writer.turned == 1 else ""
    text = _over(stmt.op, "scan", value, tail).format(axis=_axis(writer))
    if not writer.looped:
        return Value(text, ATOM, value.dtype, value.axes)
    start = literal(identity(stmt.op, value.dtype), value.dtype)
    carry = writer.carries[stmt] = _carry(writer, "carry", start.text, TL_TYPES[value.dtype])
    joined = _join(stmt.op, value, carry, text)
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
    scanned = f"tl.associative_scan(({neutral}, {total}), 0, before_{_before(op, value)})"
    body.append(f"{before} = {scanned}[0]")
    joined = _join(op, value, _join(op, value, carry, f"{before}[:, None, :]"), own)
    result = Value(joined, ADD, value.dtype, _with_rows(writer, value))
    writer.env[stmt.out] = writer.ops.cast(writer.assign(BY_SCAN[op], result), stmt.dtype)
    whole_chunk = _over(op, "reduce", Value(total, ATOM, value.dtype), "").format(axis=0)
    body.append(f"{carry} = {_join(op, value, carry, f'{whole_chunk}[None, None, :]')}")


def _before(op: str, value: Value) -> str:
    return "sum" if op == "sum" else _helper(op, value)


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


def _helper(op: str, value: Value) -> str:
    if op == "logsumexp":
        return f"logaddexp_{value.dtype.value}"
    return _HELPERS[op]


def _join(op: str, value: Value, a: str, b: str) -> str:
    pattern = _FOLDS.get(op)
    return pattern.format(a=a, b=b) if pattern else f"{_helper(op, value)}({a}, {b})"


def _over(op: str, kind: str, value: Value, tail: str) -> str:
    """The call that scans ("scan") or folds ("reduce") a tile along `{axis}`."""
    text = value.text.replace("{", "{{").replace("}", "}}")
    if op == "sum":
        return f"tl.{'cumsum' if kind == 'scan' else 'sum'}({text}, {{axis}}{tail})"
    name = "associative_scan" if kind == "scan" else "reduce"
    return f"tl.{name}({text}, {{axis}}, {_helper(op, value)}{tail})"


def _with_places(writer: RowWriter, extreme: str, value: Value, twins: dict[str, Scan]) -> None:
    """Running extremes and the places of the last ones, together."""
    if not value.text.isidentifier():
        value = writer.assign("value", value)
    body, fresh = writer.lines.body, writer.namer.fresh
    best, at = fresh(f"running_{extreme}"), fresh(f"at_{extreme}")
    pick = f"last_{extreme}"
    pair = f"({value.text}, {positions(writer, value)}), {_axis(writer)}, {pick}"
    place = "tl.int64" if writer.bits == 64 else "tl.int32"
    axes = value.axes
    if writer.looped:
        start = literal(identity(extreme, value.dtype), value.dtype).text
        carry = _carry(writer, "carry", start, TL_TYPES[value.dtype])
        carry_at = _carry(writer, "carry_at", "-1", place)
        own, own_at = fresh("own"), fresh("own_at")
        column = "" if writer.by_row else "[:, None]"
        body.append(f"{own}, {own_at} = tl.associative_scan({pair})")
        body.append(f"{best}, {at} = {pick}({carry}, {carry_at}, {own}, {own_at})")
        body.append(f"{own}, {own_at} = tl.reduce({pair})")
        total = f"{own}{column}, {own_at}{column}"
        body.append(f"{carry}, {carry_at} = {pick}({carry}, {carry_at}, {total})")
        axes = _with_rows(writer, value)
    else:
        body.append(f"{best}, {at} = tl.associative_scan({pair})")
    if (stmt := twins.get(extreme)) is not None:
        writer.env[stmt.out] = writer.ops.cast(Value(best, ATOM, value.dtype, axes), stmt.dtype)
    stmt = twins[f"arg{extreme}"]
    writer.env[stmt.out] = Value(f"{at}.to(tl.int64)", ATOM, stmt.dtype, axes)
