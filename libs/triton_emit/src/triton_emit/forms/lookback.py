"""Rows that are scanned in one pass by many programs, of which each has one chunk: what the chunks
before it fold to it learns from their programs, through memory.

Chunks are numbered as programs begin, so that those which a program waits for have begun before.
Which totals are joined in which order hangs on sizes alone: results are the same from run to run.
(Decoupled look-back: Merrill and Garland, NVR-2016-002; the groups of a fixed size are ours.)
"""

from collections.abc import Sequence

import sympy

from loop_ir import DType, Kernel, TensorType
from triton_emit.body import INDENT
from triton_emit.forms.kernel import ceiling_division
from triton_emit.forms.looped import LoopedWriter
from triton_emit.forms.rows import Total
from triton_emit.schedule import Schedule
from triton_emit.source import Zeroed
from triton_emit.tiles import Tile


class LookbackWriter(LoopedWriter):
    """words: of one chunk, for all scans of the kernel. Memory begins with the number of programs
    that have begun; a group of chunks has a word that counts those that have ended, and a slot for
    each of its chunks."""

    shares = True

    def __init__(self, kernel: Kernel, schedule: Schedule) -> None:
        super().__init__(kernel, schedule)
        self.words = 0
        self.rows = super().programs()

    @property
    def chunks(self) -> sympy.Expr:
        """Of each row."""
        length = sympy.Mul(*(a.extent for a in self.spaces[0]))
        return ceiling_division(length, self.schedule.rblock)

    def programs(self) -> sympy.Expr:
        """One for each chunk."""
        return self.rows * self.chunks

    def zeroed(self) -> Zeroed:
        """The memory through which programs speak."""
        group = self.schedule.lookback
        groups = ceiling_division(self.chunks, group)
        size = sympy.expand(1 + groups * self.rows * (1 + group * self.words))
        device = self.kernel.buffers[0].type.device
        return Zeroed("state", TensorType(DType.i64, (size,), (sympy.S.One,), device))

    def program(self) -> str:
        """Which row: all first chunks begin before the second ones."""
        return f"begun % {self._rows}"

    @property
    def _rows(self) -> str:
        text = self.write_sizes(self.rows)
        return text if text.isidentifier() or text.isdigit() else f"({text})"

    def define_tiles(self) -> None:
        """The number of the program gives its chunk and its row."""
        narrow = "" if self.bits == 64 else ".to(tl.int32)"
        head, group = self.lines.head, "chunk // GROUP"
        head += [
            f'begun = tl.atomic_add(state, 1, sem="relaxed"){narrow}',
            "if begun == tl.num_programs(0) - 1:",
            f"{INDENT}tl.store(state, 0)",
        ]
        super().define_tiles()
        if self.kernel.axes:
            head.append(f"chunk = begun // {self._rows}")
            head.append(f"chunks = tl.num_programs(0) // {self._rows}")
            group = f"({group} * {self._rows} + row)"
        else:
            head += ["chunk = begun", "chunks = tl.num_programs(0)"]
        head.append(f"group = state + 1 + {group} * SIZE")
        self.constants.append(("GROUP", self.schedule.lookback))

    def walk(self, tile: Tile, backwards: bool, inside: list[str]) -> list[str]:
        """One chunk; after it, memory is left as it was."""
        start = f"{self.last_start(tile)} - chunk * RBLOCK" if backwards else "chunk * RBLOCK"
        self.constants.append(("SIZE", 1 + self.schedule.lookback * self.words))
        members = "tl.minimum(GROUP, chunks - chunk // GROUP * GROUP)"
        return [f"start = {start}", *inside, f"leave_zero(group, {members}, SIZE)"]

    def before_chunk(
        self, join: str, totals: Sequence[Total], meanwhile: Sequence[str]
    ) -> list[str]:
        """Tells what this chunk folds to, and waits for the chunks before; their names."""
        slots = f"group + {1 + self.words * self.schedule.lookback}"
        step = f"{self._rows} * SIZE" if self.kernel.axes else "SIZE"
        self.words += sum(dtype.itemsize // 4 for dtype, _, _ in totals)
        body, fresh = self.lines.body, self.namer.fresh
        names = [fresh("total") for _ in totals]
        # a block, as other helpers have none of one number
        texts = [f"tl.broadcast_to({total}, [1])" for _, _, total in totals]
        body.append(f"{', '.join(names)} = {', '.join(texts)}")
        body.append(f"tell_{len(names)}({slots}, chunk, {', '.join(names)}, GROUP)")
        body += meanwhile
        before = [fresh("before") for _ in totals]
        rest = ", ".join([*names, *(start for _, start, _ in totals)])
        call = f"earlier_{join}({slots}, {step}, chunk, chunks, {rest}, GROUP)"
        body.append(f"{', '.join(before)} = {call}")
        # a block of one would give its layout to the whole row
        body += [f"{n} = tl.sum({n}, 0)" for n in before]
        return before
