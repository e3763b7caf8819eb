"""Cuts the scans of a kernel into chunks that programs share."""

from dataclasses import replace

import sympy

from loop_ir.ir.analysis import JOINS, identity, scans, single_direction
from loop_ir.ir.body import Body
from loop_ir.ir.names import defined_values, statements, used_values
from loop_ir.ir.nodes import Axis, Compute, Indirect, Kernel, Load, Phase, Reduce, Scan, Stmt, Store
from loop_ir.passes.cse import eliminate
from loop_ir.splitting.chunks import Chunks, Cut
from tensor_ir import DType

_Key = tuple[str, tuple[str, ...]]


def can_split_scans(kernel: Kernel) -> bool:
    """Whether a kernel scans along one inner axis, in one direction, each value once, and does
    otherwise only what is pointwise there."""
    if not scans(kernel) or not single_direction(kernel):
        return False
    *once, last = kernel.phases
    if len(last.axes) != 1 or any(p.axes for p in once):
        return False
    if any(isinstance(s, Store) for p in once for s in p.body):
        return False
    scanned: set[str] = set()
    for stmt in last.body:
        after = bool(scanned.intersection(used_values(stmt)))
        if isinstance(stmt, Reduce) or (after and isinstance(stmt, Scan)):
            return False
        if after or isinstance(stmt, Scan):
            scanned.update(defined_values(stmt))
    return True


def split_scans(kernel: Kernel, cut: Cut, taken: set[str]) -> list[Kernel]:
    """`kernel`, of which `can_split_scans` holds, as three; `cut` is of its inner axis:

       k:  parallel i0 < 4: over r0 < 2**20: v = scan(x); store f(v)
    ->
       k_partial: parallel i1 < 256, i0 < 4: over r0 < 4096: store what a chunk folds to
       k_before:  parallel i0 < 4: over r0 < 256: scan of that
       k:         parallel i1 < 256, i0 < 4: over r0 < 4096: v = what the chunks before fold to,
                  joined with scan(x); store f(v)
    """
    return _ScanChunks(cut, taken, kernel).run()


class _ScanChunks(Chunks):
    def run(self) -> list[Kernel]:
        self.scans: dict[_Key, Scan] = {}
        for scan in statements(self.kernel):
            if isinstance(scan, Scan):
                self.scans[scan.op, scan.args] = scan
                if scan.op.startswith("arg"):  # places are compared by their values
                    extreme = self._extreme(scan)
                    self.scans.setdefault((extreme.op, extreme.args), extreme)
        size = (self.cut.count, *(a.extent for a in self.kernel.axes))
        self.totals: dict[_Key, str] = {}
        self.before: dict[_Key, str] = {}
        for key, scan in self.scans.items():
            self.totals[key] = self.buffer(scan.op, scan.dtype, size)
            self.before[key] = self.buffer(f"{scan.op}_before", scan.dtype, size)
        *once, last = self.kernel.phases
        self.add("partial", self._partial_kernel(tuple(once), last))
        self.add("before", (Phase((Axis(self.cut.axis.symbol, self.cut.count),), self._before()),))
        self.add("", eliminate(self._chunked(self._joined(tuple(once), last))))
        return self.out

    def _extreme(self, scan: Scan) -> Scan:
        return Scan(self._fresh(), scan.op[3:], scan.args, self.types[scan.args[0]])

    def _partial_kernel(self, once: tuple[Phase, ...], last: Phase) -> Kernel:
        """What each chunk folds to; where there is no such reduction, its scan's last result. A
        kernel that scans from the end has no reductions beside its scans."""
        plain = {
            key: key[0] in JOINS and ("arg" + key[0], key[1]) not in self.scans
            for key in self.scans
        }
        if any(s.reverse for s in self.scans.values()) and not all(plain.values()):
            plain = dict.fromkeys(plain, False)
        body: list[Stmt] = [s for s in last.body if not isinstance(s, Scan | Store)]
        at = self._at(self.chunk)
        stores: list[Stmt] = []
        ends: list[tuple[Scan, str]] = []
        for key, scan in self.scans.items():
            total = self._fresh()
            if plain[key]:
                body.append(Reduce((total,), scan.op, scan.args, scan.dtype))
                stores.append(Store(self.totals[key], at, total))
            else:
                body.append(replace(scan, out=total))
                ends.append((scan, total))
        kernel = self._chunked((*once, replace(last, body=tuple(body)), Phase((), tuple(stores))))
        return self._with_ends(kernel, ends) if ends else kernel

    def _with_ends(self, kernel: Kernel, ends: list[tuple[Scan, str]]) -> Kernel:
        """The chunked kernel with stores of the last results of scans."""
        at = self._at(self.chunk)
        more = self._body()
        place = more.number(self.cut.axis.symbol)
        end = more.number(sympy.S.Zero if ends[0][0].reverse else self.cut.length - 1)
        is_end = more.test("eq", place, end)
        for scan, total in ends:
            if scan.op.startswith("arg"):
                total = self._global(more, total)
            more.append(Store(self.totals[scan.op, scan.args], at, total, mask=is_end))
        phases = tuple(replace(p, body=(*p.body, *more)) if p.axes else p for p in kernel.phases)
        return replace(kernel, phases=phases)

    def _global(self, body: Body, place: str) -> str:
        """A place in the whole from a place in a chunk."""
        start = body.number(self.chunk * self.cut.length)
        return body.compute(DType.i64, "add", place, start)

    def _before(self) -> tuple[Stmt, ...]:
        """What the chunks fold to up to each of them."""
        symbol, count = self.cut.axis.symbol, self.cut.count
        at = self._at(symbol)
        body = self._body()
        for key, scan in self.scans.items():
            of = (scan.op[3:], scan.args) if scan.op.startswith("arg") else key
            value, result = body.load(self.totals[of], at, self.scans[of].dtype), self._fresh()
            body.append(replace(scan, out=result, args=(value,)))
            if of != key:
                which = next(self.which)
                body.append(Indirect(which, result, count))
                result = body.load(self.totals[key], self._at(which), scan.dtype)
            body.append(Store(self.before[key], at, result))
        return tuple(body)

    def _joined(self, once: tuple[Phase, ...], last: Phase) -> tuple[Phase, ...]:
        """The kernel whose scans start with what the chunks before fold to."""
        reverse = next(iter(self.scans.values())).reverse
        count = self.cut.count
        head = self._body()
        limit = sympy.sympify(count - 1 if reverse else 0)
        some = head.test("lt" if reverse else "gt", head.number(self.chunk), head.number(limit))
        at = self._at(self.chunk + (1 if reverse else -1))
        starts: dict[_Key, str] = {}
        for key, scan in self.scans.items():
            starts[key] = self._fresh()
            other = 0 if scan.op.startswith("arg") else identity(scan.op, scan.dtype)
            head.append(Load(starts[key], self.before[key], at, scan.dtype, some, other))
        body = self._body()
        for stmt in last.body:
            if not isinstance(stmt, Scan):
                body.append(stmt)
                continue
            own = replace(stmt, out=self._fresh())
            body.append(own)
            start = starts[stmt.op, stmt.args]
            if stmt.op in JOINS:
                body.compute(stmt.dtype, JOINS[stmt.op], start, own.out, out=stmt.out)
            elif stmt.op == "logsumexp":
                self._join_exponents(body, stmt, start, own.out)
            else:
                self._join_places(body, stmt, starts, own.out)
        return (*once, Phase((), tuple(head)), replace(last, body=tuple(body)))

    def _join_exponents(self, body: Body, stmt: Scan, start: str, own: str) -> None:
        """log(exp(start) + exp(own)); of two infinities, the larger."""
        dtype = stmt.dtype
        larger = body.compute(dtype, "maximum", start, own)
        apart = body.compute(dtype, "abs", body.compute(dtype, "sub", start, own))
        rest = body.compute(dtype, "exp", body.compute(dtype, "neg", apart))
        total = body.compute(dtype, "add", larger, body.compute(dtype, "log1p", rest))
        infinite = body.test("isinf", larger)
        body.compute(dtype, "where", infinite, larger, total, out=stmt.out)

    def _join_places(self, body: Body, stmt: Scan, starts: dict[_Key, str], own: str) -> None:
        """The place in this chunk where its extreme is as good as those before, or NaN."""
        extreme = self._extreme(stmt)
        body.append(extreme)
        best = starts[extreme.op, extreme.args]
        test = "ge" if extreme.op == "max" else "le"
        wins = body.test(test, extreme.out, best)
        if extreme.dtype.is_float:
            wins = body.test("or", wins, body.test("isnan", extreme.out))
        place = self._global(body, own)
        start = starts[stmt.op, stmt.args]
        body.append(Compute(stmt.out, "where", (wins, place, start), DType.i64))
