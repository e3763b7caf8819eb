"""A BERT-style text encoder: the example that the compiler is shown on.

    compile-cli run examples/encoder.py:Encoder

The defaults are small, so that it also runs in seconds where there is no GPU. `get_inputs()` and
`get_init_inputs()` follow KernelBench's convention: arguments of one call of `forward`, and
arguments of the constructor.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention: hidden `[B, T, H]` and mask `[B, 1, 1, T]` to `[B, T, H]`."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"hidden size {hidden} is not a multiple of {heads} heads")
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q = self.split_heads(self.query(x))
        k = self.split_heads(self.key(x))
        v = self.split_heads(self.value(x))
        # A bool mask: True takes part. [B, 1, 1, T] broadcasts over heads and query positions.
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(y.transpose(1, 2).flatten(2))

    def split_heads(self, x: Tensor) -> Tensor:
        """`[B, T, H]` -> `[B, heads, T, H / heads]`, a view."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention, then a GELU MLP; a residual and a layer norm after each (post-norm)."""

    def __init__(self, hidden: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.attention = Attention(hidden, heads)
        self.norm1 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, mlp)
        self.down = nn.Linear(mlp, hidden)
        self.norm2 = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Encoder(nn.Module):
    """Token ids and their padding mask to hidden states.

    Every row of the mask must keep at least one token: attention over nothing is undefined.
    """

    def __init__(
        self,
        vocab: int = 1000,
        hidden: int = 64,
        heads: int = 4,
        layers: int = 2,
        mlp: int = 256,
        max_len: int = 512,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(max_len, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, mlp) for _ in range(layers))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """ids: i64 `[B, T]`; mask: bool `[B, T]`, True for tokens, False for padding. Returns
        `[B, T, hidden]`."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.norm(self.tokens(ids) + self.positions(positions))
        mask = mask[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return x


PAD = 0
TEXTS = (
    "a compiler reads a program and writes a faster one with the same meaning",
    "never a wrong number",
)


def tokenize(texts: tuple[str, ...], length: int, vocab: int = 1000) -> tuple[Tensor, Tensor]:
    """A toy tokenizer: two characters make a token. Returns ids and mask, both
    `[len(texts), length]`; shorter texts are padded with `PAD`, longer ones are cut."""
    ids = torch.full((len(texts), length), PAD, dtype=torch.int64)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        pairs = [text[i : i + 2].ljust(2) for i in range(0, len(text), 2)][:length]
        tokens = [1 + (ord(a) * 31 + ord(b)) % (vocab - 1) for a, b in pairs]
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = True
    return ids, mask


def get_inputs() -> list[Tensor]:
    """Batch 2 x 32 tokens, the second row mostly padding."""
    return list(tokenize(TEXTS, length=32))


def get_init_inputs() -> list[int]:
    """Arguments of `Encoder`: none, the defaults will do."""
    return []


if __name__ == "__main__":
    torch.manual_seed(0)
    hidden = Encoder(*get_init_inputs()).eval()(*get_inputs())
    print(tuple(hidden.shape), hidden.std().item())
