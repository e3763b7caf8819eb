"""Compiled programs whose templates count in memory that is zero: call after call, as CUDA graphs,
on several streams, and with whatever is measured as the fastest."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from gemm_templates.model import is_legal
from planner.matmul.decide import MatmulPlanner
from wrapper_ir import Launch, Workspace
from wrapper_ir.analysis import walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

Config = gemm_templates.Config
WIDTH, HIDDEN = 1024, 4096
TILED = Config(16, 64, 64, 8, 4, 3)
ONE_ROW = (
    Config(1, 4, 1024, 1, 4, 4, "gemv", split_k=3),
    Config(1, 2, 512, 1, 2, 4, "gemv", split_k=2),
    Config(16, 64, 64, 1, 4, 4, "gemv", split_k=4),
)
FEW_ROWS = (
    Config(16, 64, 128, 1, 4, 3, "gemv", split_k=2),
    Config(32, 64, 64, 2, 4, 1, "split_k", split_k=5),
    Config(64, 64, 64, 8, 4, 3, "split_k", split_k=3),
)
# Of 288 and 36 tiles those that fill no round; 72 are too many for two programs each.
SHARED = (
    Config(128, 128, 64, 8, 8, 6, "gluon", 132, 2, split_k=4),
    Config(128, 256, 64, 8, 8, 4, "gluon", 132, 4, split_k=3),
    Config(64, 128, 64, 8, 8, 8, "gluon", 132, 2, split_k=2),
)


class Mlp(nn.Module):
    """Skinny linears with what surrounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.gelu(self.first(x))) + x
        return self.third(y).relu()


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Mlp().cuda().to(torch.bfloat16).eval()


def rows_of(count: int) -> torch.Tensor:
    return torch.randn(count, WIDTH, device="cuda", dtype=torch.bfloat16)


def decide(
    monkeypatch: pytest.MonkeyPatch, table: Callable[[int], tuple[Config, ...]], overlap: bool
) -> None:
    """The n-th matmul takes the n-th config for the number of rows, in place of measuring."""
    info = gemm_templates.device_info("cuda")
    order: list[str] = []

    def times(self: MatmulPlanner, node: Any, rung: Any, task: Any, many: bool) -> Any:
        if node.out not in order:
            order.append(node.out)
        configs = table(rung.rows)
        config = configs[order.index(node.out) % len(configs)]
        sooner = replace(config, overlap=True)
        if overlap and is_legal(task.problem, sooner, info):
            config = sooner
        assert is_legal(task.problem, config, info), config
        return {str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)


def check(out: torch.Tensor, model: nn.Module, x: torch.Tensor) -> None:
    """As near to float64 as eager is, to a factor for luck."""
    with torch.no_grad():
        wanted, eager = copy.deepcopy(model).double()(x.double()), model(x)
    assert out.shape == eager.shape
    if x.shape[0]:
        limit = 2 * relative_error(eager.double(), wanted) + 2e-3
        assert relative_error(out.double(), wanted) < limit


def kept(compiled: Any) -> list[Workspace]:
    return [o for o in walk(compiled.graph.program.ops) if isinstance(o, Workspace)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("rows", [1, 16, 40])
@torch.no_grad()
def test_call_after_call(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, rows: int,
    emit: str, overlap: bool,
) -> None:  # fmt: skip
    decide(monkeypatch, lambda rows: ONE_ROW if rows == 1 else FEW_ROWS, overlap)
    compiled = compile_cli.compile(model, (rows_of(rows),), options={**options, "emit": emit})
    assert len(kept(compiled)) == 1
    assert sum(isinstance(o, Launch) for o in compiled.graph.program.ops) == 3
    xs = [rows_of(rows) for _ in range(20)]
    for x, out in zip(xs, [compiled(x) for x in xs], strict=True):  # queued, then looked at
        check(out, model, x)


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a Hopper GPU",
)
@pytest.mark.parametrize("emit", ["fx", "cpp"])  # torch's operator has no Gluon descriptors
@torch.no_grad()
def test_tiles_that_programs_share(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    decide(monkeypatch, lambda rows: SHARED, True)
    compiled = compile_cli.compile(model, (rows_of(1100),), options={**options, "emit": emit})
    assert len(kept(compiled)) == 1
    xs = [rows_of(1100) for _ in range(8)]
    outs = [compiled(x) for x in xs]
    for x, out in zip(xs, outs, strict=True):
        check(out, model, x)
        assert torch.equal(compiled(x), out)


@pytest.mark.usefixtures("few_rungs")
@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@torch.no_grad()
def test_a_dynamic_batch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    decide(monkeypatch, lambda rows: ONE_ROW if rows == 1 else (TILED,), True)
    compiled = compile_cli.compile(
        model, (rows_of(8),), dynamic={0: {0}}, options={**options, "emit": emit}
    )
    assert len(kept(compiled)) == 1
    for rows in (1, 2, 1, 0, 16, 1, 1, 17, 300):
        x = rows_of(rows)
        check(compiled(x), model, x)


@pytest.mark.parametrize("emit", ["fx", "cpp"])
@pytest.mark.parametrize("rows", [1, 16])
@torch.no_grad()
def test_graphs_have_their_own(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, rows: int, emit: str
) -> None:
    decide(monkeypatch, lambda rows: ONE_ROW if rows == 1 else FEW_ROWS, True)
    compiled = compile_cli.compile(
        model, (rows_of(rows),), options={**options, "emit": emit, "cuda_graphs": True}
    )
    xs = [rows_of(rows) for _ in range(6)]  # a call, a capture, and replays
    outs = [compiled(x) for x in xs]
    # What others write into memory of the kind in between is nothing to a replay.
    torch.full((1 << 20,), 7, dtype=torch.int32, device="cuda")
    xs.append(rows_of(rows))
    outs.append(compiled(xs[-1]))
    for x, out in zip(xs, outs, strict=True):
        check(out, model, x)
    (graph,) = compiled.graph.graphs
    report = graph.explain()
    assert "replays" in report
    assert "capture failed" not in report, report


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@torch.no_grad()
def test_streams_do_not_meet(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    """Sums have a fixed order: each call gives the bits that it gives alone."""
    decide(monkeypatch, lambda rows: FEW_ROWS, True)
    compiled = compile_cli.compile(model, (rows_of(16),), options={**options, "emit": emit})
    xs = [rows_of(16) for _ in range(40)]
    alone = [compiled(x).clone() for x in xs]
    check(alone[0], model, xs[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    together = []
    for i, x in enumerate(xs):
        with torch.cuda.stream(streams[i % 2]):
            together.append(compiled(x))
    torch.cuda.synchronize()
    assert all(map(torch.equal, alone, together))


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_threads_do_not_meet(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    decide(monkeypatch, lambda rows: FEW_ROWS, True)
    compiled = compile_cli.compile(model, (rows_of(16),), options={**options, "emit": emit})
    xs = [rows_of(16) for _ in range(40)]
    with torch.no_grad():
        alone = [compiled(x).clone() for x in xs]
    torch.cuda.synchronize()

    def half(number: int) -> list[torch.Tensor]:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            outs = [compiled(x) for x in xs[number::2]]
            torch.cuda.current_stream().synchronize()
            return outs

    with ThreadPoolExecutor(2) as pool:
        even, odd = pool.map(half, range(2))
    assert all(map(torch.equal, alone[::2], even))
    assert all(map(torch.equal, alone[1::2], odd))


class Heads(nn.Module):
    """Few outputs, each a long sum."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(16384, n) for n in (16, 32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([head(x) for head in self.heads], 1)


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@torch.no_grad()
def test_what_is_measured(options: dict[str, Any], emit: str) -> None:
    """Whatever is chosen is right, and no candidate disagreed with the vendor's way."""
    torch.manual_seed(0)
    model = Heads().cuda().to(torch.bfloat16).eval()

    def make() -> torch.Tensor:
        return torch.randn(32, 16384, device="cuda", dtype=torch.bfloat16)

    compiled = compile_cli.compile(
        model, (make(),), options={**options, "emit": emit, "tune": "max"}
    )
    assert len(compiled.graph.matmuls) == 3
    failures = [why for c in compiled.graph.matmuls.values() for _, why in c.failures]
    assert not [why for why in failures if "differs from" in why or "has shape" in why]
    for _ in range(5):
        x = make()
        check(compiled(x), model, x)
