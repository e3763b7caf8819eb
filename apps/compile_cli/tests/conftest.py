"""Fixtures of the app's tests: the command line in process, models in files, a cache apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from compile_cli.cli import main

ENCODER = Path(__file__).parents[3] / "examples" / "encoder.py"


@dataclass(frozen=True)
class Outcome:
    """What a command printed and returned."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Outcome]:
    """`cli("run", "m.py:M")` runs a command; relative files are those of `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))

    def once(timed: Callable[[], object], _: object) -> float:
        """Of the hundred calls that `run` times, each costs what it takes to interpret."""
        start = perf_counter()
        timed()
        return (perf_counter() - start) * 1e3

    monkeypatch.setattr("compile_cli.cli.run.time_ms", once)

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = 0
        try:
            main(list(arguments))
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Callable[[str], str]:
    """Writes the body of a file with a model `M`, returns its target text."""

    def write(body: str, name: str = "M") -> str:
        head = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"
        (tmp_path / "model.py").write_text(head + body)
        return f"model.py:{name}"

    return write


@pytest.fixture
def encoder() -> str:
    return f"{ENCODER}:Encoder"
