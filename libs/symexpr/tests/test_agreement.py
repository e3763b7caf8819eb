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


@pytest.mark.parametrize("count", [30, pytest.param(100, marks=pytest.mark.slow)])
def test_python_and_cpp_agree_with_sympy(agreement, count):
    result = agreement.compare(count, 40, seed=1, targets=("python", "simplified", "cpp"))
    assert result["pairs"] == 40 * count
    assert result["wrong"] == []


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_triton_agrees_with_sympy(agreement, count):
    pytest.importorskip("triton")
    result = agreement.compare(count, 40, seed=2, targets=("triton",))
    assert result["wrong"] == []


def test_a_wrong_value_is_seen(agreement, monkeypatch):
    monkeypatch.setattr(
        agreement, "python_values", lambda cases: [[0] * len(c.inputs) for c in cases]
    )
    result = agreement.compare(8, 20, targets=("python",))
    assert result["wrong"] and result["wrong"][0][0] == "python"
