"""`run --from`: the printed text of a stage, edited or not, is compiled from there and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Cli = Callable[..., Any]
Model = Callable[..., str]

NET = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        table = torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]])
        return F.relu(self.linear(x) * table), x.bfloat16().sum(-1)

def get_inputs():
    return [torch.randn(3, 8)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def printed(cli: Cli, model: Model, tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """`printed(stage)`: the files of the text of a stage of `NET`, and of its constants."""

    def dump(stage: str) -> tuple[Path, Path]:
        text, constants = tmp_path / f"{stage}.txt", tmp_path / "constants.pt"
        got = cli(
            "dump", model(NET), "--device", "cpu", "--stage", stage, "--constants", str(constants)
        )
        assert got.code == 0, got.err
        text.write_text(got.out)
        return text, constants

    return dump


@pytest.mark.parametrize("stage", ["loop", "fused", "wrapper"])
def test_what_was_printed_runs(
    cli: Cli, printed: Callable[[str], tuple[Path, Path]], stage: str
) -> None:
    text, constants = printed(stage)
    got = cli("run", "--from", stage, str(text), "--constants", str(constants), "--json")
    assert got.code == 0, got.err
    report = got.json()
    assert report["from"] == stage and report["kernels"]["triton"] >= 1
    assert 0 <= report["max_rel_err"] < 1e-5


def test_an_edit_is_what_runs(cli: Cli, printed: Callable[[str], tuple[Path, Path]]) -> None:
    """The interpreter runs the same text, and the numbers are the same. An edit that is wrong is
    refused with the rule that it breaks."""
    text, constants = printed("loop")
    given = text.read_text()
    text.write_text(given.replace(" mul(", " add("))
    assert text.read_text() != given
    got = cli("run", "--from", "loop", str(text), "--constants", str(constants), "--json")
    assert got.code == 0, got.err
    text.write_text(given.replace(" mul(", " sideways("))
    got = cli("run", "--from", "loop", str(text), "--constants", str(constants))
    assert got.code == 2
    assert "cannot be read as the loop IR of stage loop" in got.err and "sideways" in got.err


LOOP = """graph g(
    x: f32[2] cpu,
):
  constant table: f32[2] cpu
  kernel add(
      x: f32[2] cpu,
      table: f32[2] cpu,
      out y: f32[2] cpu,
  ):
    parallel i0 < 2:
      once:
        v0 = load x[i0]      : f32
        v1 = load table[i0]  : f32
        v2 = add(v0, v1)     : f32
        store y[i0] = v2
  return (y: f32[2] cpu)
"""
WRAPPER = """program p(x: f32[2] cpu):
  table = constant f32[2] cpu "table"
  y = extern aten.add.Tensor(x, table) -> f32[2] cpu
  return (y)
"""


@pytest.mark.parametrize(("stage", "content"), [("loop", LOOP), ("wrapper", WRAPPER)])
def test_constants_come_from_a_file(cli: Cli, tmp_path: Path, stage: str, content: str) -> None:
    text, constants = tmp_path / "text.txt", tmp_path / "constants.pt"
    text.write_text(content)
    got = cli("run", "--from", stage, str(text))
    assert got.code == 2
    assert "names 1 constants, whose values it does not hold: table" in got.err
    assert "dump --constants FILE.pt" in got.err
    torch.save({"table": torch.tensor([1.0, 2.0]), "other": torch.ones(1)}, constants)
    got = cli("run", "--from", stage, str(text), "--constants", str(constants))
    assert got.code == 0, got.err


def test_what_only_the_model_has_is_refused(cli: Cli, tmp_path: Path) -> None:
    text = tmp_path / "program.txt"
    text.write_text(
        "program p(x: f32[2] cpu):\n  y = extern eager.cond(x) -> f32[2] cpu\n  return (y)\n"
    )
    got = cli("run", "--from", "wrapper", str(text))
    assert got.code == 2
    assert "a part of the model that torch runs, eager.cond" in got.err


def test_options_that_a_text_decides_are_refused(cli: Cli, tmp_path: Path) -> None:
    got = cli("run", "--from", "loop", str(tmp_path / "none.txt"), "--input", "f32[2]")
    assert got.code == 2 and "--input with --from" in got.err
    got = cli("run", "--from", "aten", str(tmp_path / "none.txt"))
    assert got.code == 2 and "expected: one of loop, fused, wrapper" in got.err
    got = cli("run", "--from", "loop", str(tmp_path / "none.txt"))
    assert got.code == 2 and "No such file" in got.err
