"""Operators of maxima of windows that give, and take, the place of a maximum inside of its window:
one byte, where `aten`'s give its place in the image, eight.

    max_pool_offsets(x, [3, 3], [2, 2], [1, 1], [1, 1], False)  ->  y, o
    o[n, c, h, w] = 3*i + j:  y[n, c, h, w] is x[n, c, 2*h - 1 + i, 2*w - 1 + j]

They serve graphs of gradients (`passes.window_offsets`), which lower them to kernels; what they do
by themselves is `aten`'s operators and arithmetic."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_POOLS = {2: aten.max_pool2d_with_indices.default, 3: aten.max_pool3d_with_indices.default}
_GRADIENTS = {
    2: aten.max_pool2d_with_indices_backward.default,
    3: aten.max_pool3d_with_indices_backward.default,
}

Ints = Sequence[int]
# Operators live as long as the process, as torch's tables of kernels do.
LIBRARY: Any = torch.library.Library("aten_lowering", "DEF")  # type: ignore[no-untyped-call]  # of torch
_WINDOWS = "int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
LIBRARY.define(f"max_pool_offsets(Tensor self, {_WINDOWS}) -> (Tensor, Tensor)")
LIBRARY.define(
    "max_pool_offsets_backward(Tensor grad_output, Tensor indices, SymInt[] image, "
    f"bool channels_last, {_WINDOWS}) -> Tensor"
)


def _starts(like: Tensor, step: Ints, padding: Ints) -> Iterator[Tensor]:
    """Of each dimension of the windows, the places where they begin, which broadcast."""
    for d, (n, s, p) in enumerate(zip(like.shape[-len(step) :], step, padding, strict=True)):
        at = torch.arange(n, device=like.device) * s - p
        yield at.view(-1, *[1] * (len(step) - 1 - d))


def max_pool_offsets(
    x: Tensor, size: Ints, step: Ints, padding: Ints, dilation: Ints, ceil: bool
) -> tuple[Tensor, Tensor]:
    """`aten.max_poolNd_with_indices`, with offsets in the windows for places."""
    values, places = _POOLS[len(size)](x, size, step, padding, dilation, ceil)
    offsets, factor = torch.zeros_like(places), 1
    starts = list(_starts(values, step, padding))
    for d in reversed(range(len(size))):
        extent = x.shape[d - len(size)]
        offsets = offsets + (places % extent - starts[d]) // dilation[d] * factor
        places, factor = places // extent, factor * size[d]
    return values, offsets.to(torch.int8)


def max_pool_offsets_backward(
    grad: Tensor,
    offsets: Tensor,
    image: Ints,
    channels_last: bool,
    size: Ints,
    step: Ints,
    padding: Ints,
    dilation: Ints,
    ceil: bool,
) -> Tensor:
    """`aten.max_poolNd_with_indices_backward`, of an image of those last dimensions."""
    rest = offsets.to(torch.int64)
    parts: list[Tensor] = []
    for d in reversed(range(len(size))):
        parts.insert(0, rest % size[d] * dilation[d])
        rest = rest // size[d]
    places = torch.zeros_like(rest)
    for extent, start, part in zip(image, _starts(grad, step, padding), parts, strict=True):
        places = places * extent + start + part
    x = grad.new_empty((*grad.shape[: -len(size)], *image))
    if channels_last:
        x = x.to(memory_format=torch.channels_last if len(size) == 2 else torch.channels_last_3d)
    result: Tensor = _GRADIENTS[len(size)](grad, x, size, step, padding, dilation, ceil, places)
    return result


LIBRARY.impl("max_pool_offsets", max_pool_offsets, "CompositeExplicitAutograd")
LIBRARY.impl("max_pool_offsets_backward", max_pool_offsets_backward, "CompositeExplicitAutograd")
OFFSETS = torch.ops.aten_lowering.max_pool_offsets.default
OFFSETS_BACKWARD = torch.ops.aten_lowering.max_pool_offsets_backward.default
