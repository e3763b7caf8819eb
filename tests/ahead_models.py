"""Models that are compiled ahead of time, with what `--input` says of them, for a CPU and a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn
from torch._higher_order_ops.while_loop import while_loop
from triton.tools.tensor_descriptor import TensorDescriptor


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def forward(self, x):
        return self.layers(x)


class Convnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.norm(self.first(x)).relu().mean((2, 3)))


class Decoder(nn.Module):
    """One step with a cache of keys and values."""

    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 2, 8, 4))
        self.register_buffer("values", torch.zeros(1, 2, 8, 4))
        self.project = nn.Linear(8, 24)

    def forward(self, x, place):
        q, k, v = (t.view(1, 1, 2, 4).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        self.keys.index_copy_(2, place, k)
        self.values.index_copy_(2, place, v)
        seen = torch.arange(8, device=x.device) <= place
        return nn.functional.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=seen[None, None, None]
        )


class Scatter(nn.Module):
    def forward(self, x, i):
        return x.scatter(1, i, 2.0) + x.index_fill(0, i[:, 0], 1.5)


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        def body(i, y):
            return i + 1, self.layer(y).sin()

        y = while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x))[1]
        return torch.cond(y.sum() > 0, lambda y: y * 2 + 1, lambda y: y - 1, (y,))


@triton.jit
def doubled(x, out, M: tl.constexpr, N: tl.constexpr):
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    out.store(at, x.load(at) * 2)


class Described(nn.Module):
    """A kernel of the user's that takes tensor descriptors."""

    def forward(self, x):
        y = x.sin()
        out = torch.empty_like(y)
        blocks = (TensorDescriptor.from_tensor(t, [16, 32]) for t in (y, out))
        doubled[triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 32)](*blocks, M=16, N=32)
        return out.relu()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(32, 4, 64) for _ in range(2)))

    def forward(self, ids):
        return self.layers(self.table(ids))


class Several(nn.Module):
    def forward(self, x):
        return x.softmax(-1).sum(0), x.sort(-1)[0].cumsum(1)


class Sizes(nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0.5).sum(1) * 2


MODELS = {
    MLP: ["f32[b=3,16]"],
    Convnet: ["f32[2,3,8,8]"],
    Decoder: ["f32[1,1,8]", "i64[1]<8"],
    Scatter: ["f32[4,6]", "i64[4,2]<4"],
    Loop: ["f32[5,6]"],
    Described: ["f32[20,64]"],
    Encoder: ["i64[2,6]<50"],
    Several: ["f32[40,64]"],
    Sizes: ["f32[5,6]"],
}
