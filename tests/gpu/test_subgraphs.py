"""Higher-order operators on a GPU: their subgraphs with every emitter, sizes fixed and free, and
their gradients, against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from subgraph_cases import CASES, DIFFERENTIABLE, gradients, launched, shared
from torch._higher_order_ops.associative_scan import associative_scan

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("error:compile_cli leaves"),
]


@pytest.mark.parametrize(
    ("emit", "dynamic"), [("fx", False), ("fx", True), ("hop", True), ("cpp", False)]
)
@pytest.mark.parametrize("case", [*CASES, launched, shared])
def test_every_emitter(
    case: Callable[..., Any], emit: str, dynamic: bool, options: dict[str, Any]
) -> None:
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=dynamic,
        options={**options, "emit": emit},
    )  # fmt: skip
    for size in (6, 300) if dynamic else (70,):
        for sign in (1, -1):
            x = sign * torch.rand(size, size, device="cuda")
            w = torch.randn(size, size, device="cuda") / size**0.5  # no chaos in recurrences
            torch.testing.assert_close(run(x.clone(), w), case(x.clone(), w), rtol=1e-4, atol=1e-4)


def running(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Of a known function; and of a recurrence, backwards along rows."""

    def recurrence(p: Any, q: Any) -> Any:
        return p[0] * q[0], p[1] * q[0] + q[1]

    total = associative_scan(lambda a, b: a + b, x, 0)
    return total, associative_scan(recurrence, (x.sigmoid(), w), 1, reverse=True)[1] * 2


def in_turn(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, h = x.sigmoid(), [w[:, -1]]
    for i in reversed(range(x.shape[1] - 1)):
        h.append(h[-1] * a[:, i] + w[:, i])
    return x.cumsum(0), torch.stack(h[::-1], 1) * 2


@pytest.mark.parametrize(
    ("emit", "dynamic"), [("fx", False), ("fx", True), ("hop", False), ("cpp", False)]
)
def test_associative_scans(emit: str, dynamic: bool, options: dict[str, Any]) -> None:
    run = torch.compile(
        running, backend="compile_cli", fullgraph=True, dynamic=dynamic,
        options={**options, "emit": emit},
    )  # fmt: skip
    for size in (6, 300) if dynamic else (70 if emit == "fx" else 20,):
        x, w = torch.randn(size, size, device="cuda"), torch.randn(size, size, device="cuda")
        torch.testing.assert_close(run(x, w), in_turn(x, w), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", DIFFERENTIABLE)
def test_gradients(case: Callable[..., Any], dynamic: bool, options: dict[str, Any]) -> None:
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=dynamic, options=options
    )
    for size in (6, 40) if dynamic else (40,):
        for sign in (1, -1):
            x = (sign * torch.rand(size, size, device="cuda")).requires_grad_()
            w = torch.randn(size, size, device="cuda").div_(size**0.5).requires_grad_()
            want, got = (gradients(fn(x, w), (x, w)) for fn in (case, run))
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
