"""What is done to the inputs of a host program before it takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Any

import torch

from wrapper_ir import ExternCall, Program, Ref

ALIGNED = "compile_cli.aligned"

Runner = Callable[..., Sequence[Any]]
LazyInput = tuple[int, bool, bool]
"""The position of an input, and whether it was conjugated and negated when it was captured."""


def boxed(run: Runner) -> Callable[[list[Any]], Sequence[Any]]:
    """`run` as a function of a list, which it empties. Where `run` has one of its own
    (`fx_emit.Run`) the memory of an argument lives no longer than the program needs it."""
    own: Callable[[list[Any]], Sequence[Any]] | None = getattr(run, "boxed", None)
    if own is not None:
        return own

    def emptied(args: list[Any]) -> Sequence[Any]:
        given = tuple(args)
        args.clear()
        return run(*given)

    return emptied


class Prepared:
    """`run`, of arguments in which `step` replaced some."""

    def __init__(self, run: Runner, step: Callable[[list[Any]], None]) -> None:
        self._run = boxed(run)
        self._step = step

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self.boxed(list(args))

    def boxed(self, args: list[Any]) -> Sequence[Any]:
        """The results for a list, which is emptied."""
        self._step(args)
        return self._run(args)


def aligned(x: torch.Tensor) -> torch.Tensor:
    """`x`, or a copy where its first element does not lie at a multiple of 16 bytes."""
    return x if x.data_ptr() % 16 == 0 else _copied(x)


def _copied(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


def align_inputs(program: Program, names: Set[str]) -> Program:
    """A subgraph that looks at these inputs itself, which `aligned_run` does for a program."""
    copied = [p for p in program.params if p.name in names]
    calls = [
        ExternCall(ALIGNED, (Ref(f"{p.name}_given"),), outs=((p.name, p.type),))
        for p in copied
        if p.type is not None
    ]
    params = tuple(replace(p, name=f"{p.name}_given") if p in copied else p for p in program.params)
    return replace(program, params=params, ops=(*calls, *program.ops))


def aligned_run(run: Runner, positions: Sequence[int]) -> Runner:
    """`run`, with a copy in place of each argument at `positions` (which are only read) whose
    first element does not lie at a multiple of 16 bytes: tensor maps take no other address."""

    def align(args: list[Any]) -> None:
        for i in positions:
            args[i] = aligned(args[i])

    return Prepared(run, align) if positions else run


def owned_run(run: Runner, positions: Sequence[int]) -> Runner:
    """`run`, which writes to the arguments at `positions`, with a copy in place of each that any
    other holds, or whose memory another tensor has, or none of torch's: the user's hooks (which
    may give a view of what numpy holds), a graph that is retained."""

    if not positions:
        return run
    from compile_cli.torch_compat import memory_holders  # slow to import, and only needed here

    def holders(args: list[Any], i: int) -> tuple[int, ...]:
        """How often a tensor, and its memory, are held, this function included, and whether that
        is torch's own, as only memory that can be resized is."""
        tensor = args[i]
        own = tensor.untyped_storage().resizable()
        return sys.getrefcount(tensor), tensor._use_count(), memory_holders(tensor), own

    alone = holders([torch.empty(1)], 0)

    def own(args: list[Any]) -> None:
        for i in positions:
            if holders(args, i) != alone:
                args[i] = _copied(args[i])

    return Prepared(run, own)


def in_memory_run(run: Runner, lazy: Sequence[LazyInput]) -> Runner:
    """`run`, with the memory in place of each argument that is lazy, or was when captured, or may
    be: gradients, of which more is to be seen to (`Backward`)."""
    if not lazy:
        return run
    from aten_lowering import lazy_memory  # not needed to run most programs, and slow to import

    def resolve(args: list[Any]) -> None:
        for i, conj, neg in lazy:
            tensor = args[i]
            if conj or neg or tensor.is_conj() or tensor.is_neg():
                args[i] = lazy_memory(tensor, conj, neg)

    return backward_run(Prepared(run, resolve), lazy)


def backward_run(run: Runner, lazy: Sequence[LazyInput]) -> Runner:
    """`run`, of which some of these inputs may be gradients: those that nothing is known of."""
    tangents = [i for i, conj, neg in lazy if not (conj or neg)]
    if not tangents:
        return run
    from compile_cli.hosts.gradients import Backward  # slow to import, as torch's internals are

    return Backward(boxed(run), tangents)
