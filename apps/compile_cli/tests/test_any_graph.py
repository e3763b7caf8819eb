"""Graphs that any compiler has to take: what cannot become a kernel stays a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import compile_cli


@pytest.fixture(autouse=True)
def fresh_dynamo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def check(f: Callable[..., Any], *args: Any, entry: str = "torch.compile") -> Any:
    """Calls `f` compiled twice, and compares results and what happens to the inputs with eager."""
    if entry == "torch.compile":
        compiled: Any = torch.compile(f, backend="compile_cli", fullgraph=True)
    else:
        compiled = compile_cli.compile(f, _fresh(args))
    for _ in range(2):
        given, expected = _fresh(args), _fresh(args)
        got, want = compiled(*given), f(*expected)
        torch.testing.assert_close(got, want, equal_nan=True)
        torch.testing.assert_close(given, expected, equal_nan=True)
    return compiled


def _fresh(args: Any) -> Any:
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), args
    )


def check_gradients(f: Callable[..., Tensor], *args: Tensor) -> None:
    """Compares the gradients of the sum of `f` with eager's."""
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    expected = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    torch.compile(f, backend="compile_cli", fullgraph=True)(*given).sum().backward()
    f(*expected).sum().backward()
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


ENTRIES = ["torch.compile", "compile"]


def constants(x: Tensor) -> tuple[Tensor, ...]:
    half, two = torch.tensor(0.5), torch.tensor(2)
    row = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return x * half + two, row * x, torch.where(torch.tensor(True), x, -x), torch.tensor(3)


def written_constants(x: Tensor) -> tuple[Tensor, ...]:
    half, row = torch.tensor(0.5), torch.tensor([1.0, 2.0, 3.0, 4.0])
    half.add_(1)
    row.add_(x[0])
    x.mul_(torch.tensor(3.0))
    return half * x, row * x


def masked(x: Tensor) -> tuple[Tensor, ...]:
    on = x > 0
    names = ("sum", "mean", "amax", "prod", "var", "softmax", "argmax")
    return tuple(getattr(torch.masked, name)(x, 1, mask=on) for name in names)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("f", [constants, written_constants, masked])
def test_scalar_constants(f: Callable[..., Any], entry: str) -> None:
    check(f, torch.randn(3, 4), entry=entry)


def test_gradients_through_scalar_constants() -> None:
    check_gradients(lambda x: constants(x)[0] * constants(x)[1], torch.randn(3, 4))
