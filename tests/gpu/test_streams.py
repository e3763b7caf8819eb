"""Branches on two streams: the same numbers, whatever memory is used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (
            nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(512, 512), nn.LayerNorm(512))))
            for _ in range(2)
        )

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.one(x), self.two(y)
        return a * b, (a + b).sum(-1)


@pytest.mark.parametrize("form", ["fx", "cpp", "graphs", "auto"])
def test_towers(form: str, options: dict[str, Any], found: list[Any]) -> None:
    how = {"streams": "auto" if form == "auto" else "on", "cuda_graphs": form in ("graphs", "auto")}
    emit = "cpp" if form == "cpp" else "fx"
    model = Towers().cuda().requires_grad_(False)
    run = torch.compile(model, backend="compile_cli", options={**options, **how, "emit": emit})
    side = torch.cuda.Stream()
    for i in range(60):
        x, y = torch.randn(2, 300, 512, device="cuda")
        want = model(x, y)
        if i % 3 == 2:  # of a caller that is on another stream
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                got = run(x, y)
            torch.cuda.current_stream().wait_stream(side)
        else:
            got = run(x, y)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
        del x, y, want, got  # whose memory is the next call's
    program = found[-1].program
    if form != "auto":
        assert any(type(op).__name__ == "StreamSwitch" for op in program.ops)
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
