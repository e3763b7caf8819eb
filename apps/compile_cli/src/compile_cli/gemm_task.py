"""A matmul node of loop IR as a problem of gemm_templates, and back as launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

import gemm_templates
from compile_cli.assemble import Blocks, LaunchPlan, Steps
from compile_cli.runtime import random_tensor
from loop_ir import DType, Kernel, Matmul, TensorRef, TensorType
from symexpr import evaluate, parse, symbol
from triton_emit import EpilogueSource
from triton_emit.epilogue import emit_epilogue
from triton_rt import KernelSource
from wrapper_ir.ops import DefineKernel, KernelParam

Hints = Mapping[str, int]

# Templates that make no tensor descriptors on the device.
_WITHOUT_SCRATCH = ("tiled", "split_k", "decompose_k", "gemv")
# Those that get them from the host, and are no Gluon kernels.
_DESCRIBED = ("tma", "gated", "batched_tma")


@dataclass(frozen=True)
class MatmulTask:
    """node, and what templates need to know of it. buffers: which buffer each pointer of the
    template is; dims: the template's integers as expressions of sizes."""

    node: Matmul
    problem: gemm_templates.Problem
    epilogue: EpilogueSource | None
    out_type: TensorType
    buffers: dict[str, str]
    dims: dict[str, sympy.Expr]

    def inputs(self, hints: Hints) -> gemm_templates.Inputs:
        """Random tensors with the layouts of the node's."""
        node = self.node
        types = {b.name: b.type for b in node.epilogue.buffers} if node.epilogue else {}
        operands = tuple(
            random_tensor(types[a], hints) if isinstance(a, str) else int(evaluate(a, hints))
            for a in (self.epilogue.args if self.epilogue else ())
        )
        return gemm_templates.Inputs(
            random_tensor(node.a.type, hints),
            random_tensor(node.b.type, hints),
            random_tensor(self.out_type, hints),
            random_tensor(node.bias.type, hints) if node.bias is not None else None,
            operands,
        )

    def steps(self, config: gemm_templates.Config, name: str) -> Steps:
        """The template's launches, the first of which is the kernel `name`, and its workspaces."""
        plan = gemm_templates.make_plan(self.problem, config, name)
        values: dict[str, str | sympy.Expr | Blocks] = {**self.buffers, **self.dims}
        if self.epilogue is not None:
            names = [p for p, _ in self.epilogue.operands]
            values.update(zip(names, self.epilogue.args, strict=True))
        allocate = []
        for memory in plan.workspaces:
            values[memory.name] = f"{name}_{memory.name}"
            size = (self._expression(memory.elements_text),)
            type_ = TensorType(DType(memory.dtype), size, (sympy.S.One,), self.node.type.device)
            allocate.append((f"{name}_{memory.name}", type_))
        launches = []
        for kernel in plan.steps:
            x, y, z = map(self._expression, kernel.grid_text)
            given = values | self._described(kernel)
            args = tuple(given[p.name] for p in kernel.source.params)
            launches.append(LaunchPlan(_define(kernel.source), (x, y, z), args))
        return Steps(tuple(launches), tuple(allocate))

    def _described(self, kernel: gemm_templates.TemplateKernel) -> dict[str, Blocks]:
        """The parameters that are descriptors: matrices as the kernel sees its buffers."""
        types = {"a": self.node.a.type, "b": self.node.b.type, "out": self.out_type}
        found = {}
        for name, plan in kernel.maps:
            assert plan.shape is not None and plan.strides is not None
            size, stride = (
                tuple(self.dims[n] if isinstance(n, str) else sympy.Integer(n) for n in layout)
                for layout in (plan.shape, plan.strides)
            )
            type_ = replace(types[name], size=size, stride=stride)
            found[name] = Blocks(TensorRef(self.buffers[name], type_), plan.block)
        return found

    def _expression(self, text: str) -> sympy.Expr:
        """Of the problem's M and N, in sizes of the program."""
        expression: sympy.Expr = parse(text)
        return expression.xreplace({symbol(name): self.dims[name] for name in ("M", "N")})


def is_launchable(
    problem: gemm_templates.Problem, config: gemm_templates.Config, emit: str
) -> bool:
    """Whether a host program can say the launches of a config: it has no memory that is kept zero
    from one call to the next; and what launches the higher-order operator for Triton kernels gives
    kernels no memory for descriptors, has none for Gluon, and describes no empty tensors."""
    described = config.template in _DESCRIBED and config.maps and "M" not in problem.dynamic
    if emit == "hop" and config.template not in _WITHOUT_SCRATCH and not described:
        return False
    plan = gemm_templates.make_plan(problem, config, "matmul")
    return not any(w.zeroed for w in plan.workspaces) and not any(
        step.source.cooperative or not step.source.tma for step in plan.steps
    )


def _define(source: KernelSource) -> DefineKernel:
    params = tuple(KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in source.params)
    constants = tuple((k, v) for k, v in source.constants)
    return DefineKernel(
        source.name, source.text, params, constants, source.num_warps, source.num_stages,  # type: ignore[arg-type]  # templates have no constants that refer to globals
        num_ctas=source.num_ctas, max_registers=source.max_registers, overlap=source.pdl,
    )  # fmt: skip


def make_task(
    node: Matmul,
    hints: Hints,
    aligned: frozenset[str],
    known: Mapping[sympy.Symbol, sympy.Integer] | None = None,
) -> MatmulTask:
    """`aligned`: buffers that start at a multiple of 16 bytes. known: sizes that are what the
    hints say wherever this task is used.

    Raises UnsupportedProblem or a TritonEmitError where templates cannot do this node.
    """
    operands = [node.a, node.b, *([node.bias] if node.bias is not None else [])]
    if any(ref.type.offset != 0 for ref in operands):
        raise gemm_templates.UnsupportedProblem("an operand that starts inside its buffer")
    epilogue, out_type, out = None, node.type, node.out
    if node.epilogue is not None:
        epilogue = emit_epilogue(
            node.epilogue, node.out, "epilogue", (node.type.stride[0], node.type.stride[1])
        )
        out = epilogue.out
        kept = next(b.type for b in node.epilogue.buffers if b.name == out)
        out_type = TensorType(kept.dtype, node.type.size, epilogue.out_stride, kept.device)
    buffers = {"a": node.a.buffer, "b": node.b.buffer, "out": out}
    if node.bias is not None:
        buffers["bias"] = node.bias.buffer
    dims = {name: e.xreplace(known or {}) for name, e in _dims(node, out_type).items()}
    at = {name: int(evaluate(e, hints)) for name, e in dims.items()}
    dynamic = {name: e for name, e in dims.items() if e.free_symbols}
    divisors = tuple(
        (name, int(factor))
        for name, e in dynamic.items()
        if (factor := sympy.expand(e).as_coeff_Mul()[0]) > 1 and factor.is_Integer
    )
    tf32 = torch.backends.cuda.matmul.allow_tf32 and node.type.device.kind == "cuda"
    problem = gemm_templates.Problem(
        at["M"], at["N"], at["K"],
        node.a.type.dtype.value, node.b.type.dtype.value, out_type.dtype.value,
        (at["stride_am"], at["stride_ak"]), (at["stride_bk"], at["stride_bn"]),
        (at["stride_om"], at["stride_on"]),
        node.bias.type.dtype.value if node.bias is not None else None, at["stride_bias"],
        _epilogue(node.epilogue, node.out, epilogue),
        dynamic=frozenset(dynamic),
        aligned=frozenset(p for p, buffer in buffers.items() if buffer in aligned),
        divisors=divisors,
        input_precision="tf32" if tf32 else "ieee",
    )  # fmt: skip
    return MatmulTask(node, problem, epilogue, out_type, buffers, dims)


def _dims(node: Matmul, out: TensorType) -> dict[str, sympy.Expr]:
    m, k = node.a.type.size
    return {
        "M": m, "N": node.b.type.size[1], "K": k,
        "stride_am": node.a.type.stride[0], "stride_ak": node.a.type.stride[1],
        "stride_bk": node.b.type.stride[0], "stride_bn": node.b.type.stride[1],
        "stride_om": out.stride[0], "stride_on": out.stride[1],
        "stride_bias": node.bias.type.stride[0] if node.bias is not None else sympy.S.One,
    }  # fmt: skip


def _epilogue(
    kernel: Kernel | None, out: str, source: EpilogueSource | None
) -> gemm_templates.Epilogue | None:
    if kernel is None or source is None:
        return None
    matrices = [
        b for b in kernel.buffers if not b.written and b.name != out and len(b.type.size) > 1
    ]
    return gemm_templates.Epilogue(
        source.name,
        source.text,
        tuple(gemm_templates.Param(name, kind) for name, kind in source.operands),
        bytes_per_element=float(sum(b.type.dtype.itemsize for b in matrices)),
    )
