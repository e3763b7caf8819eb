from __future__ import annotations

from pathlib import Path


def test_examples_run(capsys):
    text = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "extern" in printed and "def matmul_halve(" in printed
