"""What a run found out, as a dictionary, as JSON and as text for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compile_cli.result import CompiledGraph
from loop_ir import Kernel, Matmul, Origin
from symexpr import sstr
from wrapper_ir import ExternCall, If, Launch, Op, Program

_MODES = {
    "eval": "eval (--train compiles the model in training mode)",
    "train": "train: dropout, statistics of the batch",
    "exported": "as it was exported",
}
_FIXED = "the model needs these sizes' values, and is compiled for each"


@dataclass(frozen=True)
class RunReport:
    """`compile-cli run`: `fixed`, the sizes that were to be dynamic and are not; times in the
    units of their names, bytes moved through device memory by one call, `max_rel_err` as
    `measure.relative_error` defines it."""

    device: str
    mode: str
    emit: str
    fixed: tuple[str, ...]
    triton: int
    extern: int
    fallbacks: tuple[str, ...]
    fused: tuple[str, ...]
    matmuls: tuple[str, ...]
    bytes_before: int
    bytes_after: int
    max_rel_err: float
    compile_s: dict[str, float]
    compiled_ms: float
    eager_ms: float
    compiled_mb: float
    eager_mb: float

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "device": self.device,
            "mode": self.mode,
            "emit": self.emit,
            "fixed": list(self.fixed),
            "kernels": {"triton": self.triton, "extern": self.extern},
            "fallbacks": list(self.fallbacks),
            "fused": list(self.fused),
            "matmuls": list(self.matmuls),
            "bytes_moved": {"before": self.bytes_before, "after": self.bytes_after},
            "max_rel_err": self.max_rel_err,
            "compile_s": {name: round(s, 4) for name, s in self.compile_s.items()},
            "ms": {"compiled": round(self.compiled_ms, 4), "eager": round(self.eager_ms, 4)},
            "peak_mb": {"compiled": round(self.compiled_mb, 3), "eager": round(self.eager_mb, 3)},
        }

    def to_text(self) -> str:
        """The summary, a line a fact."""
        saved = 1 - self.bytes_after / self.bytes_before if self.bytes_before else 0.0
        stages = ", ".join(f"{name} {s:.2f}" for name, s in self.compile_s.items())
        interpreted = "  (Triton's interpreter)" if self.device == "cpu" else ""
        fused = "".join(f"\n  {group}" for group in self.fused) or " nothing"
        matmuls = "".join(f"\n  {line}" for line in self.matmuls)
        return "\n".join(
            [
                f"device       {self.device}, host program as {self.emit}",
                f"mode         {_MODES[self.mode]}",
                *([f"fixed        {', '.join(self.fixed)}: {_FIXED}"] if self.fixed else []),
                f"kernels      {self.triton} Triton, {self.extern} extern",
                f"fallbacks    {', '.join(self.fallbacks) or 'none'}",
                f"fused       {fused}",
                *([f"matmuls     {matmuls}"] if matmuls else []),
                f"bytes moved  {self.bytes_before / 1e6:.3f} MB before fusion, "
                f"{self.bytes_after / 1e6:.3f} MB after ({saved:.0%} saved)",
                f"error        {self.max_rel_err:.2e} (largest relative error against eager)",
                f"compile      {sum(self.compile_s.values()):.2f} s: {stages}",
                f"run          {self.compiled_ms:.3f} ms{interpreted}, "
                f"eager {self.eager_ms:.3f} ms",
                f"peak memory  {self.compiled_mb:.3f} MB, eager {self.eager_mb:.3f} MB",
            ]
        )


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
