"""What a run found out, as plain data and as text for people."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compile_cli.cli.measure import Comparison
from compile_cli.record import STAGES, Record
from compile_cli.result import CompiledGraph
from loop_ir import Kernel, Matmul, Origin
from symexpr import sstr
from wrapper_ir import ExternCall, If, Launch, Op, Program


class Report:
    """What a run found out: facts, each a line for people and plain data under names for JSON."""

    def __init__(self, device: torch.device, emit: str) -> None:
        self.device = str(device)
        self.data: dict[str, Any] = {}
        self.lines: list[str] = []
        self.add("device", f"{device}, host program as {emit}", device=self.device, emit=emit)

    def add(self, name: str, text: str | None, **data: Any) -> None:
        """A fact. Without text, it is no news to people."""
        self.data.update(data)
        if text is not None:
            self.lines.append(f"{name:13}{text}")

    def add_all(self, name: str, lines: Sequence[str], none: str | None = None) -> None:
        """A fact of several lines; `none` is the text where there are none."""
        text = "".join(f"\n  {line}" for line in lines)
        self.add(name, text or none, **{name: list(lines)})

    def add_kernels(self, program: Program) -> None:
        """How many of each kind a call launches."""
        triton, extern = count_kernels(program)
        data = {"triton": triton, "extern": extern}
        self.add("kernels", f"{triton} Triton, {extern} extern", kernels=data)

    def add_error(self, comparison: Comparison, reference: str) -> None:
        """How far the results are from the reference's: `measure.relative_error`."""
        error = comparison.max_rel_err
        said = f"{error:.2e} (largest relative error against {reference})"
        self.add("error", said, max_rel_err=error)

    def add_times(self, record: Record, ms: Mapping[str, float]) -> None:
        """Seconds by stage of the compilation; milliseconds of a call of each."""
        spent = {k: s for k, s in record.seconds.items() if k in STAGES}
        stages = ", ".join(f"{name} {s:.2f}" for name, s in spent.items())
        data = {name: round(s, 4) for name, s in spent.items()}
        self.add("compile", f"{sum(spent.values()):.2f} s: {stages}", compile_s=data)
        interpreted = "  (Triton's interpreter)" if self.device == "cpu" else ""
        beside = f", eager {ms['eager']:.3f} ms" if "eager" in ms else ""
        said = f"{ms['compiled']:.3f} ms{interpreted}{beside}"
        self.add("run", said, ms={name: round(each, 4) for name, each in ms.items()})


def count_kernels(program: Program) -> tuple[int, int]:
    """Triton launches and extern calls of one call of the program; an `If` counts its larger
    branch."""

    def count(ops: tuple[Op, ...]) -> tuple[int, int]:
        triton = extern = 0
        for op in ops:
            if isinstance(op, Launch):
                triton += 1
            elif isinstance(op, ExternCall):
                extern += 1
            elif isinstance(op, If):
                a, b = count(op.then), count(op.orelse)
                triton, extern = triton + max(a[0], b[0]), extern + max(a[1], b[1])
        return triton, extern

    return count(program.ops)


def fused_groups(compiled: CompiledGraph) -> tuple[str, ...]:
    """Each kernel that runs several operators: `fused_add_layer_norm_3: add, native_layer_norm`,
    kernels alike in one line with their number."""
    groups: dict[str, int] = {}
    for node in compiled.fused.nodes:
        origins: tuple[Origin, ...] = ()
        if isinstance(node, Kernel):
            origins = node.origins
        elif isinstance(node, Matmul) and (node.epilogue is not None or node.prologues):
            origins = node.origins + (node.epilogue.origins if node.epilogue is not None else ())
        if len(origins) > 1:
            line = " + ".join(o.op.removeprefix("aten.").split(".")[0] for o in origins)
            groups[line] = groups.get(line, 0) + 1
    return tuple(f"{count} x {line}" for line, count in groups.items())


def matmul_lines(compiled: CompiledGraph) -> tuple[str, ...]:
    """What runs each matmul for which something was decided, those alike in one line with their
    number: `2 x [s0, 768] @ [768, 3072] bf16: s0 == 1: 16x64x128 g8 w4 s4; extern`."""
    lines: dict[str, int] = {}
    for node in compiled.fused.nodes:
        if isinstance(node, Matmul) and node.out in compiled.decided:
            a, b = (", ".join(map(sstr, ref.type.size)) for ref in (node.a, node.b))
            runs = "; ".join(map(str, compiled.decided[node.out]))
            line = f"[{a}] @ [{b}] {node.type.dtype.value}: {runs}"
            lines[line] = lines.get(line, 0) + 1
    return tuple(f"{count} x {line}" for line, count in lines.items())
