"""What the library exports stands in the README, whose example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cuda_graphs

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_public_names_stand_in_the_readme() -> None:
    assert not [name for name in cuda_graphs.__all__ if not re.search(rf"\b{name}\b", README)]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(block, {"__name__": "readme"})
    assert "torch.Size([4, 8])" in capsys.readouterr().out
