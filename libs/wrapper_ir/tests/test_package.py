"""The package as others meet it: the README runs, and nothing needs torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_readme_example_runs():
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example[1], {})


def test_imports_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None\n"
        "import wrapper_ir, wrapper_ir.passes, wrapper_ir.memory"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
