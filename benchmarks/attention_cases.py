"""Flex attention of bf16: what a program changes of scores, masks, one query over a long cache.

`python benchmarks/kernels.py --cases attention_cases` measures it. Names end with the columns of
heads; `grad` is with the gradients of queries, keys and values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from kernel_cases import BF16, Case
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

CASES: list[Case] = []
HEADS = 16
Sizes = tuple[int, int, int]
FULL: Sizes = (2, 4096, 4096)
ENCODER: Sizes = (2, 2048, 2048)
ONE: Sizes = (4, 1, 8192)


def case(
    name: str,
    sizes: Sizes = FULL,
    score: Callable[..., Any] | None = None,
    mask: Callable[..., Any] | None = None,
    columns: tuple[int, ...] = (64, 128),
    share: int = 1,
) -> None:
    """sizes: batches, queries, keys. score, mask: functions, the first argument of which are the
    tensors that they capture. share: heads of queries that share one of keys."""
    batch, queries, keys = sizes

    def add(width: int, grad: bool) -> None:
        held = SimpleNamespace()

        def make() -> tuple[Tensor, ...]:
            device = torch.device("cuda")
            held.slopes = torch.rand(HEADS, device=device)
            held.table = torch.randn(HEADS, 2 * keys, device=device)
            held.buckets = torch.randn(32, HEADS, device=device)
            held.bias = torch.randn(HEADS, queries, keys, device=device, dtype=BF16)
            held.document = torch.arange(keys, device=device).div(500).int()
            held.mask = None
            if mask is not None:
                of_tensors = lambda b, h, i, j: mask(held, b, h, i, j)  # noqa: E731  (torch wants a function)
                held.mask = create_block_mask(of_tensors, None, None, queries, keys, device="cuda")
            heads = HEADS, HEADS // share, HEADS // share
            rows = queries, keys, keys
            return tuple(
                torch.randn(batch, h, n, width, device=device, dtype=BF16)
                for h, n in zip(heads, rows, strict=True)
            )

        def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
            changed = None if score is None else lambda s, b, h, i, j: score(held, s, b, h, i, j)
            return flex_attention(q, k, v, changed, held.mask, enable_gqa=share > 1)

        text = f"{name} {width}{' grad' if grad else ''}"
        CASES.append(Case("attention", text, run, make, grad))

    for width in columns:
        add(width, False)
        if queries > 1:
            add(width, True)


def bucket(off: Tensor) -> Tensor:
    """Of T5's 32 buckets, in both directions."""
    near = off.abs()
    far = 8 + (torch.log(near.clamp(min=8).float() / 8) / math.log(16) * 8).int()
    return (off > 0).int() * 16 + torch.where(near < 8, near, far.clamp(max=15))


def causal(t: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def window(t: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i >= j) & (i - j < 256)


def documents(t: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return (t.document[i] == t.document[j]) & (i >= j)


def capped(t: Any, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 20 * torch.tanh(s / 20)


def alibi(t: Any, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + t.slopes[h] * (j - i)


case("T5 of distances", ENCODER, lambda t, s, b, h, i, j: s + t.table[h, j - i + 2048])
case("T5 of buckets", ENCODER, lambda t, s, b, h, i, j: s + t.buckets[bucket(j - i), h])
case("bias", ENCODER, lambda t, s, b, h, i, j: s + t.bias[h, i, j])
case("softcap", ENCODER, capped)
case("ALiBi", FULL, alibi, causal)
case("causal", FULL, None, causal)
case("window", FULL, None, window)
case("capped window", FULL, capped, window, (128, 256))
case("documents", FULL, None, documents)
case("dynamic documents", FULL, None, documents, (128,))
case("one query", ONE, columns=(128,), share=4)
case("one query, ALiBi", ONE, lambda t, s, b, h, i, j: s + t.slopes[h] * j, columns=(128,))
case("one query, window", ONE, None, lambda t, b, h, i, j: j >= 8192 - 1024, (128,), 4)
