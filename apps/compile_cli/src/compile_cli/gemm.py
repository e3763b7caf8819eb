"""Matmul nodes: the vendor's call, or a template with the epilogue that fusion found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gemm_templates
import sympy
import torch
from fx_emit.torch_types import operator_of
from loop_ir import Matmul, TensorRef, TensorType
from symexpr import CeilDiv, evaluate
from torch import Tensor
from triton_emit import TritonEmitError, default_schedule, emit
from triton_emit.epilogue import emit_epilogue
from wrapper_ir.ops import DefineKernel, KernelParam

from compile_cli.assemble import LaunchPlan
from compile_cli.config import Options
from compile_cli.runtime import Kernels, as_layout, random_tensor, torch_value

# Elements below which a matmul is not worth measuring: the launch is the cost.
WORTH = 64 * 64 * 64


@dataclass
class MatmulPlanner:
    """Decides for each matmul. `choices`: what was measured, by the name of the node."""

    options: Options
    kernels: Kernels
    choices: dict[str, gemm_templates.Choice] = field(default_factory=dict)
    _decided: dict[str, gemm_templates.Config | None] = field(default_factory=dict)

    def __call__(self, node: Matmul, hints: Mapping[str, int]) -> LaunchPlan | None:
        """A template's launch, or None for the vendor's call (and the epilogue's own kernel)."""
        if self.options.gemm == "extern" or len(node.type.size) != 2:
            return None
        on_cuda = node.type.device.kind == "cuda"
        if self.options.gemm == "auto" and not on_cuda:
            return None
        try:
            task = _Task.make(node, hints)
        except (gemm_templates.UnsupportedProblem, TritonEmitError):
            return None
        if self.options.gemm == "auto" and task.problem.flops < 2 * WORTH:
            return None
        config = self._config(node, task, hints, on_cuda)
        return None if config is None else task.launch(config)

    def _config(
        self, node: Matmul, task: _Task, hints: Mapping[str, int], on_cuda: bool
    ) -> gemm_templates.Config | None:
        problem = task.problem
        if problem.key in self._decided:
            return self._decided[problem.key]
        if self.options.gemm == "template":
            device = "cuda" if on_cuda else gemm_templates.H200
            config: gemm_templates.Config | None = gemm_templates.best_config(problem, device)
        else:
            choice = gemm_templates.choose(
                problem, lambda: task.inputs(hints), self._extern(node, hints),
                store=gemm_templates.Store(self.options.cache_path / "gemm"),
            )  # fmt: skip
            self.choices[node.out] = choice
            config = choice.config
        self._decided[problem.key] = config
        return config

    def _extern(
        self, node: Matmul, hints: Mapping[str, int]
    ) -> Callable[[gemm_templates.Inputs], Tensor]:
        """The vendor's call and then the epilogue as a kernel of its own: what would run if the
        template did not."""
        operator = operator_of(node.extern.target, {})
        epilogue = None
        if node.epilogue is not None:
            epilogue = emit(node.epilogue, default_schedule(node.epilogue, hints))

        def run(inputs: gemm_templates.Inputs) -> Tensor:
            given: dict[str, Tensor | None] = {
                node.a.buffer: inputs.a, node.b.buffer: inputs.b
            }  # fmt: skip
            if node.bias is not None:
                given[node.bias.buffer] = inputs.bias

            def value(x: Any) -> Any:
                if isinstance(x, TensorRef):
                    tensor = given[x.buffer]
                    assert tensor is not None
                    return as_layout(tensor, x.type, hints)
                if isinstance(x, tuple):
                    return [value(item) for item in x]
                return int(evaluate(x, hints)) if isinstance(x, sympy.Expr) else torch_value(x)

            out: Tensor = operator(
                *(value(a) for a in node.extern.args),
                **{k: value(v) for k, v in node.extern.kwargs},
            )
            if epilogue is None:
                return as_layout(out, node.type, hints)
            return self._run_epilogue(node, epilogue, out, inputs, hints)

        return run

    def _run_epilogue(
        self,
        node: Matmul,
        epilogue: Any,
        out: Tensor,
        inputs: gemm_templates.Inputs,
        hints: Mapping[str, int],
    ) -> Tensor:
        assert node.epilogue is not None
        task = _Task.make(node, hints)
        assert task.epilogue is not None
        known: dict[str, Any] = {node.out: out}
        known.update(zip((str(a) for a in task.epilogue.args), inputs.operands, strict=True))
        written = {b.name: b.type for b in node.epilogue.buffers if b.written}
        for name, type_ in written.items():
            known[name] = random_tensor(type_, hints)
        define = DefineKernel(
            epilogue.name, epilogue.source, tuple(KernelParam(*p) for p in epilogue.params),
            epilogue.constants, epilogue.num_warps, epilogue.num_stages,
        )  # fmt: skip
        grid = tuple(int(evaluate(g, hints)) for g in epilogue.grid)
        args = [
            known[a] if isinstance(a, str) else int(evaluate(a, hints)) for a in epilogue.args
        ]
        self.kernels.load(define)(grid, *args)
        result = known[task.epilogue.out]
        assert isinstance(result, Tensor)
        return as_layout(result, task.out_type, hints)


@dataclass(frozen=True)
class _Task:
    """A matmul node as a problem of gemm_templates."""

    node: Matmul
    problem: gemm_templates.Problem
    epilogue: Any
    out_type: TensorType
    dims: dict[str, sympy.Expr]

    @staticmethod
    def make(node: Matmul, hints: Mapping[str, int]) -> _Task:
        """Raises UnsupportedProblem or a TritonEmitError where templates cannot do this node."""
        epilogue, spec = None, None
        out_type = node.type
        if node.epilogue is not None:
            epilogue = emit_epilogue(node.epilogue, node.out, "epilogue", node.type.stride)
            kept = next(b.type for b in node.epilogue.buffers if b.name == epilogue.out)
            out_type = TensorType(kept.dtype, node.type.size, epilogue.out_stride, kept.device)
            spec = gemm_templates.Epilogue(
                epilogue.name, epilogue.text,
                tuple(gemm_templates.Param(name, kind) for name, kind in epilogue.operands),
                bytes_per_element=float(
                    sum(
                        b.type.dtype.itemsize
                        for b in node.epilogue.buffers
                        if not b.written and b.name != node.out and len(b.type.size) > 1
                    )
                ),
            )  # fmt: skip
        m_size, k_size = node.a.type.size
        n_size = node.b.type.size[1]
        dims = {
            "M": m_size, "N": n_size, "K": k_size,
            "stride_am": node.a.type.stride[0], "stride_ak": node.a.type.stride[1],
            "stride_bk": node.b.type.stride[0], "stride_bn": node.b.type.stride[1],
            "stride_om": out_type.stride[0], "stride_on": out_type.stride[1],
            "stride_bias": node.bias.type.stride[0] if node.bias is not None else sympy.S.One,
        }  # fmt: skip
        if any(t.type.offset != 0 for t in (node.a, node.b)) or (
            node.bias is not None and node.bias.type.offset != 0
        ):
            raise gemm_templates.UnsupportedProblem("an operand that starts inside its buffer")
        at = {name: int(evaluate(e, hints)) for name, e in dims.items()}
        tf32 = torch.backends.cuda.matmul.allow_tf32 and node.type.device.kind == "cuda"
        problem = gemm_templates.Problem(
            at["M"], at["N"], at["K"],
            node.a.type.dtype.value, node.b.type.dtype.value, out_type.dtype.value,
            (at["stride_am"], at["stride_ak"]), (at["stride_bk"], at["stride_bn"]),
            (at["stride_om"], at["stride_on"]),
            node.bias.type.dtype.value if node.bias is not None else None, at["stride_bias"],
            spec,
            dynamic=frozenset(name for name, e in dims.items() if e.free_symbols),
            input_precision="tf32" if tf32 else "ieee",
        )  # fmt: skip
        return _Task(node, problem, epilogue, out_type, dims)

    def inputs(self, hints: Mapping[str, int]) -> gemm_templates.Inputs:
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

    def launch(self, config: gemm_templates.Config) -> LaunchPlan:
        """The template as a kernel of the host program."""
        node = self.node
        name = f"matmul_{node.out}"
        kernel = gemm_templates.source(self.problem, config, name)
        values: dict[str, str | sympy.Expr] = {"a": node.a.buffer, "b": node.b.buffer}
        values["out"] = self.epilogue.out if self.epilogue is not None else node.out
        if node.bias is not None:
            values["bias"] = node.bias.buffer
        if self.epilogue is not None:
            names = [p for p, _ in self.epilogue.operands]
            values.update(zip(names, self.epilogue.args, strict=True))
        values.update(self.dims)
        given = kernel.source
        params = tuple(KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in given.params)
        define = DefineKernel(
            name, given.text, params, given.constants, given.num_warps, given.num_stages
        )
        tiles = CeilDiv(self.dims["M"], config.block_m) * CeilDiv(self.dims["N"], config.block_n)
        one = sympy.S.One
        return LaunchPlan(define, (tiles, one, one), tuple(values[p.name] for p in given.params))
