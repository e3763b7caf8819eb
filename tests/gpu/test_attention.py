"""Flex attention as one kernel on a GPU, against eager's in f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import compile_cli  # noqa: F401  # registers the backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def functions(length: int, heads: int) -> dict[str, dict[str, Callable[..., Any]]]:
    slopes = torch.rand(heads, device="cuda")
    bias = torch.randn(heads, length, length, device="cuda")
    document = (torch.arange(length, device="cuda") // 200).int()
    return {
        "plain": {},
        "causal": {"mask": lambda b, h, i, j: i >= j},
        "window": {"mask": lambda b, h, i, j: (i - j).abs() < 100},
        "documents": {"mask": lambda b, h, i, j: (document[i] == document[j]) & (i >= j)},
        "alibi": {"score": lambda s, b, h, i, j: s + slopes[h] * (j - i)},
        "softcap": {"score": lambda s, b, h, i, j: 20 * torch.tanh(s / 20)},
        "bias": {"score": lambda s, b, h, i, j: s + bias[h, i, j]},
        "chunks": {"mask": lambda b, h, i, j: i // 64 == j // 64},
        "capped causal": {
            "score": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
            "mask": lambda b, h, i, j: i >= j,
        },
    }


CASES = list(functions(1, 1)) if torch.cuda.is_available() else ["plain"]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "columns", "length"),
    [
        (torch.bfloat16, 64, 1024),
        (torch.bfloat16, 128, 1000),
        (torch.float16, 80, 640),
        (torch.float16, 256, 512),
        (torch.float32, 64, 512),
    ],
)
def test_functions_of_scores(case: str, dtype: torch.dtype, columns: int, length: int) -> None:
    given = functions(length, 4)[case]
    mask = None
    if "mask" in given:
        mask = create_block_mask(given["mask"], None, None, length, length, device="cuda")

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, given.get("score"), mask, return_lse=True, enable_gqa=True)

    q = torch.randn(2, length, 4, columns, device="cuda", dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(2, 2, length, columns, device="cuda", dtype=dtype) for _ in range(2))
    compiled = torch.compile(f, backend="compile_cli", fullgraph=True)
    with torch.no_grad():
        (got, sums), (want, wanted) = compiled(q, k, v), f(q.double(), k.double(), v.double())
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-4}[dtype]
    torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(sums.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "columns", "length"),
    [(torch.bfloat16, 64, 1024), (torch.float16, 128, 1000), (torch.float32, 64, 512)],
)
def test_gradients(case: str, dtype: torch.dtype, columns: int, length: int) -> None:
    given = functions(length, 4)[case]
    mask = None
    if "mask" in given:
        mask = create_block_mask(given["mask"], None, None, length, length, device="cuda")

    def f(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, given.get("score"), mask, return_lse=True, enable_gqa=True)

    q = torch.randn(2, length, 4, columns, device="cuda", dtype=dtype).transpose(1, 2)
    k, v = (torch.randn(2, 2, length, columns, device="cuda", dtype=dtype) for _ in range(2))
    grads = torch.randn_like(q), torch.randn(2, 4, length, device="cuda")
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = torch.compile(f, backend="compile_cli", fullgraph=True)(*leaves)
    got = torch.autograd.grad(out, leaves, grads)
    want = torch.autograd.grad(f(*wide), wide, [g.double() for g in grads])
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-4}[dtype]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(
            a.double(), b, rtol=tolerance, atol=tolerance * float(b.abs().max())
        )


def bucket(off: Tensor) -> Tensor:
    far = 8 + (torch.log(off.abs().clamp(min=8).float() / 8) / 2.8 * 8).int()
    return (off > 0).int() * 16 + torch.where(off.abs() < 8, off.abs(), far.clamp(max=15))


LEARNED: dict[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "distances": ((4, 2000), lambda t, s, b, h, i, j: s + t[h, j - i + 1000]),
    "buckets": ((32, 4), lambda t, s, b, h, i, j: s + t[bucket(j - i), h]),
    "slopes": ((4,), lambda t, s, b, h, i, j: s + t[h] * (j - i)),
    "one": ((4,), lambda t, s, b, h, i, j: s + (i >= j) * t[0]),
    "bias": ((4, 1000, 1000), lambda t, s, b, h, i, j: s + t[h, i, j]),
    "queries": ((2, 4, 1000), lambda t, s, b, h, i, j: s * t[b, h, i]),
}


@pytest.mark.parametrize("case", LEARNED)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_what_is_learned(case: str, causal: bool) -> None:
    dtype = torch.bfloat16 if case in ("bias", "buckets") else torch.float32
    size, score = LEARNED[case]
    length, mask = 1000, None
    if causal:
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length)

    def f(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> Any:
        return flex_attention(q, k, v, lambda *at: score(t, *at), mask)

    given = [torch.randn(2, 4, length, 64, device="cuda", dtype=dtype) for _ in range(3)]
    given.append(torch.rand(size, device="cuda", dtype=dtype) * (0.01 if case == "slopes" else 1))
    grad = torch.randn_like(given[0])
    leaves = [x.detach().requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    out = torch.compile(f, backend="compile_cli", fullgraph=True)(*leaves)
    got = torch.autograd.grad(out, leaves, grad)
    want = torch.autograd.grad(f(*wide), wide, grad.double())
    tolerance = 2e-2 if dtype is torch.bfloat16 else 2e-4
    for a, b in zip(got, want, strict=True):
        atol = tolerance * float(b.abs().max())
        torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=atol)


def test_it_takes_no_memory_for_scores() -> None:
    q = torch.randn(1, 4, 16384, 64, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(
        lambda q: flex_attention(q, q, q, lambda s, b, h, i, j: s * 0.5), backend="compile_cli"
    )
    with torch.no_grad():
        compiled(q)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(q)
    assert torch.cuda.max_memory_allocated() - before < 2**26
