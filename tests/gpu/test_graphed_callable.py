"""triton_rt's CUDA graphs of a callable on a real GPU."""

from __future__ import annotations

import pytest
import torch

from cuda_graphs import Buckets, GraphedCallable, GraphPool
from triton_rt import KernelParam, KernelSource, LazyKernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

ADD = KernelSource(
    "add",
    """
import triton
import triton.language as tl

@triton.jit
def add(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
""",
    (KernelParam("x", "*f32"), KernelParam("y", "*f32", mutated=True), KernelParam("n", "i32")),
    (("B", 1024),),
)


def test_graphs_of_a_callable() -> None:
    """Kernels of ours among torch's; the input moves, the weight stays."""
    kernel = LazyKernel(ADD)
    w = torch.randn(256, 256, device="cuda")

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        out = torch.empty_like(h)
        kernel(-(-h.numel() // 1024), h, out, h.numel())
        return torch.relu(out)

    graphed = GraphedCallable(fn)
    kept = []
    for _ in range(5):
        x = torch.randn(32, 256, device="cuda")
        kept.append(x)
        torch.testing.assert_close(graphed(x, w), torch.relu(x @ w + 1))
    text = graphed.explain()
    assert "4 replays" in text and "in place: argument 1" in text
    assert "argument 0 is copied, 32768 bytes" in text


def test_buckets_share_graphs_and_their_memory() -> None:
    w = torch.randn(512, 512, device="cuda") / 32

    def fn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = torch.tanh(x @ w)
        return x

    pool = GraphPool()
    buckets = Buckets((64, 1024, 8192), inputs={0: 0}, outputs={0: 0})
    graphed = GraphedCallable(fn, buckets=buckets, pool=pool)
    graphed(torch.randn(8192, 512, device="cuda"))
    torch.cuda.synchronize()
    used = torch.cuda.memory_reserved()
    for n in (8192, 1000, 17, 64, 5000, 1, 1024):
        x = torch.randn(n, 512, device="cuda")
        torch.testing.assert_close(graphed(x), fn(x), rtol=1e-3, atol=1e-3)
    assert len(graphed._slots) == 3
    assert torch.cuda.memory_reserved() - used < 200 << 20


def test_graphs_from_several_streams_are_in_order() -> None:
    graphed = GraphedCallable(lambda x: (x * 2).sum(0).exp())
    lanes = [torch.cuda.Stream() for _ in range(4)]
    inputs = [torch.full((4096, 512), i * 1e-4, device="cuda") for i in range(16)]
    torch.cuda.synchronize()
    outs = []
    for i in range(16):
        with torch.cuda.stream(lanes[i % 4]):
            outs.append(graphed(inputs[i]))
    torch.cuda.synchronize()
    for i, out in enumerate(outs):
        torch.testing.assert_close(out, (inputs[i] * 2).sum(0).exp())


def test_what_waits_for_the_gpu_has_no_graph() -> None:
    graphed = GraphedCallable(lambda x: x * x.sum().item())
    x = torch.ones(8, device="cuda")
    for _ in range(3):
        assert graphed(x).eq(8).all()
    assert "no graph: capture failed" in graphed.explain()
    good = GraphedCallable(lambda x: x.add_(1))
    for i in range(4):
        assert good(x) is x and x.eq(2 + i).all()
    assert "mutated: argument 0" in good.explain()


def test_an_argument_that_moves_later_is_captured_again() -> None:
    graphed = GraphedCallable(lambda x, w: x @ w)
    x = torch.randn(64, 64, device="cuda")
    weights = [torch.randn(64, 64, device="cuda") for _ in range(4)]
    kept = [graphed(x, weights[0]) for _ in range(3)]
    for w in weights:
        torch.testing.assert_close(graphed(x, w), x @ w)
    assert kept[-1].isfinite().all()
    text = graphed.explain()
    assert "captured again: argument 1 moved; copied from now on" in text
    assert "6 replays" in text and "no graph" not in text


def test_a_failed_capture_leaves_nothing_behind() -> None:
    """The caller's stream is current again, the allocator frees what other streams used, and the
    pool takes the next graph."""
    before, side = torch.cuda.current_stream(), torch.cuda.Stream()
    pool = GraphPool()
    x = torch.ones(1 << 20, device="cuda")
    waits = GraphedCallable(lambda x: x * x.sum().item(), pool=pool)
    raises = GraphedCallable(lambda x: x.view(3, 5), pool=pool)
    for _ in range(3):
        assert waits(x).eq(1 << 20).all()
        with pytest.raises(RuntimeError, match="shape"):
            raises(x)
    assert "no graph: capture failed" in waits.explain()
    assert torch.cuda.current_stream() == before
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    y = torch.ones(1 << 20, device="cuda")
    y.record_stream(side)
    del y
    torch.cuda.synchronize()
    z = torch.ones(256, device="cuda")  # the allocator looks at its events when it is asked
    assert torch.cuda.memory_allocated() - held <= z.nbytes
    good = GraphedCallable(lambda x: x + 1, pool=pool)
    for _ in range(3):
        assert good(x).eq(2).all()
    assert "2 replays" in good.explain()


def test_graphs_of_each_device_are_apart() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    graphed = GraphedCallable(lambda x: (x * 2).sum(0))
    for step in range(6):  # the current device stays 0
        x = torch.randn(512, 64, device=f"cuda:{step % 2}")
        torch.testing.assert_close(graphed(x), (x * 2).sum(0))
    assert "no graph" not in graphed.explain()
