"""Distances of rows and their gradients, decomposed: norms of differences."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten


def dist(x: Tensor, y: Tensor, p: float = 2) -> Any:
    """The norm of the difference, as a vector."""
    return aten.linalg_vector_norm((x - y).reshape(-1), p) if x.numel() else NotImplemented


def cdist(x: Tensor, y: Tensor, p: float, compute_mode: int | None) -> Any:
    """Norms of the differences of all rows, but for Euclid's where eager multiplies matrices."""
    if 0 in (*x.shape, *y.shape):
        return NotImplemented
    few = all(isinstance(n, int) and n <= 25 for n in (x.shape[-2], y.shape[-2]))
    if p == 2 and (compute_mode == 1 or (compute_mode != 2 and not few)):
        return NotImplemented
    off = x.unsqueeze(-2) - y.unsqueeze(-3)
    return aten.linalg_vector_norm(off, p, [off.dim() - 1])


def cdist_backward(gradient: Tensor, x: Tensor, y: Tensor, p: float, distance: Tensor) -> Any:
    """The gradient of the first rows: a sum over the second ones."""
    if 0 in (*x.shape, *y.shape):
        return NotImplemented
    off = x.unsqueeze(-2) - y.unsqueeze(-3)
    parts = _norm_backward(gradient.unsqueeze(-1), off, p, distance.unsqueeze(-1))
    return parts.sum(off.dim() - 2)


def pdist(x: Tensor, p: float = 2) -> Any:
    """Norms of the differences of all pairs of rows."""
    n = x.shape[0]
    if not isinstance(n, int) or n < 2 or 0 in x.shape:
        return NotImplemented
    place = torch.arange(n * (n - 1) // 2, device=x.device)
    # of the pairs behind this one, those of whole rows: the largest r with r (r - 1) / 2 of them
    behind = (n * (n - 1) // 2 - 1 - place).double()
    left = ((8 * behind + 1).sqrt() / 2 + 0.5).to(torch.int64)
    row = n - 1 - left
    column = n - 1 - (behind.to(torch.int64) - (left * (left - 1) >> 1))
    return aten.linalg_vector_norm(x[row] - x[column], p, [1])


def pdist_backward(gradient: Tensor, x: Tensor, p: float, distance: Tensor) -> Any:
    """For each row a sum over all others, of the distances from both."""
    n = x.shape[0]
    if not isinstance(n, int):
        return NotImplemented
    if n < 2 or 0 in x.shape:
        return torch.zeros_like(x)
    row, column = (torch.arange(n, device=x.device).unsqueeze(d) for d in (1, 0))
    low, high = torch.minimum(row, column), torch.maximum(row, column)
    place = (low * n - (low * (low + 1) >> 1) + high - low - 1).clamp(min=0)
    other = (row != column).unsqueeze(-1)
    parts = _norm_backward(
        gradient[place].unsqueeze(-1), x.unsqueeze(1) - x, p, distance[place].unsqueeze(-1)
    )
    return torch.where(other, parts, 0).sum(1)


def _norm_backward(gradient: Tensor, off: Tensor, p: float, norm: Tensor) -> Tensor:
    """The gradient of the p-norm of lines of `off`; 0 where the norm is, and at the edges of small
    powers."""
    if p == 0:
        return torch.zeros_like(off)
    if p in (1, math.inf):
        return gradient * off.sign() * (off.abs() == norm if p != 1 else 1)
    power = off if p == 2 else off.sign() * off.abs() ** (p - 1)
    flat = (norm == 0) | (off == 0) if p < 1 else norm == 0
    return torch.where(flat, 0, gradient * power / norm ** (p - 1))


DISTANCES: dict[OpOverload, Callable[..., Any]] = {
    aten.dist.default: dist,
    aten._cdist_forward.default: cdist,
    aten._cdist_backward.default: cdist_backward,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
}
