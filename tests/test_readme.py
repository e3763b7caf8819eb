"""The Python of the root README, and of the app's, runs as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", [".", "apps/compile_cli"])
def test_the_first_example_runs(folder: str, tmp_path: Path) -> None:
    text = (ROOT / folder / "README.md").read_text()
    block = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert block is not None
    file = tmp_path / "example.py"
    file.write_text(block[1])
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
