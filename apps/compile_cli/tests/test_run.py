"""`run`, `dump`, `explain` and `doctor` on small models."""

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
    def __init__(self, width=8):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        return self.norm(x + F.gelu(self.linear(x))), x.sum(-1)

def get_inputs():
    return [torch.randn(3, 8)]

def get_init_inputs():
    return [8]

def double(x, y):
    return {"sum": x + y, "parts": (x * 2, y)}

instance = M(8)

def made():
    return M(8)
"""


def test_json_has_the_promised_keys(cli: Cli, model: Model) -> None:
    got = cli("run", model(NET), "--json", "--device", "cpu")
    assert got.code == 0, got.err
    report = got.json()
    assert (report["device"], report["emit"]) == ("cpu", "fx")
    assert set(report["kernels"]) == {"cpp", "triton", "extern"}
    assert report["kernels"]["triton"] >= 1
    assert report["fallbacks"] == []
    assert 0 <= report["max_rel_err"] < 1e-6
    assert {"capture", "lower", "fuse", "triton", "wrapper", "build", "emit"} <= set(
        report["compile_s"]
    )
    assert set(report["ms"]) == set(report["peak_mb"]) == {"compiled", "eager"}


def test_summary_says_the_same(cli: Cli, model: Model) -> None:
    out = cli("run", model(NET), "--device", "cpu").out
    for word in ("kernels", "fallbacks", "fused", "bytes moved", "error", "compile", "run", "peak"):
        assert word in out
    assert "through Triton's interpreter" in out


def test_kernels_of_the_cpu(cli: Cli, model: Model) -> None:
    got = cli("run", model(NET), "--device", "cpu", "--cpu-kernels", "cpp")
    assert got.code == 0, got.err
    assert " C++, 0 Triton," in got.out
    assert "interpreter" not in got.out


@pytest.mark.parametrize("name", ["instance", "made"])
def test_a_module_that_is_made_already_or_by_a_function(cli: Cli, model: Model, name: str) -> None:
    got = cli("run", model(NET, name), "--device", "cpu")
    assert got.code == 0, got.err


def test_function_with_nested_results(cli: Cli, model: Model) -> None:
    specs = ["--input", "f32[4,5]", "--input", "f32[5]"]
    assert cli("run", model(NET, "double"), *specs, "--device", "cpu").code == 0


def test_exported_program(cli: Cli, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    program = torch.export.export(net, (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "net.pt2")
    got = cli("run", "net.pt2", "--json", "--device", "cpu")
    assert got.code == 0, got.err
    assert got.json()["max_rel_err"] < 1e-6


@pytest.mark.parametrize("emit", [pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_other_host_programs(cli: Cli, model: Model, emit: str) -> None:
    got = cli("run", model(NET), "--emit", emit, "--json", "--device", "cpu")
    assert got.code == 0, got.err
    assert got.json()["emit"] == emit


def test_fallbacks_are_listed_and_right(cli: Cli, model: Model) -> None:
    body = """
class M(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x.sin()).abs() + torch.sort(x, -1).values[..., :5]
"""
    got = cli("run", model(body), "--input", "f32[3,8]", "--json", "--device", "cpu")
    assert got.code == 0, got.err
    assert any("sort" in name for name in got.json()["fallbacks"])


def test_model_that_writes_its_input_and_buffer(cli: Cli, model: Model) -> None:
    body = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
    def forward(self, x):
        self.count.add_(1)
        x.mul_(2)
        return x + self.count
"""
    got = cli("run", model(body), "--input", "f32[3,8]", "--device", "cpu")
    assert got.code == 0, got.err


@pytest.mark.parametrize(
    ("stage", "shows"),
    [
        ("aten", "torch.ops.aten"),
        ("loop", "kernel native_layer_norm("),
        ("fused", "kernel fused_"),
        ("triton", "@triton.jit"),
        ("wrapper", "launch fused_"),
        ("fx", "def forward"),
    ],
)
def test_dump_stages(cli: Cli, model: Model, stage: str, shows: str) -> None:
    got = cli("dump", model(NET), "--stage", stage, "--device", "cpu")
    assert got.code == 0, got.err
    assert shows in got.out


def test_dump_after_a_pass(cli: Cli, model: Model) -> None:
    after = cli("dump", model(NET), "--after", "insert_frees", "--device", "cpu").out
    assert "free " in after
    before = cli("dump", model(NET), "--after", "assemble", "--device", "cpu").out
    assert "free " not in before
    first = cli("dump", model(NET), "--after", "no_ops", "--device", "cpu")
    assert "torch.ops.aten" in first.out


def test_dumped_ir_parses_back(cli: Cli, model: Model) -> None:
    from loop_ir import parse_graph, print_graph
    from wrapper_ir import parse_program, print_program

    text = cli("dump", model(NET), "--stage", "fused", "--device", "cpu").out
    assert print_graph(parse_graph(text)).strip() == text.strip()
    text = cli("dump", model(NET), "--stage", "wrapper", "--device", "cpu").out
    program = parse_program(text)
    assert parse_program(print_program(program)) == program


def test_dump_cpp(cli: Cli, model: Model) -> None:
    got = cli("dump", model(NET), "--stage", "cpp", "--emit", "cpp", "--device", "cpu")
    assert got.code == 0, got.err
    assert "#include" in got.out
    got = cli("dump", model(NET), "--stage", "cpp", "--device", "cpu")
    assert got.code == 2
    assert "--emit" in got.err


def test_progress_names_the_stage(cli: Cli, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the bar is drawn on standard error; each stage is named when it begins."""
    from rich.progress import Progress

    seen: list[str] = []
    update = Progress.update

    def note(self: Progress, task: Any, **fields: Any) -> None:
        seen.append(fields["description"])
        update(self, task, **fields)

    monkeypatch.setattr(Progress, "update", note)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    got = cli("run", model(NET), "--device", "cpu")
    assert seen == [
        "eager", "capture", "lower", "fuse", "triton", "wrapper", "emit", "build", "check", "time",
    ]  # fmt: skip
    assert "time" in got.err


def test_explain_and_doctor(cli: Cli, model: Model) -> None:
    got = cli("explain", model(NET), "--device", "cpu")
    assert got.code == 0, got.err
    assert "bytes" in got.out
    got = cli("doctor")
    assert got.code == 0
    assert "torch" in got.out
