"""Every mistake gets one message, its exit code, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

LINEAR = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
    def forward(self, x):
        return x.relu() + self.w
"""

Cli = Callable[..., Any]
Model = Callable[..., str]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("nothing.py:M", "no such file: nothing.py"),
        ("model.py:N", "model.py has no attribute 'N'"),
        ("model.py", "cannot read the target 'model.py'"),
        ("nothing.pt2", "no such file: nothing.pt2"),
        ("model.py:number", "is a int"),
    ],
)
def test_wrong_target(cli: Cli, model: Model, target: str, says: str) -> None:
    model(LINEAR + "\nnumber = 3\n")
    got = cli("run", target, "--input", "f32[2,4]", "--device", "cpu")
    assert got.code == 2
    assert says in got.err
    assert "Traceback" not in got.err


def test_wrong_attribute_names_what_is_there(cli: Cli, model: Model) -> None:
    model(LINEAR)
    assert "it has:  M" in cli("run", "model.py:Mistake", "--device", "cpu").err


@pytest.mark.parametrize(
    ("spec", "position"),
    [
        ("f33[2]", 0), ("f32", 3), ("f32[2", 5), ("f32[a]", 4), ("f32[2]x", 6), ("f32[2]<3", 6),
        ("i64[2]<0", 6), ("f32[2,]", 6), ("f32[-1]", 4),
    ],
)  # fmt: skip
def test_wrong_input_spec(cli: Cli, model: Model, spec: str, position: int) -> None:
    got = cli("run", model(LINEAR), "--input", spec, "--device", "cpu")
    assert got.code == 2
    assert f"position {position}" in got.err
    assert "^ expected" in got.err


def test_no_inputs(cli: Cli, model: Model) -> None:
    got = cli("run", model(LINEAR), "--device", "cpu")
    assert got.code == 2
    assert "has no get_inputs()" in got.err


def test_inputs_that_do_not_fit_the_model(cli: Cli, model: Model) -> None:
    got = cli("run", model(LINEAR), "--input", "f32[2,3]", "--device", "cpu")
    assert got.code == 1
    assert "the model raised RuntimeError in eager" in got.err
    assert "model.py:11" in got.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(cli: Cli, model: Model) -> None:
    got = cli("run", model(LINEAR), "--input", "f32[2,4]", "--device", "cuda")
    assert got.code == 4
    assert "no such device: cuda" in got.err


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:0", "cuda:99"])
def test_wrong_device(cli: Cli, model: Model, device: str) -> None:
    assert cli("run", model(LINEAR), "--input", "f32[2,4]", "--device", device).code == 4


@pytest.mark.parametrize(
    "option",
    [("--emit", "rust"), ("--gemm", "best"), ("--dtype", "i64"), ("--tune", "always")],
)
def test_wrong_option_value(cli: Cli, model: Model, option: tuple[str, str]) -> None:
    got = cli("run", model(LINEAR), "--input", "f32[2,4]", "--device", "cpu", *option)
    assert got.code == 2
    assert option[1] in got.err


def test_unknown_flag_and_command(cli: Cli, model: Model) -> None:
    assert cli("run", model(LINEAR), "--colour").code == 2
    assert cli("rum", model(LINEAR)).code == 2


def test_wrong_dump_stage_and_pass(cli: Cli, model: Model) -> None:
    target = [model(LINEAR), "--input", "f32[2,4]", "--device", "cpu"]
    got = cli("dump", *target, "--stage", "sass")
    assert got.code == 2
    assert "expected: one of aten, loop, fused, triton, wrapper, fx, cpp" in got.err
    got = cli("dump", *target, "--after", "magic")
    assert got.code == 2
    assert "no pass 'magic' was run" in got.err
    assert "plan_memory" in got.err


def test_exception_in_the_file(cli: Cli, model: Model) -> None:
    got = cli("run", model("raise KeyError('no weights here')\n"), "--device", "cpu")
    assert got.code == 1
    assert "the model raised KeyError while its file was imported" in got.err
    assert "no weights here" in got.err


def test_exception_in_forward(cli: Cli, model: Model) -> None:
    body = "class M(nn.Module):\n    def forward(self, x):\n        raise ValueError('too cold')\n"
    got = cli("run", model(body), "--input", "f32[2]", "--device", "cpu")
    assert got.code == 1
    assert "too cold" in got.err
    assert "model.py:7" in got.err
    assert "Traceback" not in got.err


def test_debug_shows_the_traceback(cli: Cli, model: Model) -> None:
    body = "class M(nn.Module):\n    def forward(self, x):\n        raise ValueError('too cold')\n"
    with pytest.raises(Exception, match="too cold"):
        cli("run", model(body), "--input", "f32[2]", "--device", "cpu", "--debug")


def test_graph_break(cli: Cli, model: Model) -> None:
    body = """
class M(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x - 1
"""
    got = cli("run", model(body), "--input", "f32[2]", "--device", "cpu")
    assert got.code == 1
    assert "cannot be captured as one graph" in got.err
    assert "model.py:8" in got.err
    assert "def forward" not in got.err


def test_dynamic_dimension_that_the_model_fixes(cli: Cli, model: Model) -> None:
    body = """
class M(nn.Module):
    def forward(self, x):
        return x + torch.ones(3)
"""
    got = cli("run", model(body), "--input", "f32[rows=3]", "--device", "cpu")
    assert got.code == 0
    assert "fixed        x.0: the model needs these sizes' values" in got.out


@pytest.mark.parametrize("spec", ["y.0", "x.rows", "x.-1", "x.7"])
def test_wrong_dynamic(cli: Cli, model: Model, spec: str) -> None:
    target = [model(LINEAR), "--input", "f32[2,4]", "--device", "cpu"]
    assert cli("run", *target, "--dynamic", spec).code == 2


def test_numbers_that_differ(cli: Cli, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler bug, injected: the run is refused and says where."""
    from compile_cli.result import model as compiled

    good = compiled.CompiledModel.__call__
    monkeypatch.setattr(
        compiled.CompiledModel, "__call__", lambda self, *args: good(self, *args) * 1.01
    )
    got = cli("run", model(LINEAR), "--input", "f32[2,4]", "--device", "cpu")
    assert got.code == 3
    assert "the compiled model and eager disagree" in got.err
    assert "result 0: relative error" in got.err


def test_corrupt_exported_program(cli: Cli, tmp_path: Any) -> None:
    (tmp_path / "bad.pt2").write_bytes(b"not a zip")
    got = cli("run", "bad.pt2", "--device", "cpu")
    assert got.code == 2
    assert "is not an exported program" in got.err
