"""The greedy scheduler: which kernels fuse, in the order of the bytes that this saves."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace

from loop_ir.fusion.combine import combine
from loop_ir.fusion.common_domain import Mismatch
from loop_ir.fusion.dependencies import Dependencies
from loop_ir.fusion.epilogue import attach
from loop_ir.fusion.gates import GATED_ROWS, halves_of
from loop_ir.fusion.inline import inline
from loop_ir.fusion.options import FuseOptions
from loop_ir.fusion.prologue import attach_prologue
from loop_ir.fusion.store_parts import joins_runs
from loop_ir.fusion.tails import alone, tail
from loop_ir.ir.affine import product
from loop_ir.ir.alike import Alike
from loop_ir.ir.analysis import (
    Traffic,
    at_hints,
    hints_of,
    is_pointwise,
    node_name,
    reads,
    traffic,
    writes,
)
from loop_ir.ir.names import statements
from loop_ir.ir.nodes import Compute, Graph, Kernel, Load, Matmul, Node, Origin
from loop_ir.passes.dead_code import drop_dead_statements
from tensor_ir import Decided

# One operation on the elements of a byte that is moved anyway is free up to this many: about
# 60 Tflop/s of f32 against 4.8 TB/s of memory (NVIDIA H200 data sheet).
_OPS_PER_BYTE = 12
# Places of a tensor that each point reads, so many of which make a window: points of other parts of
# a whole would ask for them, too.
_WINDOW = 4
# Of windows of windows, as many places are as many loads of a thread, few of them side by side:
# what is read leaves the first-level cache between them (a softmax under two max pools of 2 x 2 x 2
# of 206 MB of f32 on an H100: 1699 us).
_MOST_PLACES = 48
# A reader that picks elements reads at most one of so many.
_PICKED = 8
# Operands that are shared by rows or columns may make what is read again so much more.
_MORE = 16
# Where several results are computed again, all but one of which are thrown away at each point, an
# operation counts as so many: nothing else hides it.
_CHOSEN = 2
# Elements of rows that are written out where much is made of little.
_WRITTEN_OUT = 32
# Bytes that the second-level cache does not keep.
_SPREAD = 32 << 20
_NUMBER = 8  # bytes
# A function of few arguments is kept in a table, rather than evaluated so many times as often, if
# that is as often in all, and does not hide behind what is moved meanwhile: about thirty operations
# each, in the time of so many bytes.
_REPEATED = 8
_AGAIN = 16 << 20
_FUNCTION_BYTES = 5
_FUNCTION_NAMES = """
exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh erf sigmoid
pow philox acosh asinh atanh erfc erfinv lgamma hypot
gcd zeta laguerre legendre chebyshev hermite gamma_series gamma_fraction
"""
_FUNCTIONS = frozenset(_FUNCTION_NAMES.split())
_COSTLY = _FUNCTIONS | {"div", "near_div", "floordiv", "truncdiv", "mod", "fmod"}
# Operations of those that are no few instructions around one of the GPU's own, of f32 on an H100:
# 82 million points with nine sines each take 1.5 ms, 9 million with eleven powers 0.4 ms.
_OPERATIONS = dict.fromkeys(_COSTLY, 8)
_OPERATIONS |= dict.fromkeys(("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "lgamma"), 48)
_OPERATIONS["pow"] = 96


@dataclass(frozen=True)
class Fusion:
    """One decision: `kind` is vertical, horizontal, inline, tail, epilogue or prologue."""

    kind: str
    first: str
    second: str
    saved: int
    origins: tuple[Origin, ...]


@dataclass(frozen=True)
class Moved:
    """What a kernel made, computed where it is read: what is `left` of the kernel, and the kernels
    that read it, by number."""

    left: Kernel | None
    readers: dict[int, Kernel]


@dataclass
class Scheduler:
    """Fusion state over one graph. `decisions` is what was fused, in order. reasons: whether each
    `Mismatch` speaks of the kernels that are asked about, or may be that of alike ones."""

    graph: Graph
    options: FuseOptions
    reasons: bool = False
    decisions: list[Fusion] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.deps = Dependencies(self.graph)
        self.hints = hints_of(self.graph.symbols)
        self.traffic: dict[int, Traffic] = {}
        self.alike = Alike()
        self.version: dict[int, int] = dict.fromkeys(self.deps.nodes, 0)

    def decided(self) -> Decided[Graph]:
        """The graph as it is now, and what was fused; the graph itself if nothing was."""
        if not self.decisions:
            return Decided(self.graph)
        nodes = self.deps.sorted_nodes()
        return Decided(replace(self.graph, nodes=nodes), tuple(self.decisions))

    def run_pairs(self, accept: Callable[[bool], bool]) -> bool:
        """Fuses pairs of kernels over one domain until none is left. `accept(vertical)` tells
        which kinds of pairs. True if anything was fused."""
        queue: list[tuple[int, int, int, int, int]] = []

        def push(number: int, only_later: bool) -> None:
            for other in self.deps.neighbours(number):
                if not only_later or other > number:
                    entry = self._candidate(number, other, accept)
                    if entry is not None:
                        heapq.heappush(queue, entry)

        for number in list(self.deps.nodes):
            push(number, only_later=True)
        changed = False
        while queue:
            _, first, second, v1, v2 = heapq.heappop(queue)
            if self.version.get(first) != v1 or self.version.get(second) != v2:
                continue
            # other pairs, fused meanwhile, may have put them in another order
            first, second = sorted((first, second), key=lambda n: self.deps.order[n])
            fused = self.try_pair(first, second)
            if isinstance(fused, Mismatch):
                continue
            one, two = self._kernel(first), self._kernel(second)
            kind = "vertical" if self._feeds(first, second) else "horizontal"
            number, saved = self._join(first, second, fused)
            self.decisions.append(Fusion(kind, one.name, two.name, saved, fused.origins))
            push(number, only_later=False)
            changed = True
        return changed

    def _join(self, first: int, second: int, fused: Node) -> tuple[int, int]:
        """Puts `fused` in the place of two nodes: its number, and the bytes that it saves."""
        before = self._traffic(first).total + self._traffic(second).total
        versions = []
        for number in (first, second):
            self.traffic.pop(number)
            versions.append(self.version.pop(number))
        joined = self.deps.merge(first, second, fused)
        self.version[joined] = max(versions) + 1
        return joined, before - self._traffic(joined).total

    def _kernel(self, number: int) -> Kernel:
        node = self.deps.nodes[number]
        assert isinstance(node, Kernel)
        return node

    def _feeds(self, first: int, second: int) -> bool:
        made = writes(self.deps.nodes[first])
        return any(second in self.deps.readers.get(name, ()) for name in made)

    def _traffic(self, number: int) -> Traffic:
        if number not in self.traffic:
            self.traffic[number] = self._moves(self.deps.nodes[number])
        return self.traffic[number]

    def _moves(self, node: Node) -> Traffic:
        if not isinstance(node, Kernel):
            return traffic(node, self.hints)
        return self.alike.once("moves", (node,), lambda: traffic(node, self.hints), (), _renamed)

    def _candidate(
        self, one: int, two: int, accept: Callable[[bool], bool]
    ) -> tuple[int, int, int, int, int] | None:
        if not isinstance(self.deps.nodes[one], Kernel):
            return None
        if not isinstance(self.deps.nodes[two], Kernel):
            return None
        first, second = sorted((one, two), key=lambda n: self.deps.order[n])
        vertical = self._feeds(first, second)
        if not accept(vertical):
            return None
        saved = self.estimate(first, second)
        if saved <= 0:
            return None
        return (-saved, first, second, self.version[first], self.version[second])

    def estimate(self, first: int, second: int) -> int:
        """Bytes saved if `first` and `second` became one kernel: what both read is read once,
        what one hands to the other is not read, and not written if nobody else wants it. A number
        that all points of both read is no reason: the parameters of an optimizer share some."""
        one, two = self._traffic(first), self._traffic(second)
        least = min(_NUMBER + 1, min(one.total, two.total) // 4)
        saved = 0
        for name, count in two.read.items():
            if name in one.written:
                saved += count
                if self.deps.is_dead_after(name, (first, second)):
                    saved += one.written[name]
            elif name in one.read:
                both = min(count, one.read[name])
                saved += both if both >= least else 0
        return saved

    def try_pair(self, first: int, second: int) -> Kernel | Mismatch:
        """The fused kernel, or why there is none. `first` comes before `second`."""
        one, two = self._kernel(first), self._kernel(second)
        size = sum(1 for _ in statements(one)) + sum(1 for _ in statements(two))
        if size > self.options.max_statements:
            return Mismatch(f"together they have {size} statements")
        if len({b.name for b in (*one.buffers, *two.buffers)}) > self.options.max_buffers:
            return Mismatch(f"together they use more than {self.options.max_buffers} buffers")
        between = self.deps.between(first, second)
        if between is not None:
            name = node_name(self.deps.nodes[between])
            return Mismatch(f"{name} needs {one.name} and {two.name} needs {name}")
        merged = (first, second)
        dead = frozenset(n for n in writes(one) if self.deps.is_dead_after(n, merged))
        return self._combine(one, two, dead)

    def _combine(self, one: Kernel, two: Kernel, dead: frozenset[str]) -> Kernel | Mismatch:
        return self._once("combine", lambda: combine(one, two, self.hints, dead), dead, one, two)

    def _once(
        self,
        what: Hashable,
        make: Callable[[], Kernel | Mismatch],
        names: Collection[str],
        *kernels: Kernel,
    ) -> Kernel | Mismatch:
        """What is made of kernels and of some of their buffers, once for all alike ones."""
        return make() if self.reasons else self.alike.once(what, kernels, make, names)

    def run_inline(self, early: bool = False) -> bool:
        """Computes pointwise producers in their consumers, where all consumers can and that
        saves traffic. early: only those that fusion over one domain might not spare: of which a
        consumer picks few elements, or that several read, or one that joins it to others, and
        that are as cheap to read again from what they read, or that make much of little. True if
        anything changed."""
        changed = False
        for number in sorted(self.deps.nodes, key=lambda n: -self.deps.order[n]):
            if not isinstance(self.deps.nodes[number], Kernel):
                continue
            first = self._is_picked_from(number) or self._is_a_view(number)
            if (not early or first or self._is_spread(number)) and self._inline(number):
                changed = True
        return changed

    def _is_a_view(self, number: int) -> bool:
        """Whether several kernels read it, such as a cast, or one where it has its part of a whole
        (a concatenation), of which the operands are no more bytes than the result, and what is
        computed hides behind them."""
        moved = self._traffic(number)
        read, written = sum(moved.read.values()), sum(moved.written.values())
        readers = {r for name in moved.written for r in self.deps.readers.get(name, ())}
        cheap = self._work(self._kernel(number)) <= read * _OPS_PER_BYTE // 4
        alone = len(readers) == 1 and self._is_a_part(number, *readers)
        return (len(readers) > 1 or alone) and read <= written + written // _MORE and cheap

    def _is_spread(self, number: int) -> bool:
        """Whether it makes much of little without a costly operation, such as the differences of
        all pairs."""
        moved = self._traffic(number)
        read, written = sum(moved.read.values()), sum(moved.written.values())
        ops = {s.op for s in statements(self._kernel(number)) if isinstance(s, Compute)}
        return written >= max(_SPREAD, _PICKED * read) and _COSTLY.isdisjoint(ops)

    def _is_a_part(self, number: int, reader: int) -> bool:
        """The reader loads it under a mask."""
        whole, made = self.deps.nodes[reader], set(self._traffic(number).written)
        return isinstance(whole, Kernel) and all(
            s.mask is not None
            for s in statements(whole)
            if isinstance(s, Load) and s.buffer in made
        )

    def _is_picked_from(self, number: int) -> bool:
        written = self._traffic(number).written
        return len(written) == 1 and any(
            _PICKED * self._traffic(reader).read.get(name, count) <= count
            for name, count in written.items()
            for reader in self.deps.readers.get(name, ())
        )

    def _inline(self, number: int) -> bool:
        moved = self.try_inline(number)
        if isinstance(moved, Mismatch):
            return False
        self._move(number, moved, "inline")
        return True

    def _move(self, number: int, moved: Moved, kind: str) -> None:
        """Does what was found to save traffic."""
        node, saved = self._kernel(number), self._traffic(number).total
        if moved.left is not None:
            saved -= self._moves(moved.left).total
        for reader, kernel in moved.readers.items():
            saved += self._traffic(reader).total - self._moves(kernel).total
        for reader, kernel in moved.readers.items():
            old = self._kernel(reader)
            self.deps.inherit(reader, number)
            self.deps.replace(reader, kernel)
            self.traffic.pop(reader)
            self.version[reader] += 1
            self.decisions.append(Fusion(kind, node.name, old.name, saved, node.origins))
            saved = 0
        self.traffic.pop(number)
        if moved.left is None:
            self.version.pop(number)
            self.deps.remove(number)
        else:
            self.version[number] += 1
            self.deps.replace(number, moved.left)

    def try_inline(self, number: int) -> Moved | Mismatch:
        """The consumers with the producer inside: with all that it makes for them, or with one of
        the results. Or why it stays a kernel of its own."""
        whole = self._kernel(number)
        hidden = [n for n in writes(whole) if n not in self.deps.kept]
        if not hidden:
            return Mismatch(f"{whole.name} writes a result of the graph")
        moved = self._try_part(number, whole, hidden)
        for name in hidden if len(writes(whole)) > 1 else ():
            if not isinstance(moved, Mismatch):
                break
            moved = self._try_part(number, whole, [name])
        return moved

    def _try_part(self, number: int, whole: Kernel, names: list[str]) -> Moved | Mismatch:
        parts = {name: self._alone(whole, name) for name in names}
        live = set(writes(whole)) - set(names)
        left = self.alike.once("left", (whole,), lambda: drop_dead_statements(whole, live), live)
        return self._moved(number, parts, left)

    def _alone(self, kernel: Kernel, name: str) -> Kernel:
        """Longer rows are written out where that reads little again: distances of all pairs."""
        moved = self._moves(kernel)
        read, written = sum(moved.read.values()), sum(moved.written.values())
        most = _WRITTEN_OUT if written >= _PICKED * read else 4
        return self.alike.once("alone", (kernel,), lambda: alone(kernel, name, most), (name,))

    def _moved(
        self, number: int, parts: dict[str, Kernel], left: Kernel | None
    ) -> Moved | Mismatch:
        """The readers of buffers with the kernels inside that make each, where `left` is what is
        left of node `number`."""
        made, whole = list(parts), self._kernel(number)
        readers = sorted({r for name in made for r in self.deps.readers.get(name, ())})
        if not readers or any(self.deps.writers[name] != {number} for name in made):
            return Mismatch(f"{made[0]} has another writer")
        for name in {n for part in parts.values() for n in reads(part)}:
            for writer in self.deps.writers.get(name, ()):
                if self.deps.order[writer] >= self.deps.order[number]:
                    return Mismatch(f"{name}, which {whole.name} reads, is changed there or later")
        saved = self._traffic(number).total
        saved += self.options.launch_bytes if left is None else -self._moves(left).total
        out: dict[int, Kernel] = {}
        for reader in readers:
            consumer = self.deps.nodes[reader]
            if not isinstance(consumer, Kernel) or reader == number:
                return Mismatch(f"{node_name(consumer)} is no kernel and reads {made[0]}")
            together = len(made) > 1 or not is_pointwise(whole) or self._goes_on(number)
            together |= _most_read(whole) >= _WINDOW
            if together and joins_runs(consumer, made):
                return Mismatch(f"{whole.name} may store its parts where {consumer.name} has them")
            kernel = self._with_inside(parts, consumer)
            if isinstance(kernel, Mismatch):
                return kernel
            if sum(1 for _ in statements(kernel)) > self.options.max_statements:
                return Mismatch("the kernel would grow too long")
            moved = self._moves(kernel).total
            windows = min(_most_read(whole), _most_read(consumer)) >= _WINDOW
            if windows and _most_read(kernel) > _MOST_PLACES and moved >= _SPREAD:
                return Mismatch(f"each point would read {_most_read(kernel)} places of a tensor")
            again = self._functions(kernel) - self._functions(consumer)
            often = again > max(_AGAIN, _REPEATED * self._functions(whole))
            if often and again * _FUNCTION_BYTES > moved:
                return Mismatch(f"computing {made[0]} at each point costs more than its table")
            saved += self._traffic(reader).total - moved
            saved -= self._extra_work(consumer, kernel, moved, _CHOSEN if len(made) > 1 else 1)
            out[reader] = kernel
        if saved <= 0:
            return Mismatch(f"computing {made[0]} again costs more than storing it")
        return Moved(left, out)

    def _goes_on(self, number: int) -> bool:
        """Whether a kernel goes on with what another reduces of a tensor that both read."""
        read = set(reads(self.deps.nodes[number]))
        makers = {n for name in read for n in self.deps.writers.get(name, ())}
        found = (self.deps.nodes[n] for n in makers)
        return any(
            isinstance(m, Kernel) and not is_pointwise(m) and not read.isdisjoint(reads(m))
            for m in found
        )

    def _with_inside(self, parts: Mapping[str, Kernel], consumer: Kernel) -> Kernel | Mismatch:
        """A reader with what the parts make computed where it is loaded, or, where axes of the one
        are parts of the other's, over one domain."""
        kernel: Kernel | Mismatch = consumer
        for name, part in parts.items():
            if isinstance(kernel, Kernel) and name in reads(kernel):
                kernel = self._inlined(part, kernel, name)
        if isinstance(kernel, Mismatch) and len(parts) == 1:
            (part,) = parts.values()
            joined = self._combine(part, consumer, frozenset(parts))
            if isinstance(joined, Kernel) and is_pointwise(part):
                return joined
        return kernel

    def _inlined(self, part: Kernel, consumer: Kernel, name: str) -> Kernel | Mismatch:
        return self._once("inline", lambda: inline(part, consumer, name), (name,), part, consumer)

    def run_tails(self) -> bool:
        """Computes what follows reductions at all points, such as that of a norm, in the kernels
        that alone read it, where that saves traffic: the numbers of rows are stored instead. True
        if anything changed."""
        changed = False
        for number in self.deps.numbers():
            changed = self._move_tail(number) or changed
        return changed

    def _move_tail(self, number: int) -> bool:
        node = self.deps.nodes[number]
        if not isinstance(node, Kernel) or is_pointwise(node):
            return False
        hidden = {n for n in writes(node) if n not in self.deps.kept}
        readers = {r for name in hidden for r in self.deps.readers.get(name, ())}
        if not readers or not all(isinstance(self.deps.nodes[r], Kernel) for r in readers):
            return False
        others = self.deps.nodes.values()
        taken = {name for n in others for name in (node_name(n), *reads(n), *writes(n))}
        pieces = tail(node, taken | self.deps.kept)
        if pieces is None or not hidden.issuperset(writes(pieces[1])):
            return False
        head, rest = pieces
        moved = self._moved(number, dict.fromkeys(writes(rest), rest), head)
        if isinstance(moved, Mismatch):
            return False
        self._move(number, moved, "tail")
        return True

    def _extra_work(self, before: Kernel, after: Kernel, moved: int, factor: int) -> int:
        """Work added to a kernel, in bytes that could be moved meanwhile, as far as it does not
        hide behind the bytes that are moved; each operation counted as so many."""
        old, new = self._work(before) * factor, self._work(after) * factor
        budget = moved * _OPS_PER_BYTE
        return (max(0, new - budget) - max(0, old - budget)) // _OPS_PER_BYTE

    def _work(self, kernel: Kernel) -> int:
        """Operations that a kernel does."""
        return self._done(kernel, lambda op: _OPERATIONS.get(op, 1))

    def _functions(self, kernel: Kernel) -> int:
        """How often it evaluates a function such as `sin`."""
        return self._done(kernel, lambda op: op in _FUNCTIONS)

    def _done(self, kernel: Kernel, cost: Callable[[str], int]) -> int:
        total = 0
        for phase in kernel.phases:
            points = at_hints(product(a.extent for a in (*kernel.axes, *phase.axes)), self.hints)
            total += points * sum(cost(s.op) for s in phase.body if isinstance(s, Compute))
        return total

    def run_epilogues(self) -> bool:
        """Moves pointwise kernels into the matmuls whose result only they read."""
        changed = False
        for number in list(self.deps.nodes):
            node = self.deps.nodes.get(number)
            if not isinstance(node, Matmul):
                continue
            fused = self.try_epilogue(number)
            if isinstance(fused, Mismatch):
                continue
            (reader,) = self.deps.readers[node.out]
            kernel = self._kernel(reader)
            _, saved = self._join(number, reader, fused)
            self.decisions.append(Fusion("epilogue", node.out, kernel.name, saved, kernel.origins))
            changed = True
        return changed

    def try_epilogue(self, number: int) -> Matmul | Mismatch:
        """The matmul with the kernel that alone reads its result inside, or why not."""
        node = self.deps.nodes[number]
        assert isinstance(node, Matmul)
        if node.epilogue is not None:
            return Mismatch(f"{node.out} has an epilogue")
        readers = self.deps.readers.get(node.out, set())
        if node.out in self.deps.kept or len(readers) != 1:
            return Mismatch(f"the result {node.out} is read by others or by the caller")
        (reader,) = readers
        kernel = self.deps.nodes[reader]
        if not isinstance(kernel, Kernel):
            return Mismatch(f"{node_name(kernel)} is no kernel")
        if self.deps.writers[node.out] != {number}:
            return Mismatch(f"{node.out} has another writer")
        between = self.deps.between(number, reader)
        if between is not None:
            return Mismatch(f"{node_name(self.deps.nodes[between])} lies between them")
        if written := sorted({*writes(kernel)}.intersection(reads(node))):  # others may read it yet
            return Mismatch(f"{kernel.name} writes to {written[0]}, an operand of {node.out}")
        return attach(node, kernel)

    def run_prologues(self) -> bool:
        """Moves cheap pointwise kernels into the matmuls that alone read what they make."""
        changed = False
        for number in list(self.deps.nodes):
            for operand in ("a", "b"):
                node = self.deps.nodes.get(number)
                if not isinstance(node, Matmul):
                    break
                fused = self.try_prologue(number, operand)
                if isinstance(fused, Mismatch):
                    continue
                (writer,) = self.deps.writers[getattr(node, operand).buffer]
                kernel = self._kernel(writer)
                number, saved = self._join(writer, number, fused)
                found = Fusion("prologue", kernel.name, node.out, saved, kernel.origins)
                self.decisions.append(found)
                changed = True
        return changed

    def try_prologue(self, number: int, operand: str) -> Matmul | Mismatch:
        """The matmul with the kernel that makes its operand "a" or "b" inside, or why not."""
        node = self.deps.nodes[number]
        assert isinstance(node, Matmul)
        ref = node.a if operand == "a" else node.b
        if ref.buffer in self.deps.kept or self.deps.readers.get(ref.buffer) != {number}:
            return Mismatch(f"the operand {ref.buffer} is read by others, or the caller's")
        writers = self.deps.writers.get(ref.buffer, set())
        kernel = self.deps.nodes[next(iter(writers))] if len(writers) == 1 else node
        if not isinstance(kernel, Kernel):
            return Mismatch(f"no single kernel makes {ref.buffer}")
        (writer,) = writers
        between = self.deps.between(writer, number)
        if between is not None:
            return Mismatch(f"{node_name(self.deps.nodes[between])} lies between them")
        makers = {n.out: n for n in self.deps.nodes.values() if isinstance(n, Matmul)}
        rows, made = node.type.size[-2], [makers[n] for n in reads(kernel) if n in makers]
        gated = rows.is_Integer and rows >= GATED_ROWS
        if gated and any(halves_of(maker, kernel) for maker in made):
            return Mismatch(f"{kernel.name} multiplies the halves of one product, as templates do")
        ops = [s.op for s in statements(kernel) if isinstance(s, Compute)]
        cost = sum(8 if op in _COSTLY else 1 for op in ops)
        if cost > self.options.max_prologue:
            return Mismatch(f"{kernel.name} costs {cost} operations an element, for every tile")
        return attach_prologue(node, kernel, operand)

    def drop_dead_stores(self) -> None:
        """After fusion: stores that only fused kernels read."""
        for number, node in list(self.deps.nodes.items()):
            if not isinstance(node, Kernel):
                continue
            live = {n for n in writes(node) if not self.deps.is_dead_after(n, (number,))}
            if len(live) < len(writes(node)):
                slim = drop_dead_statements(node, live)
                if slim is None:
                    self.deps.remove(number)
                else:
                    self.deps.replace(number, slim)


def _most_read(kernel: Kernel) -> int:
    """At how many places each point reads a tensor, of the one that it reads at most."""
    counts = Counter(s.buffer for s in statements(kernel) if isinstance(s, Load))
    return max(counts.values(), default=0)


def _renamed(moved: Traffic, names: dict[str, str]) -> Traffic:
    read = {names[n]: count for n, count in moved.read.items()}
    return Traffic(read, {names[n]: count for n, count in moved.written.items()})
