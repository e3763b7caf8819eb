"""The Python API: what a compiled model takes, refuses and proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import compile_cli
from compile_cli.errors import BadInput, UnknownOption
from compile_cli.hosts import finished_run
from cuda_graphs import GraphPool
from cuda_graphs.graph_pool import Recording


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"cache_dir": str(tmp_path)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.norm(x.transpose(0, 1) + y).softmax(-1)


def make(options: dict[str, Any], dynamic: bool = False) -> compile_cli.CompiledModel:
    args = (torch.randn(3, 4, 8), torch.randn(8))
    return compile_cli.compile(
        Net(), args, dynamic={"x": {1}} if dynamic else None, options=options
    )


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ((torch.randn(3, 4, 8, dtype=torch.float64), torch.randn(8)), "input x has another dtype"),
        ((torch.randn(4, 8), torch.randn(8)), "input x has another rank"),
        ((torch.randn(3, 5, 8), torch.randn(8)), "input x has another size"),
        ((torch.randn(3, 8, 4).mT, torch.randn(8)), "input x has another stride"),
        ((torch.randn(3, 4, 8), torch.randn(8, device="meta")), "input y has another device"),
        ((torch.randn(3, 4, 8), 3.0), "input y has another kind"),
        ((torch.randn(3, 4, 8),), "nested differently"),
        (([torch.randn(3, 4, 8)], torch.randn(8)), "nested differently"),
    ],
)
def test_other_inputs_are_refused(options: dict[str, Any], args: Any, what: str) -> None:
    compiled = make(options)
    with pytest.raises(BadInput, match=what):
        compiled(*args)


def test_dynamic_size_one_and_zero_are_proven(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Net()
    args = (torch.randn(3, 4, 8), torch.randn(8))
    compiled = compile_cli.compile(model, args, dynamic={0: {1}}, options=options)
    for n in (4, 2, 1, 7, 0):
        x = torch.randn(3, n, 8)
        torch.testing.assert_close(compiled(x, args[1]), model(x, args[1]).detach())
    with pytest.raises(BadInput, match="input x has another size"):
        compiled(torch.randn(2, 4, 8), args[1])


def test_a_size_of_one_that_means_something_else_is_compiled_beside(
    options: dict[str, Any],
) -> None:
    class Squeeze(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.squeeze(0) + 1

    compiled = compile_cli.compile(
        Squeeze(), (torch.randn(4, 3),), dynamic={0: {0}}, options=options
    )
    for rows in (5, 1, 5):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(compiled(x), Squeeze()(x))


def test_views_of_larger_storages_are_inputs_like_any(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model = Net()
    big = torch.randn(5, 4, 8)
    args = (big[2:], torch.randn(11)[3:])
    compiled = compile_cli.compile(model, args, options=options)
    torch.testing.assert_close(compiled(*args), model(*args).detach())
    torch.testing.assert_close(compiled(big[:3], args[1]), model(big[:3], args[1]).detach())


def test_constants_are_part_of_what_was_compiled(options: dict[str, Any]) -> None:
    def scale(x: torch.Tensor, factor: int) -> torch.Tensor:
        return x * factor

    compiled = compile_cli.compile(scale, (torch.ones(3), 2), options=options)
    assert compiled(torch.ones(3), 2).tolist() == [2, 2, 2]
    with pytest.raises(BadInput, match="not the constant"):
        compiled(torch.ones(3), 3)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(UnknownOption, match="unknown option 'fast'"):
        compile_cli.compile(Net(), (), options={"fast": True})
    with pytest.raises(UnknownOption, match="jobs"):
        compile_cli.Options(jobs=-1)


def test_writes_to_inputs_reach_the_caller(options: dict[str, Any]) -> None:
    def update(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    compiled = compile_cli.compile(update, (torch.ones(3), torch.ones(3)), options=options)
    x = torch.tensor([1.0, 2.0, 3.0])
    assert compiled(x, torch.ones(3)).tolist() == [4, 6, 8]
    assert x.tolist() == [2, 3, 4]


def test_misaligned_arguments_are_copied_for_tensor_maps() -> None:
    from compile_cli.hosts import aligned_run

    seen: list[int] = []
    run = aligned_run(lambda *args: [seen.append(a.data_ptr() % 16) or a for a in args], [1])
    storage = torch.arange(9.0)
    odd = storage[1:]
    a, b = run(odd, odd)
    assert a is odd
    assert torch.equal(b, odd)
    assert seen == [odd.data_ptr() % 16, 0]


@torch.no_grad()
def test_a_replay_does_not_look_where_arguments_begin(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[torch.Tensor] = []
    monkeypatch.setattr("compile_cli.hosts.inputs.aligned", lambda x: looked.append(x) or x)
    monkeypatch.setattr("compile_cli.hosts.cuda_graphs.DEVICE", "cpu")
    for name in ("refuses", "busy", "order"):
        monkeypatch.setattr(GraphPool, name, lambda *_: None)
    record = lambda _, fn, args: Recording(lambda: None, fn(*args), lambda: None)  # noqa: E731  # a stand-in
    monkeypatch.setattr(GraphPool, "record", record)
    graphed = compile_cli.Options(**options, cuda_graphs=True)
    program = make(options).graph.program
    run, _ = finished_run(lambda x: [x * 2], program, [0], (), graphed)
    x = torch.ones(3)
    for _ in range(5):
        assert run(x)[0].tolist() == [2, 2, 2]
    assert len(looked) == 2  # as it ran, and as it was captured


@pytest.mark.parametrize(
    "layer",
    [
        nn.GRU(4, 5),
        pytest.param(nn.RNN(4, 5, batch_first=True), marks=pytest.mark.slow),
        pytest.param(nn.LSTM(4, 5), marks=pytest.mark.slow),
        nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_recurrent_layers_and_their_states(layer: nn.Module, options: dict[str, Any]) -> None:
    x = torch.randn(3, 2, 4)
    got = compile_cli.compile(layer.eval(), (x,), options=options)(x)
    torch.testing.assert_close(got, layer(x))
    program = torch.export.export(layer, (x,))
    got = compile_cli.compile(program, (x,), options=options)(x)
    torch.testing.assert_close(got, layer(x))


def test_what_an_lstm_returns_at_each_step(options: dict[str, Any]) -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.lstm(x)[0])

    model, x = Steps().eval(), torch.randn(2, 3, 4)
    compiled = compile_cli.compile(model, (x,), options=options)
    torch.testing.assert_close(compiled(x), model(x))
