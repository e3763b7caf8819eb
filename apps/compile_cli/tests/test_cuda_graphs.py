"""CUDA graphs around the host program: which inputs it writes; nothing changes without a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli
from compile_cli.errors import UnknownOption
from compile_cli.hosts import cuda_graphs as host
from compile_cli.hosts.cuda_graphs import mutated_inputs
from cuda_graphs import GraphedCallable, GraphPool
from cuda_graphs.graph_pool import Recording


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def test_written_inputs_are_found(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path)}
    compiled = compile_cli.compile(Counter(), (torch.randn(2, 3),), options=options)
    program = compiled.graph.program
    (written,) = mutated_inputs(program)
    assert "calls" in program.params[written].name


def test_without_a_gpu_it_is_refused_or_does_nothing(tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path), "cuda_graphs": True}
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()).eval(), torch.randn(4, 8)
    with pytest.raises(UnknownOption, match="does nothing on CPU tensors"):
        compile_cli.compile(model, (x,), options=options)
    compiled = torch.compile(model, backend="compile_cli", options=options)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-6)


def test_what_training_keeps_is_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[GraphedCallable] = []

    class Seen(GraphedCallable):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            made.append(self)

    monkeypatch.setattr(host, "GraphedCallable", Seen)
    monkeypatch.setattr(host, "DEVICE", "cpu")
    options = {"cache_dir": str(tmp_path), "cuda_graphs": True}
    layer = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    torch.compile(layer, backend="compile_cli", options=options)(torch.randn(4, 8)).sum().backward()
    forward, backward = made
    lent, got = forward.lending, backward.lending
    assert lent.loans is got.loans and not got.positions
    assert 0 not in lent.positions and 1 in lent.positions, "the result is the caller's own"


@torch.library.custom_op("compile_cli_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    """An operator that users say is not to be captured."""
    return x * 2


@scaled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def chain(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = (x @ w).tanh()
    return x


class Pool:
    """Records what is captured, and replays by running it on the very tensors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.captured = self.replayed = 0
        monkeypatch.setattr(host, "DEVICE", "cpu")
        for name in ("refuses", "busy", "order"):
            monkeypatch.setattr(GraphPool, name, lambda *_: None)
        monkeypatch.setattr(GraphPool, "record", lambda _, fn, args: self.record(fn, args))

    def record(self, fn: Callable[..., Any], args: list[Any]) -> Recording:
        kept = [a.clone() if isinstance(a, Tensor) else a for a in args]
        state = torch.get_rng_state()
        outputs, held = fn(*args), [unheld(a) if isinstance(a, Tensor) else a for a in args]
        torch.set_rng_state(state)
        self.captured += 1
        for a, b in zip(args, kept, strict=True):
            if isinstance(a, Tensor):
                a.copy_(b)  # a capture writes nothing

        def replay() -> None:
            self.replayed += 1
            for o, n in zip(outputs, fn(*held), strict=True):
                o.copy_(n)

        return Recording(replay, outputs, lambda: None)


def unheld(tensor: Tensor) -> Tensor:
    """The same memory, which lives no longer for that: as a graph knows it."""
    storage = tensor.untyped_storage()
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def named(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = chain(x, w)
    z = chain(scaled(y), w)
    return z + y, z


def sizes_of_data(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = chain(x, w)
    rows = y[(y[:, 0] > y[:, 0].mean()).nonzero().squeeze(1)]
    return chain(rows, w), y


def written(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    w.add_(chain(x, w))
    y = scaled(chain(x, w))
    w.mul_(0.5)
    return chain(y, w), w.sum(0)


def views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = chain(x, w)
    half = y[:, ::2].t()
    z = scaled(half)
    return chain(half, w), chain(z, w)


def drawn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Both draw from what one call of torch's generator gives the first part."""
    y = scaled(torch.dropout(chain(x, w), 0.5, True))
    return chain(torch.dropout(y, 0.5, True), w), y


PROGRAMS = [named, sizes_of_data, written, views, drawn]
CASES = [
    *((run, "fx") for run in PROGRAMS),
    pytest.param(written, "cpp", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("run", "emit"), CASES, ids=lambda value: getattr(value, "__name__", value)
)
def test_parts(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], emit: str
) -> None:
    """Fresh inputs and a weight that stays, in twice the parts that there are cuts."""
    pool = Pool(monkeypatch)
    torch._dynamo.reset()
    options = {"cache_dir": str(own_cache), "emit": emit, "cuda_graphs": True}
    options["not_captured"] = ["compile_cli_tests.scaled"]
    dynamo: Any = torch._dynamo.config
    with torch.no_grad(), dynamo.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(run, backend="compile_cli", options=options, fullgraph=True)
        ours, theirs = (torch.ones(6, 6) / 6 for _ in range(2))
        plain: Callable[..., Any] = run
        if run is drawn:  # numbers of its own
            options = {**options, "cuda_graphs": False}
            plain = torch.compile(lambda *args: run(*args), backend="compile_cli", options=options)
        kept = []
        for call in range(6):
            x = torch.randn(6, 6, generator=torch.Generator().manual_seed(call % 3))
            torch.manual_seed(call)
            got = compiled(x, ours)
            torch.manual_seed(call)
            kept.append((got, plain(x, theirs)))
        for got, wanted in kept:  # a later call has written to none
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert pool.captured >= 2
    assert pool.replayed == 10 or run is sizes_of_data
