"""Templates whose programs count each other in memory that is zero: one workspace for them all."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import nn

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from planner.matmul.decide import VENDOR, MatmulPlanner
from planner.matmul.ladder import Rung
from planner.plan import Zeroed
from planner.program import workspaces
from symexpr import symbol
from wrapper_ir import (
    DefineKernel,
    Device,
    DType,
    Launch,
    Op,
    TensorType,
    Workspace,
    parse_program,
    print_program,
    verify,
)
from wrapper_ir.analysis import walk

EMITS = ("fx", "hop", "cpp")
Config = gemm_templates.Config
TILED = Config(16, 16, 32, 4, 1, 1)
DECOMPOSED = Config(16, 16, 16, 4, 1, 1, "decompose_k", split_k=2)
SPLIT = Config(16, 16, 16, 1, 1, 1, "split_k", split_k=3)
HALVED = Config(16, 16, 16, 1, 1, 1, "split_k", split_k=2)
ONE_ROW = Config(1, 4, 32, 1, 1, 1, "gemv", split_k=2)
FEW_ROWS = Config(16, 64, 16, 1, 1, 1, "gemv", split_k=2)


class Mlp(nn.Module):
    """Linears of 32, 48 and 16 columns, with what surrounds them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(80, 32), nn.Linear(32, 48)
        self.third = nn.Linear(48, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.third(torch.tanh(self.second(y)) * 2) + x[:, :16]


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Mlp().eval()


def decide(monkeypatch: pytest.MonkeyPatch, table: Callable[[str, int], Config | None]) -> None:
    """By the name of a matmul and its number of rows, in place of measuring."""

    def times(
        self: MatmulPlanner, node: Any, rung: Rung, task: Any, many: bool
    ) -> dict[str, tuple[float, Config | None]]:
        config = table(node.out, rung.rows)
        return {VENDOR if config is None else str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)


@pytest.fixture(autouse=True)
def _memory_that_can_be_dirty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocated by torch's operator: its allocators themselves fill nothing."""
    monkeypatch.setattr("fx_emit.emitter.allocator", lambda device: None)


@contextmanager
def dirty() -> Iterator[None]:
    """Memory that is allocated holds NaN and the largest integers."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def check(compiled: Any, model: nn.Module, rows: int) -> None:
    x = torch.randn(rows, 80)
    with torch.no_grad(), dirty():
        wanted = copy.deepcopy(model).double()(x.double())
        assert relative_error(compiled(x).double(), wanted) < 1e-6


def test_memory_is_dirty() -> None:
    with dirty():
        assert (torch.empty_strided((8,), (1,), dtype=torch.int32) == 2**31 - 1).all()


def ops(compiled: Any) -> list[Op]:
    return list(walk(compiled.graph.program.ops))


def kept(found: list[Op]) -> list[Workspace]:
    return [o for o in found if isinstance(o, Workspace)]


def reread(compiled: Any) -> None:
    program = compiled.graph.program
    verify(program)
    assert parse_program(print_program(program)) == program


FILLED = [
    (16, (FEW_ROWS, SPLIT, HALVED)),
    (1, (ONE_ROW, ONE_ROW, SPLIT)),
    (20, (SPLIT, TILED, FEW_ROWS)),
    (20, (TILED, HALVED, DECOMPOSED)),
    (20, (TILED, TILED, SPLIT)),  # in what the first one wrote
]


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("rows", "configs", "emit"),
    [
        pytest.param(
            *case, emit, marks=() if emit == "fx" or (i, emit) == (0, "cpp") else pytest.mark.slow
        )
        for i, case in enumerate(FILLED)
        for emit in EMITS
    ],
)
def test_one_workspace_serves_all(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module,
    rows: int, configs: tuple[Config, Config, Config], emit: str,
) -> None:  # fmt: skip
    order: list[str] = []

    def table(name: str, rows: int) -> Config:
        if name not in order:
            order.append(name)
        return configs[order.index(name)]

    decide(monkeypatch, table)
    compiled = compile_cli.compile(
        model, (torch.randn(rows, 80),), options={**options, "gemm": "template", "emit": emit}
    )
    found = ops(compiled)
    (memory,) = kept(found)
    launches = [o for o in found if isinstance(o, Launch)]
    users = [o for o in launches if memory.out in _tensors(o)]
    assert len(users) == sum(c.template in ("gemv", "split_k") for c in configs)
    reread(compiled)
    for _ in range(2):
        check(compiled, model, rows)


def _tensors(launch: Launch) -> list[str]:
    return [a.name for a in launch.args if hasattr(a, "name")]


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_rows_are_dynamic_and_one_is_known(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    """What only one row needs is there for all."""
    decide(monkeypatch, lambda name, rows: ONE_ROW if rows == 1 else TILED)
    compiled = compile_cli.compile(
        model, (torch.randn(5, 80),), dynamic={0: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    (memory,) = kept(ops(compiled))
    assert memory in compiled.graph.program.ops
    reread(compiled)
    for rows in (1, 2, 17, 1):
        check(compiled, model, rows)


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_calls_of_several_threads_do_not_meet(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module, emit: str
) -> None:
    decide(monkeypatch, lambda name, rows: SPLIT)
    compiled = compile_cli.compile(
        model, (torch.randn(4, 80),), options={**options, "gemm": "template", "emit": emit}
    )
    xs = [torch.randn(4, 80) for _ in range(4)]
    with torch.no_grad():
        compiled(xs[0])
        wanted = [copy.deepcopy(model).double()(x.double()) for x in xs]
    with ThreadPoolExecutor(2) as pool, dirty():
        found = list(pool.map(torch.no_grad()(compiled), xs))
    for out, exact in zip(found, wanted, strict=True):
        assert relative_error(out.double(), exact) < 1e-6


def test_memory_is_left_zero(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> None:
    """By every kernel, over all of it: the next one counts on that."""
    decide(monkeypatch, lambda name, rows: SPLIT if name == "linear" else HALVED)
    compiled = compile_cli.compile(
        model, (torch.randn(20, 80),), options={**options, "gemm": "template"}
    )
    given: list[torch.Tensor] = []

    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        given.append(torch.empty(*args, **kwargs).zero_())
        return given[-1]

    for node in compiled.graph.host.graph.nodes:
        node.target = zeros if node.target is torch.zeros else node.target
    compiled.graph.host.recompile()
    with torch.no_grad():
        compiled(torch.randn(20, 80))
    (counters,) = given
    assert counters.numel() == 6  # 2 x 3 tiles of the second linear
    assert not counters.any()


def test_programs_without_such_templates_have_none(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> None:
    whole = replace(SPLIT, split_k=1)  # no programs to count
    configs = {"linear": TILED, "linear_1": DECOMPOSED}
    decide(monkeypatch, lambda name, rows: configs.get(name, whole))
    compiled = compile_cli.compile(
        model, (torch.randn(20, 80),), options={**options, "gemm": "template"}
    )
    assert not kept(ops(compiled))
    check(compiled, model, 20)


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_an_input_may_have_the_name(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, emit: str
) -> None:
    decide(monkeypatch, lambda name, rows: SPLIT)

    def product(counters: torch.Tensor, partials: torch.Tensor) -> torch.Tensor:
        return counters @ partials

    args = torch.randn(20, 80), torch.randn(80, 24)
    compiled = compile_cli.compile(
        product, args, options={**options, "gemm": "template", "emit": emit}
    )
    assert len(kept(ops(compiled))) == 1
    with dirty():
        assert relative_error(compiled(*args), product(*args)) < 1e-6


def test_the_program_as_text(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, model: nn.Module
) -> None:
    """But for its kernels."""
    decide(monkeypatch, lambda name, rows: ONE_ROW if rows == 1 else TILED)
    compiled = compile_cli.compile(
        model, (torch.randn(5, 80),), dynamic={0: {0}}, options={**options, "gemm": "template"}
    )
    program = compiled.graph.program
    kept = tuple(op for op in program.ops if not isinstance(op, DefineKernel))
    path = Path(__file__).parent / "golden" / "counters.txt"
    text = re.sub(r"  \S+:\d+$", "", print_program(replace(program, ops=kept)), flags=re.M)
    text = re.sub(r"(matmul_\w+)_[0-9a-f]{8}", r"\1", text)  # digests of texts
    assert text == path.read_text(), f"if the change is wanted, rewrite {path.name}"


# -- buffers of several uses


def zeroed(count: Any, name: str = "counters", device: str = "cpu") -> Zeroed:
    place = Device(device, 0 if device == "cuda" else None)
    return Zeroed(name, TensorType(DType("i32"), (sympy.sympify(count),), (sympy.S.One,), place))


def test_the_largest_use_sizes_a_buffer() -> None:
    s0 = symbol("s0")
    (plain,) = workspaces([zeroed(3), zeroed(8), zeroed(5)]).values()
    assert plain.size == (8,)
    (moving,) = workspaces([zeroed(4), zeroed(s0 * 2), zeroed(6)]).values()
    for rows in (1, 2, 16):
        assert moving.size[0].subs(s0, rows).doit() == max(6, 2 * rows)


def test_names_and_devices_are_apart() -> None:
    assert len(workspaces([zeroed(4), zeroed(4, "others"), zeroed(4, device="cuda")])) == 3
