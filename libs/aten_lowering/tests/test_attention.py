"""What calls of flex attention compute, with what the user's functions do to scores as kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import create_block_mask, noop_mask

from aten_lowering import Attention, Lowered, lower_with_report
from loop_ir import Compute, Extern, Kernel, Load
from loop_ir.ir import statements

SLOPES = torch.rand(3)


def lowered(score_mod: Callable[..., Any], mask_mod: Any = noop_mask, block: int = 32) -> Lowered:
    mask = create_block_mask(mask_mod, None, None, 70, 90, device="cpu", BLOCK_SIZE=block)

    first, tensors, last = mask.as_tuple()[:2], mask.as_tuple()[2:10], mask.as_tuple()[10:]

    def f(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, *blocks: Tensor) -> Any:
        flex: Any = torch.ops.higher_order.flex_attention
        return flex(q, k, v, score_mod, (*first, *blocks, *last), 0.25, {}, (slopes,), ())[0]

    q, k, v = torch.randn(1, 3, 70, 16), torch.randn(1, 3, 90, 16), torch.randn(1, 3, 90, 16)
    return lower_with_report(make_fx(f, tracing_mode="fake")(q, k, v, SLOPES, *tensors))


def only(of: Lowered) -> Attention:
    (node,) = [n for n in of.graph.nodes if isinstance(n, Extern)]
    assert not node.fallback and not of.fallbacks
    return of.attentions[node.target]


def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor, slopes: Tensor) -> Tensor:
    return score + slopes[h] * (j - i)


def test_a_function_of_scores_is_a_kernel_over_all_of_them() -> None:
    found = only(lowered(alibi, block=128))
    assert isinstance(found.full, Kernel) and found.partial is found.full
    assert [int(axis.extent) for axis in found.full.axes] == [1, 3, 70, 90]
    loads = {s.buffer for s in statements(found.full) if isinstance(s, Load)}
    assert loads == {"score", "captured0"}
    assert list(found.captured) == ["captured0"] and not found.is_gradient
    assert set(found.tensors) == {"q", "k", "v", "out"}  # one block is all there is


def test_a_mask_is_asked_in_some_blocks() -> None:
    found = only(lowered(lambda s, b, h, i, j, x: s, lambda b, h, i, j: i >= j))
    assert found.full is None and found.sizes == (32, 32)
    assert found.partial is not None
    ops = {s.op for s in statements(found.partial) if isinstance(s, Compute)}
    assert {"ge", "where"} <= ops
    assert {"counts", "indices", "full_counts", "full_indices"} <= set(found.tensors)
    assert found.tensors["counts"].type.stride[:2] == (0, 0)


@pytest.mark.parametrize(
    ("score_mod", "why"),
    [
        (lambda s, b, h, i, j, x: s * 0 + x.sum(), "kernels for what becomes of scores"),
        (lambda s, b, h, i, j, x: (i + j).float(), "does not depend on them"),
    ],
)
def test_what_no_kernel_says_is_torchs(score_mod: Callable[..., Any], why: str) -> None:
    found = lowered(score_mod)
    (fallback,) = found.fallbacks
    assert not found.attentions and why in fallback.reason


def test_tables_that_a_function_makes_are_torchs() -> None:
    """A kernel for scores is given none but those that are captured."""
    found = lowered(lambda s, b, h, i, j, x: s + torch.tensor([0.5, 2.0])[i % 2] * x[h])
    (fallback,) = found.fallbacks
    assert "a tensor that is the function's own" in fallback.reason
