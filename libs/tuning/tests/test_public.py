"""What the library exports says what it does and stands in the README, whose example runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import tuning

README = (Path(__file__).parents[1] / "README.md").read_text()


PUBLIC = [n for n, x in vars(tuning).items() if n[0] != "_" and not inspect.ismodule(x)]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    doc = inspect.getdoc(getattr(tuning, name)) or ""
    assert len(doc) > 20 and not doc.startswith(f"{name}("), "a docstring of its own"
    assert re.search(rf"\b{name}\b", README), f"{name} is not in the README"


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {"__name__": "readme"})
        assert capsys.readouterr().out
