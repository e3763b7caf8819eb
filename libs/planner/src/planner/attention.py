"""Attention whose scores a program changes: one kernel of gemm_templates, into which what becomes
of scores is spliced, in place of the call that torch would run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
import torch

from aten_lowering import Attention, Fallback
from gemm_templates import UnsupportedProblem
from gemm_templates import attention as templates
from loop_ir import Extern, Kernel, TensorRef
from planner.plan import LaunchArg, LaunchPlan, NodePlan, define_source
from planner.settings import Settings
from symexpr import CeilDiv
from triton_emit import TritonEmitError, emit_scores
from triton_rt import KernelParam

# What the template calls the tensors of a call.
_ROLES = {"query": "q", "key": "k", "value": "v"} | {n: n for n in ("out", "logsumexp", "maxima")}


def plan_attention(
    node: Extern, attentions: Mapping[str, Attention], options: Settings
) -> NodePlan | None:
    """The launch that does what a call of attention does, or the call and why it is one; None of
    other calls."""
    attention = attentions.get(node.target)
    if attention is None:
        return None
    on_cuda = attention.query.type.device.kind == "cuda"
    try:
        if options.gemm == "extern" or (options.gemm == "auto" and not on_cuda):
            raise UnsupportedProblem("no template is asked for")
        launch = _Launch(attention).plan(f"attention_{node.target.rpartition('.')[2]}")
    except (UnsupportedProblem, TritonEmitError) as why:
        origin = node.origins[0]
        fallbacks = (Fallback(origin.op, origin.source, str(why)),)
        return NodePlan(extern=node, origins=node.origins, fallbacks=fallbacks)
    outs = tuple(out for out in node.outs if out is not None)
    return NodePlan(outs, None, ((None, launch),), node.origins)


@dataclass
class _Launch:
    """One launch, while it is put together: what its parameters are."""

    attention: Attention
    values: dict[str, LaunchArg] = field(default_factory=dict)

    def plan(self, name: str) -> LaunchPlan:
        """Raises UnsupportedProblem."""
        problem = self.problem()
        config = templates.fitted(problem, templates.default_config(problem))
        if config is None:
            raise UnsupportedProblem(f"blocks of {problem.blocks[0]} x {problem.blocks[1]} scores")
        source = templates.attention_kernel(problem, config, name)
        batch, heads, queries, _ = self.attention.query.type.size
        programs = CeilDiv(queries, config.block_m) * heads * batch
        args = tuple(self.values[p.name] for p in source.params)
        return LaunchPlan(define_source(source), (programs, sympy.S.One, sympy.S.One), args)

    def problem(self) -> templates.Attention:
        a = self.attention
        _, heads, queries, columns = a.query.type.size
        _, kv_heads, keys, width = a.value.type.size
        if not all(n.is_Integer and n <= 256 for n in (columns, width)):
            raise UnsupportedProblem(f"heads of {columns} and {width} columns")
        group = heads / kv_heads
        if not group.is_Integer:
            raise UnsupportedProblem(f"{heads} heads that share {kv_heads}")
        refs = {name: getattr(a, role) for role, name in _ROLES.items()}
        for prefix, blocks in (("", a.partial_blocks), ("full_", a.full_blocks)):
            if blocks is not None:
                refs |= {f"{prefix}counts": blocks.counts, f"{prefix}indices": blocks.indices}
        full = self.function("full", a.full)
        partial = full if a.partial is a.full else self.function("partial", a.partial)
        on_cuda = a.query.type.device.kind == "cuda"
        tf32 = torch.backends.cuda.matmul.allow_tf32 and on_cuda
        return templates.Attention(
            (
                self.size("HEADS", heads),
                self.size("GROUP", group),
                self.size("M", queries),
                self.size("N", keys),
            ),
            (int(columns), int(width)),
            a.scale,
            {name: self.tensor(name, ref) for name, ref in refs.items() if ref is not None},
            partial,
            full,
            a.sizes if a.partial_blocks is not None else (0, 0),
            "tf32" if tf32 else "ieee",
        )

    def size(self, name: str, value: sympy.Expr) -> int | str:
        """A size as a literal, or as a parameter of that name."""
        if value.is_Integer:
            return int(value)
        self.values[name] = value
        return name

    def tensor(self, name: str, ref: TensorRef) -> templates.Tensor:
        self.values[name] = ref
        strides = tuple(self.size(f"{name}_stride{i}", s) for i, s in enumerate(ref.type.stride))
        return templates.Tensor(ref.type.dtype.value, strides)

    def function(self, name: str, kernel: Kernel | None) -> templates.Function | None:
        if kernel is None:
            return None
        source = emit_scores(
            kernel, ("score",), name, self.attention.query.type.dtype.itemsize == 2
        )
        for (param, _), arg in zip(source.operands, source.args, strict=True):
            self.values[param] = self.attention.captured[arg] if isinstance(arg, str) else arg
        operands = tuple(KernelParam(param, kind) for param, kind in source.operands)
        return templates.Function(name, source.text, operands)
