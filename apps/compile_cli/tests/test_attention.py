"""Flex attention as one kernel, into which the functions of scores are spliced."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compile_cli
from aten_lowering.opaque import Opaque
from aten_lowering.passes.score_tables import score_tables

TEMPLATE = {"gemm": "template"}
LENGTH = 70
flex_module = sys.modules["torch.nn.attention.flex_attention"]  # a function has its name


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    # Eager is what torch compiles with its own backend, each time; the plain call is the same.
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def blocks(mask: Callable[..., Any], length: int = LENGTH) -> Any:
    return create_block_mask(mask, None, None, length, length, device="cpu", BLOCK_SIZE=32)


def not_ours(part: Opaque, *_: object) -> None:
    raise AssertionError(f"torch runs {part.op}: {part.reason}")


SLOPES, BIAS = torch.rand(2), torch.randn(2, LENGTH, LENGTH)
PLACES = torch.randint(0, 2, (LENGTH, LENGTH))
DOCUMENT = (torch.arange(LENGTH) // 25).int()
CAUSAL = blocks(lambda b, h, i, j: i >= j)
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"block_mask": CAUSAL},
    "window": {"block_mask": blocks(lambda b, h, i, j: (i - j).abs() < 9)},
    "documents": {"block_mask": blocks(lambda b, h, i, j: (DOCUMENT[i] == DOCUMENT[j]) & (i >= j))},
    "odd blocks": {
        "block_mask": create_block_mask(
            lambda b, h, i, j: i >= j, None, None, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=20
        )
    },
    "alibi": {"score_mod": lambda s, b, h, i, j: s + SLOPES[h] * (j - i), "block_mask": CAUSAL},
    "softcap": {"score_mod": lambda s, b, h, i, j: 20 * torch.tanh(s / 20)},
    "bias": {"score_mod": lambda s, b, h, i, j: s + BIAS[h, i, j], "scale": -0.5},
    "buckets": {"score_mod": lambda s, b, h, i, j: s + SLOPES[(i - j).clamp(0, 1)]},
    "table": {"score_mod": lambda s, b, h, i, j: s + SLOPES[PLACES[i, j]], "block_mask": CAUSAL},
    "nothing": {"score_mod": lambda s, b, h, i, j: torch.where(i > 3, s, float("-inf"))},
}


GRADIENTS = ["plain", "causal", "odd blocks", "alibi", "softcap", "bias", "table", "nothing"]
# alibi has the blocks of causal, documents those of window; what all have, plain has, and what the
# gradients of alibi show, those of slopes and distances do
CONTAINED = ("plain", "causal", "window")


def tails(cases: Iterable[str], others: Iterable[str] = ()) -> list[Any]:
    slow = (*CONTAINED, *others)
    return [pytest.param(c, marks=pytest.mark.slow if c in slow else ()) for c in cases]


# The others are compared where gradients are.
@pytest.mark.parametrize("case", tails(CASES, set(GRADIENTS) - {"table"}))
def test_functions_of_scores(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, **CASES[case], return_lse=True)

    q, k, v = (torch.randn(2, LENGTH, 2, 16).transpose(1, 2) for _ in range(3))
    with torch.no_grad():
        want = f(q, k, v)
        monkeypatch.setattr(Opaque, "__call__", not_ours)
        got = torch.compile(f, backend="compile_cli", options=TEMPLATE)(q, k, v)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got[0].stride() == want[0].stride()


@pytest.mark.parametrize("case", tails(GRADIENTS, ("alibi", "table")))
def test_gradients(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses gradients of flex attention on the CPU, for Inductor's kernels have none."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, **CASES[case], return_lse=True, enable_gqa=True)

    q = torch.randn(2, LENGTH, 2, 16).transpose(1, 2).requires_grad_()
    k, v = (torch.randn(2, 1, LENGTH, 16, requires_grad=True) for _ in range(2))
    grads = torch.randn(2, 2, LENGTH, 16), torch.randn(2, 2, LENGTH)
    exact = f(q, k, v)
    want = torch.autograd.grad(exact, (q, k, v), grads)
    monkeypatch.setattr(Opaque, "__call__", not_ours)
    results = torch.compile(f, backend="compile_cli", options=TEMPLATE)(q, k, v)
    torch.testing.assert_close(results, exact, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(results, (q, k, v), grads)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert [x.stride() for x in got] == [x.stride() for x in want]


def distances(s: Any, b: Any, h: Any, i: Any, j: Any, t: Tensor) -> Any:
    return s + t[h, j - i]


def several(s: Any, b: Any, h: Any, i: Any, j: Any, t: Tensor) -> Any:
    return 5 * torch.tanh((s + t[(j - i).abs().clamp(max=7), h]) / 5)


def bucket(off: Tensor) -> Tensor:
    far = 4 + (torch.log(off.abs().clamp(min=4).float() / 4) / 2.1 * 4).int()
    return (off > 0).int() * 8 + torch.where(off.abs() < 4, off.abs(), far.clamp(max=7))


CAPTURED: dict[str, tuple[tuple[int, ...], Any]] = {
    "distances": ((2, 2 * LENGTH), distances),
    "buckets": ((8, 2), several),
    "T5": ((16, 2), lambda s, b, h, i, j, t: s + t[bucket(j - i), h]),
    "slopes": ((2,), lambda s, b, h, i, j, t: s + t[h] * (j - i)),
    "queries": ((2, 2, LENGTH), lambda s, b, h, i, j, t: s * t[b, h, i]),
    "bias": ((2, LENGTH, LENGTH), lambda s, b, h, i, j, t: s + t[h, i, j]),
    "one": ((2,), lambda s, b, h, i, j, t: s + (i >= j + h) * t[-1] * torch.tensor(0.5)),
    "all": ((1,), lambda s, b, h, i, j, t: s * t[0 * i]),
}


@pytest.mark.parametrize("case", tails(CAPTURED, ("bias", "slopes", "T5", "one", "all")))
def test_gradients_of_what_a_function_captured(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of f32, rounded once: eager's of 16 bits are off by several bits."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    size, score = CAPTURED[case]

    def f(q: Tensor, k: Tensor, table: Tensor, mask: Any = CAUSAL) -> Any:
        changed = lambda s, b, h, i, j: score(s, b, h, i, j, table)  # noqa: E731  # as users write
        return flex_attention(q, k, k, changed, mask)

    q, k = (torch.randn(2, 2, LENGTH, 16, requires_grad=True) for _ in range(2))
    dtype = torch.bfloat16 if case == "buckets" else torch.float32
    given = q, k, torch.rand(size, dtype=dtype, requires_grad=True)
    exact = q, k, given[2].detach().float().requires_grad_()
    out = f(*exact)
    seed = torch.randn_like(out)
    want = torch.autograd.grad(out, exact, seed)
    monkeypatch.setattr(Opaque, "__call__", not_ours)
    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE)
    got = torch.autograd.grad(compiled(*given), given, seed)
    tolerance = 1e-4 if dtype is torch.float32 else 2e-2
    close = functools.partial(
        torch.testing.assert_close, rtol=tolerance, atol=tolerance, check_dtype=False
    )
    close(got, want)
    assert got[2].dtype is dtype
    if case not in ("buckets", "queries"):  # nothing else has gradients
        alone = torch.autograd.grad(compiled(q.detach(), k.detach(), given[2]), given[2], seed)
        close(alone[0], want[2])


def test_torch_gives_gradients_of_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no kernel of attention does: a table of distances, and what the user computed."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)

    def f(q: Tensor, table: Tensor, bias: Tensor) -> Any:
        wave = bias.sin()
        return flex_attention(
            q, q, q, lambda s, b, h, i, j: s + table[bucket(j - i), h] + wave[i, j]
        )

    size = (2, 2, LENGTH, 16), (16, 2), (LENGTH, LENGTH)
    given = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in size]
    want = torch.autograd.grad(f(*given).sum(), given)
    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE)
    got = torch.autograd.grad(compiled(*given).sum(), given)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)  # a logsumexp is traced as f32


def test_what_hangs_on_distances_is_looked_up() -> None:
    """In each order of query and key, of all heads alike or not."""

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        far = torch.log1p((i - j).abs() / 3).sqrt()
        return s + SLOPES[bucket(j - i) // 9] * (h + 1) + far / 7 + b * (i - j)

    def f(q: Tensor, k: Tensor) -> Any:
        return flex_attention(q, k, k, score)

    q, k = torch.randn(2, 2, LENGTH, 16), torch.randn(2, 2, LENGTH + 9, 16)
    graphs: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        score_tables(gm)
        graphs.append(gm)
        return gm.forward

    torch.testing.assert_close(torch.compile(f, backend=backend)(q, k), f(q, k))
    (name,) = (n for n, _ in graphs[0].named_children() if n.endswith("by_tables"))
    code = getattr(graphs[0], name).code
    assert "log" not in code and "floordiv" not in code and "table1" in code


def test_vectors_of_a_function_of_scores_are_no_distances() -> None:
    """Though there are as many of their elements."""
    every, weights = torch.arange(1 - LENGTH, LENGTH), torch.rand(2, 2 * LENGTH - 1)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        near = torch.exp(-torch.sqrt((j - i - every).abs().float()))
        far = torch.sqrt(torch.exp((j - i) / LENGTH)).cumsum(0)
        unit = torch.nn.functional.normalize(torch.sqrt(torch.exp((j - i) / LENGTH)), dim=0)
        return s + (near * weights[b]).sum(-1) - far + unit * (j - i) / LENGTH

    def f(q: Tensor) -> Any:
        return flex_attention(q, q, q, score)

    q = torch.randn(2, 2, LENGTH, 16)
    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE)
    torch.testing.assert_close(compiled(q), f(q), rtol=1e-5, atol=1e-5)


def test_numbers_of_a_function_of_scores_have_no_dimensions() -> None:
    """Which elements of a table have: their dtypes are others beside what is captured."""
    table, scale = torch.rand(16, 2).bfloat16(), torch.tensor(1.2345)

    def f(q: Tensor) -> Any:
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + table[bucket(j - i), h] * scale)

    q = torch.randn(2, 2, LENGTH, 16)
    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE)
    torch.testing.assert_close(compiled(q), f(q), rtol=1e-5, atol=1e-5)


def test_a_function_of_scores_that_writes() -> None:
    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        far = (j - i).abs().float()
        far += 1
        far.clamp_(max=9)
        return s + torch.log(far) / torch.sqrt(far)

    def f(q: Tensor) -> Any:
        return flex_attention(q, q, q, score)

    q = torch.randn(2, 2, LENGTH, 16)
    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE)
    torch.testing.assert_close(compiled(q), f(q), rtol=1e-5, atol=1e-5)


def test_dynamic_lengths_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of what functions captured, and of what is computed of them, come with it."""

    def f(q: Tensor, k: Tensor, slopes: Tensor, table: Tensor, near: int, mask: Any) -> Any:
        half = table.shape[1] // 2

        def sloped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            far = table[h, (i - j).abs().clamp(max=half)]
            return s + slopes[h] * (j - i) + torch.where(i - j < near, 0.0, far)

        return flex_attention(q, k, q, sloped, block_mask=mask)

    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE, dynamic=True)
    for length in (50, 70):
        q, k = (torch.randn(2, 2, length, 16) for _ in range(2))
        document = torch.arange(length) // 25
        mask = blocks(lambda b, h, i, j, d=document: (i >= j) & (d[i] == d[j]), length)
        given = q, k, torch.rand(2), torch.randn(2, length - 30), length // 3, mask
        want = f(*given)
        with monkeypatch.context() as patch:
            patch.setattr(Opaque, "__call__", not_ours)
            torch.testing.assert_close(compiled(*given), want, rtol=1e-5, atol=1e-5)


@pytest.mark.spread(2)
@pytest.mark.parametrize("mask", [lambda b, h, i, j: i >= 0, lambda b, h, i, j: (i + j) % 2 == 0])
def test_a_mask_whose_last_block_goes_past_the_end(
    mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than a block of a program's, which divides the length: what lies there is no key."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex_module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    of = create_block_mask(mask, None, None, 96, 96, device="cpu", BLOCK_SIZE=64)

    def f(*args: Tensor) -> Any:
        return flex_attention(*args, block_mask=of)

    args = [torch.randn(1, 2, 96, 16, requires_grad=True) for _ in range(3)]
    want, got = f(*args), torch.compile(f, backend="compile_cli", options=TEMPLATE)(*args)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(x.square().sum(), args) for x in (got, want)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)


def test_a_size_that_a_function_of_scores_takes() -> None:
    """Which no kernel divides by yet."""

    def f(q: Tensor) -> Any:
        return flex_attention(q, q, q, lambda s, b, h, i, j: s + (i + j) / q.shape[2])

    compiled = torch.compile(f, backend="compile_cli", options=TEMPLATE, dynamic=True)
    for length in (50, 70):
        q = torch.randn(2, 2, length, 16)
        torch.testing.assert_close(compiled(q), f(q), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batches", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_shared_heads_and_a_mask_for_each(batches: int) -> None:
    def far(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i - j).abs() < 8 * (1 + h + b)

    masks = create_block_mask(far, 2, 4, LENGTH, LENGTH, device="cpu", BLOCK_SIZE=32)

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=masks, enable_gqa=True)

    q = torch.randn(2, 4, LENGTH, 16)
    k, v = torch.randn(batches, 2, LENGTH, 16), torch.randn(batches, 2, LENGTH, 24)
    got = torch.compile(f, backend="compile_cli", options=TEMPLATE)(q, k, v)
    torch.testing.assert_close(got, f(q, k, v), rtol=1e-5, atol=1e-5)


def compiled(f: Callable[..., Any], *args: Tensor, **options: Any) -> compile_cli.CompiledModel:
    return compile_cli.compile(f, args, options={**TEMPLATE, **options})


def test_no_call_is_left_and_no_blocks_are_made_where_there_are_none() -> None:
    q = torch.randn(1, 2, 40, 16)
    model = compiled(lambda q: flex_attention(q, q + 1, q), q)
    assert not model.graph.fallbacks
    text = str(model.graph.program)
    assert "attention_forward" in str(model.graph.program) and "ExternCall" not in text


@pytest.mark.parametrize("emit", [pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def test_other_host_programs(emit: str) -> None:
    def f(q: Tensor) -> Tensor:
        return flex_attention(q, q + 1, q, score_mod=lambda s, b, h, i, j: s * 0.5)

    q = torch.randn(1, 2, 40, 16)
    torch.testing.assert_close(compiled(f, q, emit=emit)(q), f(q), rtol=1e-5, atol=1e-5)


def test_what_no_kernel_computes_stays_a_call_and_says_so() -> None:
    def f(q: Tensor) -> Tensor:
        return flex_attention(q, q + 1, q)

    q = torch.randn(1, 2, 40, 16, dtype=torch.float64)
    model = compiled(f, q)
    torch.testing.assert_close(model(q), f(q))
    (why,) = [x.reason for x in model.graph.fallbacks if x.op == "flex_attention"]
    assert why == "elements of torch.float64"
    wide = torch.randn(1, 1, 20, 300)
    model = compiled(f, wide)
    (why,) = [x.reason for x in model.graph.fallbacks if x.op == "flex_attention"]
    assert why == "heads of 300 and 300 columns"


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_in_float64(causal: bool) -> None:
    """Of the whole operator, torch's fake tensors take what is kept for them for f32."""

    def attention(q: Tensor) -> Tensor:
        k, v = q * 0.5, q.flip(-2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    found = []
    for run in (torch.compile(attention, backend="compile_cli"), attention):
        q = torch.linspace(-1, 1, 24, dtype=torch.float64).view(1, 2, 3, 4).requires_grad_()
        (grad,) = torch.autograd.grad(run(q).sin().sum(), q)
        found.append(grad)
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)
