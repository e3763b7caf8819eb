"""Parts of one tensor that are chosen by place, read with one load."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

import sympy

from loop_ir import Compute, Kernel, Load, Stmt, ir
from loop_ir.passes import eliminate, fold
from symexpr import Where, bounds
from triton_emit.ssa import clean

_Span = tuple[int, int]


def join_loads(kernel: Kernel) -> Kernel:
    """The kernel with loads of one tensor at places that differ by a number, of which each point
    takes one, as one load at the place that the point takes:

        a = load x[i + 64] if i < 64; b = load x[i - 64] if i >= 64; y = where(i >= 64, b, neg(a))
     ->
        c = load x[i + (64 if i < 64 else -64)]; y = where(i >= 64, c, neg(c))

    A lane reads once then, without masks (rotary embeddings of sections: 27 loads of 16 bytes in
    SASS, 6 so). All points take one of the loads."""
    joining = _Joining(kernel)
    for stmt in ir.statements(kernel):
        joining.choice(stmt)
    if not joining.joined:
        return kernel
    changed = ir.map_statements(kernel, lambda s: joining.joined.get((*ir.results(s), "")[0], s))
    return clean(fold(eliminate(changed, in_order=True)))


class _Joining:
    """joined: by result, what a load or choice comes to."""

    def __init__(self, kernel: Kernel) -> None:
        self.made = ir.definitions(kernel)
        self.ranges = dict(ir.ranges_of(kernel))
        self.phase = {id(s): n for n, p in enumerate(kernel.phases) for s in p.body}
        self.readers: dict[ir.Name, list[Stmt]] = {}
        for stmt in ir.statements(kernel):
            for name in ir.operands(stmt):
                self.readers.setdefault(name, []).append(stmt)
        self.joined: dict[ir.Name, Stmt] = {}

    def choice(self, stmt: Stmt) -> None:
        """Joins the loads among which a tower of `where`s chooses, if it is one and ends here."""
        if not _is_where(stmt) or any(
            _is_where(r) and r.args[2] == stmt.out and r.args[1] != stmt.out
            for r in self.readers.get(stmt.out, ())
        ):
            return
        tower: list[Compute] = []
        step: Stmt | None = stmt
        while _is_where(step):
            tower.append(step)
            step = self.made.get(step.args[2])
        place, spans = self._spans([w.args[0] for w in tower])
        if place is None:
            return
        gaps = self._gaps(place, spans)
        arms = [(span, w.args[1], w) for span, w in zip(spans, tower, strict=True)]
        if len(gaps) == 1:
            arms.append((gaps[0], tower[-1].args[2], tower[-1]))
        found = [self._loads(value, w, span, place) for span, value, w in arms]
        if gaps[1:] or len(found) < 2 or not all(found):
            return
        groups = self._groups(found)
        joins = [self._join(place, [span for span, _, _ in arms], group) for group in groups]
        if any(joins) and not gaps:  # what the last would choose else, no point takes
            last = tower[-1]
            self.joined[last.out] = replace(last, args=(*last.args[:2], last.args[1]))

    def _spans(self, masks: Sequence[str]) -> tuple[sympy.Expr | None, list[_Span]]:
        """The expression of which all masks are tests, and where they hold of it; None where there
        is no such expression, or two hold at once."""
        place: sympy.Expr | None = None
        spans: list[_Span] = []
        for mask in masks:
            low, high = 0, 0
            tests = list(ir.mask_tests(self.made, mask))
            for n, test in enumerate(tests):
                if test is None:
                    return None, []
                number, rest = test.as_coeff_Add()
                if rest == 0:
                    return None, []
                if place is None:
                    place = -rest if rest.could_extract_minus_sign() else rest
                    if None in bounds(place, self.ranges):
                        return None, []
                if n == 0:
                    low, high = self._range(place)
                if rest == place:
                    low = max(low, -int(number))
                elif rest == -place:
                    high = min(high, int(number) + 1)
                else:
                    return None, []
            spans.append((low, high))
        apart = sorted(spans)
        if any(a[1] > b[0] for a, b in pairwise(apart)):
            return None, []
        return place, spans

    def _range(self, place: sympy.Expr) -> _Span:
        low, high = bounds(place, self.ranges)
        assert isinstance(low, int) and isinstance(high, int)
        return low, high + 1

    def _gaps(self, place: sympy.Expr, spans: Sequence[_Span]) -> list[_Span]:
        """Where no mask holds."""
        at, end = self._range(place)
        gaps = []
        for low, high in sorted(spans):
            if low > at:
                gaps.append((at, low))
            at = max(at, high)
        return [*gaps, (at, end)] if at < end else gaps

    def _loads(self, value: str, where: Compute, span: _Span, place: sympy.Expr) -> list[Load]:
        """The masked loads that a value is made of, which nothing but that choice needs, and which
        are made wherever it takes the value. A name is asked again after each of its readers."""
        todo: list[ir.Name] = [value]
        found: list[Load] = []
        seen: set[ir.Name] = set()
        while todo:
            name = todo.pop()
            stmt, readers = self.made.get(str(name)), self.readers.get(name, [])
            last = name == value and len(readers) == 1 and readers[0] is where
            ours = all(isinstance(r, Compute) and r.out in seen for r in readers)
            if name in seen or not (last or ours):
                continue
            seen.add(name)
            if isinstance(stmt, Load) and stmt.mask is not None:
                mine, spans = self._spans([stmt.mask])
                if mine == place and spans[0][0] <= span[0] and span[1] <= spans[0][1]:
                    found.append(stmt)
            elif isinstance(stmt, Compute):
                todo += stmt.args
        return found

    def _groups(self, found: Sequence[list[Load]]) -> list[tuple[Load, ...]]:
        """Loads of which each point takes one: those of one element first, then in order."""
        groups = []
        for first in list(found[0]):
            alike = replace(first, out="", mask=None)
            same = [[s for s in loads if replace(s, out="", mask=None) == alike] for loads in found]
            if all(same):
                groups.append(tuple(loads[0] for loads in same))
                for loads, load in zip(found, groups[-1], strict=True):
                    loads.remove(load)
        return [*groups, *zip(*found, strict=False)]

    def _join(self, place: sympy.Expr, spans: Sequence[_Span], group: Sequence[Load]) -> bool:
        """Makes loads of one tensor one, if they are."""
        first = group[0]
        start = first.index - first.index.as_coeff_Add()[0]
        same = {(s.buffer, s.dtype, self.phase[id(s)]) for s in group}
        steps = [sympy.expand(s.index - start) for s in group]
        if len(same) > 1 or not all(s.is_Integer for s in steps):
            return False
        ordered = sorted(zip(spans, steps, strict=True), key=lambda pair: pair[0])
        step = ordered[-1][1]
        for (_, high), other in reversed(ordered[:-1]):
            step = Where(place < high, other, step)
        for load in group:
            at = start + step
            self.joined[load.out] = replace(first, out=load.out, index=at, mask=None)
        return True


def _is_where(stmt: Stmt | None) -> TypeGuard[Compute]:
    return isinstance(stmt, Compute) and stmt.op == "where"
