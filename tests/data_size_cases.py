"""Functions of a square matrix and an integer, of which what they hold says how large results are,
for a CPU and for a GPU."""

from __future__ import annotations

import torch


def read(x, n):
    k = (n * 1).item()  # of an input torch knows what it is
    torch._check(k >= 2)
    torch._check(k <= x.shape[0])
    return torch.arange(k, device=x.device) * 2 + x[:k, 0], k + 1


def places(x, n):
    return torch.nonzero(x > 0.5).sum(1) * 2 + 1


def selected(x, n):
    return x.masked_select(x > 0.5).sin() * 2


def rows(x, n):
    y, z = x[x[:, 0] > 0.5], x[x[:, 1] > 0.2]
    return (y @ x).relu(), z.sum(0), torch.cat([y, z]).cos()


def repeated(x, n):
    return x.repeat_interleave(n.expand(x.shape[0]) % 3 + 1, dim=0).sin()


def distinct(x, n):
    values, where, counts = torch.unique((x * 4).long(), return_inverse=True, return_counts=True)
    return values * 3, where + 1, counts * 2


def parts(x, n):
    """Of sizes whose sum is given."""
    k, j = torch.stack([n, x.shape[0] - n]).tolist()
    torch._check(k >= 0)
    torch._check(j >= 0)
    torch._check(k + j == x.shape[0])
    a, b = torch.split(x, [k, j])
    return a.sin(), b.sum(0), torch.zeros(k, 3, device=x.device) + k


def wholes(x, n):
    """Sizes whose sum is another's meet it in products and sums."""
    a, b = x[x[:, 0] > 0.5], x[x[:, 0] <= 0.5]
    y = torch.cat([a, b])
    torch._check(y.shape[0] == x.shape[0])
    return y + x, y.t() @ x, (y @ y.t()).sum(-1)


def decided(x, n):
    k = n.item()
    torch._check(k >= 0)
    y = torch.arange(k, device=x.device)
    return torch.cond(k > 3, lambda y: y + 1, lambda y: y * 2, (y,))


def slices(x, n):
    """Beyond the end, of which torch says nothing, and from whichever end data says."""
    a, b = torch.stack([n, n * 9]).tolist()
    torch._check(a >= 1)
    torch._check(b >= 0)
    return x[:b, a:].sin(), x.narrow(0, a - 1, 1) * 2, x[a - 4 :].sum(0) + 1, x[: -a - 1].cos()


def added(x, n):
    places = torch.nonzero(x[:, 0] > 0.5).squeeze(1)
    return torch.zeros_like(x).index_add(0, places, x[places] * 2) + 1


CASES = [read, places, selected, rows, repeated, distinct, parts, wholes, decided, slices, added]
FLAGS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
