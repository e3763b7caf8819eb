import math
import random

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"


def make(dtype, size, seed, kind="plain", high=1):  # type: ignore[no-untyped-def]
    """kind: `plain` (small multiples of 1/4, small integers), `wide` (any bits of an integer,
    floats with all their digits), `special` (infinities, NaN, -0, extremes among the plain ones),
    `index` (integers from 0 to `high` - 1), `order` (0, 1, 2, ... shuffled)."""
    rng = random.Random(seed)
    count = math.prod(size)
    values: list[object] = []
    if kind == "order":
        values = list(range(count))
        rng.shuffle(values)
    elif kind == "index":
        values = [rng.randrange(high) for _ in range(count)]
    elif dtype == torch.bool:
        values = [rng.random() < 0.5 for _ in range(count)]
    elif dtype.is_floating_point or dtype.is_complex:
        unit = 1024 if kind == "wide" else 4
        values = [rng.randrange(-3 * unit, 3 * unit + 1) / unit for _ in range(count)]
        if kind == "special":
            extremes = torch.finfo(dtype)
            odd = [math.inf, -math.inf, math.nan, -0.0, extremes.max, extremes.tiny]
            share = 40 / max(count, 160)  # of large tensors only some rows
            values = [rng.choice(odd) if rng.random() < share else v for v in values]
        if dtype.is_complex:
            values = [complex(v, rng.randrange(-3, 4)) for v in values]
    else:
        lowest, highest = torch.iinfo(dtype).min, torch.iinfo(dtype).max
        if kind == "plain":
            lowest, highest = max(lowest, -4), 5
        values = [rng.randint(lowest, highest) for _ in range(count)]
        if kind == "special":
            values = [rng.choice([lowest, highest, 0]) if rng.random() < 0.3 else v for v in values]
    return torch.tensor(values, dtype=dtype, device=DEVICE).reshape(size)


# Eager runs one of the branches, without the capture that torch.cond brings along there.
def branch(choice, first, second, *args):  # type: ignore[no-untyped-def]
    if torch.compiler.is_compiling():
        return torch.cond(choice, first, second, args)
    return first(*args) if choice else second(*args)


# Eager runs a loop: what batched tensors round nobody could tell from their numbers.
def mapped(function, x):  # type: ignore[no-untyped-def]
    if torch.compiler.is_compiling():
        return torch.vmap(function)(x)
    return torch.stack([function(part) for part in x])


# Custom operators: one of two results, one that writes into its argument, one with gradients.
def register_custom():  # type: ignore[no-untyped-def]
    if hasattr(torch.ops.fuzzed, "pair"):
        return
    library = torch.ops.fuzzed.library = torch.library.Library("fuzzed", "FRAGMENT")
    library.define("pair(Tensor x, int dim) -> (Tensor, Tensor)")
    library.define("add_(Tensor(a!) x, Tensor y, float by=1.0) -> ()")
    library.define("scaled(Tensor x, float by) -> Tensor")

    def add(x, y, by=1.0):  # type: ignore[no-untyped-def]
        x.copy_(x + y * by)

    for key in ("CPU", "CUDA", "Meta"):
        library.impl("pair", lambda x, dim: (x.flip(dim), x.clone().transpose(0, -1)), key)
        library.impl("scaled", lambda x, by: x * by, key)
    for key in ("CPU", "CUDA"):
        library.impl("add_", add, key)
    library.impl("add_", lambda x, y, by=1.0: None, "Meta")
    torch.library.register_autograd(
        "fuzzed::scaled", lambda ctx, grad: (grad * ctx.by, None), lib=library,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )  # fmt: skip


register_custom()
FUNCTIONS = {"branch": branch, "mapped": mapped}


# seed 0 1 2 3: compile KeyError at fx_emit/builder.py:outside
# 'sum_1'
SETTING = {'entry': 'compile', 'emit': 'fx', 'fuse': False, 'plan_memory': True, 'dynamic': '', 'grad': False, 'elements': 160}
SIZES = {}
CALLS = []


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        pass

    def forward(self, a2_3):
        v8_3 = torch.logsumexp(a2_3, (1, 2, 0,), keepdim=False)
        return (v8_3,)


def get_inputs():
    a2_3 = make(torch.float32, (1, 1, 1,), 577609, 'plain')
    return [a2_3]
