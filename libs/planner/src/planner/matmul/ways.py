"""The ways to run a matmul beside one template: the vendor's call, and kernels that make operands.

vendor's call                                ->    y = extern mm(x, w); launch epilogue (y, ...)
matmul y, prologue_b widen: w = bf16(q)*s    ->    w = alloc; launch widen (q, s, w); <y of x @ w>

Each is steps of a program, which are measured as they are deployed (`runner`)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor

from fx_emit.torch_types import operator_of, torch_value
from loop_ir import Extern, GraphArg, Kernel, Matmul, TensorRef, TensorType
from planner.kernels import Kernels
from planner.matmul.problem import Hints, produced
from planner.plan import Blocks, LaunchPlan, Steps, Zeroed, define_kernel, plan_launch
from planner.schedules.candidates import usual_alignment
from planner.schedules.proposals import default_schedule
from planner.tensors import layout_at, random_tensor
from symexpr import evaluate
from triton_emit import emit


def vendor_alone(node: Matmul, hints: Hints) -> Steps:
    """The vendor's call as the one choice, and then the epilogue as a kernel of its own: what would
    run if no template did."""
    kernels = [] if node.epilogue is None else [node.epilogue]
    launches = (plan_launch(emit(k, default_schedule(k, hints))) for k in kernels)
    return Steps((replace(node.extern, origins=node.origins), *launches))


def vendor_steps(node: Matmul, hints: Hints, suffix: str, own: str) -> Steps:
    """The vendor's call as one of several choices, of operands that are made: it writes a buffer
    that they share; or one called `own`, and the epilogue's kernel that which they share."""
    outs = tuple(o and (own, o[1]) for o in node.extern.outs)
    call = replace(node.extern, outs=outs, origins=node.origins)
    if node.epilogue is None:
        out = TensorRef(node.out, node.type)
        if node.groups is not None:  # no form of it writes into a buffer
            both = (out, TensorRef(own, node.type))
            return Steps(
                (call, Extern("aten.copy_.default", both, (), (None,), False, (node.out,)))
            )
        target, args, kwargs = _into(node)
        call = Extern(target, args, (*kwargs, ("out", out)), (), False, (node.out,))
        return Steps((replace(call, origins=node.origins),))
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


def in_turn(*several: Steps) -> Steps:
    """Steps of several, one after the other."""
    steps = (step for each in several for step in each.steps)
    return Steps(tuple(steps), tuple(made for each in several for made in each.allocate))


def layouts_of(*nodes: Matmul | Kernel) -> dict[str, TensorType]:
    """The layouts of what matmuls and kernels make and what their kernels take, by buffer."""
    both = [(n,) if isinstance(n, Kernel) else (*n.prologues, n.epilogue) for n in nodes]
    kernels = [kernel for each in both for kernel in each if kernel is not None]
    made = {node.out: node.type for node in nodes if isinstance(node, Matmul)}
    return made | {b.name: b.type for kernel in kernels for b in kernel.buffers}


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
    if isinstance(step, Extern):
        kwargs = tuple((k, _value(v, names)) for k, v in step.kwargs)
        return replace(step, args=tuple(_value(a, names) for a in step.args), kwargs=kwargs)
    args = (names.get(a, a) if isinstance(a, str) else _value(a, names) for a in step.args)
    return replace(step, args=tuple(args))


def _value(arg: Any, names: Mapping[str, str]) -> Any:
    if isinstance(arg, Blocks):
        return replace(arg, tensor=_value(arg.tensor, names))
    if isinstance(arg, TensorRef):
        return replace(arg, buffer=names.get(arg.buffer, arg.buffer))
    return tuple(_value(a, names) for a in arg) if isinstance(arg, tuple) else arg


# -- two products that one epilogue multiplies


def with_first(first: Matmul, made: Steps, used: Steps, suffix: str) -> Steps:
    """The steps of one matmul, and those of the other, which alone reads its result."""
    names = {first.out: f"{first.out}{suffix}"}
    steps = tuple(_renamed(step, names) for step in (*made.steps, *used.steps))
    return Steps(steps, ((names[first.out], first.type), *made.allocate, *used.allocate))


# -- steps as a function of tensors: what is timed is what is deployed


def runner(
    kernels: Kernels, steps: Steps, layouts: Mapping[str, TensorType], hints: Mapping[str, int]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function of tensors by buffer, each from where its memory begins, that runs the steps on
    them, and gives all tensors there are then. What the steps write is their own memory, of these
    `layouts`, which begins as what was given; so is what is not given. All but the calls is done
    beforehand, or on the first run."""
    known = {**layouts, **dict(steps.allocate)}
    written = {name for step in steps.steps for name in _written(step)}
    own: dict[str, Any] = {}

    def memory(tensors: dict[str, Any], name: str) -> Any:
        if name not in tensors:
            tensors[name] = own[name] = random_tensor(known[name], hints)
        return tensors[name]

    def value(arg: Any) -> Callable[[dict[str, Any]], Any]:
        """What gives an argument of a step."""
        if isinstance(arg, str):
            return lambda tensors: memory(tensors, arg)
        if isinstance(arg, TensorRef | Blocks):
            ref = arg.tensor if isinstance(arg, Blocks) else arg
            layout = *layout_at(ref.type, hints), int(evaluate(ref.type.offset, hints))
            size, one = (ref.type.offset + ref.type.extent,), (sympy.S.One,)
            whole = replace(ref.type, size=size, stride=one, offset=sympy.S.Zero)
            known.setdefault(ref.buffer, whole)
            return lambda tensors: torch.as_strided(memory(tensors, ref.buffer), *layout)
        if isinstance(arg, tuple):
            parts = [value(item) for item in arg]
            return lambda tensors: [part(tensors) for part in parts]
        if isinstance(arg, Zeroed):
            given: Any = random_tensor(arg.type, hints).zero_()
        else:
            given = int(evaluate(arg, hints)) if isinstance(arg, sympy.Expr) else torch_value(arg)
        return lambda _: given

    calls = []
    for step in steps.steps:
        call: Callable[..., Any]
        if isinstance(step, LaunchPlan):
            grid = tuple(int(evaluate(n, hints)) for n in step.grid)
            call, named, outs = partial(kernels.launcher(step.define), grid), {}, []
        else:
            call, named = operator_of(step.target, {}), {k: value(v) for k, v in step.kwargs}
            outs = [out[0] for out in step.outs if out is not None]
        calls.append((call, [value(a) for a in step.args], named, outs))

    def run(given: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {**given, **own}
        for name in written - own.keys():
            first = tensors.pop(name, None)
            begun = memory(tensors, name)
            if isinstance(first, Tensor):
                begun.copy_(first)
        for call, args, named, outs in calls:
            result = call(*(a(tensors) for a in args), **{k: v(tensors) for k, v in named.items()})
            tensors.update(dict.fromkeys(outs, result))
        return tensors

    return run


def _written(step: LaunchPlan | Extern) -> Iterator[str]:
    """The buffers that a step writes, but for what an operator makes."""
    if isinstance(step, Extern):
        yield from step.mutates
        return
    for param, arg in zip(step.define.params, step.args, strict=True):
        ref = arg.tensor if isinstance(arg, Blocks) else arg
        if param.mutated and isinstance(ref, str | TensorRef):
            yield ref if isinstance(ref, str) else ref.buffer
