"""Whether branches of a program that run beside each other make it faster, by measurement.

two branches beside each other: 41.2 us in place of 58.0 -> two streams
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import gemm_templates
import wrapper_ir
from fx_emit import may_alias, operator_of
from planner.settings import Settings
from planner.tensors import random_tensor
from planner.torch_compat import unset_fake_temporarily
from tuning import MARGINS, added_seconds, time_ms
from wrapper_ir.analysis import walk
from wrapper_ir.memory import hint_env, peak_bytes

Run = Callable[..., object]
# The share of all that a call holds, arguments included, by which two streams may raise that, and
# bytes that are no more to torch's allocator, which takes as many at a time.
_MEMORY, _FEW = 0.05, 20 << 20
# Of each way to fill the cache: calls of whole programs are long.
_ROUNDS = 5
_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


@dataclass(frozen=True)
class Overlap:
    """Seconds of a call on one stream and on two, or why nothing was measured."""

    one: float = 0.0
    two: float = 0.0
    missing: str = ""

    @property
    def pays(self) -> bool:
        """Whether two streams are faster by more than noise."""
        return not self.missing and self.two < (1 - MARGINS.streams) * self.one

    def __str__(self) -> str:
        if self.missing:
            return f"branches: on one stream ({self.missing})"
        where = "two streams" if self.pays else "one stream"
        times = f"{self.two * 1e6:.1f} us in place of {self.one * 1e6:.1f}"
        return f"branches beside each other: {times} -> {where}"


def overlap(
    one: wrapper_ir.Program,
    two: wrapper_ir.Program,
    runs: Callable[[], Sequence[Run]],
    how: Settings,
    users: Iterable[wrapper_ir.DefineKernel] = (),
) -> Overlap:
    """Measures programs that do the same on numbers that are made up. runs: what calls each, asked
    for where times are not known. A call's time counts as a whole, or that of the GPU where CUDA
    graphs make calls; what programs do to anything but their arguments would be done here, and so
    would what the user's kernels, `users`, do with integers, which may be addresses."""
    if why := _why_not(one, two):
        return Overlap(missing=why)
    for define in users:
        pointers = (p.kind.removeprefix("*") for p in define.params if p.kind.startswith("*"))
        if any(wrapper_ir.DType(kind).is_int for kind in pointers):
            return Overlap(missing=f"{define.name} reads integers")
    if not torch.cuda.is_available() or torch.cuda.is_current_stream_capturing():
        return Overlap(missing="no GPU to measure on")
    if torch.are_deterministic_algorithms_enabled():
        return Overlap(missing="nothing is measured for deterministic algorithms")
    store = gemm_templates.Store(how.cache_path / "streams")
    with unset_fake_temporarily(), torch.no_grad():
        info = gemm_templates.device_info("cuda")
        where = f"{info.name} {torch.__version__} {how.emit} {how.cuda_graphs}"
        key = f"{wrapper_ir.print_program(two)}\n{where}"
        record = store.get(key)
        if record is None:
            hints = hint_env(one)
            types = [p.type for p in one.params if p.type is not None]
            if sum(t.storage_bytes(hints) for t in types) > torch.cuda.mem_get_info()[0] // 4:
                return Overlap(missing="no memory to measure with")
            try:
                args = [
                    hints[p.name] if p.type is None else random_tensor(p.type, hints, None, 1)
                    for p in one.params
                ]
                calls = [_call(run, args) for run in runs()]
                if how.cuda_graphs:
                    seconds = added_seconds(calls, info.l2_bytes, _ROUNDS)
                else:
                    device = torch.device("cuda")
                    pairs = [[time_ms(call, device) * 1e-3 for call in calls] for _ in range(3)]
                    seconds = [min(times) for times in zip(*pairs, strict=True)]
            except torch.OutOfMemoryError:
                return Overlap(missing="no memory to measure with")
            record = {"one": seconds[0], "two": seconds[1]}
            store.put(key, record)
    return Overlap(float(record["one"]), float(record["two"]))


def gives_alone(op: wrapper_ir.ExternCall) -> bool:
    """Whether a call does nothing but give tensors of its own, or fill those of `out=`: it waits
    for nothing, asserts nothing, and draws no random numbers, as attention without dropout does
    not."""
    if not op.target.startswith("aten.") or op.alias is not None or op.binds:
        return False
    called: Any = operator_of(op.target, {})
    arguments, named = called._schema.arguments, dict(op.kwargs)
    apart = "out" in named or not any(may_alias(called, i) for i in range(len(op.outs)))
    written = any(a.alias_info is not None and not a.is_out for a in arguments)
    if not called._schema.returns or not apart or written or not _WAITS.isdisjoint(called.tags):
        return False
    values = {a.name: named.get(a.name, a.default_value) for a in arguments}
    values |= {a.name: value for a, value in zip(arguments, op.args, strict=False)}
    return torch.Tag.nondeterministic_seeded not in called.tags or values.get("dropout_p") == 0


def _call(run: Run, args: Sequence[Any]) -> Callable[[], object]:
    return lambda: run(*args)


def _why_not(one: wrapper_ir.Program, two: wrapper_ir.Program) -> str:
    for op in walk(two.ops):
        if isinstance(op, wrapper_ir.CommAllocate):
            return "ranks decide alike"
        if isinstance(op, wrapper_ir.ExternCall) and not gives_alone(op):
            return f"{op.target} may do more than give a result"
    if not any(isinstance(op, wrapper_ir.StreamSwitch) for op in two.ops):
        return "none that are worth it"
    hints = hint_env(one)
    held = [p.type for p in one.params if p.type is not None]
    held += [op.type for op in one.ops if isinstance(op, wrapper_ir.Constant)]
    peak = peak_bytes(one)
    whole = peak + sum(t.storage_bytes(hints) for t in held)
    if peak_bytes(two) - peak > max(_MEMORY * whole, _FEW):
        return "more memory would be held"
    return ""
