"""What ranks tell each other of graphs that all compile; `tests/two_ranks.py` has two processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from compile_cli import graph_compiler, pipeline, ranks, torch_compat
from compile_cli.artifact import Artifact
from compile_cli.graph_cache import GraphCode
from compile_cli.options import Options
from compile_cli.ranks import Ranks, digest
from planner import convolution
from planner.convolution import Comparison

TEXT = """program p(x: f32[4] cpu):
  y = extern aten.sin.default(x) -> f32[4] cpu
  return (y,)
"""
ARTIFACT = Artifact(TEXT, {"c": torch.arange(3)}, (), (), Options(cache_dir="there"))


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], Ranks]:
    """`of(rank, digest)`: the next graph of a rank."""
    store = dist.HashStore()
    monkeypatch.setattr(ranks, "default_store", lambda: store)
    monkeypatch.setattr(ranks, "_BEGUN", timedelta(seconds=0.2))

    def rank(number: int, digest: str) -> Any:
        monkeypatch.setattr(dist, "get_rank", lambda: number)
        return Ranks.of(digest)

    return rank


def test_the_first_decides(of: Any) -> None:
    here = Options(cache_dir="here")
    of(0, "a").tell(ARTIFACT)
    found = ranks.here(of(1, "a").told(), here)
    assert found.text == TEXT and found.options == here
    assert torch.equal(found.constants["c"], torch.arange(3))
    of(0, "b").tell(None)  # it failed, or nobody else can run it
    assert of(1, "b").told() is None
    of(0, "c")
    assert of(1, "d").told() is None  # another graph, of another batch maybe: no wait for it
    assert of(1, "") is None  # of no other rank's concern
    of(0, "e").tell(ARTIFACT)
    assert of(1, "e").told() is not None
    of(0, "f")
    of(0, "g").tell(1)
    assert of(1, "g").told() == 1  # the first was asked one more question, as its cache had less


def test_a_question_is_asked_of_the_first(of: Any) -> None:
    current = partial(of, digest="")
    current(0)
    assert ranks.agreed("a", lambda: 1) == 1
    current(1)
    assert ranks.agreed("a", lambda: 2) == 1
    assert ranks.agreed("", lambda: 2) == 2
    current(0)
    with pytest.raises(ZeroDivisionError):
        ranks.agreed("b", lambda: 1 // 0)
    current(1)
    assert ranks.agreed("b", lambda: 2) == 2


def test_ranks_lay_convolutions_out_alike(of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the first has measured: of graphs in another order they would share no program."""
    asked: list[int] = []

    def compare(*_: Any) -> Comparison:
        asked.append(dist.get_rank())
        return Comparison(1, 1, 0, given=1.0, last=2.0 * asked[-1])

    def compiled(*args: Any, **more: Any) -> Any:
        assert dist.get_rank() == 0
        return compile_graph(*args, **more)

    compile_graph = pipeline.compile_graph
    monkeypatch.setattr(pipeline, "compile_graph", compiled)
    monkeypatch.setattr(convolution, "compare", compare)
    monkeypatch.setattr("aten_lowering.passes.channels_last.DEVICES", {"cpu"})
    monkeypatch.setattr(graph_compiler, "in_data_parallel", lambda: True)
    torch.manual_seed(0)
    net, x = nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8)
    want = torch.autograd.grad(net(x).sin().sum(), net.weight)
    for rank in (0, 1):
        torch._dynamo.reset()
        of(rank, "")
        found = torch.compile(net, backend="compile_cli")(x).sin().sum()
        torch.testing.assert_close(torch.autograd.grad(found, net.weight), want)
    assert {*asked} == {0}


def test_who_waits_in_vain_compiles_alone_from_then_on(of: Any) -> None:
    waiting = of(1, "a")
    with pytest.warns(UserWarning, match="ranks compile apart"):
        assert waiting.told() is None
    assert of(1, "b") is None and of(0, "a") is None


def test_what_the_first_finds_in_its_cache_is_told(of: Any) -> None:
    of(0, "")  # the first is current
    code = GraphCode(None, lambda: replace(ARTIFACT, shared="a"))
    code.post_compile()
    assert torch.allclose(code([torch.ones(4)])[0], torch.ones(4).sin())
    found = of(1, "a").told()
    assert found is not None and found.shared == "a"


def test_binaries_that_a_store_does_not_hold_are_left_out(
    of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_MOST", 1 << 12)
    bytes_: Any = (torch.randint(0, 256, (1 << 13,), dtype=torch.uint8).numpy().tobytes(),)
    of(0, "a").tell(replace(ARTIFACT, binaries=bytes_))
    found = of(1, "a").told()
    assert found is not None and found.binaries == () and found.text == TEXT


def test_a_device_is_that_of_the_rank(monkeypatch: pytest.MonkeyPatch, of: Any) -> None:
    of(0, "")

    def graph(index: int, size: int) -> fx.GraphModule:
        with FakeTensorMode(allow_non_fake_inputs=True):
            made = fx.Graph()
            x, kept = made.placeholder("x"), torch.empty(size, device=f"cuda:{index}")
            x.meta["val"] = kept
            where = torch.device("cuda", index)
            y = made.call_function(torch.ops.aten.zeros.default, ([4],), {"device": where})
            y.meta["val"] = kept
            made.output((y,))
        return fx.GraphModule({}, made)

    one, other, longer = (digest(graph(i, n), Options(), True) for i, n in ((0, 4), (1, 4), (0, 5)))
    assert one and one == other and one != longer
    assert digest(graph(0, 4), Options(), False) == ""  # no rank's but this one's
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    there = replace(ARTIFACT, text=TEXT.replace("cpu", "cuda:0"))
    assert ranks.here(there, Options()).text == TEXT.replace("cpu", "cuda:1")


def test_ranks_that_know_other_sizes_are_apart(of: Any) -> None:
    """A rank whose batches are large asks whether they are, and compiles for those alone."""
    of(0, "")
    found: list[str] = []

    def compiled(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append(digest(gm, Options(), True))
        return make_boxed_func(gm.forward)

    for size, most in ((8, 20), (8, 20), (30, 20), (8, 100)):
        torch._dynamo.reset()

        def model(x: torch.Tensor, most: int = most) -> torch.Tensor:
            many = x.shape[0] >= most
            return x.sin() if many or x.dim() == 1 else x

        x = torch.ones(size)
        torch._dynamo.mark_dynamic(x, 0)
        torch.compile(model, backend=aot_autograd(fw_compiler=compiled))(x)
    first, same, larger, wider = found
    assert first and first == same and len({first, larger, wider}) == 3


def test_ranks_that_are_played_tell_nothing() -> None:
    """torch's `fake` groups, whose store holds nothing."""
    fakes = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", store=fakes.FakeStore(), rank=0, world_size=2)
    try:
        assert torch_compat.default_store() is None
    finally:
        dist.destroy_process_group()
    assert torch_compat.default_store() is None  # nor do none
