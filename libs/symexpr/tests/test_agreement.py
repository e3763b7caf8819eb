"""A share of benchmarks/agreement.py: Python, C++ and Triton text against sympy's own value."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "agreement.py"


@pytest.fixture(scope="module")
def agreement():
    spec = importlib.util.spec_from_file_location("agreement", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_python_and_cpp_agree_with_sympy(agreement):
    result = agreement.compare(100, 40, seed=1, targets=("python", "simplified", "cpp"))
    assert result["pairs"] == 4000
    assert result["wrong"] == []


def test_triton_agrees_with_sympy(agreement):
    pytest.importorskip("triton")
    result = agreement.compare(50, 40, seed=2, targets=("triton",))
    assert result["wrong"] == []


def test_a_wrong_value_is_seen(agreement, monkeypatch):
    monkeypatch.setattr(
        agreement, "python_values", lambda cases: [[0] * len(c.inputs) for c in cases]
    )
    result = agreement.compare(8, 20, targets=("python",))
    assert result["wrong"] and result["wrong"][0][0] == "python"
