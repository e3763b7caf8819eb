"""What a second process finds of a graph that a first one compiled: all but Dynamo's capture."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd import autograd_cache

import aten_lowering
import compile_cli.graph_cache as graph_cache
from compile_cli import pipeline, torch_backend
from compile_cli.hosts import inputs
from compile_cli.torch_compat import LocalMap, guards, key_parts, tracer
from loop_ir.fusion import take_over

Calls = list[str]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    with functorch_config.patch(enable_autograd_cache=True):
        yield
    torch._dynamo.reset()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A line for each graph that is compiled, and not found."""
    seen: Calls = []
    compile_graph = pipeline.compile_graph

    def counted(gm: Any, *args: Any, **more: Any) -> Any:
        seen.append(f"{len(gm.graph.nodes)} nodes")
        return compile_graph(gm, *args, **more)

    monkeypatch.setattr(pipeline, "compile_graph", counted)
    return seen


def process(f: Callable[..., Any], *args: Any, dynamic: bool = False, **options: Any) -> Any:
    """What a process gives that has compiled nothing yet."""
    torch._dynamo.reset()
    counters.clear()
    return torch.compile(f, backend="compile_cli", dynamic=dynamic, options=options)(*args)


def hits() -> int:
    return counters["aot_autograd"]["autograd_cache_hit"]


X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


def test_a_model_is_loaded(compiled: Calls) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 2), nn.Softmax(-1))
    with torch.no_grad():
        results = [process(model, X) for _ in range(2)]
        assert len(compiled) == 1 and hits() == 1
        for result in results:
            torch.testing.assert_close(result, model(X))


def test_a_damaged_entry_is_compiled_again(tmp_path: Path, compiled: Calls) -> None:
    """Another number in a program, or another byte in a kernel, would be as good a pickle."""

    def f(x: Tensor) -> Tensor:
        return x * 3.25 + x.cumsum(0)

    with torch.no_grad():
        process(f, X)
        entries = [p for p in (tmp_path / "torch").rglob("*") if p.is_file()]
        held = [p for p in entries if b"3.25" in p.read_bytes()]
        assert held
        for path in held:
            path.write_bytes(path.read_bytes().replace(b"3.25", b"3.75"))
        torch.testing.assert_close(process(f, X), f(X))
    assert len(compiled) == 2 and hits() == 0


def test_what_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find a graph, no table of decompositions is made, no worker is started, nothing of torch's
    own compiler is imported, and neither Triton's files nor torch's are read."""

    def asked(*_: Any) -> Any:
        raise AssertionError("it takes longer than to look up")

    with torch.no_grad():
        process(torch.sin, X)
        theirs = [f"{key_parts.__package__}.{name}" for name in ("debug", "codegen.wrapper")]
        for name in theirs:
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(aten_lowering, "decompositions", asked)
        monkeypatch.setattr(torch_backend, "start_workers", asked)
        monkeypatch.setattr(graph_cache, "_asked_torch", asked)
        graph_cache._torch_digest.cache_clear()
        monkeypatch.setattr(key_parts, "init_backend_registration", asked)
        monkeypatch.setattr(key_parts.CacheBase, "get_system", staticmethod(asked))
        torch.testing.assert_close(process(torch.sin, X), X.sin())
    assert hits() == 1 and not sys.modules.keys() & set(theirs)


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING])
def test_dynamo_parses_files_and_times_guards_for_a_log_that_is_read(
    level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: Calls = []
    timed: list[Any] = []
    monkeypatch.setattr(guards, "profile_guard_manager", lambda *a: float(timed.append(a) is None))
    monkeypatch.setattr(guards.guards_log, "isEnabledFor", lambda at: at >= level)
    monkeypatch.setattr(tracer, "get_funcname", lambda file, _: parsed.append(file))
    monkeypatch.setattr(graph_cache.call_log, "isEnabledFor", lambda at: at >= level)
    torch._dynamo.reset()
    graph_cache.until_compiled()
    torch.compile(lambda x: x.sin() + 1, backend="compile_cli")(X)
    assert bool(parsed) == bool(timed) == (level == logging.DEBUG)


@pytest.mark.parametrize("enabled", [False, True])
def test_dynamo_asks_for_local_maps_where_they_are_on(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(LocalMap, "should_wrap_in_hop", asked.append)
    monkeypatch.setattr(LocalMap, "_enabled", enabled)
    torch._dynamo.reset()
    graph_cache.until_compiled()
    model = nn.Linear(4, 2)
    torch.testing.assert_close(torch.compile(model, backend="compile_cli")(X), model(X))
    assert bool(asked) == enabled and LocalMap.should_wrap_in_hop == asked.append


def test_torchs_digest_is_asked_again_where_a_file_of_torch_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, asked = tmp_path / "site" / "torch", iter([b"one", b"two"])
    (package / "nn").mkdir(parents=True)
    for name in ("__init__.py", "nn/functional.py"):
        (package / name).write_text("x = 1\n")
    monkeypatch.setattr(torch, "__file__", str(package / "__init__.py"))
    monkeypatch.setattr(graph_cache, "_asked_torch", lambda: next(asked))

    def another_process() -> bytes:
        graph_cache._torch_digest.cache_clear()
        return graph_cache._torch_digest(tmp_path / "kept")

    assert [another_process() for _ in range(2)] == [b"one"] * 2
    (package / "nn/functional.py").write_text("x = 22\n")
    assert [another_process() for _ in range(2)] == [b"two"] * 2
    graph_cache._torch_digest.cache_clear()


def test_what_stands_in_is_imported_when_it_is_asked_for() -> None:
    """And is no longer there for others. Nor does a graph that is found want what plans one."""
    code = """
import sys
import compile_cli, torch
torch.compile(torch.sin, backend="eager")(torch.ones(2))
import torch._functorch.aot_autograd
import compile_cli.torch_backend
assert not {"networkx", "loop_ir", "triton_emit", "tuning"} & sys.modules.keys()
from torch._functorch._activation_checkpointing.graph_info_provider import nx
assert type(nx.DiGraph()).__module__.startswith("networkx") and nx.bfs_predecessors
import networkx
assert networkx is not nx and networkx.DiGraph
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    """What torch warns of."""
    said: list[logging.LogRecord] = []
    listener = logging.Handler(logging.WARNING)
    monkeypatch.setattr(listener, "emit", said.append)
    monkeypatch.setattr(key_parts.log, "handlers", [listener])
    monkeypatch.setattr(autograd_cache.log, "handlers", [listener])
    return said


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Future[Any]:
    """A candidate of every graph that is compiled."""
    late: Future[Any] = Future()
    loop = pipeline.compile_loop
    monkeypatch.setattr(
        pipeline, "compile_loop", lambda *a, **more: replace(loop(*a, **more), late=(late,))
    )
    return late


def test_what_was_late_is_decided_by_a_process_long_after_it_is_compiled(
    compiled: Calls, late: Future[Any], said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, and when the second decides no better, what was kept is loaded."""

    def f(x: Tensor) -> Tensor:
        return x.sin().cumsum(-1).softmax(0)

    now = 1e9
    monkeypatch.setattr("compile_cli.undecided.time.time", lambda: now)

    def passes(seconds: float) -> int:
        nonlocal now
        now += seconds
        torch.testing.assert_close(process(f, X), f(X))
        return len(compiled)

    assert [passes(seconds) for seconds in (0, 0, 1e6)] == [1, 1, 1]
    late.set_result(None)
    assert [passes(seconds) for seconds in (0, 3000, 3000, 0, 1e6)] == [1, 1, 2, 2, 2]
    assert hits() == 1 and not said


def test_a_forward_pass_is_kept_that_was_late_until_the_backward_pass(
    compiled: Calls, late: Future[Any], said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long that was."""
    monkeypatch.setattr("compile_cli.undecided._SETTLED", -1.0)
    for graphs, found in ((2, 0), (4, 0), (4, 1)):
        x = X.clone().requires_grad_()
        result = process(lambda x: x.tanh() * x.sin(), x).sum()
        if not late.done():
            late.set_result(None)
        result.backward()
        assert len(compiled) == graphs and hits() == found and not said


def test_what_failed_or_was_not_compiled_supersedes_nothing(
    compiled: Calls, late: Future[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the process ends before."""
    process(torch.sin, X)
    late.set_exception(RuntimeError("the pool is closed"))
    monkeypatch.setattr("compile_cli.undecided._SETTLED", -1.0)
    process(torch.sin, X)
    assert len(compiled) == 1 and hits() == 1


def test_sizes_that_were_not_met(compiled: Calls) -> None:
    def f(x: Tensor) -> Tensor:
        return (x * x.shape[0]).sum(-1) if x.shape[0] % 2 else x.amax(-1)

    process(f, X, dynamic=True)
    again = torch.compile(f, backend="compile_cli", dynamic=True)
    torch._dynamo.reset()
    counters.clear()
    torch.testing.assert_close(again(torch.cat((X, X[:2]))), f(torch.cat((X, X[:2]))))
    assert len(compiled) == 1 and hits() == 1
    even = torch.cat((X, X[:1]))
    torch.testing.assert_close(again(even), f(even))  # the guard of the first process holds here
    assert len(compiled) == 2


def test_writes_to_inputs_views_and_constants(compiled: Calls) -> None:
    table = [0.5, 1.5, 2.5, 3.5]

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        y.add_(x.sin())
        return x + torch.tensor(table), y.t(), x

    expected = X.clone(), X.clone()
    want = f(*expected)
    for _ in range(2):
        given = X.clone(), X.clone()
        got = process(f, *given)
        torch.testing.assert_close((got, given), (want, expected))
        assert got[2] is given[0] and got[1].data_ptr() == given[1].data_ptr()
    assert len(compiled) == 1 and hits() == 1


@pytest.mark.parametrize("emit", ["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_each_host_program(emit: str, compiled: Calls) -> None:
    for _ in range(2):
        torch.testing.assert_close(process(torch.softmax, X, -1, emit=emit), X.softmax(-1))
    assert len(compiled) == 1 and hits() == 1


def test_other_options_and_sources_are_other_graphs(
    compiled: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    process(torch.sin, X)
    process(torch.sin, X, fuse=False)
    monkeypatch.setattr(graph_cache, "_makers", lambda: "other sources")
    process(torch.sin, X)
    assert len(compiled) == 3
    process(torch.sin, X)
    assert len(compiled) == 3


@pytest.mark.parametrize("fails", [False, True])
def test_training_is_loaded(fails: bool, compiled: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass is compiled when it first runs, and both are kept then; torch's switch is
    as it was after that, and after a failure, too."""
    for n in range(2):
        x = X.clone().requires_grad_()
        result = process(lambda x: x.tanh() * x.sin(), x).sum()
        if fails:
            with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no room"):
                patch.setattr(pipeline, "compile_graph", _no_room)
                result.backward()
            assert not functorch_config.bundled_autograd_cache
            continue
        result.backward()
        y = X.clone().requires_grad_()
        (y.tanh() * y.sin()).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        assert hits() == n and not functorch_config.bundled_autograd_cache
    assert len(compiled) == 2


def test_training_with_cuda_graphs_compiles_again(compiled: Calls) -> None:
    """The forward pass lends its memory to the backward pass, which none that was loaded does."""
    for _ in range(2):
        x = X.clone().requires_grad_()
        process(torch.tanh, x, cuda_graphs=True).sum().backward()
        torch.testing.assert_close(x.grad, 1 - X.tanh() ** 2)
    assert len(compiled) == 4


def _no_room(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no room")


def test_training_of_dynamic_sizes_is_loaded(compiled: Calls) -> None:
    """Torch compiles its backward pass at once, so that both are there to be kept."""
    for n in (3, 2):
        x = X[:n].clone().requires_grad_()
        process(lambda x: x.tanh() * x.shape[0], x, dynamic=True).sum().backward()
        torch.testing.assert_close(x.grad, (1 - X[:n].tanh() ** 2) * n)
    assert len(compiled) == 2 and hits() == 1


def test_what_torch_runs_is_not_kept(compiled: Calls) -> None:
    def f(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    for _ in range(2):
        torch.testing.assert_close(process(f, X), f(X))
    assert len(compiled) == 2


def test_what_a_backward_pass_writes_over_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is retained still holds what it kept, whoever compiled the backward pass."""
    monkeypatch.setattr(take_over, "LEAST", 0)
    copied, copy_of = list[Tensor](), inputs._copied
    monkeypatch.setattr(inputs, "_copied", lambda x: copied.append(x) or copy_of(x))
    x, w = (torch.randn(8, 8, requires_grad=True) for _ in range(2))
    for n in range(2):
        loss = process(lambda x: ((x @ w).sin() @ w).tanh().sum(), x)
        one, two = (torch.autograd.grad(loss, (x, w), retain_graph=True) for _ in range(2))
        assert all(map(torch.equal, one, two))
        assert hits() == n and len(copied) == 4 * (n + 1)
