"""The README's examples, the benchmark, and the promise about imports."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from multikernel import Measurement, MultiKernel

HERE = Path(__file__).parents[1]
BLOCKS = (HERE / "README.md").read_text().split("```python\n")[1:]
NEEDS = ("numpy", "torch", "triton")


def gpu():
    import torch

    return torch.cuda.is_available()


@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_readme_example_runs(index, tmp_path, monkeypatch):
    text = BLOCKS[index].split("```")[0]
    for package in NEEDS:
        if re.search(rf"^import {package}\b", text, re.MULTILINE):
            pytest.importorskip(package)
            if package == "triton" and not gpu():
                monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    script = tmp_path / "example.py"  # Triton reads the source of a kernel from its file
    script.write_text(text)
    runpy.run_path(str(script))


def test_readme_has_all_the_examples():
    for package in NEEDS:
        assert any(f"import {package}" in block for block in BLOCKS)


def test_imports_nothing_but_the_standard_library():
    code = (
        "import sys, multikernel; "
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'sympy')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


class Array:
    def __init__(self, *shape):
        self.shape = shape


@pytest.mark.parametrize("select", ["nearest", "measured"])
def test_dispatch_costs_at_most_a_microsecond(select, microseconds):
    """Eight tensors, sizes seen before: 0.4 were measured."""

    def run(*args):
        return None

    if importlib.util.find_spec("torch") is not None:
        import torch

        args = [torch.empty(3, 768) for _ in range(8)]
    else:
        args = [Array(3, 768)] * 8
    measurement = Measurement(timer=lambda call: 1.0) if select == "measured" else None
    kernel = MultiKernel({(1, 768): run, (64, 768): run}, select, measurement=measurement)
    kernel(*args)
    direct = microseconds(lambda: run(*args), calls=100)
    assert microseconds(lambda: kernel(*args), direct + 0.55, calls=100) < direct + 0.55


def test_benchmark_runs(tmp_path, monkeypatch, capsys):
    out = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["dispatch.py", "--quick", "--json", str(out)])
    runpy.run_path(str(HERE / "benchmarks" / "dispatch.py"), run_name="__main__")
    figures = json.loads(out.read_text())
    asked = {(row["arguments"], row["variants"]) for row in figures["dispatch"]}
    assert asked == {(a, v) for a in (1, 2, 8) for v in (2, 4, 16)}
    assert all(row["measured"] <= row["cells"] for row in figures["table"])
    assert "dispatch_ns" in capsys.readouterr().out
