# mypy: disable-error-code="no-any-return"
"""What all operations share: decide once for each kind of arguments, then launch.

A call looks its arguments up by sizes, strides, types and alignment. What is not known is decided
by measurement, and where the number of rows keeps changing, once for all numbers of rows."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gemm_templates.choice import choose, disagreement, prefetch
from gemm_templates.device import device_info
from gemm_templates.errors import InvalidProblem, UnsupportedProblem
from gemm_templates.launch import Bound, Inputs, default_build
from gemm_templates.ops import operation as operations
from gemm_templates.ops.padded import on_lines
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.ranges import RangeChoice, choose_range
from gemm_templates.store import default_store
from tuning import MARGINS, added_seconds

# Numbers of rows that are measured by themselves before a decision for all is taken.
DISTINCT = 3
# Of hints, up to 8192 or twice what was seen: 1, 8, 16, 32, ...
LADDER = (1, *(2**i for i in range(3, 32)))
TOP = 8192
ROOM = 2**28  # elements of the operands that are made to measure at numbers of rows not seen
_MOST = 4096  # decisions of a process; all are dropped when there are more


def run(
    operation: operations.Operation,
    tensors: operations.Tensors,
    options: operations.Options = (),
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """The result; in `out` if that is given, which may share memory with what is read."""
    if out is not None:
        operation.check(tensors, options, out)
        if not operations.is_writable(out, tensors):
            return out.copy_(run(operation, tensors, options, None, config))
    precision = torch._C._get_fp32_precision_getter("cuda", "matmul")
    read = [operations.signature(t) for t in tensors]
    key = (operation.name, options, config, operations.signature(out), precision, *read)
    decision = _decisions.get(key)
    if decision is None:
        decision = _decide(key, Call(operation, tensors, options, out), config)
    if decision.bound is None:
        if decision.padded and operation.padded is not None:
            return operation.padded(tensors, options)
        return operation.extern(tensors, options, out)
    if out is None:
        out = operation.result(tensors, options)
    if decision.copied:
        tensors = _copied(operation, tensors)
    if decision.ranged:
        decision.bound(operation.inputs(tensors, options, out), out.shape[0])
    else:
        decision.bound(operation.inputs(tensors, options, out))
    return out


_decisions: dict[tuple[Any, ...], operations.Decision] = {}
_rows_seen: dict[tuple[Any, ...], set[int]] = {}
_ranges: dict[tuple[Any, ...], tuple[RangeChoice, dict[Config, Bound]]] = {}
_lock = threading.RLock()


def forget() -> None:
    """Drops what this process has decided; the store on disk stays."""
    with _lock:
        for memory in (_decisions, _rows_seen, _ranges):
            memory.clear()


@dataclass(frozen=True)
class Call:
    """An operation with its arguments, to be decided."""

    operation: operations.Operation
    tensors: operations.Tensors
    options: operations.Options = ()
    out: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(t.device for t in self.tensors if t is not None)

    def new_result(self) -> Tensor:
        """A tensor to be written."""
        return self.operation.result(self.tensors, self.options)

    def problem(self, out: Tensor) -> Problem | None:
        """What the templates would compute, into `out`."""
        return self.operation.problem(self.tensors, self.options, out)

    def inputs(self, out: Tensor) -> Inputs:
        """The tensors as a template takes them."""
        return self.operation.inputs(self.tensors, self.options, out)

    def extern(self, _: object = None) -> Tensor:
        """torch's result, in a tensor of its own."""
        return self.operation.extern(self.tensors, self.options, None)

    def copied(self) -> Call:
        """The same on copies of operands whose rows no descriptor can address."""
        return replace(self, tensors=_copied(self.operation, self.tensors))


def _decide(key: tuple[Any, ...], call: Call, config: Config | None) -> operations.Decision:
    call.operation.check(call.tensors, call.options, call.out)
    cuda = call.device.type == "cuda"
    if config is None and cuda and torch.cuda.is_current_stream_capturing():
        return operations.EXTERN  # nothing can be measured; decided by the first call outside
    with _lock:
        if (known := _decisions.get(key)) is not None:
            return known
        if len(_decisions) >= _MOST:
            forget()
        decision = _decisions[key] = decided(call, config)
        return decision


def decided(call: Call, config: Config | None = None, planned: bool = False) -> operations.Decision:
    """What to run. A config given is taken: raises UnsupportedProblem where no template computes
    this. planned: decide for the CPU as for a GPU."""
    if config is None and call.device.type != "cuda" and not planned:
        return operations.EXTERN
    target = call.new_result() if call.out is None else call.out
    if target.numel() == 0:
        return operations.EXTERN
    try:
        problem = call.problem(target)
    except (InvalidProblem, UnsupportedProblem):
        if config is not None:
            raise
        return operations.EXTERN
    if config is not None:
        if problem is None:
            shown = [operations.signature(t) for t in call.tensors]
            raise UnsupportedProblem(f"{call.operation.name}: no template for {shown}")
        return operations.Decision(default_build()(problem, config))
    if problem is None or problem.flops < call.operation.worth:
        return operations.EXTERN
    if call.out is None and (ranged := _by_range(call, problem)) is not None:
        return ranged
    # A scratch output: what the caller gave is written once, by the winner.
    shape, stride = target.shape, target.stride()
    scratch = torch.empty_strided(shape, stride, dtype=target.dtype, device=call.device)
    tries_copies = is_odd(problem) and not torch.are_deterministic_algorithms_enabled()
    copies = _to_try(call) if tries_copies else None
    if copies is not None:
        # Both decisions' kernels are compiled side by side.
        aligned = copies.problem(scratch)
        if aligned is not None:
            build = default_build().keywords
            prefetch([aligned], store=default_store(), device=call.device, **build)
    examples = call.operation.examples
    measured = call if examples is None else replace(call, tensors=examples(call.tensors))
    choice = choose(
        problem,
        measured.inputs(scratch),
        measured.extern,
        device=call.device,
        store=default_store(),
        build=default_build(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )
    found = operations.EXTERN
    if (chosen := choice.from_python()) is not None:
        found = operations.Decision(default_build()(problem, chosen))
    if tries_copies:
        best = min(dict(choice.times).values(), default=float("inf"))
        return _by_copies(call, copies, scratch, best) or found
    return found


def _to_try(call: Call) -> Call | None:
    """On copies of the operands, if templates are to be tried on these."""
    given = [call.tensors[i] for i in call.operation.operands]
    # A scratch output, in whose place `out` comes, is aligned.
    aligned = call.out is None or call.out.data_ptr() % 16 == 0
    if aligned and given and all(t is not None and t.dim() == 2 for t in given):
        return call.copied()
    return None


def _by_copies(
    call: Call, copies: Call | None, scratch: Tensor, best: float
) -> operations.Decision | None:
    """The fastest way on copies of the operands, if that is faster than torch's, and than `best`
    seconds; else None. copies: as `_to_try` made them."""
    ways: list[tuple[operations.Decision, Callable[[], Tensor]]] = []
    pad = call.operation.padded
    if pad is not None and call.out is None:
        ways.append((operations.PADDED, lambda: pad(call.tensors, call.options)))
    if copies is not None:
        inner = decided(replace(copies, out=scratch), planned=True)
        bound = inner.bound
        if bound is not None:

            def template() -> Tensor:
                bound(call.copied().inputs(scratch))
                return scratch

            ways.append((replace(inner, copied=True), template))
    if not ways:
        return None
    vendor = call.extern()
    runs = [call.extern, *(way for _, way in ways)]
    limit, *seconds = added_seconds(runs, device_info(scratch.device).l2_bytes)
    for time, (decision, way) in sorted(zip(seconds, ways, strict=True), key=lambda item: item[0]):
        if time >= (1 - MARGINS.vendor) * min(limit, best):
            break
        wrong = disagreement(way(), vendor)
        if not wrong:
            return decision
        warnings.warn(f"{call.operation.name} on copies: {wrong}; not used", stacklevel=2)
    return None


def _copied(operation: operations.Operation, tensors: operations.Tensors) -> operations.Tensors:
    """The tensors, with copies of operands whose rows no descriptor can address."""
    copies = on_lines(*[t for i in operation.operands if (t := tensors[i]) is not None])
    found = dict(zip(operation.operands, copies, strict=True))
    return tuple(found.get(i, t) for i, t in enumerate(tensors))


def is_odd(problem: Problem) -> bool:
    """A large product of 16-bit operands with rows at odd places: the vendor's kernels for those
    take several times as long as a copy and an aligned product."""
    d = problem.dims()
    leads = (max(d["stride_am"], d["stride_ak"]), max(d["stride_bk"], d["stride_bn"]))
    return (
        ITEMSIZE[problem.a_dtype] == 2
        and min(problem.m, problem.n, problem.k) >= 256
        and any(lead % 2 for lead in leads)
    )


def _by_range(call: Call, problem: Problem) -> operations.Decision | None:
    """The decision for this number of rows by that for all, once enough were seen."""
    if not call.operation.rows:
        return None
    for tensor in _of_rows(call).values():
        if tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]:
            return None  # rows that are not apart: a stride that changes with M, or overlaps
    family = replace(problem, m=1, dynamic=frozenset({"M"}))
    key = (family, call.options, call.device)
    seen = _rows_seen.setdefault(key, set())
    if problem.m not in seen and len(seen) < DISTINCT:
        seen.add(problem.m)
        return None
    if key not in _ranges and problem.m in seen:
        return None
    if key not in _ranges or problem.m > 2 * _ranges[key][0].hints[-1]:
        _ranges[key] = (_measure_range(call, problem), {})
    choice, bounds = _ranges[key]
    config = choice.config(problem.m)
    if config is None:
        return operations.EXTERN
    if config not in bounds:
        bounds[config] = default_build()(choice.problem, config)
    return operations.Decision(bounds[config], ranged=True)


def _measure_range(call: Call, problem: Problem) -> RangeChoice:
    top = next(m for m in LADDER if m >= max(TOP, problem.m))
    room = ROOM // (problem.n + problem.k)
    hints = [m for m in LADDER if m <= top and (m <= problem.m or m <= room)]
    resized = _of_rows(call)
    if len(resized) > 1:
        hints.remove(1)  # a single row of a second operand is taken for a row that all share

    @lru_cache(maxsize=1)
    def given(m: int) -> tuple[Call, Inputs]:
        tensors = [
            _with_rows(resized[i], m) if i in resized else t for i, t in enumerate(call.tensors)
        ]
        sized = replace(call, tensors=tuple(tensors))
        return sized, sized.inputs(sized.new_result())

    return choose_range(
        replace(problem, dynamic=frozenset({"M"})),
        hints,
        lambda m: given(m)[1],
        lambda inputs: given(inputs.a.shape[0])[0].extern(),
        device=call.device,
        store=default_store(),
        build=default_build(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def _of_rows(call: Call) -> dict[int, Tensor]:
    """The tensors that have M rows: the first of `rows`, and of the others those that are not
    broadcast."""
    found: dict[int, Tensor] = {}
    for i in call.operation.rows:
        tensor = call.tensors[i]
        if tensor is not None and (not found or (tensor.dim() == 2 and tensor.shape[0] > 1)):
            found[i] = tensor
    return found


def _with_rows(tensor: Tensor, m: int) -> Tensor:
    """Random values at the same row stride."""
    stride = tensor.stride()
    if tensor.shape[0] <= 1:
        stride = (tensor[0].numel() if tensor.shape[0] else 1, *stride[1:])
    shape = (m, *tensor.shape[1:])
    made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    return made.normal_()
