"""Composite operators that are traced otherwise than torch decomposes them: upsampling as the
operators that have lowerings (torch's kernels in Python would decompose it before autograd, into
gathers whose gradient is four atomic scatters), softshrink (whose kernel in Python gives zeros of
another sign than eager's), margins of several labels (whose kernel in Python takes what follows the
last label for the first class), the gradient of running products (a loop over their elements),
circular padding (a copy in place for each edge), dropout (a copy where it drops nothing), attention
in f64 on a CPU."""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.fakes import correct_fakes
from aten_lowering.layouts import suggested
from aten_lowering.rules import (
    attention,
    cumprod_backward,
    dropout,
    pad_circular,
)
from aten_lowering.torch_compat import COMPOSITE, DispatchKey, upsample_compute_output_size

aten = torch.ops.aten

UPSAMPLING = (
    *(getattr(aten, f"upsample_nearest{rank}d") for rank in (1, 2, 3)),
    *(getattr(aten, f"_upsample_nearest_exact{rank}d") for rank in (1, 2, 3)),
    aten.upsample_linear1d,
    aten.upsample_bilinear2d,
    aten.upsample_trilinear3d,
)

_OTHERS = (aten.softshrink.default, aten.multilabel_margin_loss_forward.default)
_RULES: dict[OpOverload, Callable[..., Any]] = {
    aten.cumprod_backward.default: cumprod_backward,
    aten._pad_circular.default: pad_circular,
    aten.dropout.default: dropout,
    aten.scaled_dot_product_attention.default: attention,
}
_output_size: Any = upsample_compute_output_size
_KEYS = (DispatchKey.Autograd, COMPOSITE)
_LOCK = threading.RLock()

Kernels = dict[OpOverload, dict[DispatchKey, Callable[..., Any]]]


def sized(op: OpOverload, x: Tensor, output_size: Sequence[Any] | None, *more: Any) -> Any:
    """`upsample.vec(x, None, [2.0]) -> upsample.default(x, [2 * n], 2.0)`. What torch's own tensors
    without data cannot do is decomposed: gradients of unknown sizes, and nothing at all."""
    *align_corners, factors = more
    sizes = [n for n in x.shape if isinstance(n, int)]
    known = len(sizes) == x.dim()
    if 0 in sizes or (not known and x.requires_grad and torch.is_grad_enabled()):
        made = _DECOMPOSED[op](x, output_size, *more)
        return suggested(made, x)
    size = _output_size(x.size(), output_size, factors)
    return op(x, size, *align_corners, *(factors or [None] * len(size)))


def bicubic(x: Tensor, output_size: Sequence[Any] | None, align_corners: bool, factors: Any) -> Any:
    """The operator, which has a gradient of its own; of unknown sizes what torch decomposes it
    into. Of a factor that changes no size eager copies the gradient, and on CUDA the image too."""
    op = aten.upsample_bicubic2d.default
    size = _output_size(x.size(), output_size, factors)
    if not all(isinstance(n, int) for n in (*x.shape, *size)) or 0 in x.shape:
        return _DECOMPOSED[op](x, output_size, align_corners, factors)
    near = factors and not align_corners and all(1 < f < 2 for f in factors)
    if near and x.is_cuda and list(x.shape[2:]) == list(size):
        return suggested(x.clone(), x)
    return op(x, size, align_corners, *(factors or (None, None)))


def _whole(*_args: Any, **_kwargs: Any) -> Any:
    """What an operator decomposes into that does not."""
    return NotImplemented


_DECOMPOSED = {
    p.default: p.vec.py_kernels[COMPOSITE] for p in (*UPSAMPLING, aten.upsample_bicubic2d)
}


@contextmanager
def exchanged(kernels: Kernels) -> Iterator[None]:
    """While it is open, these operators have these Python kernels and no others."""
    had = {op: dict(op.py_kernels) for op in kernels}
    _exchange(kernels)
    try:
        yield
    finally:
        _exchange(had)


@contextmanager
def own_composites() -> Iterator[None]:
    """While it is open, tracing sees `aten.upsample_*.default`, `_OTHERS`, gradients of
    running products as scans, circular padding as concatenations, and nothing of dropout that drops
    nothing. torch's Python kernels, which decompose them before a table is asked, are exchanged for
    all threads: those that enter wait for one another, what others trace for another backend may
    have these operators whole, and calls in eager ask no Python kernels. Results of Fourier
    transforms lie as they will, from here on."""
    correct_fakes()
    with _LOCK:
        kernels: Kernels = {op: _others(op) for op in _OTHERS}
        kernels |= {op: {**_others(op), COMPOSITE: rule} for op, rule in _RULES.items()}
        cubic = aten.upsample_bicubic2d
        kernels[cubic.default] = _others(cubic.default)
        kernels[cubic.vec] = {**_others(cubic.vec), COMPOSITE: bicubic}
        for packet in UPSAMPLING:
            rest = _others(packet.default)
            whole = {COMPOSITE: _whole} if COMPOSITE in packet.default.py_kernels else {}
            kernels[packet.default] = {**rest, **whole}
            by_size = functools.partial(sized, packet.default)
            kernels[packet.vec] = {**_others(packet.vec), COMPOSITE: by_size}
        with exchanged(kernels):
            yield


def _others(op: OpOverload) -> dict[DispatchKey, Callable[..., Any]]:
    """The Python kernels of an operator but for those that decompose it."""
    return {key: kernel for key, kernel in op.py_kernels.items() if key not in _KEYS}


def _exchange(kernels: Kernels) -> None:
    for op, wanted in kernels.items():
        op.py_kernels.clear()
        op.py_kernels.update(wanted)
        op._dispatch_cache.clear()
