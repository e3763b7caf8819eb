"""The two walks that `docs/rooms.md` names, as the files that a compilation enters."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from compile_cli import pipeline

WALKS = {
    "compile_graph(gm)": (
        "compile_cli/pipeline.py", "aten_lowering/lower_graph.py", "loop_ir/fusion/fuse.py",
        "planner/planning.py", "planner/program.py", "wrapper_ir/passes/",
        "compile_cli/hosts/build.py", "compile_cli/hosts/emitters.py",
        "compile_cli/result/compiled.py",
    ),
    "the planning of one matmul": (
        "planner/planning.py", "planner/select.py", "planner/matmul/decide.py",
        "planner/matmul/tasks.py", "planner/matmul/problem.py", "planner/matmul/ways.py",
        "planner/matmul/chooser.py", "planner/plan.py",
    ),
}  # fmt: skip


@pytest.fixture
def entered(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of ours that the compilation of a linear layer enters, in order of first entry."""
    found: dict[str, None] = {}
    original = pipeline.compile_graph

    def enter(frame: FrameType, event: str, _: Any) -> None:
        _, source, file = frame.f_code.co_filename.rpartition("/src/")
        if event == "call" and source and not frame.f_code.co_name.startswith("<"):
            found.setdefault(file)

    def traced(*args: Any, **more: Any) -> Any:
        sys.setprofile(enter)
        try:
            return original(*args, **more)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(pipeline, "compile_graph", traced)
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    layer = torch.nn.Linear(64, 64)
    with torch.no_grad():
        torch.compile(layer, backend="compile_cli")(torch.randn(32, 64))
    torch._dynamo.reset()
    return list(found)


def test_walks_are_straight(entered: list[str]) -> None:
    """Each file of a walk is entered, and first entered after those before it."""
    for name, files in WALKS.items():
        places = [next(i for i, f in enumerate(entered) if f.startswith(file)) for file in files]
        assert places == sorted(places), name
