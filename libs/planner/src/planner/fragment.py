"""Steps of a program as a function of tensors: what is timed is what is deployed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor

from fx_emit.torch_types import operator_of, torch_value
from loop_ir import Extern, TensorRef
from planner.kernels import Kernels
from planner.plan import Blocks, LaunchPlan, Steps, Zeroed
from planner.tensors import layout_at, random_tensor
from symexpr import evaluate
from wrapper_ir import TensorType

Tensors = dict[str, Any]


def runner(
    kernels: Kernels, steps: Steps, layouts: Mapping[str, TensorType], hints: Mapping[str, int]
) -> Callable[[Mapping[str, Any]], Tensors]:
    """A function of tensors by buffer, each from where its memory begins, that runs the steps on
    them, and gives all tensors there are then. What the steps write is their own memory, of these
    `layouts`, which begins as what was given; so is what is not given. All but the calls is done
    beforehand, or on the first run."""
    known = {**layouts, **dict(steps.allocate)}
    written = {name for step in steps.steps for name in _written(step)}
    own: Tensors = {}

    def memory(tensors: Tensors, name: str) -> Any:
        if name not in tensors:
            tensors[name] = own[name] = random_tensor(known[name], hints)
        return tensors[name]

    def value(arg: Any) -> Callable[[Tensors], Any]:
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

    def run(given: Mapping[str, Any]) -> Tensors:
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
