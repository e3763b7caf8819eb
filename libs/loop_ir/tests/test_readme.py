"""The README's example runs as it is."""

from __future__ import annotations

import re
from pathlib import Path


def test_example(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "kernel fused_add_amax_0(" in out
    assert "590080 -> 196864" in out
    assert "out y" not in out
