"""The ways to run a matmul beside one template: the vendor's call, and kernels that make operands.

vendor's call                                ->    y = extern mm(x, w); launch epilogue (y, ...)
matmul y, prologue_b widen: w = bf16(q)*s    ->    w = alloc; launch widen (q, s, w); <y of x @ w>

Each is steps of a program, and a function that is measured."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import Tensor

import gemm_templates
from fx_emit.torch_types import operator_of, torch_value
from loop_ir import Extern, GraphArg, Kernel, Matmul, TensorRef
from planner.kernels import Kernels
from planner.matmul.problem import Hints, MatmulTask, produced
from planner.plan import Blocks, LaunchArg, LaunchPlan, Steps, define_kernel, plan_launch
from planner.schedules.candidates import usual_alignment
from planner.schedules.proposals import default_schedule
from planner.tensors import layout_at, random_tensor, view_of
from symexpr import evaluate
from triton_emit import emit

Run = Callable[[gemm_templates.Inputs], Tensor]


def vendor_steps(node: Matmul, hints: Hints, suffix: str, own: str) -> Steps:
    """The vendor's call as one of several choices, of operands that are made: it writes a buffer
    that they share; or one called `own`, and the epilogue's kernel that which they share."""
    if node.epilogue is None:
        target, args, kwargs = _into(node)
        kwargs = (*kwargs, ("out", TensorRef(node.out, node.type)))
        call = Extern(target, args, kwargs, (), False, (node.out,), origins=node.origins)
        return Steps((call,))
    outs = tuple(o and (own, o[1]) for o in node.extern.outs)
    call = replace(node.extern, outs=outs, origins=node.origins)
    schedule = default_schedule(node.epilogue, hints)
    kernel = replace(node.epilogue, name=f"{node.epilogue.name}{suffix}")
    launch = plan_launch(emit(kernel, schedule))
    renamed = tuple(own if a == node.out else a for a in launch.args)
    return Steps((call, replace(launch, args=renamed)))


def _into(node: Matmul) -> tuple[str, tuple[GraphArg, ...], tuple[tuple[str, GraphArg], ...]]:
    """The vendor's operator that writes into a given buffer, and its arguments but for that."""
    if node.scales is not None or node.type.dtype is not node.a.type.dtype:
        operator, _, overload = node.extern.target.rpartition(".")
        into = "out" if overload == "default" else f"{overload}_out"
        return f"{operator}.{into}", node.extern.args, node.extern.kwargs
    name = "mm" if len(node.type.size) == 2 else "bmm"
    if node.bias is None:
        return f"aten.{name}.out", (node.a, node.b), ()
    name = f"{'' if name == 'mm' else 'b'}add{name}"
    factors = (("beta", node.beta), ("alpha", node.alpha))
    return f"aten.{name}.out", (node.bias, node.a, node.b), factors


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
            named = {k: value(v) for k, v in node.extern.kwargs}
            prepared.append(([value(a) for a in node.extern.args], named))
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
    launch = _launcher(kernels, node.epilogue, hints)
    made = {b.name: random_tensor(b.type, hints) for b in node.epilogue.buffers if b.written}
    result = torch.as_strided(made[source.out], *layout_at(task.out_type, hints))
    began = set(made).intersection(map(str, source.args))

    def finish(out: Tensor, inputs: gemm_templates.Inputs) -> Tensor:
        given = dict(zip((str(a) for a in source.args), inputs.operands, strict=True))
        for name in began:  # what the epilogue updates is its own; later calls update it further
            made[name].copy_(given[name])
        began.clear()
        launch({node.out: out, **given, **made})
        return result

    return finish


def start_apart(kernels: Kernels, matmuls: Iterable[tuple[Matmul, Hints]]) -> None:
    """Begins to compile, where there is a GPU, what runs epilogues and prologues as kernels of
    their own: templates are held against that."""
    if not torch.cuda.is_available():
        return
    both = [
        (kernel, default_schedule(kernel, hints), hints)
        for node, hints in matmuls
        for kernel in (node.epilogue, *(kernel for _, kernel, _ in produced(node)))
        if kernel is not None
    ]
    different = {(kernel.name, schedule): (kernel, hints) for kernel, schedule, hints in both}
    for (_, schedule), (kernel, hints) in different.items():
        emitted = emit(kernel, schedule)
        kernels.start(define_kernel(emitted), usual_alignment(emitted, hints))


def _launcher(kernels: Kernels, kernel: Kernel, hints: Hints) -> Callable[[dict[str, Any]], None]:
    """A function of tensors by buffer that launches a kernel of its own on them: everything but the
    launch is done beforehand."""
    emitted = emit(kernel, default_schedule(kernel, hints))
    loaded = kernels.load(define_kernel(emitted))
    grid = tuple(int(evaluate(g, hints)) for g in emitted.grid)
    args = [a if isinstance(a, str) else int(evaluate(a, hints)) for a in emitted.args]

    def launch(tensors: dict[str, Any]) -> None:
        loaded(grid, *(tensors[a] if isinstance(a, str) else a for a in args))

    return launch


# -- operands that kernels make


def with_producers(node: Matmul, steps: Steps, hints: Hints, suffix: str) -> Steps:
    """`steps`, which read the operands of `node`, after the launches that make these: in buffers of
    their own, since other choices make them, too."""
    names = {ref.buffer: f"{ref.buffer}{suffix}" for _, _, ref in produced(node)}
    launches: list[LaunchPlan] = []
    allocate = []
    for _, kernel, ref in produced(node):
        named = replace(kernel, name=f"{kernel.name}{suffix}")
        launches.append(plan_launch(emit(named, default_schedule(kernel, hints))))
        storage = next(b.type for b in kernel.buffers if b.name == ref.buffer)
        allocate.append((names[ref.buffer], storage))
    renamed = tuple(_renamed(step, names) for step in (*launches, *steps.steps))
    return Steps(renamed, (*allocate, *steps.allocate))


def _renamed(step: LaunchPlan | Extern, names: Mapping[str, str]) -> LaunchPlan | Extern:
    if isinstance(step, LaunchPlan):
        return replace(step, args=tuple(_argument(a, names) for a in step.args))
    args = tuple(_value(a, names) for a in step.args)
    return replace(step, args=args, kwargs=tuple((k, _value(v, names)) for k, v in step.kwargs))


def _argument(arg: LaunchArg, names: Mapping[str, str]) -> LaunchArg:
    if isinstance(arg, Blocks):
        return replace(arg, tensor=_reference(arg.tensor, names))
    if isinstance(arg, TensorRef):
        return _reference(arg, names)
    return names.get(arg, arg) if isinstance(arg, str) else arg


def _value(arg: GraphArg, names: Mapping[str, str]) -> GraphArg:
    if isinstance(arg, TensorRef):
        return _reference(arg, names)
    return tuple(_value(a, names) for a in arg) if isinstance(arg, tuple) else arg


def _reference(ref: TensorRef, names: Mapping[str, str]) -> TensorRef:
    return replace(ref, buffer=names.get(ref.buffer, ref.buffer))


def run_apart(
    kernels: Kernels, fused: MatmulTask, plain: MatmulTask, run: Run, hints: Hints
) -> Run:
    """A function of the fused task's inputs: each operand by a kernel of its own, then `run`, which
    takes the inputs of the plain task. Everything but the launches is done beforehand."""
    given = plain.inputs(hints, kernels.given)
    made: dict[str, Tensor] = {}
    operands: dict[str, Tensor] = {}
    launches = []
    for operand, kernel, ref in produced(fused.node):
        storage = next(b.type for b in kernel.buffers if b.name == ref.buffer)
        made[ref.buffer] = random_tensor(storage, hints)
        operands[operand] = view_of(made[ref.buffer], ref.type, hints)
        launches.append(_launcher(kernels, kernel, hints))

    def both(inputs: gemm_templates.Inputs) -> Tensor:
        known = fused.named(inputs) | made
        for launch in launches:
            launch(known)
        a, b = operands.get("a", inputs.a), operands.get("b", inputs.b)
        return run(replace(given, a=a, b=b, bias=inputs.bias, operands=inputs.operands))

    return both


# -- two products that one epilogue multiplies


def with_first(first: Matmul, made: Steps, used: Steps, suffix: str) -> Steps:
    """The steps of one matmul, and those of the other, which alone reads its result."""
    names = {first.out: f"{first.out}{suffix}"}
    steps = tuple(_renamed(step, names) for step in (*made.steps, *used.steps))
    return Steps(steps, ((names[first.out], first.type), *made.allocate, *used.allocate))


def run_pair(
    kernels: Kernels,
    first: MatmulTask,
    second: MatmulTask,
    gated: MatmulTask,
    runs: tuple[Run, Run],
    hints: Hints,
) -> Run:
    """A function of the gated task's inputs: both products, one after the other, the second with
    the epilogue that reads both."""
    alone, given = (t.inputs(hints, kernels.given) for t in (first, second))
    swapped = first.b == gated.b

    def both(inputs: gemm_templates.Inputs) -> Tensor:
        known = gated.named(inputs)
        b, b2 = (inputs.b, inputs.b2) if swapped else (inputs.b2, inputs.b)
        assert b is not None and b2 is not None and second.epilogue is not None
        known[first.node.out] = runs[0](replace(alone, a=inputs.a, b=b))
        pairs = zip(second.epilogue.args, given.operands, strict=True)
        operands = tuple(known.get(str(name), value) for name, value in pairs)
        return runs[1](replace(given, a=inputs.a, b=b2, operands=operands))

    return both


def run_halves(
    kernels: Kernels, whole: MatmulTask, reader: Kernel, gated: MatmulTask, run: Run, hints: Hints
) -> Run:
    """Likewise: the product whose halves these are, then the kernel that reads both."""
    given = whole.inputs(hints, kernels.given)
    launch = _launcher(kernels, reader, hints)
    made = {b.name: random_tensor(b.type, hints) for b in reader.buffers if b.written}
    (written,) = made.values()
    result = torch.as_strided(written, *layout_at(gated.out_type, hints))

    def both(inputs: gemm_templates.Inputs) -> Tensor:
        known = gated.named(inputs)
        matrix = view_of(known[whole.b.buffer], whole.b.type, hints)
        known[whole.node.out] = run(replace(given, a=inputs.a, b=matrix))
        launch(known | made)
        return result

    return both
