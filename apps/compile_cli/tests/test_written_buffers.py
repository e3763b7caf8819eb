"""What training keeps of buffers that the forward pass writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compile_cli import pipeline


def test_the_old_value_of_a_written_buffer_is_kept_for_many_rows(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher's mean, which many rows subtract: of those nothing is kept but their statistics."""
    found: list[Any] = []
    compiled = pipeline.compile_graph

    def noted(*given: Any, **more: Any) -> Any:
        found.append(compiled(*given, **more))
        return found[-1]

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(8, 8)
            self.center = nn.Buffer(torch.linspace(-1, 1, 8))

        def forward(self, x: Tensor, teacher: Tensor) -> Tensor:
            targets = ((teacher - self.center) / 0.5).softmax(-1)
            self.center.mul_(0.9).add_(teacher.mean(0), alpha=0.1)
            loss: Tensor = -(targets * self.l(x).log_softmax(-1)).sum()
            return loss

    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    monkeypatch.setattr(pipeline, "compile_graph", noted)
    torch.manual_seed(0)
    own, eager = Student(), Student()
    eager.load_state_dict(own.state_dict())
    torch._dynamo.reset()
    run = torch.compile(own, backend="compile_cli", fullgraph=True)
    for _ in range(3):
        x, teacher = torch.randn(40, 8), torch.randn(40, 8)
        run(x, teacher).backward()
        eager(x, teacher).backward()
    torch.testing.assert_close(own.l.weight.grad, eager.l.weight.grad)
    torch.testing.assert_close(own.center, eager.center)
    forward = found[0].fused
    given = {i.name for i in forward.inputs}
    made = [o for o in forward.outputs if o.buffer not in given and len(o.type.size) == 2]
    assert sum(o.type.size == (40, 8) for o in made) == 1  # what the linear layer makes
