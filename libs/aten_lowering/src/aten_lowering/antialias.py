"""Images that are resampled with as many places for a point as it stands for (ATen/native/
UpSample.h): a point is a sum of places under a triangle that its scale widens, one dimension after
the other. Cubic ones stay torch's: in 16 bits with channels last, kernels for the widths of these
take longer than its one (289 us against 220 on an H200). Gradients of cubic upsampling are sums
over the points that may have read a place, too: torch's has 16 atomic additions for each point."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.layouts import suggested
from aten_lowering.lowerings.windows import MOST
from aten_lowering.torch_compat import cubic_coefficients

aten = torch.ops.aten

# Places of a point, up to which its sum is written out, and points of a place.
_MOST, _MOST_CUBIC = 16, 64


def _line(size: Any, out: Any, aligned: bool, factor: Any) -> Any:
    """For a line of `size` places and `out` points: the scale, how far a point reaches, how many
    places it has at most."""
    if not all(isinstance(n, int) for n in (size, out)) or min(size, out) < 1:
        return None
    if not isinstance(factor, int | float | None):
        return None
    scale = size / out if not factor else 1 / factor
    if aligned:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    wide = max(scale, 1.0)
    return scale, wide, min(2 * math.ceil(wide) + 1, size)


def _weights(like: Tensor, size: int, out: int, line: Any) -> tuple[Tensor, Tensor]:
    """The first place of each point, [out], and the shares of its places, [out, places], of a
    whole that they do not add up to."""
    scale, wide, most = line
    points = torch.arange(out, device=like.device, dtype=torch.int32).to(like.dtype)
    center = (points + 0.5) * scale
    first = (center - wide + 0.5).to(torch.int32).clamp(min=0)
    end = (center + wide + 0.5).to(torch.int32).clamp(max=size)
    at = first.unsqueeze(1) + torch.arange(most, device=like.device, dtype=torch.int32)
    off = (at - center.unsqueeze(1) + 0.5) * (1 / max(scale, 1.0))
    weight = torch.where(at < end.unsqueeze(1), (1 - off.abs()).clamp(min=0), 0.0)
    return first, weight


def _shrink(x: Tensor, d: int, out: int, line: Any) -> Tensor:
    """The points of a dimension."""
    size = x.shape[d]
    first, weight = _weights(x, size, out, line)
    places = torch.arange(weight.shape[1], device=x.device, dtype=torch.int32)
    at = (first.unsqueeze(1) + places).clamp(max=size - 1)
    index: list[Any] = [None] * d + [at]
    picked: Tensor = aten._unsafe_index(x, index)
    shares = weight.view(*weight.shape, *[1] * (x.dim() - 1 - d)).expand(picked.shape)
    return (picked * shares).sum(d + 1) / shares.sum(d + 1)  # in one kernel


def _spread(g: Tensor, d: int, size: int, line: Any) -> Tensor:
    """The gradient of a dimension's places: a sum over the points that may have read each."""
    out = g.shape[d]
    scale, wide, _ = line
    first, weight = _weights(g, size, out, line)
    weight = weight / weight.sum(1, keepdim=True)
    count = min(math.ceil((2 * wide + 2) / scale) + 1, out) if scale else out
    places = torch.arange(size, device=g.device, dtype=torch.int32).unsqueeze(1)
    start = ((places - (wide + 0.5)) / scale - 0.5).floor() if scale else torch.zeros_like(places)
    start = start.to(torch.int32).clamp(0, out - count)
    points = start + torch.arange(count, device=g.device, dtype=torch.int32)
    own = places - aten._unsafe_index(first, [points])
    inside = (own >= 0) & (own < weight.shape[1])
    counts = aten._unsafe_index(weight, [points, own.clamp(0, weight.shape[1] - 1)])
    return _summed(g, d, points, torch.where(inside, counts, 0.0))


def _summed(g: Tensor, d: int, points: Tensor, shares: Tensor) -> Tensor:
    """For each place along a dimension the sum of its points, times their shares."""
    picked: Tensor = aten._unsafe_index(g, [*[None] * d, points])
    return (picked * shares.view(*shares.shape, *[1] * (g.dim() - 1 - d))).sum(d + 1)


def _cubic_spread(g: Tensor, d: int, size: int, scale: float, shift: float) -> Tensor:
    """The gradient of a dimension's places under cubic functions; those at the ends stand for all
    that would lie beyond them."""
    out = g.shape[d]
    numbers = functools.partial(torch.arange, device=g.device, dtype=torch.int32)
    center = (numbers(out).to(g.dtype) + shift) * scale - shift
    low = center.floor()
    shares = torch.stack(cubic_coefficients(center - low), 1)
    count = min(math.ceil(4 / scale) + 1, out)
    places = numbers(size).unsqueeze(1)
    start = ((places - 2 + shift) / scale - shift).floor().to(torch.int32).clamp(0, out - count)
    points = start + numbers(count)
    read = aten._unsafe_index(low, [points]).to(torch.int32).unsqueeze(2) + numbers(4) - 1
    own = read.clamp(0, size - 1) == places.unsqueeze(2)
    taken = torch.where(own, aten._unsafe_index(shares, [points]), 0.0).sum(2)
    return _summed(g, d, points, taken)


def _lines(size: Sequence[Any], out: Sequence[Any], aligned: bool, factors: Any) -> Any:
    factors = (*factors, None, None)[:2]
    lines = [_line(n, m, aligned, f) for n, m, f in zip(size, out, factors, strict=True)]
    few = all(line is not None and line[2] <= _MOST for line in lines)
    return lines if few else None


def _forward(x: Tensor, size: Sequence[Any], aligned: bool, *factors: Any) -> Any:
    lines = _lines(x.shape[2:], size, aligned, factors)
    if lines is None or not x.is_floating_point() or 0 in x.shape:
        return NotImplemented
    wide = x if x.dtype is torch.float64 else x.float()
    for d in (3, 2):
        if x.device.type == "cpu" and x.shape[d] == size[d - 2]:
            continue  # eager copies a line of one length there
        wide = _shrink(wide, d, size[d - 2], lines[d - 2])
    return suggested(wide.to(x.dtype), x)


def _backward(
    gradient: Tensor, out: Sequence[Any], size: Sequence[Any], aligned: bool, *factors: Any
) -> Any:
    lines = _lines(size[2:], out, aligned, factors)
    if lines is None or 0 in gradient.shape:
        return NotImplemented
    wide = gradient if gradient.dtype is torch.float64 else gradient.float()
    for d in (2, 3):
        wide = _spread(wide, d, size[d], lines[d - 2])
    return suggested(wide.to(gradient.dtype), gradient)


def _cubic_backward(
    gradient: Tensor, out: Sequence[Any], size: Sequence[Any], aligned: bool, *factors: Any
) -> Any:
    sides = zip(size[2:], out, (*factors, None, None), strict=False)
    lines = [_line(n, m, aligned, f) for n, m, f in sides]
    if None in lines or 0 in gradient.shape or size[2:] == out:
        return NotImplemented
    shift = 0.0 if aligned else 0.5
    for (scale, *_), n, m in zip(lines, size[2:], out, strict=True):
        if scale < 4 / _MOST_CUBIC or (m - 1 + shift) * scale - shift >= n + 1:
            return NotImplemented
    wide = gradient if gradient.dtype is torch.float64 else gradient.float()
    for d in (2, 3):
        wide = _cubic_spread(wide, d, size[d], lines[d - 2][0], shift)
    return wide.to(gradient.dtype).contiguous()


def _one_by_one(
    gradient: Tensor, out: Sequence[Any], size: Sequence[Any], aligned: bool, *factors: Any
) -> Any:
    """The gradient of linear upsampling, the last dimension first, where one kernel would walk over
    all points that may have read a place (37 x 37 to 100 x 100: 36 of them, not 12)."""
    sides = list(zip(size[2:], out, strict=True))
    known = all(isinstance(n, int) for side in sides for n in side)
    if gradient.is_cuda and any(n == m for n, m in sides) and any(factors):
        return NotImplemented  # a line of one length alone would be copied
    if not known or 0 in gradient.shape or not gradient.is_contiguous():
        return NotImplemented
    if math.prod(math.ceil(2 * m / n) for n, m in sides) <= MOST:
        return NotImplemented
    wide = gradient if gradient.dtype is torch.float64 else gradient.float()
    factors = (*factors, *[None] * len(sides))
    for d in reversed(range(2, gradient.dim())):
        (n, m), behind = sides[d - 2], math.prod(wide.shape[d + 1 :])
        lines = wide.view(-1, m, behind).movedim(1, 2)
        own = [*lines.shape[:2], n]
        lines = aten.upsample_linear1d_backward(lines, [m], own, aligned, factors[d - 2])
        wide = lines.movedim(2, 1).reshape(*wide.shape[:d], n, *wide.shape[d + 1 :]).contiguous()
    return wide.to(gradient.dtype)


ANTIALIAS: dict[OpOverload, Callable[..., Any]] = {
    aten._upsample_bilinear2d_aa.default: _forward,
    aten._upsample_bilinear2d_aa_backward.default: _backward,
    aten.upsample_bicubic2d_backward.default: _cubic_backward,
    aten.upsample_bilinear2d_backward.default: _one_by_one,
    aten.upsample_trilinear3d_backward.default: _one_by_one,
}
