"""The README's example runs as it is and prints what the README says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path


def test_example() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    (printed,) = re.findall(r"```cpp\n(.*?)```", text, flags=re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})
    assert out.getvalue().rstrip() == printed.rstrip()
