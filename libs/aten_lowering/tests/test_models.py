"""Small models of common families: right, and what falls back is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.export import export

from aten_lowering import decompose, decompositions, lower_with_report


class Decoder(nn.Module):
    """Rotary positions, grouped queries, RMS norm, SwiGLU, a causal mask, and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.norm1, self.norm2 = nn.RMSNorm(32), nn.RMSNorm(32)
        self.qkv = nn.Linear(32, 64, bias=False)
        self.out = nn.Linear(32, 32, bias=False)
        self.gate, self.up = nn.Linear(32, 48, bias=False), nn.Linear(32, 48, bias=False)
        self.down = nn.Linear(48, 32, bias=False)
        inverse = 1.0 / 10000 ** (torch.arange(0, 8, 2) / 8)
        self.register_buffer("inverse", inverse)

    def rotate(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[2], device=x.device).float(), self.inverse)
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def forward(self, ids: Tensor) -> Tensor:
        batch, length = ids.shape
        x = self.tokens(ids)
        qkv = self.qkv(self.norm1(x)).view(batch, length, 8, 8).transpose(1, 2)
        q, k, v = qkv.split([4, 2, 2], 1)
        q, k = self.rotate(q), self.rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, 32))
        h = self.norm2(x)
        x = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return F.linear(x, self.tokens.weight).log_softmax(-1)


class Manual(nn.Module):
    """Attention by hand: matmul, a causal `tril` buffer, masked softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)
        self.register_buffer("mask", torch.ones(10, 10).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) / 8**0.5
        scores = scores.masked_fill(~self.mask[: x.shape[1], : x.shape[1]], float("-inf"))
        y = F.dropout(scores.softmax(-1), 0.1, self.training) @ v
        return self.norm(x + y.transpose(1, 2).flatten(2))


class ConvNet(nn.Module):
    """Convolutions with batch norm, pooling, a squeeze-excite gate, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.squeeze = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.norm1(self.conv1(x))))
        x = x + F.hardswish(self.norm2(self.conv2(x)))
        x = x * F.hardsigmoid(self.squeeze(F.adaptive_avg_pool2d(x, 1)))
        return self.head(x.mean((2, 3)))


class Unet(nn.Module):
    """Group norm, SiLU, nearest and bilinear upsampling, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, 4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.avg_pool2d(F.silu(self.norm(x)), 2)
        h = F.interpolate(self.conv(h), scale_factor=2, mode="nearest")
        low = F.interpolate(x, scale_factor=0.5, mode="bilinear")
        high = F.interpolate(low, size=x.shape[-2:], mode="bilinear")
        return torch.cat([h, x, high], 1)


class Loss(nn.Module):
    """Cross entropy with an ignored label, and friends."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(x, y, ignore_index=0, label_smoothing=0.1)
        other = F.mse_loss(x, x.roll(1, 0)) + F.smooth_l1_loss(x, x.flip(0))
        return loss + other + F.kl_div(x.log_softmax(-1), x.softmax(-1), reduction="batchmean")


MODELS: list[tuple[nn.Module, tuple[Tensor, ...], Sequence[str]]] = [
    (Decoder(), (torch.randint(0, 50, (2, 6)),), []),
    (Manual(), (torch.randn(2, 7, 16),), []),
    (ConvNet(), (torch.randn(2, 3, 16, 16),), []),
    (Unet(), (torch.randn(1, 4, 8, 8),), []),
    (Loss(), (torch.randn(6, 5), torch.tensor([0, 1, 4, 0, 2, 3])), []),
]


@pytest.mark.parametrize(
    ("model", "inputs", "fallbacks"), MODELS, ids=[type(m).__name__ for m, *_ in MODELS]
)
def test_model(evaluate_graph: Any, model: nn.Module, inputs: Any, fallbacks: Any) -> None:
    model = model.eval()
    program = export(model, inputs)
    lowered = lower_with_report(decompose(program))
    assert [f.op for f in lowered.fallbacks] == list(fallbacks)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    specs = program.graph_signature.input_specs
    users = iter(inputs)
    arguments = [tensors[s.target] if s.target in tensors else next(users) if s.target is None
                 else program.constants[s.target] for s in specs]  # fmt: skip
    (got,) = evaluate_graph(lowered.graph, arguments, lowered.constants)
    torch.testing.assert_close(got, model(*inputs).detach(), rtol=1e-4, atol=1e-5)


def test_training(evaluate_graph: Any) -> None:
    """Forward and backward graphs of AOTAutograd: gradients are eager's."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5), nn.LogSoftmax(-1)
    ).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    seen: list[Any] = []

    def compiler(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        lowered = lower_with_report(gm)
        seen.append(lowered.fallbacks)
        return make_boxed_func(lambda *a: evaluate_graph(lowered.graph, a, lowered.constants))

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        return aot_module_simplified(
            gm, inputs, fw_compiler=compiler, bw_compiler=compiler, decompositions=decompositions()
        )

    gradients: list[list[Tensor]] = []
    for run in (model, torch.compile(model, backend=backend)):
        model.zero_grad()
        run(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert seen == [(), ()]
    assert len(gradients[0]) == 6
    for got, want in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
