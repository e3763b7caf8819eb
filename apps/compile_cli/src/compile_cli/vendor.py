"""The vendor's call of a matmul, and its epilogue as a kernel of its own: in a program, and to be
measured against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy
from torch import Tensor

import gemm_templates
from compile_cli.gemm_task import Hints, MatmulTask
from compile_cli.plans import Steps
from compile_cli.producers import Run
from compile_cli.runtime import (
    Kernels,
    as_layout,
    define_kernel,
    layout_at,
    random_tensor,
    torch_value,
    view_of,
)
from compile_cli.schedules import default_schedule
from compile_cli.select import plan_launch
from fx_emit.torch_types import operator_of
from loop_ir import Extern, GraphArg, Matmul, TensorRef
from symexpr import evaluate
from triton_emit import emit


def vendor_steps(node: Matmul, hints: Hints, suffix: str, own: str) -> Steps:
    """The vendor's call as one of several choices, of operands that are made: it writes a buffer
    that they share; or one called `own`, and the epilogue's kernel that which they share."""
    if node.epilogue is None:
        out = TensorRef(node.out, node.type)
        name = "mm" if len(node.type.size) == 2 else "bmm"
        args: tuple[GraphArg, ...] = (node.a, node.b)
        factors: tuple[tuple[str, GraphArg], ...] = ()
        if node.bias is not None:
            name, args = f"{'' if name == 'mm' else 'b'}add{name}", (node.bias, *args)
            factors = (("beta", node.beta), ("alpha", node.alpha))
        call = Extern(
            f"aten.{name}.out", args, (*factors, ("out", out)), (), False, (node.out,),
            origins=node.origins,
        )  # fmt: skip
        return Steps((call,))
    outs = tuple(o and (own, o[1]) for o in node.extern.outs)
    call = replace(node.extern, outs=outs, origins=node.origins)
    schedule = default_schedule(node.epilogue, hints)
    kernel = replace(node.epilogue, name=f"{node.epilogue.name}{suffix}")
    launch = plan_launch(emit(kernel, schedule))
    renamed = tuple(own if a == node.out else a for a in launch.args)
    return Steps((call, replace(launch, args=renamed)))


def run_vendor(kernels: Kernels, task: MatmulTask, hints: Hints) -> Run:
    """The vendor's call and then the epilogue as a kernel of its own: what would run if the
    template did not. Everything but the two calls is done beforehand."""
    node = task.node
    operator = operator_of(node.extern.target, {})
    finish = _separate_epilogue(kernels, task, hints)

    def run(inputs: gemm_templates.Inputs) -> Tensor:
        given = task.named(inputs)

        def value(x: Any) -> Any:
            if isinstance(x, TensorRef):
                tensor = given.get(x.buffer)
                if tensor is None:  # what a factor of 0 ignores
                    return random_tensor(x.type, hints)
                return view_of(tensor, x.type, hints)
            if isinstance(x, tuple):
                return [value(item) for item in x]
            return int(evaluate(x, hints)) if isinstance(x, sympy.Expr) else torch_value(x)

        if not prepared:
            prepared.append(
                ([value(a) for a in node.extern.args],
                 {k: value(v) for k, v in node.extern.kwargs})
            )  # fmt: skip
        args, kwargs = prepared[0]
        out: Tensor = operator(*args, **kwargs)
        return finish(out, inputs)

    prepared: list[tuple[list[Any], dict[str, Any]]] = []
    return run


def _separate_epilogue(
    kernels: Kernels, task: MatmulTask, hints: Hints
) -> Callable[[Tensor, gemm_templates.Inputs], Tensor]:
    node, source = task.node, task.epilogue
    if node.epilogue is None or source is None:
        size, stride = layout_at(node.type, hints)
        return lambda out, _: out.as_strided(size, stride)
    emitted = emit(node.epilogue, default_schedule(node.epilogue, hints))
    kernel = kernels.load(define_kernel(emitted))
    grid = tuple(int(evaluate(g, hints)) for g in emitted.grid)
    made = {b.name: random_tensor(b.type, hints) for b in node.epilogue.buffers if b.written}
    sizes = [None if isinstance(a, str) else int(evaluate(a, hints)) for a in emitted.args]
    result = as_layout(made[source.out], task.out_type, hints)

    def finish(out: Tensor, inputs: gemm_templates.Inputs) -> Tensor:
        known: dict[str, Any] = {node.out: out, **made}
        known.update(zip((str(a) for a in source.args), inputs.operands, strict=True))
        args = [
            known[a] if isinstance(a, str) else size
            for a, size in zip(emitted.args, sizes, strict=True)
        ]
        kernel(grid, *args)
        return result

    return finish
