"""What ranks tell each other of graphs that all compile; `tests/two_ranks.py` has two processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

from compile_cli import ranks, torch_compat
from compile_cli.artifact import Artifact
from compile_cli.graph_cache import GraphCode
from compile_cli.options import Options
from compile_cli.ranks import Ranks, digest

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
    found = of(1, "a").told(here)
    assert found is not None and found.text == TEXT and found.options == here
    assert torch.equal(found.constants["c"], torch.arange(3))
    of(0, "b").tell(None)  # it failed, or nobody else can run it
    assert of(1, "b").told(here) is None
    of(0, "c")
    assert of(1, "d").told(here) is None  # another graph, of another batch maybe: no wait for it
    assert of(1, "") is None  # of no other rank's concern
    of(0, "e").tell(ARTIFACT)
    assert of(1, "e").told(here) is not None


def test_who_waits_in_vain_compiles_alone_from_then_on(of: Any) -> None:
    waiting = of(1, "a")
    with pytest.warns(UserWarning, match="ranks compile apart"):
        assert waiting.told(Options()) is None
    assert of(1, "b") is None and of(0, "a") is None


def test_what_the_first_finds_in_its_cache_is_told(of: Any) -> None:
    of(0, "")  # the first is current
    code = GraphCode(None, lambda: replace(ARTIFACT, shared="a"))
    code.post_compile()
    assert torch.allclose(code([torch.ones(4)])[0], torch.ones(4).sin())
    found = of(1, "a").told(Options())
    assert found is not None and found.shared == "a"


def test_binaries_that_a_store_does_not_hold_are_left_out(
    of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_MOST", 1 << 12)
    bytes_: Any = (torch.randint(0, 256, (1 << 13,), dtype=torch.uint8).numpy().tobytes(),)
    of(0, "a").tell(replace(ARTIFACT, binaries=bytes_))
    found = of(1, "a").told(Options())
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
    assert ranks._here(there, Options()).text == TEXT.replace("cpu", "cuda:1")


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
