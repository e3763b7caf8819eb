"""What a fresh process does: the backend is found by its name, and the Python of the root README,
and of the app's, runs as it is. In one process: its imports take seconds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

_BY_NAME = """import torch
f = torch.compile(lambda x: x.relu() + 1, backend="compile_cli")
assert f(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]
"""


def test_a_fresh_process_finds_the_backend_and_runs_the_examples(tmp_path: Path) -> None:
    texts = [_BY_NAME]
    for folder in (".", "apps/compile_cli"):
        block = re.search(
            r"```python\n(.*?)```", (ROOT / folder / "README.md").read_text(), re.DOTALL
        )
        assert block is not None
        texts.append(block[1])
    files = [tmp_path / f"example{i}.py" for i in range(len(texts))]
    for file, text in zip(files, texts, strict=True):
        file.write_text(text)
    code = """
import runpy, sys
for file in sys.argv[1:]:
    runpy.run_path(file, run_name="__main__")
assert "gemm_templates.ops" not in sys.modules  # custom operators take as long as all other imports
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, files)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "False" not in done.stdout
