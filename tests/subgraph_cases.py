"""Functions of two square matrices that call higher-order operators, for a CPU and for a GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from functorch.experimental.control_flow import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.compiler import nested_compile_region


@nested_compile_region
def region(x, w):
    return (x + w).sin() * 2


@nested_compile_region
def around(x):
    return region(x, x) + region(x.t(), x + 1)


def nested(x, w):
    for _ in range(3):
        x = region(x, w)
    return x * 2


def cond(x, w):
    def inner(x):
        return torch.cond(x.max() > 100, lambda x: x + 3, lambda x: x.cos() - w, (x,))

    return torch.cond(x.sum() > 0, lambda x: (x.sin() + 1) * w, inner, (x,)) * 2


def loop(x, w):
    def body(i, y):
        return i + 1, (y + w).sin() + 1

    return while_loop(lambda i, y: i < 4, body, (torch.tensor(0), x))[1] * 2


def never(x, w):
    y = while_loop(lambda y: y.sum() > 1e9, lambda y: y + 1, (x,))[0]
    return y, y.add_(1)


def scanned(x, w):
    def step(c, x):
        c = c * 0.5 + x[0] * x[1]
        return c, (c.tanh(), c + w[0])

    return scan(step, torch.zeros_like(x[:, 0]), (x, w), dim=1, reverse=True)


def mapped(x, w):
    return torch_map(lambda row, w: (row + w).sin().sum(-1), x, w)


def by_size(x, w):
    return torch.cond(x.shape[0] > 4, lambda x: x * x.shape[0], lambda x: x - 1, (x,))


def views(x, w):
    return around(x[1:, 1:]) + 1


def constants(x, w):
    return torch.cond(
        x.sum() > 0, lambda x: x + torch.tensor([2.0], device=x.device), lambda x: x - 1, (x,)
    )


@triton.jit
def scale(x, out, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) * FACTOR, i < n)


def times(x, factor, block):
    out, n = torch.empty_like(x), x.numel()
    scale[(triton.cdiv(n, block),)](x, out, n, FACTOR=factor, BLOCK=block)
    return out


def launched(x, w):
    """Kernels of the user's that differ in constants alone."""
    y = torch.cond(x.sum() > 0, lambda x: times(x, 2, 64), lambda x: times(x, 3, 32) + 1, (x,))
    return y * times(w, 5, 16)


def shared(x, w):
    """One kernel of the user's in two subgraphs, and in what calls them."""
    y = torch.cond(x.sum() > 0, lambda x: times(x, 2, 64), lambda x: times(x, 2, 64) + 1, (x,))
    return y * times(w, 2, 64)


def products(x, w):
    def step(c, x):
        c = (c @ w).tanh() + x
        return c, c * 2

    return scan(step, x[0] * 0, x)


CASES = [nested, cond, loop, never, scanned, mapped, by_size, views, constants, products]
DIFFERENTIABLE = [nested, cond, loop, mapped, views, constants, products]


def gradients(results, inputs):
    """Of squares of the results, each of which counts otherwise."""
    results = results if isinstance(results, tuple) else (results,)
    loss = sum((i + 1) * y.square().sum() for i, y in enumerate(results))
    return torch.autograd.grad(loss, inputs, allow_unused=True)
