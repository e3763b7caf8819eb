"""What an interpreted kernel calls in place of functions of `triton.language` that need the
compiler's regions, or act on the compiler itself."""

import builtins
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.runtime.interpreter import TensorHandle

from triton_rt.errors import NotInterpretable
from triton_rt.interp import reduce
from triton_rt.interp.world import World, plain


def int_range(start: Any, stop: Any = None, step: Any = None, **_: Any) -> builtins.range:
    """`range`, `tl.range` and `tl.static_range`, whose hints to the compiler count for nothing."""
    low, high = (0, start) if stop is None else (start, stop)
    return builtins.range(
        int(plain(low)), int(plain(high)), int(plain(1 if step is None else step))
    )


def minimum(world: World, *args: Any) -> Any:
    """`min` of numbers or of tensors."""
    if any(isinstance(a, core.tensor) for a in args):
        return functools.reduce(world.translate(tl.minimum), args)
    return builtins.min(*map(plain, args))


def maximum(world: World, *args: Any) -> Any:
    """`max` of numbers or of tensors."""
    if any(isinstance(a, core.tensor) for a in args):
        return functools.reduce(world.translate(tl.maximum), args)
    return builtins.max(*map(plain, args))


def _static_assert(world: World, cond: Any, msg: str = "", **_: Any) -> None:
    if not plain(cond):
        raise AssertionError(plain(msg) or "tl.static_assert failed")


def _device_assert(world: World, cond: Any, msg: str = "", mask: Any = None, **_: Any) -> None:
    failed = ~np.asarray(cond.handle.data if isinstance(cond, core.tensor) else cond, dtype=bool)
    if mask is not None:
        failed = failed & np.asarray(mask.handle.data, dtype=bool)
    if failed.any():
        raise AssertionError(plain(msg) or "tl.device_assert failed")


def device_print(world: World, prefix: str, *args: Any, **_: Any) -> None:
    """`tl.device_print` and `print`: one line a program."""
    values = " ".join(str(a) for a in args)
    builtins.print(f"pid {world.builder.grid_idx} {plain(prefix)} {values}")  # noqa: T201  what the kernel prints


def _static_print(world: World, *values: Any, **_: Any) -> None:
    builtins.print(*values)  # noqa: T201  what the kernel prints


def _reduce(
    world: World, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any
) -> Any:
    return reduce.reduce(world, input, plain(axis), world.translate(combine_fn), plain(keep_dims))


def _scan(
    world: World, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any
) -> Any:
    return reduce.scan(world, input, plain(axis), world.translate(combine_fn), plain(reverse))


def _reduce_with_indices(
    world: World, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any
) -> Any:
    axis = plain(axis)
    if axis is None:
        input, axis = world.semantic.reshape(input, [int(plain(input.numel))], False), 0
    shape = [int(plain(s)) for s in input.shape]
    axis = axis % len(shape)
    along = np.arange(shape[axis], dtype=np.int32).reshape(
        [-1 if d == axis else 1 for d in builtins.range(len(shape))]
    )
    index = world.tensor(
        TensorHandle(np.broadcast_to(along, shape), core.int32), core.block_type(core.int32, shape)
    )
    return _reduce(world, (input, index), axis, combine_fn, keep_dims)


def _map_elementwise(world: World, scalar_fn: Any, *args: Any, pack: Any = 1, **_: Any) -> Any:
    raise NotInterpretable("tl.map_elementwise has no interpreted form: write it with tl.where")


_ARGUMENT = re.compile(
    r"mov\.b64 (\w+), \w+_param_0; add\.s64 \1, \1, \$1; ld\.param\.b64 \$0, \[\1\];"
)


def _inline_asm(world: World, asm: Any, constraints: Any, args: Any, *_: Any, **__: Any) -> Any:
    """Of PTX what reads an argument of eight bytes by how many bytes it is behind the first."""
    if not _ARGUMENT.search(str(plain(asm))):
        raise NotInterpretable("tl.inline_asm_elementwise: PTX runs on a GPU only")
    (offset,) = args
    word = world.builder.arguments[int(offset.handle.data.item()) // 8]
    return world.tensor(TensorHandle(np.array([word], np.int64), core.int64), core.int64)


def _hint(world: World, input: Any, values: Any, **_: Any) -> Any:
    return input


def _nothing(world: World, **_: Any) -> None:
    """Programs and launches run one after another: what one waits for is done."""


_TICK = 1 << 20


def _clock(world: World, **_: Any) -> Any:
    """Nanoseconds, a millisecond more each time it is asked: no program has begun meanwhile."""
    world.builder.clock += _TICK
    return world.tensor(
        TensorHandle(np.array([world.builder.clock], np.int64), core.int64), core.int64
    )


OVERRIDES: dict[str, Callable[..., Any]] = {
    "static_assert": _static_assert,
    "static_print": _static_print,
    "device_assert": _device_assert,
    "device_print": device_print,
    "reduce": _reduce,
    "associative_scan": _scan,
    "_reduce_with_indices": _reduce_with_indices,
    "map_elementwise": _map_elementwise,
    "inline_asm_elementwise": _inline_asm,
    "multiple_of": _hint,
    "max_contiguous": _hint,
    "max_constancy": _hint,
    "globaltimer": _clock,
    "gdc_wait": _nothing,
    "gdc_launch_dependents": _nothing,
}
