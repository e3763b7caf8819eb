"""Layouts of results that torch's decompositions and fake tensors lose: eager's rule, by operator.

A decomposition gives the layout that its last operation happens to have; the kernel in eager
allocates its result by a rule of its own (ATen/native: `zeros_like(..., LEGACY_CONTIGUOUS)`,
`empty_like(self)`, `suggest_memory_format`). The copy at the end is part of the kernel before it.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from aten_lowering.registry import by_rule
from aten_lowering.torch_compat import (
    compute_elementwise_output_logical_to_physical_perm,
    compute_elementwise_output_strides,
    suggest_memory_format,
)

aten = torch.ops.aten
Layout = Callable[..., Tensor]


def contiguous(result: Tensor, *_args: Any) -> Tensor:
    """Row by row, whatever the arguments are."""
    return result.contiguous()


def like(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """Dimensions in the order of those of `x`, the first argument."""
    if result.dim() != x.dim() or (x.is_contiguous() and result.is_contiguous()):
        return result
    return _ordered(result, x.stride())


def _ordered(x: Tensor, strides: Sequence[int | torch.SymInt]) -> Tensor:
    """Without gaps, dimensions in the order of these strides."""
    with disable_proxy_modes_tracing():  # products of sizes that no node of the graph has
        order = sorted(range(x.dim()), key=lambda d: strides[d], reverse=True)
    inverse = [order.index(d) for d in range(x.dim())]
    return x.permute(order).contiguous().permute(inverse)


def suggested(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """Channels last where `x` is by its strides, which is the first argument; else contiguous."""
    return result.contiguous(memory_format=suggest_memory_format(x))


def suggested_on_cpu(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """The kernels for CUDA give contiguous results, as the decompositions do."""
    return suggested(result, x) if x.device.type == "cpu" else result


def rolled(result: Tensor, x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """On the CPU two parts of `x` are joined, for each dimension: row by row if one is empty; and
    without dimensions."""
    if x.device.type != "cpu" or x.is_contiguous() or not dims or not x.numel():
        return result
    parts = all(s % x.shape[d] for s, d in zip(shifts, dims, strict=True))
    return suggested(result, x) if parts else result.contiguous()


def new_on_cpu(result: Tensor, x: Tensor, *_args: Any) -> Tensor:
    """A tensor of its own, even where nothing moves. On CUDA it is contiguous: its operand, if that
    is and nothing moves."""
    return suggested(result, x).clone() if x.device.type == "cpu" else result.contiguous()


def contiguous_on_cpu(result: Tensor, *_args: Any) -> Tensor:
    """Row by row on the CPU; the kernels for CUDA do as the decomposition."""
    return result.contiguous() if result.device.type == "cpu" else result


def by_operands(result: Tensor, *args: Any) -> Tensor:
    """As TensorIterator allocates: in the order of all operands together, the first one's where
    they differ."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    strides = _iterated(result, tensors)
    return result if _lies(result, strides) else _ordered(result, strides)


def laid_as_fake(result: Tensor, op: OpOverload, *args: Any, **kwargs: Any) -> Tensor:
    """As torch's fake tensors say of the operator."""
    with disable_proxy_modes_tracing():
        strides = op(*args, **kwargs).stride()
    return result if _lies(result, strides) else _ordered(result, strides)


def _lies(x: Tensor, strides: Sequence[int | torch.SymInt]) -> bool:
    """Whether the elements of `x` lie as these strides say. A dimension of size 1 may have any."""
    with disable_proxy_modes_tracing():
        return all(n == 1 or s == t for n, s, t in zip(x.shape, x.stride(), strides, strict=True))


def _iterated(result: Tensor, operands: Sequence[Tensor]) -> tuple[int, ...]:
    """The strides that TensorIterator gives a result of `operands`."""
    if all(x.is_contiguous() and x.shape == result.shape for x in (*operands, result)):
        return result.stride()
    with disable_proxy_modes_tracing():
        # On the CPU operands are converted before they are looked at.
        converts = result.device.type == "cpu" and result.dtype.is_floating_point
        cast = [x.to(result.dtype) if converts else x for x in operands if x.dim()]
        return compute_elementwise_output_strides(*(x.expand(result.shape) for x in cast))


def alike(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """`op(x, y) -> op` of copies that lie as eager's result would, where torch's fake tensors say
    otherwise of the operator: what they say of operands alike is right, in size and type, too."""
    tensors = [a for a in args if isinstance(a, Tensor) and a.dim()]
    if all(x.is_contiguous() and x.shape == tensors[0].shape for x in tensors):
        return NotImplemented
    with disable_proxy_modes_tracing():
        fake = op(*args, **kwargs)
    strides = _iterated(fake, tensors)

    def stays(x: Any) -> bool:
        if not isinstance(x, Tensor) or (not x.dim() and fake.dtype == torch.bool):
            return True
        return x.shape == fake.shape and _lies(x, strides)

    if _lies(fake, strides) or all(map(stays, args)):
        return NotImplemented

    def copied(x: Any) -> Any:
        if not isinstance(x, Tensor) or (not x.dim() and fake.dtype == torch.bool):
            return x
        cast = x if fake.dtype == torch.bool else x.to(fake.device, fake.dtype)
        return _ordered(cast.expand(fake.shape), strides)

    return op(*map(copied, args), **kwargs)


def alike_if_scaled(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """`add(x, y, alpha=2)`, whose second operand the fake tensors lay out anew."""
    return alike(op, *args, **kwargs) if kwargs.get("alpha", 1) != 1 else NotImplemented


def indexed(op: OpOverload, x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """In the order of `x` and the indices together, as TensorIterator allocates: the fake tensors
    look at `x` alone, and take a number for no index."""
    tensors = [i for i in indices if i is not None]
    if not x.numel() or any(i.dtype not in (torch.int32, torch.int64) for i in tensors):
        return NotImplemented
    with disable_proxy_modes_tracing():
        fake = op(x, indices)
        strides = _gathered(x, [*indices, *[None] * (x.dim() - len(indices))], fake.shape)
    if not fake.numel() or _lies(fake, strides):
        return NotImplemented
    return _ordered(aten._unsafe_index.Tensor(x, indices), strides)


def _gathered(x: Tensor, indices: Sequence[Tensor | None], shape: torch.Size) -> tuple[int, ...]:
    """The strides of `x[indices]`, which has this shape: the indexed dimensions of `x` have stride
    0, the indices those that they broadcast to (ATen/native/TensorAdvancedIndexing.cpp)."""
    places = [d for d, i in enumerate(indices) if i is not None]
    tensors: tuple[Tensor, ...] = aten.broadcast_tensors([i for i in indices if i is not None])
    if x.is_cuda and any(i.stride() != tensors[0].stride() for i in tensors):
        tensors = tuple(i.contiguous() for i in tensors)
    rest = [d for d in range(x.dim()) if d not in places]
    neighbours = places[-1] - places[0] == len(places) - 1
    before = places[0] if neighbours else 0
    kept, count = [x.stride(d) for d in rest], tensors[0].dim()
    source = x.as_strided(shape, [*kept[:before], *[0] * count, *kept[before:]])
    front, behind = [1] * before, [1] * (len(rest) - before)
    seen = (i.reshape([*front, *i.shape, *behind]).expand(shape) for i in tensors)
    order, _ = compute_elementwise_output_logical_to_physical_perm(source, *seen)
    strides, step = [0] * len(shape), 1
    for d in reversed(order):
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def power_of_number(op: OpOverload, base: Any, exponent: Tensor) -> Any:
    """`op(2.0, x) -> op(2.0, x.contiguous())`: eager's result is contiguous, whatever `x` is."""
    return NotImplemented if exponent.is_contiguous() else op(base, exponent.contiguous())


def suggested_input_on_cpu(op: OpOverload, x: Tensor, *args: Any) -> Any:
    """`op(x, ...) -> op(x.contiguous(), ...)`, or channels last, on the CPU."""
    if x.device.type != "cpu" or suggested(x, x) is x:
        return NotImplemented
    return op(suggested(x, x), *args)


def copied_on_cpu(op: OpOverload, *args: Any) -> Any:
    """`op(..., x, padding) -> op(..., x.contiguous(), padding)`, copied to channels last where `x`
    is, on the CPU: torch's fake tensors of padding are contiguous, as CUDA's results are."""
    x = [a for a in args if isinstance(a, Tensor)][-1]
    if x.device.type != "cpu" or suggested(x, x).is_contiguous():
        return NotImplemented
    return suggested(op(*(x.contiguous() if a is x else a for a in args)), x)


def resampled_on_cuda(op: OpOverload, x: Tensor, *args: Any) -> Any:
    """`op(x, ...) -> op(x.clone(), ...)`, copied to channels last where `x` is: torch's fake
    tensors say contiguous of fewer than 16 channels, since their kernel goes through such a one."""
    if not x.is_cuda or x.shape[1] >= 16 or suggest_memory_format(x) == torch.contiguous_format:
        return NotImplemented
    return suggested(op(x.clone(memory_format=torch.contiguous_format), *args), x)


# Of operators that stay whole: rules on their operands.
OPERANDS: dict[OpOverload, Callable[..., Any]] = by_rule(
    (alike_if_scaled, "add.Tensor sub.Tensor"),
    (indexed, "index.Tensor"),
    (alike, "copysign.Tensor floor_divide div.Tensor_mode logical_and logical_or logical_xor"),
    (power_of_number, "pow.Scalar"),
    (suggested_input_on_cpu, "native_batch_norm _native_batch_norm_legit_functional"),
    (suggested_input_on_cpu, "_native_batch_norm_legit_no_training"),
    (suggested_input_on_cpu, "_native_batch_norm_legit.no_stats"),
    (copied_on_cpu, "reflection_pad2d reflection_pad2d_backward reflection_pad3d"),
    (copied_on_cpu, "reflection_pad3d_backward replication_pad2d replication_pad3d"),
    (resampled_on_cuda, "upsample_bilinear2d upsample_trilinear3d"),
)

LAYOUTS: dict[OpOverload, Layout] = by_rule(
    (contiguous, "huber_loss_backward smooth_l1_loss_backward mse_loss_backward glu_backward"),
    (like, "binary_cross_entropy"),
    (new_on_cpu, "channel_shuffle"),
    (contiguous_on_cpu, "log_sigmoid_forward"),
    (by_operands, "xlogy.Tensor special_xlog1py heaviside logaddexp logaddexp2"),
    (suggested_on_cpu, "max_unpool2d"),
    (rolled, "roll"),
)


def laid_out(op: OpOverload, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition, with a result as eager lays it out."""
    layout = LAYOUTS.get(op)
    return decomposition if layout is None else functools.partial(_run, layout, decomposition)


def _run(layout: Layout, decomposition: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        result = decomposition(*args, **kwargs)
    except ZeroDivisionError:  # by a number of elements, of a mean of none: the operator is called
        return NotImplemented
    if isinstance(result, tuple):
        return tuple(layout(r, *args) for r in result)
    return layout(result, *args) if isinstance(result, Tensor) else result
