"""The maximum of a row and the sum of its exponentials in one reading (Milakov and Gimelshein,
"Online normalizer calculation for softmax", 2018)."""

import math
from collections.abc import Mapping
from dataclasses import replace

from loop_ir.ir.affine import product
from loop_ir.ir.analysis import inner_axes, scans
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.names import defined_values, statements
from loop_ir.ir.nodes import Compute, Const, Kernel, Reduce, Stmt, Store
from loop_ir.ir.staging import Item, items_of, stage
from loop_ir.splitting.stages import reduces
from tensor_ir import DType

# Elements of a row that no program holds whole, and that the second-level cache keeps for all
# programs that run at once (an H200: rows of 64k, 167 us in three readings, 214 in two; rows of
# 128k, 212 and 214).
_CACHED_ROW = range(8193, 65537)


def pair_softmax(kernel: Kernel, always: bool = False) -> Kernel:
    """For kernels that would read a row twice:

        m = reduce max(v); s = reduce sum(exp(v - m))
     -> m, s0 = reduce softmax(v); s = where(m == -inf, m - m, s0)

    and likewise where an infinite m counts as 0, as `logsumexp` has it: its s is s0, or infinite.
    Both of one row (a cross entropy and the square of a `logsumexp`) are one reading.
    Not where the row is read once more for a result of each element, and comes from the cache then:
    the maximum alone waits for less arithmetic. always: there, too."""
    inner = inner_axes(kernel)
    if not inner or scans(kernel):
        return kernel
    first = next((n for n, p in enumerate(kernel.phases) if reduces(p)), 0)
    later = [p for p in kernel.phases[first + 1 :] if p.axes]
    stored = any(isinstance(s, Store) for p in later for s in p.body)
    points = product(a.extent for a in inner)
    if not always and stored and points.is_Integer and int(points) in _CACHED_ROW:
        return kernel
    made = {n: s for s in statements(kernel) for n in defined_values(s)}
    peaks = {s.args[0]: s for s in made.values() if isinstance(s, Reduce) and s.op == "max"}
    fresh = fresh_values(kernel)
    sums: dict[str, str] = {}  # of the maximum
    items: list[Item] = []
    for item in items_of(kernel):
        stmt = item.stmt
        found = _exponential(stmt, made, peaks) if isinstance(stmt, Reduce) else None
        if found is None:
            items.append(item)
            continue
        peak, clipped = found
        (m,) = peak.outs
        if m not in sums:
            sums[m] = next(fresh)
        edge = math.inf if clipped else -math.inf
        body = Body(fresh)
        is_edge = body.test("eq", m, body.const(edge, peak.dtype))
        # of infinities, NaN
        value = m if clipped else body.compute(peak.dtype, "sub", m, m)
        (s,) = defined_values(stmt)
        body.compute(peak.dtype, "where", is_edge, value, sums[m], out=s)
        items += map(Item, body)
    if not sums:
        return kernel

    def online(item: Item) -> Item:
        s = item.stmt
        if not (isinstance(s, Reduce) and s.outs[0] in sums and s.op == "max"):
            return item
        return replace(item, stmt=replace(s, outs=(*s.outs, sums[s.outs[0]]), op="softmax"))

    return replace(kernel, phases=stage([online(i) for i in items], inner))


def _exponential(
    stmt: Reduce, made: Mapping[str, Stmt], peaks: Mapping[str, Reduce]
) -> tuple[Reduce, bool] | None:
    """The maximum of `sum(exp(v - max(v)))`, and whether it counts as 0 where it is infinite."""
    if stmt.op != "sum" or stmt.dtype not in (DType.f32, DType.f64):
        return None
    exp = made.get(stmt.args[0])
    diff = made.get(exp.args[0]) if isinstance(exp, Compute) and exp.op == "exp" else None
    if not (isinstance(diff, Compute) and diff.op == "sub") or diff.dtype is not stmt.dtype:
        return None
    value, shift = diff.args
    peak = peaks.get(value)
    if peak is None or peak.dtype is not stmt.dtype:
        return None
    if shift == peak.outs[0]:
        return peak, False
    return (peak, True) if _is_clipped(shift, peak.outs[0], made) else None


def _is_clipped(name: str, m: str, made: Mapping[str, Stmt]) -> bool:
    """`where(abs(m) == inf, 0, m)`."""
    where = made.get(name)
    if not (isinstance(where, Compute) and where.op == "where" and where.args[2] == m):
        return False
    is_edge, zero = made.get(where.args[0]), made.get(where.args[1])
    if not (isinstance(is_edge, Compute) and is_edge.op == "eq"):
        return False
    size, edge = (made.get(a) for a in is_edge.args)
    return (
        isinstance(size, Compute)
        and (size.op, size.args) == ("abs", (m,))
        and isinstance(edge, Const)
        and edge.value == math.inf
        and isinstance(zero, Const)
        and zero.value == 0
    )
