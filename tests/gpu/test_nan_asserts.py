"""`nan_asserts` on a GPU: the kernel that makes a NaN is named, in every host program; a training
step that is finite runs as without, with templates, partial writes and running statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import NotFinite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def model(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).relu().log().softmax(1)


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("gemm", ["extern", "template"])
def test_the_kernel_is_named(emit: str, gemm: str, options: dict[str, Any]) -> None:
    x, w = (torch.rand(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    options = {**options, "emit": emit, "gemm": gemm, "nan_asserts": True}
    run = compile_cli.compile(model, (x, w), options=options)
    torch.testing.assert_close(run(x, w), model(x, w), rtol=2e-2, atol=2e-2)
    with pytest.raises(NotFinite, match=r"(?s)^kernel \S+ made .*aten.log.*test_nan_asserts.py"):
        run(-x, w)
    x[3, 5] = torch.nan
    with pytest.raises(NotFinite, match=r"(?s)^the input \S+ holds a NaN.*\[3, 5\]"):
        run(x, w)


def test_a_finite_training_step(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Flatten(), nn.Linear(16 * 9, 10),
    ).cuda()  # fmt: skip
    step = torch.compile(layers, backend="compile_cli", options={**options, "nan_asserts": True})
    x, t = torch.randn(32, 3, 8, 8, device="cuda"), torch.randint(10, (32,), device="cuda")
    for _ in range(2):
        nn.functional.cross_entropy(step(x), t).backward()
    with pytest.raises(NotFinite):
        step(x.log())
