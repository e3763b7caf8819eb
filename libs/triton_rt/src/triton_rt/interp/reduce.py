"""Reductions and scans with any combine function, a logarithmic number of vector steps each."""

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.language import core, standard
from triton.runtime.interpreter import TensorHandle

from triton_rt.interp.operators import Block
from triton_rt.interp.world import World

Array = np.ndarray[Any, Any]
#: Combine functions that numpy has a reduction for.
_AT_ONCE = (
    (standard._sum_combine, np.add),
    (standard._elementwise_max, np.fmax),
    (standard._elementwise_min, np.fmin),
)


def _wrap(world: World, data: Array, scalar: Any) -> Any:
    if data.shape == ():
        return world.tensor(TensorHandle(data.reshape(1), scalar), scalar)
    return world.tensor(TensorHandle(data, scalar), Block.of(scalar, data.shape))


def _combine(
    world: World, fn: Callable[..., Any], left: list[Array], right: list[Array], types: list[Any]
) -> list[Array]:
    """`fn(*left, *right)` on whole arrays; a scalar result (a constant) is broadcast."""
    out = fn(*(_wrap(world, d, t) for d, t in zip([*left, *right], types * 2, strict=True)))
    results = out if isinstance(out, tuple) else (out,)
    arrays = []
    for result, scalar, like in zip(results, types, left, strict=True):
        value = world.semantic.cast(world.semantic.to_tensor(result), scalar).handle.data
        arrays.append(np.broadcast_to(value, like.shape) if value.size == 1 else value)
    return arrays


def _at(axis: int, rank: int, part: slice) -> tuple[slice, ...]:
    return tuple(part if d == axis else slice(None) for d in range(rank))


def reduce(
    world: World, input: Any, axis: int | None, fn: Callable[..., Any], keep_dims: bool
) -> Any:
    """`tl.reduce`. Neighbours are combined first, so an associative `fn` need not commute."""
    single = not isinstance(input, (tuple, core.tuple))
    tensors = [input] if single else list(input)
    types = [t.type.scalar for t in tensors]
    arrays = [t.handle.data for t in tensors]
    rank = arrays[0].ndim
    if axis is None:
        arrays = [a.reshape(-1) for a in arrays]
        axis_, left = 0, [1] * rank
    else:
        axis_ = axis % rank
        left = [1 if d == axis_ else n for d, n in enumerate(arrays[0].shape)]
    at_once = next((do for known, do in _AT_ONCE if getattr(fn, "origin", None) is known), None)
    if single and at_once and types[0].name in ("fp32", "int32", "int64"):
        data = arrays[0]
        arrays = [at_once.reduce(data, axis=axis_, dtype=data.dtype, keepdims=True)]
    while (size := arrays[0].shape[axis_]) > 1:
        even = _at(axis_, arrays[0].ndim, slice(0, size, 2))
        odd = _at(axis_, arrays[0].ndim, slice(1, size, 2))
        arrays = _combine(world, fn, [a[even] for a in arrays], [a[odd] for a in arrays], types)
    shape = tuple(left) if keep_dims else arrays[0].shape[:axis_] + arrays[0].shape[axis_ + 1 :]
    out = tuple(_wrap(world, a.reshape(shape), t) for a, t in zip(arrays, types, strict=True))
    return out[0] if single else out


def scan(world: World, input: Any, axis: int, fn: Callable[..., Any], reverse: bool) -> Any:
    """`tl.associative_scan`, inclusive, by doubling distances."""
    single = not isinstance(input, (tuple, core.tuple))
    tensors = [input] if single else list(input)
    types = [t.type.scalar for t in tensors]
    arrays = [t.handle.data for t in tensors]
    rank = arrays[0].ndim
    axis %= rank
    if reverse:
        arrays = [np.flip(a, axis) for a in arrays]
    size, distance = arrays[0].shape[axis], 1
    while distance < size:
        # Whole blocks are combined, since a block's shape must be a power of two.
        head = _at(axis, rank, slice(0, distance))
        before = [np.roll(a, distance, axis) for a in arrays]
        joined = [np.array(j) for j in _combine(world, fn, before, arrays, types)]
        for array, out_array in zip(arrays, joined, strict=True):
            out_array[head] = array[head]
        arrays = joined
        distance *= 2
    if reverse:
        arrays = [np.flip(a, axis) for a in arrays]
    out = tuple(_wrap(world, a, t) for a, t in zip(arrays, types, strict=True))
    return out[0] if single else out
