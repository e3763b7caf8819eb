"""Attention under masks that torch's fused kernels refuse as they lie."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from aten_lowering.passes.readable_masks import make_masks_readable
from compile_cli.capture import capture, export
from compile_cli.torch_backend import compile_cli as compile_fx_graph


class Attention(nn.Module):
    """The mask is a row number compared with zero, as some model libraries write "no mask"."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, q: Tensor, keep: Tensor) -> Tensor:
        b, _, n, _ = q.shape
        if self.kind == "broadcast":
            mask = (torch.arange(n)[None, None, :, None] >= 0).expand(b, 1, n, n)
        elif self.kind == "transposed":
            mask = keep[:, None].transpose(-1, -2)
        else:
            mask = keep[:, None]
        return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def inputs(n: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    keep = torch.rand(3, n, n, generator=generator) > 0.3
    keep |= torch.eye(n, dtype=torch.bool)
    return torch.randn(3, 2, n, 8, generator=generator), keep


@pytest.mark.parametrize("kind", ["broadcast", "transposed", "plain"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_stay_and_the_mask_is_contiguous(kind: str, dynamic: bool, tmp_path: Path) -> None:
    model, x = Attention(kind).eval(), inputs()
    captured = capture(export(model, x, {0: {0}, 1: {0}} if dynamic else {}))
    (call,) = [n for n in captured.graph.graph.nodes if "attention" in str(n.target)]
    mask = call.args[3].meta["val"]
    assert mask.stride(-1) == 1
    assert (call.args[3].target is torch.ops.aten.clone.default) == (kind != "plain")
    if kind == "broadcast":
        assert list(mask.shape) == [1, 1, 12, 12]
    options = {"cache_dir": str(tmp_path)}
    compiled = compile_cli.compile(
        model, x, dynamic={0: {0}, 1: {0}} if dynamic else None, options=options
    )
    torch.testing.assert_close(compiled(*x), model(*x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["broadcast", "transposed", "plain"])
def test_torch_compile_keeps_the_fused_kernel(kind: str, tmp_path: Path) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, example: list[Tensor]) -> object:
        assert make_masks_readable(gm) == (kind != "plain")
        assert make_masks_readable(gm) == 0
        graphs.append(gm)
        return compile_fx_graph(gm, example, {"cache_dir": str(tmp_path)})

    model, x = Attention(kind).eval(), inputs(16)
    with torch.no_grad():
        out = torch.compile(model, backend=backend)(*x)
    torch.testing.assert_close(out, model(*x), rtol=1e-5, atol=1e-6)
    assert len(graphs) == 1


def test_gradients_flow_through_a_float_mask() -> None:
    torch._dynamo.reset()
    bias = torch.randn(16, 1, requires_grad=True)
    q = torch.randn(2, 2, 16, 8, requires_grad=True)

    def attend(q: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q, attn_mask=bias.expand(2, 1, 16, 16)).sum()

    attend(q, bias).backward()
    expected = [t.grad.clone() for t in (q, bias) if t.grad is not None]
    q.grad = bias.grad = None
    torch.compile(attend, backend="compile_cli")(q, bias).backward()
    for t, e in zip((q, bias), expected, strict=True):
        torch.testing.assert_close(t.grad, e, rtol=1e-4, atol=1e-5)
