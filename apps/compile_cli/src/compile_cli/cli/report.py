"""What a run found out, as plain data and as text for people."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from compile_cli.cli.measure import Comparison
from compile_cli.record import STAGES, Record
from compile_cli.result import CompiledGraph
from loop_ir import Kernel, Matmul, Origin
from symexpr import sstr
from wrapper_ir import ExternCall, If, Launch, Op, Program, analysis


class Report:
    """What a run found out: facts, each a line for people and plain data under names for JSON."""

    def __init__(self, device: torch.device, emit: str) -> None:
        self.device = str(device)
        self.data: dict[str, Any] = {}
        self.lines: list[str] = []
        self.interpreted = ""
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
        loops, triton, extern = count_kernels(program)
        data = {"cpp": loops, "triton": triton, "extern": extern}
        if triton and self.device == "cpu":
            self.interpreted = f"  ({triton} through Triton's interpreter)"
        counts = {"C++": loops, "Triton": triton, "extern": extern}
        said = (f"{n} {kind}" for kind, n in counts.items() if n or kind != "C++")
        self.add("kernels", ", ".join(said), kernels=data)

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
        beside = f", eager {ms['eager']:.3f} ms" if "eager" in ms else ""
        said = f"{ms['compiled']:.3f} ms{self.interpreted}{beside}"
        self.add("run", said, ms={name: round(each, 4) for name, each in ms.items()})


def count_kernels(program: Program) -> tuple[int, int, int]:
    """Launches of C++ and of Triton, and extern calls, of one call of the program; an `If` counts
    its larger branch of each."""
    defined = analysis.kernels(program)

    def count(ops: tuple[Op, ...]) -> tuple[int, int, int]:
        counts = [0, 0, 0]
        for op in ops:
            if isinstance(op, Launch):
                counts[defined[op.kernel].language == "triton"] += 1
            elif isinstance(op, ExternCall):
                counts[2] += 1
            elif isinstance(op, If):
                both = zip(counts, count(op.then), count(op.orelse), strict=True)
                counts = [n + max(a, b) for n, a, b in both]
        return counts[0], counts[1], counts[2]

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
