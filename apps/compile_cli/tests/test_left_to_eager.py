"""Graphs that no kernel and no host program can say run as torch runs them, with a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.decorators import mark_unbacked

import compile_cli
from compile_cli.errors import BadInput
from compile_cli.torch_backend import _is_ours


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def rows(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.sin() * 2, x.sum(0), y.cumsum(0), x.t(), x.max(1).values


def written(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    x.mul_(2)
    x[:, 0] = 5
    y[:, 1:].sub_(1)
    return x.sum(1), y[:, 1]


def test_numbers_written_as_booleans() -> None:
    """Functional graphs copy the view: the bytes beside what is written became 0 and 1."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y.view(torch.bool)[0, 1:3] = True
        x.view(torch.bool).scatter_(1, torch.zeros(2, 1, dtype=torch.int64), value=0.5)
        return y.view(torch.int32) + 1

    ours, eager = (torch.tensor([[1.25, 3.5], [-2.0, 7.1]]) for _ in range(2))
    compiled = torch.compile(f, backend="compile_cli")
    with pytest.warns(UserWarning, match="become 0 and 1"):
        assert torch.equal(compiled(ours), f(eager)) and torch.equal(ours, eager)
    with pytest.raises(BadInput, match="become 0 and 1"):
        compile_cli.compile(f, (ours,))


@pytest.mark.parametrize(("f", "grad"), [(rows, False), (rows, True), (written, False)])
def test_sizes_without_a_hint(f: Callable[..., Any], grad: bool) -> None:
    """Compiled, but for what torch cannot differentiate without one."""

    def given(n: int) -> list[Tensor]:
        made = [torch.arange(3.0 * n).reshape(n, 3), -torch.arange(3.0 * n).reshape(n, 3)]
        return [made[0], made[1].requires_grad_(grad)]

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True)
    left = pytest.warns(UserWarning, match=r"leaves a graph to eager: .*u\d ")
    with left if grad else nullcontext():
        for n in (5, 1, 9):
            ours, eager = given(n), given(n)
            for x in ours:
                mark_unbacked(x, 0)
            got, want = compiled(*ours), f(*eager)
            torch.testing.assert_close((got, ours), (want, eager))
            if ours[1].requires_grad:
                got[2].square().sum().backward()
                want[2].square().sum().backward()
                torch.testing.assert_close(ours[1].grad, eager[1].grad)


def test_results_whose_size_is_data() -> None:
    def f(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x.narrow(0, 0, n.item()).sum(0) + 1, torch.ones(n.item(), 3) * 2  # type: ignore[arg-type]  # an integer

    x = torch.arange(15.0).reshape(5, 3)
    compiled = torch.compile(f, backend="compile_cli", fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for n in map(torch.tensor, (3, 5, 1, 0)):
            torch.testing.assert_close(compiled(x, n), f(x, n))


def beside(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.as_strided((4, 1), (1, 1), 1) * 1


def behind(x: Tensor) -> Tensor:
    x[0, 0] = 9.0
    return x.as_strided((6,), (1,), 0) + 1


CASES = pytest.mark.parametrize(
    ("f", "part"),
    [(beside, lambda x: x[..., :1]), (behind, lambda x: x[1:]), (behind, lambda x: x[:1])],
)


@CASES
def test_views_of_what_lies_beside_a_written_input(f: Any, part: Any) -> None:
    """The values that are written are a tensor of their own in a functional graph: what lies
    between and behind them was what its memory held."""
    ours, eager = (torch.arange(6.0).reshape(3, 2) for _ in range(2))
    with pytest.warns(UserWarning, match="as_strided of an input that is written"):
        got = torch.compile(f, backend="compile_cli")(part(ours))
    torch.testing.assert_close((got, ours), (f(part(eager)), eager))


@CASES
def test_they_are_refused_of_a_whole_program(f: Any, part: Any) -> None:
    with pytest.raises(BadInput, match="as_strided of an input that is written"):
        compile_cli.compile(f, (part(torch.arange(6.0).reshape(3, 2)),))


def test_views_of_all_that_is_written() -> None:
    def f(x: Tensor) -> Tensor:
        x.mul_(2)
        return x.as_strided((2, 2), (1, 2), 1) + x.as_strided(x.shape, x.stride())[:2]

    ours, eager = (torch.arange(6.0).reshape(3, 2) for _ in range(2))
    got = compile_cli.compile(f, (ours.clone(),))(ours)
    torch.testing.assert_close((got, ours), (f(eager), eager))


def test_an_error_of_code_without_a_module() -> None:
    """Torch runs generated code whose globals have no name; it is not ours."""
    try:
        exec("1 / 0", {})
    except ZeroDivisionError as error:
        assert not _is_ours(error)


def test_ragged_tensors() -> None:
    """Compiled: only their dimensions of several lengths have no size."""

    def f(x: Tensor) -> Tensor:
        return x.sin().softmax(-1) * 2

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True)
    for lengths in ((2, 4), (3, 1, 1)):
        rows = [torch.randn(n, 3) for n in lengths]
        x = torch.nested.nested_tensor(rows, layout=torch.jagged)
        torch.testing.assert_close(compiled(x).values(), f(x).values())
