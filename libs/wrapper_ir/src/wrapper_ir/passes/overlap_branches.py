"""Branches of a program that do not hang on each other run beside each other."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from symexpr import evaluate
from tensor_ir import Device, TensorType
from wrapper_ir import analysis
from wrapper_ir import ops as ir
from wrapper_ir.memory import hint_env
from wrapper_ir.passes.plan_memory import FRESH

# Seconds of a launch, bytes and operations in a second; seconds from which one fills a GPU alone;
# and how many ops are looked at together.
_LAUNCH, _BYTES, _FLOPS = 1.5e-6, 2.5e12, 4e14
_FILLS = 50e-6
_AHEAD = 96
_PRODUCT = re.compile(r"\b(mm|addmm|bmm|baddbmm|linear|convolution|cudnn_convolution)\b")

_NAMES = ir.View | ir.Describe | ir.Comment


@dataclass(frozen=True)
class OverlapBranches:
    """`launch a1; launch a2; launch b1; launch c(a2, b1)` -> `stream 1; wait 0; launch b1;
    stream 0; launch a1; launch a2; wait 1; launch c(a2, b1)`.

    Of ops that follow each other, those that share no storage that one of them writes. Only where
    launches and operators that are `pure` stand, on one GPU, and where the time that may be hidden,
    guessed from what is read, written and multiplied, is `least` seconds, and of all a `share`.
    Before storages are freed: `insert_frees` knows until when another stream uses them."""

    name: ClassVar[str] = "overlap_branches"
    pure: Callable[[ir.ExternCall], bool] = lambda op: op.target in FRESH
    least: float = 4e-6
    share: float = 0.04

    def run(self, program: ir.Program) -> ir.Program:
        """The program with its branches on two streams."""
        search = _Search(program, self.pure)
        if search.device is None:
            return program
        ops, out, i, hidden = program.ops, list[ir.Op](), 0, 0.0
        while i < len(ops):
            gain, end, parts = search.best(i)
            if gain < self.least:
                out.append(ops[i])
                i += 1
                continue
            hidden += gain
            first, side, main = parts
            out += [*first, ir.StreamSwitch(1), ir.StreamWait(0), *side]
            out += [ir.StreamSwitch(0), *main, ir.StreamWait(1)]
            i = end
        pays = hidden > self.share * sum(search.work)
        return replace(program, ops=tuple(out)) if pays else program


Parts = tuple[list[ir.Op], list[ir.Op], list[ir.Op]]


class _Search:
    def __init__(self, program: ir.Program, pure: Callable[[ir.ExternCall], bool]) -> None:
        self.ops = program.ops
        self.pure = pure
        self.kernels = analysis.kernels(program)
        self.roots = analysis.storages(program.ops, analysis.param_roots(program))
        self.types = analysis.types_of(program)
        env = hint_env(program)
        self.bytes = {type: type.storage_bytes(env) for type in set(self.types.values())}
        self.env: Mapping[str, int] = env
        devices = {type.device for type in self.types.values()}
        (only,) = devices if len(devices) == 1 else (None,)
        self.device: Device | None = only if only is not None and only.kind == "cuda" else None
        self.work = [self.seconds(op) for op in self.ops] if self.device else []
        self.moves = [self.may_move(op) for op in self.ops] if self.device else []

    def may_move(self, op: ir.Op) -> bool:
        if isinstance(op, ir.If):
            return all(map(self.may_move, (*op.then, *op.orelse)))
        if isinstance(op, ir.ExternCall):
            return op.alias is None and self.pure(op)
        return isinstance(op, ir.Launch | ir.Allocate | ir.Workspace | _NAMES)

    def seconds(self, op: ir.Op) -> float:
        if not isinstance(op, ir.Launch | ir.ExternCall | ir.If):
            return 0.0
        names = {*analysis.uses(op), *(name for name, _ in analysis.definitions(op))}
        types = [self.types[n] for n in names if n in self.types]
        moved = sum(self.bytes[type] for type in types) / _BYTES
        return _LAUNCH + max(moved, self._operations(op) / _FLOPS)

    def _operations(self, op: ir.Op) -> float:
        """Those of a product: twice the elements of the result times what is summed for each, about
        the columns of a matrix, or all but the first size of a convolution's weight."""
        if not isinstance(op, ir.ExternCall) or not _PRODUCT.search(op.target):
            return 0.0
        results = [type for _, type in analysis.definitions(op)] or [
            self.types[n] for n in op.mutates
        ]
        given = [self._sizes(self.types[n]) for n in analysis.uses(op) if n in self.types]
        columns = max((s[-1] for s in given if len(s) > 1), default=1)
        summed = prod(given[1][1:]) if "convolution" in op.target else columns
        return 2.0 * sum(prod(self._sizes(type)) for type in results) * summed

    def _sizes(self, type: TensorType) -> list[int]:
        return [int(evaluate(n, self.env)) for n in type.size]

    def best(self, start: int) -> tuple[float, int, Parts]:
        """The seconds that may be hidden of the best end of what begins at an op; that end; and
        what runs first, beside and on the stream of the call."""
        found, end = 0.0, start
        if not self.moves[start] or not self.work[start]:
            return found, end, ([], [], [])
        groups = _Groups(self)
        for i in range(start, min(start + _AHEAD, len(self.ops))):
            if not self.moves[i]:
                break
            groups.add(i)
            if self.work[i] and (gain := min(groups.bins()[0])) > 0 and gain >= found:
                found, end = gain, i + 1
        groups = _Groups(self)
        for i in range(start, end):
            groups.add(i)
        _, (side, main) = groups.bins()
        parts = [groups.hoisted, side, main]
        first, beside, own = ([self.ops[i] for i in sorted(part)] for part in parts)
        return found, end, (first, beside, own)


class _Groups:
    """Ops that hang on each other. hoisted: what nothing among them makes."""

    def __init__(self, search: _Search) -> None:
        self.search = search
        self.hoisted: list[int] = []
        self._group: dict[int, list[int]] = {}
        self._made: dict[str, int] = {}
        self._wrote: dict[str, int] = {}
        self._read: dict[str, list[int]] = defaultdict(list)

    def add(self, i: int) -> None:
        search, op = self.search, self.search.ops[i]
        used = analysis.uses(op)
        before = [self._made[n] for n in used if n in self._made]
        if isinstance(op, ir.Workspace | _NAMES) and not before:
            self.hoisted.append(i)
            return
        made = [name for name, _ in analysis.definitions(op)]
        made += [op.out] if isinstance(op, ir.Describe) else []
        written = {
            search.roots[n]
            for o in analysis.walk([op])
            for n in analysis.accesses(o, search.kernels)[1]
        }
        written |= {search.roots[n] for n in made} if analysis.alias_source(op) is None else set()
        touched = {search.roots[n] for n in used}
        before += [self._wrote[s] for s in touched | written if s in self._wrote]
        before += [k for s in written for k in self._read[s]]
        self._group[i] = [i]
        for k in before:
            self._join(i, k)
        self._made |= dict.fromkeys(made, i)
        self._wrote |= dict.fromkeys(written, i)
        for s in touched:
            self._read[s].append(i)

    def _join(self, i: int, k: int) -> None:
        one, other = self._group[i], self._group[k]
        if one is not other:
            other += one
            for each in one:
                self._group[each] = other

    def bins(self) -> tuple[tuple[float, float], tuple[list[int], list[int]]]:
        """The groups on two streams, the heavier last, with the seconds of each that may overlap
        with the other's."""
        work = self.search.work
        groups = {id(g): g for g in self._group.values()}.values()
        costs = [(sum(w for i in g if (w := work[i]) < _FILLS), g) for g in groups]
        whole = {id(g): sum(work[i] for i in g) for g in groups}
        bins: tuple[list[int], list[int]] = [], []
        total, hidden = [0.0, 0.0], [0.0, 0.0]
        for cost, group in sorted(costs, key=lambda item: -whole[id(item[1])]):
            at = int(total[1] < total[0])
            total[at] += whole[id(group)]
            hidden[at] += cost
            bins[at].extend(group)
        return (hidden[1], hidden[0]), (bins[1], bins[0])
