"""Images that are resampled with as many places for a point as it stands for (ATen/native/
UpSample.h): a point is a sum of places under a filter that its scale widens, one dimension after
the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.layouts import suggested

aten = torch.ops.aten
Filter = Callable[[Tensor], Tensor]

# Places of a point, up to which its sum is written out.
_MOST = 16


def _triangle(x: Tensor) -> Tensor:
    return torch.where(x < 1, 1 - x, 0.0)


def _cubic(x: Tensor, a: float = -0.5) -> Tensor:
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _line(size: Any, out: Any, aligned: bool, factor: Any, reach: int) -> Any:
    """Of `size` places and `out` points: the scale, how far a point reaches, and the number of
    places that it has at most."""
    if not all(isinstance(n, int) for n in (size, out)) or min(size, out) < 1:
        return None
    if not isinstance(factor, int | float | None):
        return None
    scale = size / out if not factor else 1 / factor
    if aligned:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    wide = reach * max(scale, 1.0)
    return scale, wide, min(2 * math.ceil(wide) + 1, size)


def _weights(like: Tensor, size: int, out: int, line: Any, keep: Filter) -> tuple[Tensor, Tensor]:
    """The first place of each point, [out], and what its places count, [out, places]."""
    scale, wide, most = line
    points = torch.arange(out, device=like.device, dtype=like.dtype)
    center = (points + 0.5) * scale
    first = (center - wide + 0.5).to(torch.int32).clamp(min=0)
    end = (center + wide + 0.5).to(torch.int32).clamp(max=size)
    at = first.unsqueeze(1) + torch.arange(most, device=like.device, dtype=torch.int32)
    off = (at - center.unsqueeze(1) + 0.5) * (1 / max(scale, 1.0))
    weight = torch.where(at < end.unsqueeze(1), keep(off.abs()), 0.0)
    return first, weight / weight.sum(1, keepdim=True)


def _shrink(x: Tensor, d: int, out: int, line: Any, keep: Filter) -> Tensor:
    """The points of a dimension."""
    size = x.shape[d]
    first, weight = _weights(x, size, out, line, keep)
    places = torch.arange(weight.shape[1], device=x.device, dtype=torch.int32)
    at = (first.unsqueeze(1) + places).clamp(max=size - 1)
    index: list[Any] = [None] * d + [at]
    picked: Tensor = aten._unsafe_index(x, index)
    return (picked * weight.view(*weight.shape, *[1] * (x.dim() - 1 - d))).sum(d + 1)


def _spread(g: Tensor, d: int, size: int, line: Any, keep: Filter) -> Tensor:
    """The gradient of a dimension's places: a sum over the points that may have read each."""
    out = g.shape[d]
    scale, wide, _ = line
    first, weight = _weights(g, size, out, line, keep)
    count = min(math.ceil((2 * wide + 2) / scale) + 1, out) if scale else out
    places = torch.arange(size, device=g.device, dtype=torch.int32).unsqueeze(1)
    start = ((places - (wide + 0.5)) / scale - 0.5).floor() if scale else torch.zeros_like(places)
    start = start.to(torch.int32).clamp(0, out - count)
    points = start + torch.arange(count, device=g.device, dtype=torch.int32)
    own = places - aten._unsafe_index(first, [points])
    inside = (own >= 0) & (own < weight.shape[1])
    counts = aten._unsafe_index(weight, [points, own.clamp(0, weight.shape[1] - 1)])
    counts = torch.where(inside, counts, 0.0)
    picked: Tensor = aten._unsafe_index(g, [*[None] * d, points])
    return (picked * counts.view(size, count, *[1] * (g.dim() - 1 - d))).sum(d + 1)


def _lines(size: Sequence[Any], out: Sequence[Any], reach: int, aligned: bool, factors: Any) -> Any:
    lines = [_line(n, m, aligned, f, reach) for n, m, f in zip(size, out, factors, strict=True)]
    few = all(line is not None and line[2] <= _MOST for line in lines)
    return lines if few else None


def _forward(
    keep: Filter, reach: int, x: Tensor, size: Sequence[Any], aligned: bool, *factors: Any
) -> Any:
    factors = (*factors, None, None)[:2]
    lines = _lines(x.shape[2:], size, reach, aligned, factors)
    if lines is None or not x.is_floating_point() or 0 in x.shape:
        return NotImplemented
    wide = x if x.dtype is torch.float64 else x.float()
    for d in (3, 2):
        wide = _shrink(wide, d, size[d - 2], lines[d - 2], keep)
    return suggested(wide.to(x.dtype), x)


def _backward(
    keep: Filter,
    reach: int,
    gradient: Tensor,
    out: Sequence[Any],
    size: Sequence[Any],
    aligned: bool,
    *factors: Any,
) -> Any:
    factors = (*factors, None, None)[:2]
    lines = _lines(size[2:], out, reach, aligned, factors)
    if lines is None or 0 in gradient.shape:
        return NotImplemented
    wide = gradient if gradient.dtype is torch.float64 else gradient.float()
    for d in (2, 3):
        wide = _spread(wide, d, size[d], lines[d - 2], keep)
    result = wide.to(gradient.dtype)
    return suggested(result, gradient) if keep is _triangle else result.contiguous()


ANTIALIAS: dict[OpOverload, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: partial(_forward, _triangle, 1),
    aten._upsample_bicubic2d_aa.default: partial(_forward, _cubic, 2),
    aten._upsample_bilinear2d_aa_backward.default: partial(_backward, _triangle, 1),
    aten._upsample_bicubic2d_aa_backward.default: partial(_backward, _cubic, 2),
}
