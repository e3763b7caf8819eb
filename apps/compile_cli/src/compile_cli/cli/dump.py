"""`compile-cli dump`: any stage as text."""

from typing import Any

import torch

from compile_cli.errors import UsageError
from compile_cli.result import CompiledModel
from loop_ir import Graph, print_graph
from planner import NodePlan
from wrapper_ir import Program, print_program

DUMP_STAGES = ("aten", "loop", "fused", "triton", "wrapper", "fx", "cpp")


def dump_text(compiled: CompiledModel, stage: str, after: str | None = None) -> str:
    """The last IR of a stage, or the one that pass `after` made (of any stage, if unique)."""
    record = compiled.graph.record
    entries = [e for e in record.trace if e[0] == stage]
    if after is not None:
        entries = [e for e in record.trace if e[1] == after]
        if not entries:
            passes = dict.fromkeys(f"{name} ({kind})" for kind, name, _ in record.trace)
            raise UsageError(f"no pass {after!r} was run\n  there were: {', '.join(passes)}")
    if not entries:
        raise UsageError(f"stage {stage!r} did not run\n  to do: choose the emitter with --emit")
    return to_text(entries[-1][2])


def to_text(value: Any) -> str:
    """Any stage's IR as text."""
    if isinstance(value, Graph):
        return print_graph(value)
    if isinstance(value, Program):
        return print_program(value)
    if isinstance(value, torch.fx.GraphModule):
        return str(value.print_readable(print_output=False, include_stride=True))
    if isinstance(value, tuple):
        sources: dict[str, str] = {}
        for plan in value:
            if isinstance(plan, NodePlan):
                sources.update((x.define.name, x.define.source) for x in plan.launches)
        return "\n\n".join(f"# --- {name}\n{text}" for name, text in sources.items())
    return str(value)
