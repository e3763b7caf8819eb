"""Attention whose scores a program changes: one kernel of gemm_templates, into which what becomes
of scores is spliced, in place of the call that torch would run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy
import torch

from aten_lowering import Attention, Fallback
from gemm_templates import H200, UnsupportedProblem, device_info
from gemm_templates import attention as templates
from loop_ir import (
    DType,
    Extern,
    Indirect,
    Kernel,
    Load,
    TensorRef,
    TensorType,
    contiguous_strides,
)
from loop_ir.ir import statements
from planner.plan import Choice, LaunchArg, LaunchPlan, NodePlan, Steps, define_source
from planner.settings import Settings
from symexpr import CeilDiv
from triton_emit import TritonEmitError, emit_scores
from triton_rt import KernelParam

_TILES = ("score", "gradient")
_BLOCKS = ("counts", "indices")


def plan_attention(
    node: Extern, attentions: Mapping[str, Attention], options: Settings
) -> NodePlan | None:
    """The launches that do what a call of attention does, or the call and why it is one; None of
    other calls."""
    attention = attentions.get(node.target)
    if attention is None:
        return None
    on_cuda = attention.tensors["q"].type.device.kind == "cuda"
    name = f"attention_{node.target.rpartition('.')[2]}"
    try:
        if options.gemm == "extern" or (options.gemm == "auto" and not on_cuda):
            raise UnsupportedProblem("no template is asked for")
        choice: Choice
        if attention.is_gradient:
            choice = _gradients(attention, name)
        else:
            choice = _Launch(attention, attention.tensors).plan(name, "forward")
    except (UnsupportedProblem, TritonEmitError) as why:
        origin = node.origins[0]
        fallbacks = (Fallback(origin.op, origin.source, str(why)),)
        return NodePlan(extern=node, origins=node.origins, fallbacks=fallbacks)
    outs = tuple(out for out in node.outs if out is not None)
    return NodePlan(outs, None, ((None, choice),), node.origins)


def _gradients(attention: Attention, name: str) -> Steps:
    """The gradient of queries, and those of keys and values, with a number a query that the first
    launch leaves for the second. What is captured is summed by the first."""
    *size, _ = attention.tensors["q"].type.size
    device = attention.tensors["q"].type.device
    type_ = TensorType(DType.f32, tuple(size), contiguous_strides(tuple(size)), device)
    tensors = {**attention.tensors, "delta": TensorRef(f"{name}_delta", type_)}
    own = [(f"{name}_delta", type_)]
    before, after = list[Extern](), list[Extern]()
    for captured in attention.scatters:
        ref = tensors[captured]
        place = contiguous_strides(ref.type.size)
        wide = TensorRef(f"{name}_{captured}", TensorType(DType.f32, ref.type.size, place, device))
        if ref.type != wide.type:
            own.append((wide.buffer, wide.type))
            tensors[captured] = wide
            both = (ref, wide)
            after.append(Extern("aten.copy_.default", both, (), (None,), False, (ref.buffer,)))
        sums = tensors[captured]
        before.append(Extern("aten.zero_.default", (sums,), (), (None,), False, (sums.buffer,)))
    launches = [_Launch(attention, tensors).plan(f"{name}_queries", "queries")]
    if not {"grad_k", "grad_v"}.isdisjoint(tensors):
        launches.append(_Launch(attention, tensors, turned=True).plan(f"{name}_keys", "keys"))
    return Steps((*before, *launches, *after), tuple(own))


@dataclass
class _Launch:
    """One launch, while it is put together. values: what its parameters are. turned: its tiles of
    scores are [keys, queries]."""

    attention: Attention
    tensors: Mapping[str, TensorRef]
    turned: bool = False
    values: dict[str, LaunchArg] = field(default_factory=dict)

    def plan(self, name: str, template: str) -> LaunchPlan:
        """Raises UnsupportedProblem."""
        problem = self.problem()
        device = device_info("cuda") if torch.cuda.is_available() else H200
        wanted = templates.default_config(problem, template)
        config = templates.fitted(problem, wanted, template, device.smem)
        if config is None:  # of its blocks; the mask alone says the same
            self.tensors = {n: t for n, t in self.tensors.items() if not n.endswith(_BLOCKS)}
            return self.plan(name, template)
        source = templates.attention_kernel(problem, config, name, template)
        block = config.block_n if self.turned else config.block_m
        batch, heads, rows, _ = self.tensors["k" if self.turned else "q"].type.size
        grid = CeilDiv(rows, block) * heads * batch, sympy.S.One, sympy.S.One
        args = tuple(self.values[p.name] for p in source.params)
        return LaunchPlan(define_source(source), grid, args)

    def problem(self) -> templates.Attention:
        a = self.attention
        _, heads, queries, columns = self.tensors["q"].type.size
        _, kv_heads, keys, width = self.tensors["v"].type.size
        if not all(n.is_Integer and n <= 256 for n in (columns, width)):
            raise UnsupportedProblem(f"heads of {columns} and {width} columns")
        group = heads / kv_heads
        if not group.is_Integer:
            raise UnsupportedProblem(f"{heads} heads that share {kv_heads}")
        on_cuda = self.tensors["q"].type.device.kind == "cuda"
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and on_cuda
        full = self.function("full", a.full)
        full_gradient = self.function("full_gradient", a.full_gradient)
        return templates.Attention(
            (
                self.size("HEADS", heads),
                self.size("GROUP", group),
                self.size("M", queries),
                self.size("N", keys),
            ),
            (int(columns), int(width)),
            a.scale,
            {name: self.tensor(name, ref) for name, ref in self.tensors.items()},
            full if a.partial is a.full else self.function("partial", a.partial),
            full,
            full_gradient
            if a.partial_gradient is a.full_gradient
            else self.function("partial_gradient", a.partial_gradient),
            full_gradient,
            a.sizes if "counts" in self.tensors else (0, 0),
            "tf32" if tf32 else "ieee",
            tuple(self.emitted(n, k) for n, k in a.scatters.items() if not self.turned),
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
        return None if kernel is None else self.emitted(name, kernel)

    def emitted(self, name: str, kernel: Kernel) -> templates.Function:
        captured, scatters = self.attention.captured, name in self.attention.scatters
        tiles = _TILES if name.endswith("gradient") or scatters else _TILES[:1]
        narrow = self.tensors["q"].type.dtype.itemsize == 2
        source = emit_scores(kernel, tiles, name, narrow, self.turned)
        operands = []
        for (param, kind), arg in zip(source.operands, source.args, strict=True):
            sums = isinstance(arg, str) and arg not in captured
            self.values[param] = self.tensors[name] if sums else captured.get(arg, arg)
            operands.append(KernelParam(param, kind, sums))
        return templates.Function(name, source.text, tuple(operands), _reads(kernel, captured))


def _reads(kernel: Kernel, captured: Mapping[str, TensorRef]) -> int:
    """Bytes of an element that a kernel loads for each score, by its query and its key."""
    places = {axis.symbol for axis in kernel.axes[-2:]}
    data = {s.symbol for s in statements(kernel) if isinstance(s, Indirect)}
    return max(
        (
            captured[s.buffer].type.dtype.itemsize
            for s in statements(kernel)
            if isinstance(s, Load) and s.buffer in captured
            if places <= s.index.free_symbols or data & s.index.free_symbols
        ),
        default=0,
    )
