"""Writes to what the caller passes: where they go, how many kernels they take, what they touch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import compile_cli
from wrapper_ir.ops import Allocate, CopyBack, ExternCall, Launch


def run(
    fn: Callable[..., Any], *args: Tensor, dynamic: Any = None, **options: Any
) -> compile_cli.CompiledModel:
    """`fn`, compiled, after two calls that leave results and arguments as eager does."""
    compiled = compile_cli.compile(fn, copy.deepcopy(args), dynamic=dynamic or {}, options=options)
    given, wanted = copy.deepcopy(args), copy.deepcopy(args)
    for _ in range(2):
        got, want = compiled(*given), fn(*wanted)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(given, wanted)
    return compiled


def launches(compiled: compile_cli.CompiledModel) -> int:
    """How many kernels run; the program copies nothing and calls no operator."""
    ops = compiled.graph.program.ops
    assert not [o for o in ops if isinstance(o, CopyBack | ExternCall)], compiled.graph.program
    return sum(isinstance(o, Launch) for o in ops)


def buffers(compiled: compile_cli.CompiledModel) -> int:
    return sum(isinstance(o, Allocate) for o in compiled.graph.program.ops)


def ramp(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size) / 3


def added(x: Tensor) -> None:
    x.add_(1)


def added_and_read(x: Tensor) -> Any:
    y = x.exp()
    x.mul_(y).add_(1)
    return x * 2, y


def normalised(x: Tensor) -> None:
    x.copy_(x.softmax(-1))


def swapped(x: Tensor, y: Tensor) -> None:
    z = x.clone()
    x.copy_(y)
    y.copy_(z)


def columns(x: Tensor) -> Tensor:
    x.t().add_(x.t() * 2)
    return x.t() + 1


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize(
    ("fn", "args", "made"),
    [
        (added, (ramp(3, 4),), 0), (added_and_read, (ramp(3, 4),), 2),
        (normalised, (ramp(3, 4),), 0),
        (columns, (ramp(3, 4),), 1),
    ],
)  # fmt: skip
def test_one_kernel_reads_and_writes(fn: Any, args: Any, made: int, emit: str) -> None:
    compiled = run(fn, *args, emit=emit)
    assert (launches(compiled), buffers(compiled)) == (1, made)


def shifted(x: Tensor) -> None:
    x.copy_(x.roll(1, 0))


def folded(x: Tensor) -> None:
    x.add_(x.flip(1).exp())


def row_of_all(x: Tensor) -> Tensor:
    y = x.sum(0)
    x.mul_(y)
    return y


def transposed(x: Tensor) -> Tensor:
    y = x * 2
    x.copy_(y.t())
    return y


@pytest.mark.parametrize("fn", [shifted, folded, row_of_all, transposed])
def test_what_is_read_elsewhere_is_kept(fn: Any) -> None:
    run(fn, ramp(4, 4))


def test_each_takes_the_others_place() -> None:
    run(swapped, ramp(3, 4), -ramp(3, 4))


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_sizes_that_change(rows: int) -> None:
    compiled = run(added_and_read, ramp(3, 4), dynamic={0: {0}})
    given, wanted = ramp(rows, 4), ramp(rows, 4)
    torch.testing.assert_close(compiled(given), added_and_read(wanted))
    torch.testing.assert_close(given, wanted)
