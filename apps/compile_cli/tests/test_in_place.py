"""Writes to what the caller passes: where they go, how many kernels they take, what they touch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from aten_lowering import lower
from compile_cli.capture import FunctionModule, capture, export
from loop_ir import fuse
from loop_ir.ir import traffic, writes
from wrapper_ir import Allocate, CopyBack, ExternCall, Launch


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


WRITERS = {
    added: ((ramp(3, 4),), 0), added_and_read: ((ramp(3, 4),), 2),
    normalised: ((ramp(3, 4),), 0), columns: ((ramp(3, 4),), 1),
}  # fmt: skip
# The host programs of the others differ in their kernels alone.
HOSTS = (added_and_read, columns)


@pytest.mark.parametrize(
    ("fn", "args", "made", "emit"),
    [
        pytest.param(
            fn,
            *case,
            emit,
            marks=() if emit == "fx" or (fn in HOSTS and emit == "cpp") else pytest.mark.slow,
        )
        for fn, case in WRITERS.items()
        for emit in ("fx", "hop", "cpp")
    ],
)
def test_one_kernel_reads_and_writes(fn: Any, args: Any, made: int, emit: str) -> None:
    compiled = run(fn, *args, emit=emit)
    assert (launches(compiled), buffers(compiled)) == (1, made)


def shifted(x: Tensor) -> None:
    x.copy_(x.roll(1, 0))


def folded(x: Tensor) -> None:
    x.add_(x.flip(1).sin())


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


def test_sizes_that_change() -> None:
    compiled = run(added_and_read, ramp(3, 4), dynamic={0: {0}})
    for rows in (0, 1, 5):
        given, wanted = ramp(rows, 4), ramp(rows, 4)
        torch.testing.assert_close(compiled(given), added_and_read(wanted))
        torch.testing.assert_close(given, wanted)


def cache_rows(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache.index_copy_(1, at, new)
    return cache[:, :2] * 2


def cache_part(cache: Tensor, new: Tensor, at: Tensor) -> Tensor:
    cache[:, 2:4] = new * 2
    return cache.sum(1)


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
@pytest.mark.parametrize("fn", [cache_rows, cache_part])
def test_a_cache_is_changed_in_two_rows(fn: Any, emit: str) -> None:
    cache, new = ramp(2, 50, 3), -ramp(2, 2, 3)
    compiled = run(fn, cache, new, torch.tensor([7, 2]), emit=emit)
    assert (launches(compiled), buffers(compiled)) == (2, 1)
    graph = compiled.graph.fused
    (update,) = [n for n in graph.nodes if graph.inputs[0].name in writes(n)]
    assert traffic(update, {}).total <= 2 * new.nbytes + 2 * 8


def test_a_part_of_dynamic_size() -> None:
    def fn(cache: Tensor, new: Tensor) -> Tensor:
        cache[:, 1 : 1 + new.shape[1]] = new
        cache[0].add_(1)
        return new + 1

    compiled = run(fn, ramp(2, 9, 3), -ramp(2, 2, 3), dynamic={1: {1}})
    for rows in (0, 1, 4):
        given, wanted, new = ramp(2, 9, 3), ramp(2, 9, 3), ramp(2, rows, 3)
        torch.testing.assert_close(compiled(given, new), fn(wanted, new))
        torch.testing.assert_close(given, wanted)


def test_sums_of_16_bit_numbers_are_rounded_once() -> None:
    """Eager on the CPU gives 256: it adds ones to a number that they are too small for."""
    ids, ones = torch.zeros(300, dtype=torch.int64), torch.ones(300, 2, dtype=torch.bfloat16)
    compiled = compile_cli.compile(lambda x, i, v: x.index_add(0, i, v), (ones[:3], ids, ones))
    assert launches(compiled) == 1
    got = compiled(ones[:3], ids, ones)
    torch.testing.assert_close(got[:, 0], torch.tensor([301.0, 1.0, 1.0]).bfloat16())


@torch.library.custom_op("in_place_tests::add_to", mutates_args={"x"})
def add_to(x: Tensor, y: Tensor, k: float = 1.0) -> None:
    x.add_(y, alpha=k)


@torch.library.custom_op("in_place_tests::scale", mutates_args={"xs", "o"})
def scale(xs: list[Tensor], o: Tensor | None, k: int) -> Tensor:
    for x in xs:
        x.mul_(k)
    if o is not None:
        o.add_(1)
    return xs[0].sum(0)


@scale.register_fake
def _(xs: list[Tensor], o: Tensor | None, k: int) -> Tensor:
    return xs[0].new_empty(xs[0].shape[1:])


def custom_in_place(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    add_to(z[0], y)
    add_to(x[1:], y, 3.0)
    return z


def custom_lists(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    first = scale([z[:1], z[1:]], y, 3)
    return first, z


def custom_old_value(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    old = z.t()
    add_to(z, y)
    return old.sum(), z, x


def custom_old_row(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    w = z.clone()
    add_to(w, y)
    return z, w


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("entry", "emit"),  # Dynamo's program is emitted as the exported one is
    [
        ("export", "fx"), ("export", "cpp"), ("dynamo", "fx"),
        *(pytest.param(*case, marks=pytest.mark.slow)
          for case in (("export", "hop"), ("dynamo", "hop"), ("dynamo", "cpp"))),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    ("fn", "made"),  # of a list of views of one tensor, the older operator of torch wants a copy
    [(custom_in_place, 1), (custom_lists, 2), (custom_old_value, 2),
                     (custom_old_row, 2)],
)  # fmt: skip
def test_custom_operators_write_in_place(fn: Any, made: int, emit: str, entry: str) -> None:
    args = ramp(2, 3), ramp(3)
    if entry == "dynamo":
        torch._dynamo.reset()
        given, wanted = copy.deepcopy(args), copy.deepcopy(args)
        compiled = torch.compile(fn, backend="compile_cli", options={"emit": emit})
        torch.testing.assert_close(compiled(*given), fn(*wanted))
        torch.testing.assert_close(given, wanted)
        return
    program = run(fn, *args, emit=emit).graph.program
    calls = [o for o in program.ops if isinstance(o, ExternCall)]
    assert all(o.target.startswith("in_place_tests.") for o in calls)
    assert sum(isinstance(o, Allocate) for o in program.ops) == made


def test_running_statistics_are_written_by_the_kernel_that_has_them() -> None:
    """Three kernels for batch norm in training of long rows: partial sums, statistics, what uses
    them."""

    def fn(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, mean, var, w, b, True)

    channels = [torch.ones(64) for _ in range(4)]
    program = export(FunctionModule(fn), (torch.empty(64, 64, 112, 112), *channels), {})
    graph = fuse(lower(capture(program).graph))
    _, finish, apply = graph.nodes
    given = {i.name for i in graph.inputs}
    assert len(given.intersection(writes(finish))) == 2 and not given.intersection(writes(apply))


def test_each_of_many_alike_layers_counts_for_itself() -> None:
    layers = [layer for _ in range(8) for layer in (nn.Linear(4, 4), nn.BatchNorm1d(4))]
    model, x = nn.Sequential(*layers), torch.randn(6, 4)
    reference = copy.deepcopy(model)
    torch.compile(model, backend="compile_cli")(x).sum().backward()
    reference(x)
    torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))
