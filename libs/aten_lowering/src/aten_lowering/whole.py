"""Composite operators that are traced otherwise than torch decomposes them: upsampling as the
operators that have lowerings (torch's kernels in Python would decompose it before autograd, into
gathers whose gradient is four atomic scatters), softshrink (whose kernel in Python gives zeros of
another sign than eager's) and the gradient of running products (a loop over their elements)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._ops import OpOverload

from aten_lowering.rules import cumprod_backward

aten = torch.ops.aten

UPSAMPLING = (
    aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d,
    aten._upsample_nearest_exact1d, aten._upsample_nearest_exact2d,
    aten._upsample_nearest_exact3d,
    aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d,
)  # fmt: skip

_OTHERS = (aten.softshrink.default,)
_COMPOSITE = DispatchKey.CompositeImplicitAutograd
_KEYS = (DispatchKey.Autograd, _COMPOSITE)
_LOCK = threading.RLock()
_Kernels = dict[DispatchKey, Callable[..., Any]]


def sized(op: OpOverload, x: Tensor, output_size: Sequence[Any] | None, *more: Any) -> Any:
    """`upsample.vec(x, None, [2.0]) -> upsample.default(x, [2 * n], 2.0)`. What torch's own tensors
    without data cannot do is decomposed: gradients of unknown sizes, and nothing at all."""
    *align_corners, factors = more
    known = all(isinstance(n, int) for n in x.shape)
    if (known and 0 in x.shape) or (not known and x.requires_grad and torch.is_grad_enabled()):
        return _DECOMPOSED[op](x, output_size, *more)
    output_size_of: Any = upsample_compute_output_size
    size = output_size_of(x.size(), output_size, factors)
    return op(x, size, *align_corners, *(factors or [None] * len(size)))


def _whole(*_args: Any, **_kwargs: Any) -> Any:
    """What an operator decomposes into that does not."""
    return NotImplemented


_DECOMPOSED = {p.default: p.vec.py_kernels[_COMPOSITE] for p in UPSAMPLING}


@contextmanager
def own_composites() -> Iterator[None]:
    """While it is open, tracing sees `aten.upsample_*.default`, `aten.softshrink`, and gradients of
    running products as scans. One thread at a time: tables of torch's operators are others
    meanwhile."""
    with _LOCK:
        kept: dict[OpOverload, _Kernels] = {op: _exchange(op, {}) for op in _OTHERS}
        products = aten.cumprod_backward.default
        kept[products] = _exchange(products, {_COMPOSITE: cumprod_backward})
        for packet in UPSAMPLING:
            ours: _Kernels = {_COMPOSITE: functools.partial(sized, packet.default)}
            whole: _Kernels = {
                key: _whole for key in packet.default.py_kernels if key is _COMPOSITE
            }
            kept[packet.default] = _exchange(packet.default, whole)
            kept[packet.vec] = _exchange(packet.vec, ours)
        try:
            yield
        finally:
            for op, kernels in kept.items():
                _exchange(op, kernels)


def _exchange(op: OpOverload, kernels: _Kernels) -> _Kernels:
    """Gives an operator these Python kernels of composite operators; the ones that it had."""
    had = {key: op.py_kernels.pop(key) for key in _KEYS if key in op.py_kernels}
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
    return had
