"""The compiler, as one function of named steps."""

from __future__ import annotations

from typing import Any

import torch
from aten_lowering import lower, run_graph_passes
from loop_ir import bytes_moved, fuse
from torch import Tensor
from wrapper_ir import run_passes
from wrapper_ir.passes import DedupeKernels, InsertFrees, PlanMemory

from compile_cli.assemble import assemble
from compile_cli.compiled import CompiledGraph
from compile_cli.config import Options
from compile_cli.emitters import EMITTERS
from compile_cli.gemm import MatmulPlanner
from compile_cli.runtime import Kernels, build_kernels
from compile_cli.select import hints_of, select
from compile_cli.stages import Record


def compile_graph(gm: torch.fx.GraphModule, options: Options, record: Record) -> CompiledGraph:
    """A flat ATen graph -> something to call. Every step's result is kept, and printable."""
    kernels = Kernels(options)
    constants = constants_of(gm)

    with record.stage("lower"):
        gm = run_graph_passes(gm, on_pass=lambda name, g: record.after("aten", name, g))
        loop = lower(gm)
        record.after("loop", "lower", loop)

    with record.stage("fuse"):
        fused, fusion = fuse(
            loop, options=options.fusion, verify=options.verify,
            on_pass=lambda name, g: record.after("fused", name, g),
        )  # fmt: skip

    with record.stage("triton"):
        planner = MatmulPlanner(options, kernels)
        plans = select(fused, options, planner)
        record.after("triton", "emit", plans)

    with record.stage("wrapper"):
        program = assemble(fused, plans)
        record.after("wrapper", "assemble", program)
        passes = [DedupeKernels(), InsertFrees(), *([PlanMemory()] if options.plan_memory else [])]
        program = run_passes(
            program, passes, verify=options.verify,
            on_pass=lambda name, p: record.after("wrapper", name, p),
        )  # fmt: skip

    with record.stage("emit"):
        host, run = EMITTERS[options.emit](program, kernels, constants)
        record.after("fx", "emit", host)

    with record.stage("build"):
        build_kernels(program, kernels)

    hints = hints_of(loop)
    return CompiledGraph(
        loop, fused, program, host, run, fusion, bytes_moved(loop, hints),
        bytes_moved(fused, hints), record,
    )  # fmt: skip


def constants_of(gm: torch.fx.GraphModule) -> dict[str, Tensor]:
    """Tensors that the graph holds itself, by the name of their `get_attr`."""
    out: dict[str, Tensor] = {}
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            value: Any = gm
            for part in node.target.split("."):
                value = getattr(value, part)
            if isinstance(value, Tensor):
                out[node.target] = value
    return out
