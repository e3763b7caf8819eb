"""The attention template alone: through Triton's interpreter against f64, and as binaries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import triton_rt
from gemm_templates.attention import (
    Attention,
    Config,
    Function,
    attention_kernel,
    default_config,
    fitted,
)
from gemm_templates.attention import Tensor as Operand
from triton_rt import KernelParam

CAUSAL = Function(
    "causal",
    """
@triton.jit
def causal(score, batch, head, rm, rn, mask, operands):
    return tl.where(rm >= rn, score, float("-inf"))
""",
)
SLOPES = KernelParam("slopes", "*f32")
ALIBI = Function(
    "alibi",
    """
@triton.jit
def alibi(score, batch, head, rm, rn, mask, operands):
    return score + tl.load(operands[0] + head) * (rn - rm)
""",
    (SLOPES,),
)
SHORT = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int32: "i32"}


def problem(given: dict[str, Tensor], scale: float, **more: Any) -> Attention:
    """Of tensors by their names; those of blocks lie [1, 1, ...]."""
    q, v = given["q"], given["v"]
    tensors = {n: Operand(SHORT[x.dtype], x.stride()) for n, x in given.items()}
    lengths = (q.shape[1], q.shape[1] // v.shape[1], q.shape[2], v.shape[2])
    return Attention(lengths, (q.shape[3], v.shape[3]), scale, tensors, **more)


def run(problem: Attention, config: Config, given: dict[str, Tensor]) -> None:
    source = attention_kernel(problem, config)
    batch, heads, queries, _ = given["q"].shape
    grid = (-(-queries // config.block_m) * heads * batch, 1, 1)
    triton_rt.LazyKernel(source)(grid, *(given[p.name] for p in source.params))


def tensors(
    dtype: torch.dtype, shape: tuple[int, ...], columns: tuple[int, int]
) -> dict[str, Tensor]:
    """shape: batches, heads, heads of keys, queries, keys. Heads lie next to each other."""
    batch, heads, kv_heads, queries, keys = shape

    def of(heads: int, rows: int, columns: int) -> Tensor:
        return torch.randn(batch, rows, heads, columns).to(dtype).transpose(1, 2)

    found = {"q": of(heads, queries, columns[0]), "k": of(kv_heads, keys, columns[0])}
    found |= {"v": of(kv_heads, keys, columns[1]), "out": of(heads, queries, columns[1])}
    rows = (batch, heads, queries)
    return found | {"logsumexp": torch.empty(rows), "maxima": torch.empty(rows)}


def check(given: dict[str, Tensor], scores: Tensor, tolerance: float) -> None:
    """scores: in f64, -inf where a mask is."""
    group = given["q"].shape[1] // given["v"].shape[1]
    values = given["v"].double().repeat_interleave(group, 1)
    want = torch._safe_softmax(scores, -1) @ values
    torch.testing.assert_close(given["out"].double(), want, rtol=tolerance, atol=tolerance)
    for name, of_scores in (("logsumexp", scores.logsumexp(-1)), ("maxima", scores.amax(-1))):
        log2 = of_scores / torch.tensor(2.0).double().log()
        torch.testing.assert_close(given[name].double(), log2, rtol=1e-3, atol=1e-3)


def products(given: dict[str, Tensor], scale: float) -> Tensor:
    group = given["q"].shape[1] // given["k"].shape[1]
    keys = given["k"].double().repeat_interleave(group, 1)
    return given["q"].double() @ keys.transpose(-1, -2) * scale


@pytest.mark.parametrize(
    ("dtype", "shape", "columns", "scale"),
    [
        (torch.float32, (1, 2, 2, 64, 64), (32, 32), 0.2),
        (torch.float32, (2, 4, 2, 50, 70), (20, 24), 0.2),
        (torch.float16, (1, 3, 1, 1, 33), (64, 16), 0.1),
        (torch.bfloat16, (1, 1, 1, 40, 32), (96, 80), -0.1),
    ],
)
def test_all_keys(
    dtype: torch.dtype, shape: tuple[int, ...], columns: tuple[int, int], scale: float
) -> None:
    given = tensors(dtype, shape, columns)
    run(problem(given, scale), Config(32, 32, 4, 2), given)
    check(given, products(given, scale), {torch.float32: 1e-5}.get(dtype, 2e-2))


def test_functions_of_scores_and_rows_without_a_key() -> None:
    given = tensors(torch.float32, (2, 4, 2, 50, 30), (16, 16))
    slopes = torch.rand(4)
    text = ALIBI.text.replace("def alibi", "def both").replace(
        "(rn - rm)", '(rn - rm) + tl.where(rn < rm - 5, 0.0, float("-inf"))'
    )
    both = Function("both", text, ALIBI.operands)
    asked = problem(given, 0.25, partial=both, full=both)
    run(asked, Config(16, 16, 4, 2), given | {"slopes": slopes})
    m, n = torch.arange(50)[:, None], torch.arange(30)
    scores = products(given, 0.25) + slopes.double()[:, None, None] * (n - m)
    check(given, scores.masked_fill(n >= m - 5, float("-inf")), 1e-5)


def test_blocks_with_a_mask_and_blocks_without() -> None:
    given = tensors(torch.float32, (1, 2, 2, 100, 100), (16, 16))
    blocks = {
        "counts": torch.ones(1, 1, 4, dtype=torch.int32),
        "indices": torch.arange(4, dtype=torch.int32)[None, None, :, None].repeat(1, 1, 1, 4),
        "full_counts": torch.arange(4, dtype=torch.int32)[None, None],
        "full_indices": torch.arange(4, dtype=torch.int32).repeat(1, 1, 4, 1),
    }
    both = {n: x.expand(1, 2, *x.shape[2:]) for n, x in blocks.items()}
    asked = problem(given | both, 0.25, partial=CAUSAL, blocks=(32, 32))
    run(asked, Config(16, 32, 4, 2), given | both)
    later = torch.ones(100, 100).triu(1).bool()
    check(given, products(given, 0.25).masked_fill(later, float("-inf")), 1e-5)


def test_run_time_sizes_are_parameters() -> None:
    given = tensors(torch.float32, (1, 2, 2, 40, 50), (16, 16))
    asked = problem(given, 0.25)
    names = {n: Operand(t.dtype, (f"{n}_batch", *t.strides[1:])) for n, t in asked.tensors.items()}
    dynamic = Attention(("H", 1, "M", "N"), asked.columns, 0.25, names)
    source = attention_kernel(dynamic, Config(16, 16, 4, 2))
    values: dict[str, Any] = {**given, "H": 2, "M": 40, "N": 50}
    values |= {f"{n}_batch": given[n].stride(0) for n in names}
    assert [p.kind for p in source.params[6:9]] == ["i32"] * 3
    triton_rt.LazyKernel(source)((6, 1, 1), *(values[p.name] for p in source.params))
    check(given, products(given, 0.25), 1e-5)


LESS_LATER = Function(
    "less",
    """
@triton.jit
def less(score, batch, head, rm, rn, mask, operands):
    return tl.where(rm >= rn, score * tl.load(operands[0] + head), float("-inf"))
""",
    (SLOPES,),
)
LESS_LATER_GRADIENT = Function(
    "less_gradient",
    """
@triton.jit
def less_gradient(score, grad, batch, head, rm, rn, mask, operands):
    return grad * tl.load(operands[0] + head)
""",
    (SLOPES,),
)


@pytest.mark.parametrize(
    ("blocks", "scaled"),
    [
        (True, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((False, False), (False, True), (True, False))
        ),
    ],
)
def test_gradients(blocks: bool, scaled: bool) -> None:
    given = tensors(torch.float32, (2, 4, 2, 100, 100), (20, 16))
    more: dict[str, Any] = {"partial": CAUSAL}
    slopes = torch.rand(4) if scaled else torch.ones(4)
    if scaled:
        more = {"partial": LESS_LATER, "full": LESS_LATER, "full_gradient": LESS_LATER_GRADIENT}
        more["partial_gradient"] = LESS_LATER_GRADIENT
    if blocks:
        more["blocks"] = (32, 32)
        of_keys, of_queries = torch.arange(4), torch.arange(3, -1, -1)
        for prefix, own, counts in (("", of_keys, of_keys), ("q_", of_keys, of_queries)):
            later = own[:, None] + 1 + torch.arange(4) if prefix else torch.arange(4).repeat(4, 1)
            found = {
                f"{prefix}counts": torch.ones(4),
                f"{prefix}indices": own[:, None].repeat(1, 4),
                f"full_{prefix}counts": counts,
                f"full_{prefix}indices": later,
            }
            for name, x in found.items():
                given[name] = x.int().expand(1, 4, *x.shape)
    config = Config(16, 32, 4, 2)
    run(problem(given, 0.25, **more), config, given | {"slopes": slopes})
    leaves = [given[n].double().requires_grad_() for n in "qkv"]
    q, k, v = leaves[0], *(x.repeat_interleave(2, 1) for x in leaves[1:])
    scores = q @ k.transpose(-1, -2) * 0.25 * slopes.double()[:, None, None]
    scores = scores.masked_fill(torch.ones(100, 100).triu(1).bool(), float("-inf"))
    grad, grad_sum = torch.randn(2, 4, 100, 16).double(), torch.randn(2, 4, 100).double()
    out = scores.softmax(-1) @ v
    log2 = scores.logsumexp(-1) / torch.tensor(2.0).double().log()
    wants = torch.autograd.grad([out, log2], leaves, [grad, grad_sum])
    given |= {"grad_out": grad.float(), "grad_logsumexp": grad_sum.float()}
    given["delta"] = torch.empty(2, 4, 100)
    given |= {f"grad_{n}": torch.empty_like(given[n]) for n in "qkv"}
    for template, programs in (("queries", 7 * 8), ("keys", 4 * 4)):
        source = attention_kernel(problem(given, 0.25, **more), config, "gradients", template)
        values = given | {"slopes": slopes}
        triton_rt.LazyKernel(source)((programs, 1, 1), *(values[p.name] for p in source.params))
    for name, want in zip("qkv", wants, strict=True):
        torch.testing.assert_close(given[f"grad_{name}"].double(), want, rtol=1e-4, atol=1e-5)


def test_blocks_of_a_program_divide_those_of_the_mask() -> None:
    given = tensors(torch.float16, (1, 1, 1, 1024, 1024), (64, 64))
    blocks = {"counts": torch.empty(1, 1, 1, dtype=torch.int32)}
    whole = problem(given, 0.1)
    assert fitted(whole, default_config(whole)) == default_config(whole)
    assert fitted(whole, Config(128, 64, 4, 4), smem=64 * 1024) == Config(128, 64, 4, 3)
    assert fitted(whole, Config(128, 64, 4, 3), "queries", 40 * 1024) == Config(32, 64, 4, 2)
    cut = problem(given | blocks, 0.1, blocks=(96, 64))
    assert fitted(cut, Config(128, 128, 4, 2)) == Config(32, 64, 4, 2)
    assert fitted(problem(given | blocks, 0.1, blocks=(100, 64)), Config(64, 64, 4, 2)) is None
    few = problem(tensors(torch.float16, (1, 1, 1, 3, 1024), (64, 64)), 0.1)
    assert fitted(few, Config(128, 64, 4, 2)) == Config(16, 64, 4, 2)


@pytest.mark.parametrize("columns", [pytest.param(64, marks=pytest.mark.slow), 128])
def test_its_tiles_fit_into_an_h100(columns: int) -> None:
    given = {
        n: x.to("meta")
        for n, x in tensors(torch.bfloat16, (1, 1, 1, 256, 256), (columns, columns)).items()
    }
    asked = problem(given, 0.1, partial=CAUSAL)
    binary = triton_rt.compile(attention_kernel(asked, default_config(asked)), triton_rt.Target(90))
    assert binary.shared_bytes < 228 * 1024
