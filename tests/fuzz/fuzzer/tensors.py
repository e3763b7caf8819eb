"""Tensors of random values that are the same on every machine."""

from __future__ import annotations

import math
import random

import torch

DEVICE = "cpu"


# Printed programs carry this function, so it needs nothing but the modules above.
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


def may_have_gradient(tensor: torch.Tensor) -> bool:
    return tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex())
