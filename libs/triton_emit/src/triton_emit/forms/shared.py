"""Rows that are too long for a program, and that several hold together, a piece each: what its
piece folds to, each tells the others of its row through memory, and takes theirs.

No program waits for another without end, though those that it needs may not have begun: it waits
for a millisecond, and then folds the whole row by itself, which costs time and nothing else."""

from collections.abc import Sequence

import sympy

from loop_ir import DType, Kernel, Reduce, Store, TensorType
from loop_ir.ir import operands
from triton_emit.body import Lines
from triton_emit.forms import reductions
from triton_emit.forms.kernel import indented
from triton_emit.forms.looped import LoopedWriter
from triton_emit.schedule import Schedule, piece_of
from triton_emit.source import Zeroed
from triton_emit.tiles import Tile
from triton_emit.values import ATOM, TL_TYPES, Value

# Elements of a step where a program folds a row alone.
_ALONE = 512


class SharedWriter(LoopedWriter):
    """length: of a piece. words: that a program tells, one for each 32 bits of a number. Memory
    has for each row a word that counts the programs that have ended, and the words of each.
    alone: what is being written is for a program that others keep waiting."""

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        (self.own,) = self.spaces
        self.numel = int(sympy.Mul(*(a.extent for a in self.own)))
        self.length = piece_of(self.numel, schedule.share)
        self.words = 0
        self.looped = False
        self.piece = f"tl.minimum({self.length}, {self.numel} - part * {self.length})"
        self.told: list[tuple[Reduce, tuple[Value, ...]]] = []

    @property
    def chunk(self) -> int:
        """Of a loop of one program."""
        return min(_ALONE, self.schedule.rblock)

    def programs(self) -> sympy.Expr:
        """One for each piece."""
        return super().programs() * self.schedule.share

    def program(self) -> str:
        """The number of the row."""
        return f"{super().program()} // SHARE"

    def zeroed(self) -> Zeroed:
        """The memory through which programs speak."""
        rows = sympy.Mul(*(a.extent for a in self.kernel.axes))
        size = sympy.expand(rows * (1 + self.schedule.share * self.words))
        device = self.kernel.buffers[0].type.device
        return Zeroed("state", TensorType(DType.i64, (size,), (sympy.S.One,), device))

    def define_tiles(self) -> None:
        """The row, and the piece of it."""
        self.constants += [("SHARE", self.schedule.share), ("HELD", self.schedule.rblock)]
        self.constants.append(("RBLOCK", self.chunk))
        super().define_tiles()
        head = self.lines.head
        head += ["part = tl.program_id(0) % SHARE", "held = tl.arange(0, HELD)"]
        tile = Tile("r0", "rindex", "r", self.own, self.write_sizes)
        self.add_tile(tile)
        self.shapes[tile.key] = "HELD"
        head.append(f"{tile.flat} = part * {self.length} + held")
        masks = [f"held < {self.length}"] if self.length < self.schedule.rblock else []
        if self.length * self.schedule.share > self.numel:
            masks.append(f"{tile.flat} < {self.numel}")
        if masks:
            text = masks[0] if len(masks) == 1 else f"({masks[0]}) & ({masks[1]})"
            self.masks[tile.key] = ("rmask", text)

    def write_body(self) -> None:
        """All phases on the piece, with what the row folds to after each that folds."""
        body = self.lines.body
        start = len(body)
        for phase in self.kernel.phases:
            others = (p for p in self.kernel.phases if p is not phase)
            later = frozenset(u for p in others for stmt in p.body for u in operands(stmt))
            once = [s for s in phase.body if isinstance(s, Store) and not phase.axes]
            kept = later.union(*(operands(s) for s in once))
            self.run_phase(phase.axes, [s for s in phase.body if s not in once], kept)
            if once:
                self._once(once)
            if self.told:
                self._exchange()
        size = 1 + self.schedule.share * self.words
        body.insert(start, f"words = state + row * {size}" if self.kernel.axes else "words = state")
        body.append(f"leave_zero(words, SHARE, {size})")

    def _once(self, stores: Sequence[Store]) -> None:
        """What is stored of a row, its first program stores."""
        outer, self.lines = self.lines, Lines()
        self.run_phase((), stores, frozenset())
        inside, self.lines = self.lines, outer
        outer.body += ["if part == 0:", *indented(inside.text())]

    def reduce(self, stmt: Reduce) -> None:
        """Folds the piece; alone, a chunk."""
        if self.looped:
            super().reduce(stmt)
            return
        value = reductions.argument(self, stmt)
        found = reductions.persistent(self, stmt, value)
        self.told.append((stmt, tuple(self.assign("own", v) for v in found)))

    def _exchange(self) -> None:
        """Tells what the piece folds to, and joins it with that of the others."""
        body, fresh = self.lines.body, self.namer.fresh
        told, self.told = self.told, []
        words = sum(v.dtype.itemsize // 4 for _, values in told for v in values)
        first, self.words = 1 + self.schedule.share * self.words, self.words + words
        slots, member, needed = fresh("slots"), fresh("member"), fresh("needed")
        # one thread for each word: where two hold one, they may read it at different times
        wide = max(1 << (self.schedule.share - 1).bit_length(), 32 * self.schedule.num_warps)
        body.append(f"{slots} = words + {first}")
        at = 0
        for _, values in told:
            for value in values:
                text = f"tl.broadcast_to({value.text}, [1])"
                body.append(f"put_total({slots} + part * {words} + {at} + tl.arange(0, 1), {text})")
                at += value.dtype.itemsize // 4
        body.append(f"{member} = tl.arange(0, {wide})")
        body.append(f"{needed} = {member} < SHARE")
        found: list[tuple[Reduce, list[Value]]] = []
        late: list[str] = []
        at = 0
        for stmt, values in told:
            theirs = []
            for value in values:
                parts = []
                for _ in range(value.dtype.itemsize // 4):
                    word = fresh("word")
                    place = f"{slots} + {member} * {words} + {at}"
                    body.append(f"{word} = look_for({place}, {needed})")
                    parts.append(word)
                    late.append(f"(tl.min({word}) == 0)")
                    at += 1
                theirs.append(self.assign("theirs", _number(value.dtype, parts)))
            found.append((stmt, theirs))
        counts = fresh("counts")
        if any(stmt.op == "welford" for stmt, _ in found):
            left = f"{self.numel} - {member} * {self.length}"
            text = f"tl.where({needed}, tl.minimum({self.length}, {left}), 0)"
            body.append(f"{counts} = {text}")
        for stmt, theirs in found:
            joined = reductions.join(self, stmt, theirs, counts, needed)
            self.env.update(zip(stmt.outs, joined, strict=True))
        body.append(f"if {' | '.join(late)}:")
        body += indented(self._alone([stmt for stmt, _ in found]))

    def _alone(self, folds: Sequence[Reduce]) -> list[str]:
        """What gives the same numbers from the whole row."""
        (scope,) = (s for s in self.scopes if not set(folds).isdisjoint(s.body))
        env, spaces, shapes, masks = dict(self.env), self.spaces, dict(self.shapes), self.masks
        tiles, axis_tile = dict(self.tiles), dict(self._axis_tile)
        piece, space, outer = self.piece, self.space, self.lines
        del self.shapes["r0"]
        self.masks = {k: v for k, v in masks.items() if k != "r0"}
        self.spaces = [(), self.own]
        self.looped, self.piece = True, ""
        self.env = {k: v for k, v in env.items() if "r0" not in v.axes}
        for stmt in folds:
            for name in stmt.outs:
                del self.env[name]
        self.lines = Lines()
        self._loop(scope, frozenset())
        lines = self.lines
        for stmt in folds:
            for name in stmt.outs:
                lines.body.append(f"{env[name].text} = {self.env[name].text}")
        self.env, self.spaces, self.shapes, self.masks = env, spaces, shapes, masks
        self.tiles, self._axis_tile = tiles, axis_tile
        self.looped, self.piece, self.space, self.lines = False, piece, space, outer
        return lines.text()


def _number(dtype: DType, words: Sequence[str]) -> Value:
    """A number of its 32 bits or pairs of them."""
    if dtype.itemsize == 8:
        bits = f"(({words[1]} << 32) | ({words[0]} & 0xFFFFFFFF))"
    else:
        bits = f"{words[0]}.to(tl.int32)"
    return Value(f"{bits}.to({TL_TYPES[dtype]}, bitcast=True)", ATOM, dtype)
