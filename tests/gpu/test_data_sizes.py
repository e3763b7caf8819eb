"""Sizes that depend on data, in one graph on a GPU: with every emitter, and gradients, against
eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from data_size_cases import CASES, FLAGS, rows, selected
from torch import Tensor

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("error:compile_cli leaves"),
]


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(FLAGS):
        yield


def inputs(sizes: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    for size, n in zip(sizes, (5, 3, 2), strict=False):
        yield torch.rand(size, size, device="cuda") - 0.6 * (n == 2), torch.tensor(n, device="cuda")


@pytest.mark.parametrize(
    ("emit", "dynamic"), [("fx", False), ("fx", True), ("hop", True), ("cpp", False)]
)
@pytest.mark.parametrize("case", CASES)
def test_every_emitter(
    case: Callable[..., Any], emit: str, dynamic: bool, options: dict[str, Any]
) -> None:
    run = torch.compile(
        case, backend="compile_cli", fullgraph=True, dynamic=dynamic,
        options={**options, "emit": emit},
    )  # fmt: skip
    for x, n in inputs((8, 300, 70) if dynamic else (70, 70, 70)):
        torch.testing.assert_close(run(x, n), case(x, n), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("case", [selected, rows])
def test_gradients(case: Callable[..., Any], options: dict[str, Any]) -> None:
    run = torch.compile(case, backend="compile_cli", fullgraph=True, options=options)
    for x, n in inputs((40, 40, 40)):
        x.requires_grad_()
        found = []
        for fn in (case, run):
            results = fn(x, n)
            results = results if isinstance(results, tuple) else (results,)
            found += torch.autograd.grad(sum(y.square().sum() for y in results), x)
        torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-2)
