"""What all operations share: decide once for each kind of arguments, then launch.

A call looks its arguments up by sizes, strides, types and alignment. What is not known is decided
by measurement, and where the number of rows keeps changing, once for all numbers of rows.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gemm_templates.choice import MARGIN, choose, disagreement, prefetch
from gemm_templates.device import device_info
from gemm_templates.errors import InvalidProblem, UnsupportedProblem
from gemm_templates.launch import Bound, Inputs, bind, default_build
from gemm_templates.measuring import measure
from gemm_templates.ops.kind import (
    EXTERN,
    PADDED,
    Decision,
    Kind,
    Options,
    Tensors,
    is_writable,
    new_result,
    signature,
)
from gemm_templates.ops.padded import on_lines
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.ranges import RangeChoice, choose_range
from gemm_templates.store import default_store

# Numbers of rows that are measured by themselves before a decision for all is taken.
DISTINCT = 3
# Of hints, up to 8192 or twice what was seen: 1, 8, 16, 32, ...
LADDER = (1, *(2**i for i in range(3, 32)))
TOP = 8192
ROOM = 2**28  # elements of the operands that are made to measure at numbers of rows not seen
# Multiply-adds below which a product is not worth measuring: the launch is the cost.
WORTH = 64 * 64 * 64
_MOST = 4096  # decisions of a process; all are dropped when there are more


def run(
    kind: Kind,
    tensors: Tensors,
    options: Options = (),
    out: Tensor | None = None,
    config: Config | None = None,
) -> Tensor:
    """The result; in `out` if that is given, which may share memory with what is read."""
    if out is not None:
        kind.check(tensors, options, out)
        if not is_writable(out, tensors):
            return out.copy_(run(kind, tensors, options, None, config))
    key = (
        kind.name, options, config, signature(out), torch._C._get_cublas_allow_tf32(),
        *[signature(t) for t in tensors],
    )  # fmt: skip
    decision = _decisions.get(key)
    if decision is None:
        decision = _decide(key, kind, tensors, options, out, config)
    if decision.bound is None:
        if decision.padded and kind.padded is not None:
            return kind.padded(tensors, options)
        return kind.extern(tensors, options, out)
    if out is None:
        out = new_result(kind, tensors, options)
    if decision.copied:
        tensors = _copied(kind, tensors)
    if decision.ranged:
        decision.bound(kind.inputs(tensors, options, out), out.shape[0])
    else:
        decision.bound(kind.inputs(tensors, options, out))
    return out


_decisions: dict[tuple[Any, ...], Decision] = {}
_rows_seen: dict[tuple[Any, ...], set[int]] = {}
_ranges: dict[tuple[Any, ...], tuple[RangeChoice, dict[Config, Bound]]] = {}
_lock = threading.RLock()


def forget() -> None:
    """Drops what this process has decided; the store on disk stays."""
    with _lock:
        for memory in (_decisions, _rows_seen, _ranges):
            memory.clear()


def _decide(
    key: tuple[Any, ...],
    kind: Kind,
    tensors: Tensors,
    options: Options,
    out: Tensor | None,
    config: Config | None,
) -> Decision:
    kind.check(tensors, options, out)
    device = next(t.device for t in tensors if t is not None)
    cuda = device.type == "cuda"
    if config is None and cuda and torch.cuda.is_current_stream_capturing():
        return EXTERN  # nothing can be measured; decided by the first call outside
    with _lock:
        if (known := _decisions.get(key)) is not None:
            return known
        if len(_decisions) >= _MOST:
            forget()
        decision = _decisions[key] = _decided(kind, tensors, options, out, config, device)
        return decision


def _decided(
    kind: Kind,
    tensors: Tensors,
    options: Options,
    out: Tensor | None,
    config: Config | None,
    device: torch.device,
    planned: bool = False,
) -> Decision:
    """planned: decide for the CPU as for a GPU."""
    if config is None and device.type != "cuda" and not planned:
        return EXTERN
    target = new_result(kind, tensors, options) if out is None else out
    if target.numel() == 0:
        return EXTERN
    try:
        problem = kind.problem(tensors, options, target)
    except (InvalidProblem, UnsupportedProblem):
        if config is not None:
            raise
        return EXTERN
    if problem is None:
        if config is not None:
            raise UnsupportedProblem(
                f"{kind.name}: no template for {[signature(t) for t in tensors]}"
            )
        return EXTERN
    if config is not None:
        return Decision(bind(problem, config))
    if problem.flops < 2 * WORTH:
        return EXTERN
    if out is None and (ranged := _by_range(kind, problem, tensors, options)) is not None:
        return ranged
    # A scratch output: what the caller gave is written once, by the winner.
    scratch = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device=device)
    tries_copies = is_odd(problem) and not torch.are_deterministic_algorithms_enabled()
    copies = _to_try(kind, tensors, out) if tries_copies else None
    if copies is not None:
        # Both decisions' kernels are compiled side by side.
        aligned = kind.problem(copies, options, scratch)
        if aligned is not None:
            prefetch([aligned], store=default_store(), device=device, **default_build().keywords)
    choice = choose(
        problem, kind.inputs(tensors, options, scratch),
        lambda _: kind.extern(tensors, options, None),
        device=device, store=default_store(), build=default_build(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip
    found = EXTERN
    if (chosen := choice.from_python()) is not None:
        found = Decision(default_build()(problem, chosen))
    if tries_copies:
        best = min(dict(choice.times).values(), default=float("inf"))
        return _by_copies(kind, tensors, copies, options, out, scratch, best) or found
    return found


def _to_try(kind: Kind, tensors: Tensors, out: Tensor | None) -> Tensors | None:
    """The tensors with copies of the operands, if templates are to be tried on these."""
    given = [tensors[i] for i in kind.operands]
    # A scratch output, in whose place `out` comes, is aligned.
    aligned = out is None or out.data_ptr() % 16 == 0
    if aligned and given and all(t is not None and t.dim() == 2 for t in given):
        return _copied(kind, tensors)
    return None


def _by_copies(
    kind: Kind, tensors: Tensors, copies: Tensors | None, options: Options, out: Tensor | None,
    scratch: Tensor, best: float,
) -> Decision | None:  # fmt: skip
    """The fastest way on copies of the operands, if that is faster than torch's, and than `best`
    seconds; else None. copies: as `_to_try` made them."""
    ways: list[tuple[Decision, Callable[[], Tensor]]] = []
    if kind.padded is not None and out is None:
        pad = kind.padded
        ways.append((PADDED, lambda: pad(tensors, options)))
    if copies is not None:
        inner = _decided(kind, copies, options, scratch, None, scratch.device, True)
        bound = inner.bound
        if bound is not None:

            def template() -> Tensor:
                bound(kind.inputs(_copied(kind, tensors), options, scratch))
                return scratch

            ways.append((replace(inner, copied=True), template))
    if not ways:
        return None
    vendor = kind.extern(tensors, options, None)
    runs = [lambda: kind.extern(tensors, options, None), *(way for _, way in ways)]
    limit, *seconds = measure(runs, device_info(scratch.device))
    for time, (decision, way) in sorted(zip(seconds, ways, strict=True), key=lambda item: item[0]):
        if time >= (1 - MARGIN) * min(limit, best):
            break
        wrong = disagreement(way(), vendor)
        if not wrong:
            return decision
        warnings.warn(f"{kind.name} on copies: {wrong}; not used", stacklevel=2)
    return None


def _copied(kind: Kind, tensors: Tensors) -> Tensors:
    """The tensors, with copies of operands whose rows no descriptor can address."""
    copies = on_lines(*[t for i in kind.operands if (t := tensors[i]) is not None])
    found = dict(zip(kind.operands, copies, strict=True))
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


def _by_range(kind: Kind, problem: Problem, tensors: Tensors, options: Options) -> Decision | None:
    """The decision for this number of rows by that for all, once enough were seen."""
    if not kind.rows:
        return None
    for tensor in _of_rows(kind, tensors).values():
        if tensor.shape[0] > 1 and tensor.stride(0) < tensor.shape[1]:
            return None  # rows that are not apart: a stride that changes with M, or overlaps
    family = replace(problem, m=1, dynamic=frozenset({"M"}))
    key = (family, options, next(t.device for t in tensors if t is not None))
    seen = _rows_seen.setdefault(key, set())
    if problem.m not in seen and len(seen) < DISTINCT:
        seen.add(problem.m)
        return None
    if key not in _ranges and problem.m in seen:
        return None
    if key not in _ranges or problem.m > 2 * _ranges[key][0].hints[-1]:
        _ranges[key] = (_measure_range(kind, problem, tensors, options), {})
    choice, bounds = _ranges[key]
    config = choice.config(problem.m)
    if config is None:
        return EXTERN
    if config not in bounds:
        bounds[config] = default_build()(choice.problem, config)
    return Decision(bounds[config], ranged=True)


def _measure_range(kind: Kind, problem: Problem, tensors: Tensors, options: Options) -> RangeChoice:
    top = next(m for m in LADDER if m >= max(TOP, problem.m))
    room = ROOM // (problem.n + problem.k)
    hints = [m for m in LADDER if m <= top and (m <= problem.m or m <= room)]
    device = next(t.device for t in tensors if t is not None)
    resized = _of_rows(kind, tensors)
    if len(resized) > 1:
        hints.remove(1)  # a single row of a second operand is taken for a row that all share

    @lru_cache(maxsize=1)
    def given(m: int) -> tuple[Tensors, Inputs]:
        sized = tuple(
            _with_rows(resized[i], m) if i in resized else t for i, t in enumerate(tensors)
        )
        return sized, kind.inputs(sized, options, new_result(kind, sized, options))

    def extern(inputs: Inputs) -> Tensor:
        return kind.extern(given(inputs.a.shape[0])[0], options, None)

    return choose_range(
        replace(problem, dynamic=frozenset({"M"})), hints, lambda m: given(m)[1], extern,
        device=device, store=default_store(), build=default_build(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )  # fmt: skip


def _of_rows(kind: Kind, tensors: Tensors) -> dict[int, Tensor]:
    """The tensors that have M rows: the first of `kind.rows`, and of the others those that are not
    broadcast."""
    found: dict[int, Tensor] = {}
    for i in kind.rows:
        tensor = tensors[i]
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
