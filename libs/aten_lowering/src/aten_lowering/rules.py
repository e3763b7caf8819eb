"""Decompositions of operators that torch has none for, or whose own are not what eager computes.

Each is what ATen's kernel computes, in operators that become kernels; `NotImplemented` leaves the
operator as it is."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from aten_lowering.registry import of_ranks
from aten_lowering.torch_compat import (
    COMPOSITE,
    decomposed_index_add,
    pw_cast_for_opmath,
)

aten = torch.ops.aten
RULES: dict[OpOverload, Callable[..., Any]] = {}


def _rule(*ops: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


@_rule(aten.eye.default, aten.eye.m)
def eye(
    n: int,
    m: int | None = None,
    *,
    dtype: Any = None,
    layout: Any = None,
    device: Any = None,
    pin_memory: bool = False,
) -> Any:
    """torch's, whose places are unsigned integers where these are enough."""
    if layout not in (None, torch.strided) or pin_memory:
        return NotImplemented
    rows, columns = (torch.arange(k, device=device) for k in (n, n if m is None else m))
    return (rows.unsqueeze(-1) == columns).to(dtype or torch.get_default_dtype())


@_rule(aten.select.int)
def select(x: Tensor, dim: int, index: Any) -> Any:
    """Where only data says which, a kernel reads it: a view would begin at a place that torch has
    another name for, since it may be counted from the end."""
    if not isinstance(index, torch.SymInt) or index.node.has_hint():
        return NotImplemented
    place = aten.scalar_tensor.default(index, dtype=torch.int64, device=x.device)
    return aten.index.Tensor(x, [*[None] * (dim % x.dim()), place])


@_rule(aten.split_with_sizes.default)
def split_with_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> Any:
    """Parts as slices, which torch's partition of training graphs knows to cost nothing: a gradient
    then computes again what is made of them, where else the forward kernel would write it (a gate
    of two halves: a third of what it moved)."""
    if not all(isinstance(n, int) for n in (*sizes, x.shape[dim])) or sum(sizes) != x.shape[dim]:
        return NotImplemented
    return [x.narrow(dim, end - n, n) for n, end in zip(sizes, accumulate(sizes), strict=True)]


@_rule(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    """torch's, where sizes that the operator takes to be equal are so by a guard: `index_put`
    would ask whether to broadcast them."""
    if x.dim() and x.dim() == source.dim():
        for d in set(range(x.dim())) - {dim % x.dim()}:
            torch._check(source.shape[d] == x.shape[d])  # type: ignore[no-untyped-call]  # of torch
    return decomposed_index_add(x, dim, index, source, alpha=alpha)


@_rule(aten.mm.default)
def mm(x: Tensor, y: Tensor) -> Any:
    """`mm(x[n, 1], y[1, m]) -> 0 + x * y`: each element is one product, rounded once, which fuses.
    A sum begins at 0, so that no zero of it is negative. So are `one_row`s."""
    alone = isinstance(x.shape[1], int) and x.shape[1] == 1
    if x.dtype != y.dtype or not x.dtype.is_floating_point:
        return NotImplemented
    if alone:
        return (x * y + 0.0).contiguous()
    return one_row(x, y) if _is_one_row(x, y) else NotImplemented


@_rule(aten.addmm.default)
def addmm(bias: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """A sum of one row is added to before it is rounded, as by the vendor."""
    plain = beta == alpha == 1 and bias.dtype == x.dtype == y.dtype
    return one_row(x, y, bias) if plain and _is_one_row(x, y) else NotImplemented


def _is_one_row(x: Tensor, y: Tensor) -> bool:
    """Whether a row is multiplied by few numbers on a GPU: no template is asked for these, and the
    vendor's call is two launches or three (squeeze and excitation of EfficientNet at batch 1 on an
    H100: 140 us of 423)."""
    known = all(isinstance(n, int) for n in (*x.shape, *y.shape))
    few = known and x.shape[0] == 1 and 0 < y.numel() <= 64**3
    return few and x.is_cuda and x.dtype.is_floating_point


def one_row(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """`mm(x[1, k], y[k, m])` as sums of columns, which fuse, of at least f32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    total = (x.to(wide).t() * y.to(wide)).sum(0, keepdim=True)
    return (total if bias is None else total + bias.to(wide)).to(x.dtype)


@_rule(aten.convolution.default)
def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """A window of one place over maps of one place (squeeze and excitation) is a matmul, which
    takes epilogues, and less time (4.8 us, 7.4 by the vendor's convolution on an H200):

    convolution(x, w, b, ...)   ->   addmm(b, x[:, :, 0, 0], w[:, :, 0, 0].t())[:, :, None, None]

    So are `long_windows`."""
    how = stride, padding, dilation, transposed, output_padding, groups
    if _has_long_windows(x, weight, *how):
        with disable_proxy_modes_tracing():
            made = aten.convolution.default(x, weight, bias, *how)
        return long_windows(x, weight, bias, padding[0], groups, made.stride(1) == 1)
    if not _is_of_one_place(x, weight, *how):
        return NotImplemented
    with disable_proxy_modes_tracing():
        made = aten.convolution.default(x, weight, bias, *how)
    rows, columns = _row(x), _row(weight).t()
    result = torch.mm(rows, columns) if bias is None else torch.addmm(bias, rows, columns)
    return _maps(result, made)


def _has_long_windows(x: Tensor, weight: Tensor, *how: Any) -> bool:
    """Whether a line is convolved in groups with windows so long that the vendor, who has no kernel
    of tensor cores for them, takes a hundred times as long as a matmul."""
    stride, _, dilation, transposed, _, groups = how
    plain = x.is_cuda and x.dim() == 3 and x.dtype == weight.dtype and not transposed
    if not plain or x.dtype not in (torch.float16, torch.bfloat16):
        return False
    wide = groups > 1 and weight.shape[1] >= 32 and weight.shape[2] >= 64
    return bool(wide) and stride[0] == dilation[0] == 1


def long_windows(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, groups: int, last: bool
) -> Tensor:
    """A convolution of lines in groups as a batch of matmuls, of `n` neighbouring results at once:

    y[n*a + r] = sum_k x[n*a + r + k] w[k] = sum_u x[n*a + u] w[u - r], w zero outside of the window

    Windows of all results would be `n` times as much memory. last: channels are side by side."""
    n, (batch, _, length), (made, inner, taps) = 8, x.shape, weight.shape
    span, size = taps + n - 1, length + 2 * padding - taps + 1
    steps = (size + n - 1) // n
    more = n * (steps - 1) + span - length - padding
    lines = aten.constant_pad_nd(x, [padding, more]).unfold(-1, span, n)
    lines = lines.reshape(batch, groups, inner, steps, span).permute(1, 0, 3, 4, 2)
    rows = lines.reshape(groups, batch * steps, span * inner)
    windows = aten.constant_pad_nd(weight, [n - 1, n - 1]).unfold(-1, n, 1).flip(-1)
    windows = windows.reshape(groups, made // groups, inner, span, n).permute(0, 3, 2, 4, 1)
    columns = windows.reshape(groups, span * inner, n * made // groups)
    out = torch.bmm(rows, columns).view(groups, batch, steps, n, made // groups)
    out = out.permute(1, 2, 3, 0, 4).reshape(batch, steps * n, made)[:, :size]
    out = out if bias is None else out + bias
    return out.contiguous().transpose(1, 2) if last else out.transpose(1, 2).contiguous()


@_rule(aten.convolution_backward.default)
def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *more: Any) -> Any:
    """The bias's is a sum, made where the gradient is, which torch's operator reads again for it.
    Of a window of one place over maps of one place the others are matmuls."""
    *how, wanted = more
    if not _is_of_one_place(x, weight, *how[1:]):
        if not wanted[2] or not grad.is_floating_point():
            return NotImplemented
        apart = [*wanted[:2], False]
        of_x, of_weight, _ = aten.convolution_backward.default(grad, x, weight, *how, apart)
        return of_x, of_weight, grad.sum((0, *range(2, grad.dim())))
    with disable_proxy_modes_tracing():
        made = aten.convolution_backward.default(grad, x, weight, *more)
    rows = _row(grad)
    of_x = _maps(torch.mm(rows, _row(weight)), made[0]) if wanted[0] else None
    of_weight = _maps(torch.mm(rows.t(), _row(x)), made[1]) if wanted[1] else None
    return of_x, of_weight, rows.sum(0) if wanted[2] else None


def _is_of_one_place(x: Tensor, weight: Tensor, *how: Any) -> bool:
    """Whether maps and windows have one place each, as far as sizes are known. how: stride,
    padding, dilation, transposed, output_padding, groups."""
    _, padding, _, transposed, _, groups = how
    places = (*x.shape[2:], *weight.shape[2:])
    plain = x.dim() == weight.dim() > 2 and x.dtype.is_floating_point and x.dtype == weight.dtype
    known = all(isinstance(n, int) and n == 1 for n in places)
    return plain and known and not transposed and groups == 1 and not any(padding)


def _row(maps: Tensor) -> Tensor:
    """`[n, c, 1, 1] -> [n, c]`."""
    return maps.squeeze(tuple(range(2, maps.dim())))


def _maps(rows: Tensor, like: Tensor) -> Tensor:
    """`[n, c] -> [n, c, 1, 1]`, with the strides of `like`."""
    last = like.stride(2) != 1
    for d in range(2, like.dim()):
        rows = rows.unsqueeze(1 if last else d)
    return rows.movedim(-1, 1) if last else rows


@_rule(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(x: Tensor, weight: Tensor, scales: Tensor) -> Any:
    """A product that is rounded once, after its factors: a matmul widens what it loads. On the CPU
    the operator sums in its own way."""
    if x.device.type != "cuda":
        return NotImplemented
    wide = weight.to(x.dtype).t()
    product = x @ wide if x.dtype is torch.float32 else aten.mm.dtype(x, wide, torch.float32)
    return (product * scales.float()).to(x.dtype)


@_rule(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(x: Tensor, weight: Tensor, group: int, scales: Tensor) -> Any:
    """A product with what a kernel widens, where the operator, which reads the weight once for each
    16 rows, takes longer (4096 x 4096 on an H100: 64 rows 83 us, this 42; 512 rows 594 and 54; 17
    rows 31 and 41)."""
    rows = x.shape[0]
    few = int(rows.node.hint) if isinstance(rows, torch.SymInt) else rows
    if x.device.type != "cuda" or few <= 32:
        return NotImplemented
    return x @ widened_int4pack(weight, group, scales).t()


def widened_int4pack(weight: Tensor, group: int, scales: Tensor) -> Tensor:
    """[n, k] of a weight that `_convert_weight_to_int4pack` made: words [n / 8, k / 32p, 32, p] are
    what the lanes of a warp hold of B, 8 x 32 elements each time, for tensor cores. A lane's eight
    are two neighbours along k, 8 and 16 on; neighbours lie 16 bits apart. scales: [k / group, n,
    (factor, what is added)]."""
    tiles, outer, _, words = weight.shape
    n, k = 8 * tiles, 32 * outer * words
    lanes = weight.view(tiles, outer, 8, 4, words).permute(0, 2, 1, 4, 3)
    bits = torch.arange(8, dtype=torch.int32, device=weight.device) * 4
    places = bits.view(2, 2, 2).permute(1, 2, 0).unsqueeze(2)
    numbers = (lanes[:, :, :, :, None, None, :, None] >> places) & 15
    factor, offset = scales.float().transpose(0, 1).unsqueeze(-2).unbind(-1)
    wide = (numbers.reshape(n, k // group, group) - 8) * factor + offset
    return wide.to(scales.dtype).view(n, k)


@_rule(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    """`index_put` into the elements as one line."""
    if not x.is_contiguous() or not x.numel():
        return NotImplemented
    flat = aten.index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.view(x.shape)


@_rule(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Any:
    """The n-th place of the mask takes the n-th element of the source."""
    if not x.is_contiguous() or not source.numel():
        return NotImplemented
    mask, x = aten.broadcast_tensors.default([mask, x])
    number = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    picked = aten._unsafe_index(source.reshape(-1), [number.clamp(min=0)])
    return torch.where(mask, picked.view(x.shape), x)


@_rule(aten.masked_scatter_backward.default)
def masked_scatter_backward(gradient: Tensor, mask: Tensor, sizes: Sequence[int]) -> Any:
    """What the mask picks, one after the other; zeros behind them."""
    if mask.dim() > gradient.dim() or not gradient.numel():
        return NotImplemented
    count = torch.Size(sizes).numel()
    chosen = mask.expand(gradient.shape).reshape(-1)
    number = chosen.to(torch.int64).cumsum(0) - 1
    nowhere = torch.where(chosen & (number < count), number, count)
    out = torch.zeros(count + 1, dtype=gradient.dtype, device=gradient.device)
    return aten.scatter.src(out, 0, nowhere, gradient.reshape(-1))[:count].reshape(sizes)


def _computed(x: Tensor) -> torch.dtype:
    """What numbers of the type of `x` are added up in."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


@_rule(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    gradient: Tensor, ids: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Any:
    """torch's, but that rows of no account are left out: zeros for all of them, added up in one
    place, would wait for each other."""
    ids, rows = ids.to(torch.int64), gradient.to(_computed(gradient))
    if scale_grad_by_freq:
        one = torch.ones_like(ids)
        counts = aten._unsafe_index_put(ids.new_zeros(num_weights), [ids], one, True)
        rows = rows / aten._unsafe_index(counts, [ids]).unsqueeze(-1)
    table = rows.new_zeros(num_weights, rows.shape[-1])
    if padding_idx < 0:
        table = aten._unsafe_index_put(table, [ids], rows, True)
    else:
        counted = (ids != padding_idx).unsqueeze(-1)
        table = aten._unsafe_masked_index_put_accumulate(table, counted, [ids], rows)
    return table.to(gradient.dtype)


def _bag_of_each(ids: Tensor, offsets: Tensor, bags: Tensor) -> Tensor:
    """The bag of each row: told, or (on the CPU) the last that begins at or before it."""
    if bags.numel():
        return bags
    places = torch.arange(ids.shape[0], dtype=offsets.dtype, device=ids.device)
    return torch.searchsorted(offsets, places, right=True) - 1


@_rule(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    gradient: Tensor,
    ids: Tensor,
    offsets: Tensor,
    bags: Tensor,
    lengths: Tensor,
    largest: Tensor,
    num_weights: int,
    *more: Any,
) -> Any:
    """Each row gets the gradient of its bag; of a bag of which the largest elements were taken,
    those get it, and an empty one has none."""
    by_frequency, mode, sparse, weights, padding = (*more, -1)[:5]
    if sparse or not ids.numel():
        return NotImplemented
    given = gradient.to(_computed(gradient))
    if mode == 2:
        given = torch.where((lengths[: given.shape[0]] > 0).unsqueeze(-1), given, 0)
        table = given.new_zeros(num_weights, given.shape[1])
        table = aten.scatter_add(table, 0, largest.to(torch.int64).clamp(min=0), given)
        return table.to(gradient.dtype)
    bags = _bag_of_each(ids, offsets, bags)
    rows = aten._unsafe_index(given, [bags])
    if mode == 1:
        rows = rows / aten._unsafe_index(lengths, [bags]).unsqueeze(-1)
    if weights is not None:
        rows = rows * weights.to(rows.dtype).unsqueeze(-1)
    table = embedding_dense_backward(rows, ids, num_weights, padding, by_frequency)
    return table.to(gradient.dtype)


@_rule(aten._embedding_bag_per_sample_weights_backward.default)
def per_sample_weights_backward(
    gradient: Tensor,
    weight: Tensor,
    ids: Tensor,
    offsets: Tensor,
    bags: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    """Of each row its product with the gradient of its bag."""
    if not ids.numel():
        return NotImplemented
    rows = aten._unsafe_index(gradient, [_bag_of_each(ids, offsets, bags)])
    kind = _computed(gradient)
    products = rows.to(kind) * aten._unsafe_index(weight, [ids]).to(kind)
    return torch.where(ids == padding_idx, 0, products.sum(1)).to(gradient.dtype)


@_rule(*of_ranks("replication_pad{}d_backward", 1, 2, 3))
def replication_pad_backward(gradient: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
    """At the ends of each dimension the sum of what was padded there; 0 where it was cut off."""
    if not all(isinstance(n, int) for n in padding):
        return NotImplemented
    if not x.is_contiguous() or 0 in gradient.shape:
        return NotImplemented
    kind = gradient.dtype
    total = gradient.float() if kind in (torch.float16, torch.bfloat16) else gradient
    for i in range(0, len(padding), 2):
        before, behind = (max(p, 0) for p in padding[i : i + 2])
        cut = [max(-p, 0) for p in padding[i : i + 2]]
        d = x.dim() - 1 - i // 2
        n, kept = x.shape[d], total.shape[d] - before - behind
        if kept < 0:
            return NotImplemented
        inner = total.narrow(d, before, kept)
        if any(cut):
            inner = torch.nn.functional.pad(inner, [0, 0] * (i // 2) + cut)
        for start, count, place in ((0, before, 0), (before + kept, behind, n - 1)):
            if count:
                ends = total.narrow(d, start, count).sum(d, keepdim=True)
                at = torch.arange(n, device=x.device).view(-1, *[1] * (x.dim() - 1 - d))
                inner = torch.where(at == place, inner + ends, inner)
        total = inner
    return total.to(kind).contiguous()


@_rule(aten._efficientzerotensor.default)
def zero_tensor(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    """Zeros in memory."""
    return torch.zeros(size, dtype=dtype, device=device)


@_rule(aten.ldexp.Tensor)
def ldexp(x: Tensor, other: Tensor) -> Any:
    """Of floats and integers as C does it: exactly, in the type of the floats, rounded once, where
    the power of two alone would be infinite or zero too. Of others a product; a power of two of 16
    bits is rounded to them, and may be infinite. That of a number beside f64 is f64."""
    if x.dtype.is_floating_point and not other.dtype.is_floating_point:
        n, wide = other.to(torch.int32), x.double()
        for _ in range(3 if x.dtype is torch.float64 else 1):  # all of its exponents, in parts
            part = n.clamp(-1000, 1000)
            wide, n = wide * torch.exp2(part.double()), n - part
        return wide.to(x.dtype)
    if x.dtype is torch.float64 and not other.dim():
        return x * torch.pow(2.0, other.double())
    narrow = other.dtype in (torch.float16, torch.bfloat16)
    power = torch.pow(2.0, other.float() if narrow else other)
    return x * (power.to(other.dtype) if narrow else power)


def attention(query: Tensor, *args: Any, **more: Any) -> Any:
    """By its parts in f64 on a CPU: torch's fake tensors take for f32 what the whole keeps."""
    if query.dtype is torch.float64 and query.device.type == "cpu":
        return aten._scaled_dot_product_attention_math.default(query, *args, **more)[0]
    return aten.scaled_dot_product_attention.default._op_dk(COMPOSITE, query, *args, **more)


def dropout(x: Tensor, p: float, train: bool | None) -> Tensor:
    """`dropout(x, p, False) -> x` itself, as in eager."""
    dropped: Tensor = aten.native_dropout(x, p, train)[0] if train and p != 0 else x
    return dropped


def pad_circular(x: Tensor, pad: Sequence[int]) -> Tensor:
    """What lies at the other end of each dimension, beside it."""
    for i in range(len(pad) // 2):
        d, (before, behind) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        start, kept = max(-before, 0), x.shape[d] + min(before, 0) + min(behind, 0)
        x = x.narrow(d, start, kept)
        first = [x.narrow(d, kept - before, before)] if before > 0 else []
        last = [x.narrow(d, 0, behind)] if behind > 0 else []
        x = torch.cat([*first, x, *last], d) if first or last else x
    return x.clone(memory_format=torch.contiguous_format)


def cumprod_backward(grad: Tensor, x: Tensor, dim: int, output: Tensor) -> Tensor:
    """The gradient of `output = x.cumprod(dim)`. Before the first zero of a line it is what
    follows of `grad * output`, summed, over `x`; at the first zero the same sum up to the second
    one, of products that leave the first zero out; after it, 0."""
    if not x.dim() or x.shape[dim] == 1:
        return grad
    zero = x == 0
    zeros = zero.cumsum(dim, dtype=torch.int32)
    # 0 before the first zero, 1 at it, 2 after it, 3 from the second one on
    stage = (2 * zeros - zero.to(torch.int32)).clamp(max=3).to(torch.uint8)
    weighted = grad * torch.where(zero, 1, x).cumprod(dim, dtype=output.dtype).conj()

    def following(here: Tensor) -> Tensor:
        return torch.where(here, weighted, 0).flip(dim).cumsum(dim).flip(dim)

    before, at = stage == 0, stage == 1
    at_zero = torch.where(at, following(at | (stage == 2)), 0)
    return torch.where(before, following(before) / x.conj(), at_zero)


@_rule(aten.mish_backward.default)
@pw_cast_for_opmath
def mish_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """`t + x s (1 - t^2)`, `t = tanh(softplus(x))`, `s = sigmoid(x)`, is with `e = exp(x)` and
    `n = e (e + 2)`: `n / (n + 2) + x 4 e (e + 1) / (n + 2)^2`; above 20 that is 1."""
    large = x > 20
    e = torch.exp(x)
    n = e * (e + 2)
    part = 1 / (n + 2)
    slope = torch.where(large, 0, (e * part) * ((e + 1) * part) * 4)
    return gradient * (torch.where(large, 1, n * part) + x * slope)


@_rule(aten.pow.Tensor_Scalar)
def pow_of_flags(x: Tensor, exponent: Any) -> Any:
    """A boolean to the power of a boolean is one; torch's fake tensors say an integer."""
    if x.dtype is not torch.bool or not isinstance(exponent, bool):
        return NotImplemented
    return x.clone() if exponent else torch.ones_like(x)


@_rule(aten.softshrink_backward.default)
def softshrink_backward(gradient: Tensor, x: Tensor, lambd: float) -> Tensor:
    """The gradient where `x` lies outside of the bounds, 0 inside."""
    bound = torch.full((), lambd, dtype=x.dtype, device=x.device)
    return torch.where((x >= -bound) & (x <= bound), 0.0, gradient)
