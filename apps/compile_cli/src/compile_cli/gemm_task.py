"""A matmul node of loop IR as a problem of gemm_templates, and back as launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy
import torch

import gemm_templates
from compile_cli.assemble import Blocks, LaunchArg, LaunchPlan, Steps
from compile_cli.runtime import as_layout, random_tensor
from loop_ir import DType, Kernel, Matmul, Symbol, TensorRef, TensorType, is_plain, whole_epilogue
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
    """node, and what templates need to know of it. finish: what the epilogue was emitted from.
    buffers: which buffer each pointer of the template is; dims: the template's integers as
    expressions of sizes; batch: how many products."""

    node: Matmul
    problem: gemm_templates.Problem
    finish: Kernel | None
    epilogue: EpilogueSource | None
    out_type: TensorType
    buffers: dict[str, str]
    dims: dict[str, sympy.Expr]
    batch: sympy.Expr

    def inputs(self, hints: Hints) -> gemm_templates.Inputs:
        """Random tensors with the layouts of the node's; those of one buffer share its memory."""
        node = self.node
        types = {b.name: b.type for b in self.finish.buffers} if self.finish else {}
        args = self.epilogue.args if self.epilogue else ()
        bias = [node.bias] if node.bias is not None and self.problem.bias else []
        uses = [(ref.buffer, ref.type) for ref in (node.a, node.b, *bias)]
        uses += [(a, types[a]) for a in args if isinstance(a, str)]
        made: dict[str, torch.Tensor] = {}
        for name, type_ in sorted(uses, key=lambda use: -int(evaluate(use[1].extent, hints))):
            if name not in made:
                made[name] = random_tensor(type_, hints)

        def tensor(name: str, type_: TensorType) -> torch.Tensor:
            return as_layout(made[name], type_, hints)

        operands = tuple(
            tensor(a, types[a]) if isinstance(a, str) else int(evaluate(a, hints)) for a in args
        )
        return gemm_templates.Inputs(
            tensor(node.a.buffer, node.a.type),
            tensor(node.b.buffer, node.b.type),
            random_tensor(self.out_type, hints),
            tensor(bias[0].buffer, bias[0].type) if bias else None,
            operands,
        )

    @property
    def key(self) -> str:
        """Tells problems, and whether their batch is a hint."""
        return self.problem.key + (" any batch" if self.batch.free_symbols else "")

    def steps(self, config: gemm_templates.Config, name: str) -> Steps:
        """The template's launches, the first of which is the kernel `name`, and its workspaces."""
        plan = gemm_templates.make_plan(self.problem, config, name)
        values: dict[str, LaunchArg] = {**self.buffers, **self.dims}
        for pointer, ref in (("a", self.node.a), ("b", self.node.b), ("bias", self.node.bias)):
            if ref is not None and ref.type.offset != 0:
                values[pointer] = ref
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
            if self.batch.free_symbols:  # then one program a tile, and the batch beside them
                y = self.batch
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


# The programs of a grid along its second dimension, which a batch is.
MOST_PRODUCTS = 65535


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
    symbols: tuple[Symbol, ...] = (),
) -> MatmulTask:
    """`aligned`: buffers that start at a multiple of 16 bytes. known: sizes that are what the
    hints say wherever this task is used. symbols: of the graph.

    Raises UnsupportedProblem or a TritonEmitError where templates cannot do this node.
    """
    epilogue, out_type, out = None, node.type, node.out
    finish, products = whole_epilogue(node, symbols)
    if finish is not None:
        epilogue = emit_epilogue(finish, products, "epilogue", node.type.stride)
        out = epilogue.out
        kept = next(b.type for b in finish.buffers if b.name == out)
        out_type = TensorType(kept.dtype, node.type.size, epilogue.out_stride, kept.device)
    buffers = {"a": node.a.buffer, "b": node.b.buffer, "out": out}
    bias = node.bias if is_plain(node) else None
    if bias is not None:
        buffers["bias"] = bias.buffer
    dims = {name: e.xreplace(known or {}) for name, e in _dims(node, out_type).items()}
    at = {name: int(evaluate(e, hints)) for name, e in dims.items()}
    dynamic = {name: e for name, e in dims.items() if e.free_symbols}
    divisors = tuple(
        (name, int(factor))
        for name, e in dynamic.items()
        if (factor := sympy.expand(e).as_coeff_Mul()[0]) > 1 and factor.is_Integer
    )
    batch = node.type.size[0] if len(node.type.size) == 3 else sympy.S.One
    products_at = int(evaluate(batch, hints))
    if batch.free_symbols:  # the text of a kernel tells one product from several
        products_at = max(2, products_at)
    tf32 = torch.backends.cuda.matmul.allow_tf32 and node.type.device.kind == "cuda"
    problem = gemm_templates.Problem(
        at["M"], at["N"], at["K"],
        node.a.type.dtype.value, node.b.type.dtype.value, out_type.dtype.value,
        (at["stride_am"], at["stride_ak"]), (at["stride_bk"], at["stride_bn"]),
        (at["stride_om"], at["stride_on"]),
        bias.type.dtype.value if bias is not None else None, at["stride_bias"],
        _epilogue(finish, products, epilogue, node.type, hints),
        batch=products_at,
        batch_strides=(at["stride_ab"], at["stride_bb"], at["stride_ob"]) if batch != 1 else None,
        dynamic=frozenset(dynamic),
        aligned=frozenset(
            p for p, buffer in buffers.items() if buffer in aligned and _starts_aligned(node, p)
        ),
        divisors=divisors,
        wide=True if epilogue is not None and epilogue.bits == 64 else None,
        input_precision="tf32" if tf32 else "ieee",
    )  # fmt: skip
    return MatmulTask(node, problem, finish, epilogue, out_type, buffers, dims, batch)


def _starts_aligned(node: Matmul, pointer: str) -> bool:
    """Whether what it points to starts at a multiple of 16 bytes of its buffer."""
    ref = {"a": node.a, "b": node.b, "bias": node.bias}.get(pointer)
    start = ref.type.offset * ref.type.dtype.itemsize if ref is not None else sympy.S.Zero
    return start == 0 or all(
        term.as_coeff_Mul()[0] % 16 == 0 for term in sympy.Add.make_args(sympy.expand(start))
    )


def _dims(node: Matmul, out: TensorType) -> dict[str, sympy.Expr]:
    a, b, bias = node.a.type, node.b.type, node.bias
    dims = {
        "M": a.size[-2], "N": b.size[-1], "K": a.size[-1],
        "stride_am": a.stride[-2], "stride_ak": a.stride[-1],
        "stride_bk": b.stride[-2], "stride_bn": b.stride[-1],
        "stride_om": out.stride[-2], "stride_on": out.stride[-1],
        "stride_bias": bias.type.stride[0] if bias and is_plain(node) else sympy.S.One,
    }  # fmt: skip
    if len(a.size) == 3 and a.size[0] != 1:
        batched = {"stride_ab": a.stride[0], "stride_bb": b.stride[0], "stride_ob": out.stride[0]}
        dims.update(batched)
    return dims


def _epilogue(
    kernel: Kernel | None,
    products: str,
    source: EpilogueSource | None,
    type: TensorType,
    hints: Hints,
) -> gemm_templates.Epilogue | None:
    if kernel is None or source is None:
        return None
    operands = [b.type for b in kernel.buffers if not b.written and b.name != products]
    read = sum(int(evaluate(t.extent, hints)) * t.dtype.itemsize for t in operands)
    return gemm_templates.Epilogue(
        source.name,
        source.text,
        tuple(gemm_templates.Param(name, kind) for name, kind in source.operands),
        bytes_per_element=read / max(1, int(evaluate(type.numel, hints))),
        batched=source.batched,
    )
