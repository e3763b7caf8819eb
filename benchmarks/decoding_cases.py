"""Matmuls and attention as language models have them: experts, products of one matrix with several
weights, fp8 with scales of blocks, weights of 4 and 8 bits, one query over a long cache.

`python benchmarks/kernels.py --cases decoding_cases` measures it. Some operators are CUDA's alone.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import BF16, Case, Make
from torch import Tensor

CASES: list[Case] = []
F8 = torch.float8_e4m3fn


def case(name: str, make: Make, run: Any, grad: bool = False) -> None:
    CASES.append(Case("decoding", name, run, make, grad))


def randn(*size: int) -> Tensor:
    return torch.randn(size, device="cuda", dtype=BF16)


# ---- mixtures of experts
def experts(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Eight of the experts for each token."""
    weights, chosen = F.softmax(F.linear(x, gate).float(), -1).topk(8, -1)
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(len(gate), device=x.device, dtype=torch.int32)
    ends = counts.scatter_add(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0)
    ends = ends.to(torch.int32)
    one, two = torch._grouped_mm(x[order // 8], up.mT, offs=ends).chunk(2, -1)
    y = torch._grouped_mm(F.silu(one) * two, down.mT, offs=ends)
    y = y * (weights.flatten()[order][:, None]).to(y.dtype)
    return torch.zeros_like(x).index_add(0, order // 8, y)


def layer(tokens: int) -> Make:
    sizes = (128, 2048), (128, 1536, 2048), (128, 2048, 768)
    return lambda: (randn(tokens, 2048), *(randn(*size) * 0.02 for size in sizes))


for tokens in (16, 64, 4096):
    case(f"128 experts, {tokens} tokens", layer(tokens), experts)


# ---- several weights
def queries(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(F.linear(x, w) for w in weights)


def three(rows: int) -> Make:
    return lambda: tuple(randn(n, 4096) for n in (rows, 4096, 1024, 1024))


for rows in (1, 16, 64, 512):
    case(f"q, k and v of {rows} rows", three(rows), queries)


# ---- fp8
def scaled(x: Tensor, w: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return F.silu(torch._scaled_mm(x, w.t(), a, b, out_dtype=BF16))


def blocks(m: int, n: int, k: int) -> Make:
    """Factors of 1 x 128 and of 128 x 128, as cuBLAS reads them."""
    return lambda: (
        randn(m, k).to(F8),
        randn(n, k).to(F8),
        torch.rand(k // 128, m, device="cuda").t(),
        torch.rand(n // 128, k // 128, device="cuda").t(),
    )


for m in (16, 64, 512, 4096):
    case(f"fp8 blocks, {m} rows, silu", blocks(m, 4096, 4096), scaled)


# ---- weights of 4 and 8 bits
def packed(rows: int) -> Make:
    def make() -> tuple[Tensor, ...]:
        numbers = torch.randint(0, 256, (4096, 2048), device="cuda", dtype=torch.uint8)
        weight = torch.ops.aten._convert_weight_to_int4pack(numbers, 8)
        return randn(rows, 4096), weight, randn(32, 4096, 2)

    return make


def bytes_of(rows: int) -> Make:
    def make() -> tuple[Tensor, ...]:
        weight = torch.randint(-127, 128, (4096, 4096), device="cuda", dtype=torch.int8)
        return randn(rows, 4096), weight, randn(4096)

    return make


for rows in (1, 16, 64, 512):
    case(
        f"4 bits, {rows} rows",
        packed(rows),
        lambda x, w, s: torch._weight_int4pack_mm(x, w, 128, s),
    )
    case(f"8 bits, {rows} rows", bytes_of(rows), lambda x, w, s: F.linear(x, w.to(BF16)) * s)


# ---- one query
def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def cache(batch: int, keys: int, masked: bool) -> Make:
    def make() -> tuple[Tensor, ...]:
        tensors = [randn(batch, h, n, 128) for h, n in ((32, 1), (8, keys), (8, keys))]
        mask = torch.arange(keys, device="cuda")[None, None, None] < keys - 100
        return (*tensors, mask.expand(batch, 1, 1, keys).contiguous()) if masked else (*tensors,)

    return make


for batch, keys in ((1, 4096), (1, 32768), (16, 4096)):
    for masked in (False, True):
        name = f"{batch} x {keys} keys{', masked' if masked else ''}"
        case(name, cache(batch, keys, masked), attend)
