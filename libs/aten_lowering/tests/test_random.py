"""Random operators as kernels: eager's distributions, the generator's state, one seed a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from aten_lowering.drawn import DRAWN, SEED
from loop_ir import Extern, Kernel, fuse

aten = torch.ops.aten
N = 4000


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Kolmogorov and Smirnov's: the largest difference of two empirical distributions."""
    a, b = a.double().flatten().sort()[0], b.double().flatten().sort()[0]
    both = torch.cat([a, b])
    below = [torch.searchsorted(x, both, right=True) / len(x) for x in (a, b)]
    return float((below[0] - below[1]).abs().max())


Fn = Callable[[torch.Tensor], torch.Tensor]
CASES: dict[str, Fn] = {
    "rand": lambda x: torch.rand(N),
    "rand f64": lambda x: torch.rand(N, dtype=torch.float64),
    "rand bf16": lambda x: torch.rand(N, dtype=torch.bfloat16),
    "rand_like": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn(N),
    "randn_like f64": lambda x: torch.randn_like(x, dtype=torch.float64),
    "randint": lambda x: torch.randint(7, (N,)),
    "randint from": lambda x: torch.randint(-3, 90, (N,), dtype=torch.int16),
    "randint_like": lambda x: torch.randint_like(x, -5, 2**31 - 6),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli p": lambda x: aten.bernoulli.p(x, 0.3),
    "uniform": lambda x: aten.uniform(x, -2.5, 3.5),
    "normal": lambda x: aten.normal_functional(x, 3.0, 0.5),
    "normals": lambda x: torch.normal(x, x.sigmoid() + 1),
    "normals of one deviation": lambda x: torch.normal(x, 0.3),
    "normals of one mean": lambda x: torch.normal(2.0, x.sigmoid()),
    "normals of a size": lambda x: torch.normal(2.0, 3.0, (N,)),
    "log_normal": lambda x: aten.log_normal(x, 0.5, 0.3),
    "cauchy": lambda x: aten.cauchy(x, 1.0, 2.0).clamp(-50, 50),
    "geometric": lambda x: aten.geometric(x, 0.2),
    "geometric of integers": lambda x: aten.geometric(x.long(), 0.4),
    "exponential": lambda x: aten.exponential(x, 2.0),
    "rrelu": lambda x: aten.rrelu_with_noise_functional(x, x, 0.2, 0.9, True)[0],
    "slopes": lambda x: aten.rrelu_with_noise_functional(x, x, 0.2, 0.9, True)[1],
    "rrelu of bf16": lambda x: torch.rrelu(x.bfloat16(), training=True).float(),
    "dropout": lambda x: torch.native_dropout(x + 3, 0.3, True)[0],
}


@pytest.mark.parametrize("name", CASES)
def test_distributions(name: str, lower_fn: Any, evaluate_graph: Any) -> None:
    torch.manual_seed(1)
    x = torch.randn(N)
    lowered = lower_fn(CASES[name], x)
    assert not lowered.fallbacks
    (got,) = evaluate_graph(lowered.graph, [x], lowered.constants)
    torch.manual_seed(2)
    want = CASES[name](x)
    assert got.dtype == want.dtype and got.shape == want.shape
    # the chance of a larger distance of two samples of one distribution is about 1e-5
    assert distance(got, want) < math.sqrt(-math.log(5e-6) / N)
    scale = float(want.double().std())
    assert abs(float(got.double().mean() - want.double().mean())) < 5 * scale * math.sqrt(2 / N)
    if want.is_floating_point():
        assert got.min() >= want.min() - scale and got.max() <= want.max() + scale


def test_the_generator_decides(lower_fn: Any, evaluate_graph: Any) -> None:
    """The same state gives the same numbers, the next call others, and so the next operator."""
    lowered = lower_fn(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.zeros(50))

    def call() -> list[torch.Tensor]:
        found: list[torch.Tensor] = evaluate_graph(lowered.graph, [torch.zeros(50)], {})
        return found

    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = call(), call()
    assert not torch.equal(first[0], first[1]) and not torch.equal(first[0], second[0])
    torch.set_rng_state(state)
    for old, new in zip((*first, *second), (*call(), *call()), strict=True):
        assert torch.equal(old, new)
    torch.manual_seed(3)
    assert torch.equal(call()[0], first[0])


def test_dropout(lower_fn: Any, evaluate_graph: Any) -> None:
    """The mask is where the result is not zero; what is never or always dropped needs no seed."""
    x = torch.rand(40, 50) + 1
    for p, train in ((0.25, True), (0.0, True), (1.0, True), (0.5, False), (0.5, None)):
        lowered = lower_fn(lambda a, p=p, t=train: torch.native_dropout(a, p, t), x)
        got, mask = evaluate_graph(lowered.graph, [x], lowered.constants)
        kept = 1 - p if train is not False else 1.0
        assert mask.dtype is torch.bool and abs(float(mask.float().mean()) - kept) < 0.06
        scale = 1 / kept if kept else 0.0
        torch.testing.assert_close(got, x * mask * scale)
        seeds = [n for n in fuse(lowered.graph).nodes if isinstance(n, Extern)]
        assert len(seeds) == (0 < kept < 1)


def test_slopes_that_are_not_drawn(lower_fn: Any, evaluate_graph: Any) -> None:
    """Outside of training: the mean of both, no seed, and the slopes of before."""
    x, noise = torch.randn(50), torch.rand(50)
    lowered = lower_fn(lambda *a: aten.rrelu_with_noise_functional(*a, 0.2, 0.8, False), x, noise)
    assert [type(n) for n in lowered.graph.nodes] == [Kernel]
    got, slopes = evaluate_graph(lowered.graph, [x, noise], lowered.constants)
    torch.testing.assert_close(got, torch.where(x > 0, x, x * 0.5))
    assert torch.equal(slopes, noise)


def test_no_value_reaches_the_end(lower_fn: Any, evaluate_graph: Any) -> None:
    """Half of the largest bf16 numbers below 1 would be rounded up to it."""
    lowered = lower_fn(lambda: torch.rand(60000, dtype=torch.bfloat16))
    (got,) = evaluate_graph(lowered.graph, [], {})
    assert got.max() < 1 and got.min() >= 0


def test_numbers_do_not_depend_on_strides(lower_fn: Any, evaluate_graph: Any) -> None:
    found = []
    for x in (torch.zeros(4, 6), torch.zeros(6, 4).t()):
        torch.manual_seed(5)
        found.append(evaluate_graph(lower_fn(torch.rand_like, x).graph, [x], {})[0])
    assert torch.equal(*found)


def test_a_seed_decides_a_mask_wherever_it_is_drawn(lower_fn: Any, evaluate_graph: Any) -> None:
    """A kernel's mask is the operator's own, in the order of memory that is asked for; seeds of
    several are drawn by one call."""
    seed = torch.tensor([2**62 + 5, 0])
    lowered = lower_fn(lambda s: DRAWN(s, [3, 5, 7], [0, 2, 1], 0.25), seed)
    (got,) = evaluate_graph(lowered.graph, [seed], {})
    want = DRAWN(seed, [3, 5, 7], [0, 2, 1], 0.25)
    assert torch.equal(got, want) and got.stride() == want.stride() == (35, 1, 5)
    assert 0.1 < float(got.float().mean()) < 0.4 and not lowered.fallbacks

    def two(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seeds = [SEED(x.device, n) for n in range(2)]
        return *seeds, *(DRAWN(s, [8], [0], 0.5) for s in seeds)

    lowered = lower_fn(two, torch.zeros(1))
    calls = [n.target for n in lowered.graph.nodes if isinstance(n, Extern)]
    assert calls == ["aten.randint.low", "aten.unbind.int"]
    *seeds, first, last = evaluate_graph(lowered.graph, [torch.zeros(1)], {})
    for seed, mask in zip(seeds, (first, last), strict=True):
        assert torch.equal(DRAWN(seed, [8], [0], 0.5), mask)


def test_dropout_and_what_follows_is_one_kernel(lower_fn: Any) -> None:
    def fn(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.native_dropout(torch.native_dropout(a, 0.1, True)[0] + b, 0.2, True)

    graph = fuse(lower_fn(fn, torch.randn(8, 64), torch.randn(8, 64)).graph)
    assert [type(n) for n in graph.nodes] == [Extern, Extern, Kernel]
    seeds, _ = (n for n in graph.nodes if isinstance(n, Extern))
    assert seeds.target == "aten.randint.low" and not seeds.fallback


def test_what_stays_torchs(lower_fn: Any) -> None:
    for fn in (lambda: torch.randint(2**40, (3,)), lambda: torch.randperm(5)):
        lowered = lower_fn(fn)
        assert [type(n) for n in fuse(lowered.graph).nodes] == [Extern] and not lowered.fallbacks
