"""Whole small networks in f32 in the manner of KernelBench's third level: classifiers of images,
recurrences, attention, state spaces.

`python benchmarks/kernels.py --cases network_cases --whole` measures it, what the host needs for a
call included. Needs torchvision. A network is built when its inputs are made, with random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from kernel_cases import Case
from torch import Tensor, nn

CASES: list[Case] = []


def case(family: str, name: str, build: Callable[[], nn.Module], *sizes: tuple[int, ...]) -> None:
    built: list[nn.Module] = []

    def make() -> tuple[Any, ...]:
        if not built:
            torch.manual_seed(0)
            built.append(build().cuda().eval().requires_grad_(False))
        return tuple(torch.randn(*size, device="cuda") for size in sizes)

    def run(*args: Tensor) -> Any:
        return built[0](*args)

    CASES.append(Case(family, name, run, make))


def classifier(name: str) -> nn.Module:
    import torchvision.models

    return torchvision.models.get_model(name, weights=None)


def mlp(*widths: int) -> nn.Module:
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], widths[-1]))


class Recurrent(nn.Module):
    """A recurrence of torch's, and a linear layer on its last step."""

    def __init__(self, kind: type[nn.RNNBase], both: bool = False) -> None:
        super().__init__()
        self.steps = kind(128, 256, 6, batch_first=True, bidirectional=both)
        self.out = nn.Linear(512 if both else 256, 10)

    def forward(self, x: Tensor) -> Any:
        return self.out(self.steps(x)[0][:, -1])


class Cell(nn.Module):
    """A recurrence written out, of 16 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(256 + 512, 512), nn.Linear(512, 64)

    def forward(self, x: Tensor) -> Tensor:
        state, outs = x.new_zeros(x.shape[1], 512), []
        for step in x.unbind(0):
            state = torch.tanh(self.hidden(torch.cat((step, state), 1)))
            outs.append(self.out(state))
        return torch.stack(outs)


class Attention(nn.Module):
    """A block of a small GPT whose attention is written out, with a softmax or relu."""

    def __init__(self, width: int, heads: int, relu: bool = False) -> None:
        super().__init__()
        self.heads, self.relu = heads, relu
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.ones(512, 512).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~self.mask[:n, :n], float("-inf"))
        scores = F.relu(scores) if self.relu else scores.softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        y = self.up(self.two(x))
        y = 0.5 * y * (1 + torch.tanh(0.7978845608 * (y + 0.044715 * y**3)))
        return x + self.down(y)


class Pictures(nn.Module):
    """Attention over the places of an image, as of a vision model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(128, 4), nn.LayerNorm(128)

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(2).permute(2, 0, 1)
        return self.norm(self.attention(y, y, y)[0] + y).permute(1, 2, 0).view_as(x)


class Double(nn.Module):
    """Two convolutions of a U-Net, each with batch norm and a softmax over the last dimension."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(b), nn.BatchNorm2d(b)])

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).softmax(-1)
        return x


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([Double(8, 32), Double(32, 64), Double(64, 128)])
        self.up = nn.ModuleList(
            [nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)]
        )
        self.join = nn.ModuleList([Double(128, 64), Double(64, 32)])

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, down in enumerate(self.down):
            x = down(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, old in zip(self.up, self.join, kept[1::-1], strict=True):
            x = join(torch.cat((up(x), old), 1))
        return x


class Clusters(nn.Module):
    """NetVLAD: residuals of features from the centres that they are nearest to."""

    def __init__(self, width: int = 512, clusters: int = 32) -> None:
        super().__init__()
        self.assign = nn.Linear(width, clusters, bias=False)
        self.norm = nn.BatchNorm1d(clusters)
        self.centres = nn.Parameter(torch.randn(1, width, clusters) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        near = self.norm(self.assign(flat)).softmax(1).view(x.shape[0], x.shape[1], -1)
        off = near.transpose(1, 2) @ x
        off = off.transpose(1, 2) - near.sum(1, keepdim=True) * self.centres
        return F.normalize(F.normalize(off).flatten(1))


class StateSpace(nn.Module):
    """The blocks of Mamba 2's state-space dual, by chunks of 64 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.randn(1, 128, 8))
        self.b, self.c = (nn.Parameter(torch.randn(1, 128, 8, 16)) for _ in range(2))

    @staticmethod
    def sums(x: Tensor) -> Tensor:
        total = x.cumsum(-1)
        mask = torch.ones(x.shape[-1], x.shape[-1], device=x.device, dtype=torch.bool).tril()
        return (total[..., :, None] - total[..., None, :]).masked_fill(~mask, float("-inf"))

    def forward(self, x: Tensor) -> Tensor:
        x, b, c = (y.unflatten(1, (-1, 64)) for y in (x, self.b, self.c))
        b, c = (y.expand(x.shape[0], *y.shape[1:]) for y in (b, c))
        a = self.decay.expand(x.shape[0], -1, -1).unflatten(1, (-1, 64)).permute(0, 3, 1, 2)
        total = a.cumsum(-1)
        inside = self.sums(a).exp()
        near = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", c, b, inside, x)
        left = (total[..., -1:] - total).exp()
        states = torch.einsum("bclhn,bhcl,bclhp->bchpn", b, left, x)
        states = torch.cat((torch.zeros_like(states[:, :1]), states), 1)
        between = self.sums(F.pad(total[..., -1], (1, 0))).exp()
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        far = torch.einsum("bclhn,bchpn,bhcl->bclhp", c, states, total.exp())
        return (near + far).flatten(1, 2)


IMAGE = (10, 3, 224, 224)
case("mlp", "mlp", partial(mlp, 4096, 4096, 4096, 2048), (128, 4096))
case("mlp", "deep narrow mlp", partial(mlp, 8192, *[1024] * 16, 1024), (1024, 8192))
for name, batch in {
    "alexnet": 256, "vgg16": 10, "resnet18": 2, "resnet101": 10, "densenet121": 10,
    "mobilenet_v2": 10, "efficientnet_b0": 10, "shufflenet_v2_x1_0": 10, "squeezenet1_1": 32,
    "googlenet": 10, "regnet_y_400mf": 8, "swin_v2_t": 10, "vit_b_16": 2, "mnasnet1_0": 10,
}.items():  # fmt: skip
    case("image", name, partial(classifier, name), (batch, *IMAGE[1:]))
case("steps", "lstm", partial(Recurrent, nn.LSTM), (10, 512, 128))
case("steps", "gru both ways", partial(Recurrent, nn.GRU, True), (10, 512, 128))
case("steps", "rnn cell", Cell, (16, 256, 256))
case("attention", "gpt block", partial(Attention, 768, 8), (128, 512, 768))
case("attention", "relu gpt block", partial(Attention, 768, 12, True), (16, 512, 768))
case("attention", "picture attention", Pictures, (2, 128, 64, 64))
case("other", "u-net softmax", UNet, (8, 8, 64, 512))
case("other", "netvlad", Clusters, (2048, 100, 512))
case("other", "mamba2", StateSpace, (2048, 128, 8, 64))
