"""The example of the README runs as it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest


def test_example(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (example, *_) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(example, scope)
    out = capsys.readouterr().out
    assert "matmul" in out and "aten.native_layer_norm" in out
    assert out.rstrip().endswith("()")
