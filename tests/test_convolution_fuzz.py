"""Random convolutional networks: with their tensors rearranged, the same numbers and strides."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli
from aten_lowering.passes import channels_last, convolution_bias


class Step(nn.Module):
    """A function of a tensor and modules of its own."""

    def __init__(self, fn: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.fn, self.parts = fn, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(x, *self.parts)


@dataclass
class Builder:
    """Steps that fit one another; `shape`: channels, rows and columns of what they give."""

    rng: random.Random
    shape: tuple[int, int, int]
    steps: nn.ModuleList = field(default_factory=nn.ModuleList)

    def add(self, fn: Callable[..., Tensor], *parts: nn.Module) -> None:
        """Unless there is nothing left, or too much, after it."""
        step = Step(fn, *parts).eval()
        with torch.no_grad():
            given = step(torch.zeros(2, *self.shape)).shape[1:]
        if min(given[1:]) >= 3 and max(given[1:]) <= 30 and given[0] <= 24:
            self.steps.append(step)
            self.shape = (given[0], given[1], given[2])

    def convolution(self) -> None:
        channels, size = self.shape[0], self.rng.choice([1, 3, 5])
        groups = channels if self.rng.random() < 0.3 else 1
        out = channels if groups > 1 else self.rng.choice([4, 8, 12])
        inner = nn.Conv2d(
            channels, out, size, self.rng.choice([1, 1, 2]), size // 2, groups=groups,
            bias=self.rng.random() < 0.6,
        )  # fmt: skip
        self.add(_call, inner)

    def transposed(self) -> None:
        bias = self.rng.random() < 0.5
        self.add(_call, nn.ConvTranspose2d(self.shape[0], 8, 2, 2, bias=bias))

    def residual(self) -> None:
        inner = nn.Conv2d(self.shape[0], self.shape[0], 3, 1, 1)
        self.add(lambda x, inner: x + F.relu(inner(x)), inner)

    def squeezed(self) -> None:
        less, more = nn.Conv2d(self.shape[0], 4, 1), nn.Conv2d(4, self.shape[0], 1)
        self.add(
            lambda x, less, more: x * more(F.relu(less(x.mean((2, 3), keepdim=True)))).sigmoid(),
            less, more,
        )  # fmt: skip

    def joined(self) -> None:
        self.add(lambda x, inner: torch.cat([x, inner(x)], 1), nn.Conv2d(self.shape[0], 4, 1))

    def normalized(self) -> None:
        channels = self.shape[0]
        match self.rng.randrange(3):
            case 0:
                self.add(_call, nn.BatchNorm2d(channels))
            case 1:
                self.add(_call, nn.GroupNorm(1, channels))
            case _:
                self.add(
                    lambda x, norm: norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
                    nn.LayerNorm(channels),
                )

    def pooled(self) -> None:
        pool = self.rng.choice([F.max_pool2d, F.avg_pool2d])
        size, step, padding = self.rng.choice([(2, 2, 0), (3, 2, 1), (3, 1, 1)])
        ceil = self.rng.random() < 0.3
        self.add(lambda x: pool(x, size, step, padding, ceil_mode=ceil))

    def pointwise(self) -> None:
        self.add(self.rng.choice([F.relu, F.silu, F.gelu, F.hardswish, torch.sigmoid]))

    def moved(self) -> None:
        even = self.shape[0] % 2 == 0
        self.add(self.rng.choice([
            lambda x: x[:, :, 1:-1],
            lambda x: F.pad(x, (1, 2, 0, 0)),
            lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
            lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
            lambda x: F.pixel_shuffle(x, 2) if x.shape[1] % 4 == 0 else x,
            lambda x: torch.mul(*x.chunk(2, 1)) if even else x,
            lambda x: x.flatten(2).transpose(1, 2).unflatten(1, x.shape[2:]).permute(0, 3, 1, 2),
        ]))  # fmt: skip


def _call(x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    return part(x)


class Net(nn.Module):
    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.shape = (rng.choice([3, 4, 8]), *rng.choice([(12, 10), (9, 13), (16, 16)]))
        builder = Builder(rng, self.shape)
        builder.convolution()
        kinds = [
            builder.convolution, builder.transposed, builder.residual, builder.squeezed,
            builder.joined, builder.normalized, builder.pooled, builder.pointwise, builder.moved,
        ]  # fmt: skip
        for _ in range(rng.randint(3, 9)):
            rng.choice(kinds)()
        self.steps, self.end = builder.steps, rng.randrange(3)

    def forward(self, x: Tensor) -> Any:
        for step in self.steps:
            x = step(x)
        return (x, x.mean((2, 3)), (x.amax((2, 3)), x.flatten(1), x * 2))[self.end]


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow if n >= 1 else ()) for n in range(24)]
)
@torch.no_grad()
def test_a_network(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], seed: int) -> None:
    for module in (channels_last, convolution_bias):
        monkeypatch.setattr(module, "DEVICES", frozenset({"cpu"}))
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = Net(rng).eval()
    x = torch.randn(2, *net.shape)
    if rng.random() < 0.2:
        x = x.to(memory_format=torch.channels_last)
    dynamic = {"x": {0}} if rng.random() < 0.3 else None
    settings = {**options, "channels_last": "on", "emit": rng.choice(["fx", "hop", "cpp"])}
    compiled = compile_cli.compile(net, (x,), dynamic=dynamic, options=settings)
    eager = net(x)
    exact = copy.deepcopy(net).double()
    for found, like, wanted in zip(
        *map(_all, (compiled(x), eager, exact(x.double()))), strict=True
    ):
        assert found.stride() == like.stride()
        limit = 4 * (like - wanted).abs().max() + 1e-5 * (1 + wanted.abs().max())
        assert (found - wanted).abs().max() <= limit


def _all(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
