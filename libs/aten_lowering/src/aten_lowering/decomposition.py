"""The decompositions that run before lowering, for `torch.export` and AOTAutograd alike."""

import functools
from collections.abc import Callable, Set
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from aten_lowering import torch_compat as compat
from aten_lowering.antialias import ANTIALIAS
from aten_lowering.complex_functions import COMPLEX
from aten_lowering.distances import DISTANCES
from aten_lowering.extern import by_design
from aten_lowering.foreach import FOREACH
from aten_lowering.layouts import OPERANDS, laid_out
from aten_lowering.lowerings import TABLE
from aten_lowering.registry import named
from aten_lowering.rules import RULES
from aten_lowering.whole import UPSAMPLING, sized

aten = torch.ops.aten

# Not in torch's core table, but gathers and arithmetic that make one kernel; `_log_softmax` so that
# a gradient may save the statistics of rows, and a loss read but one element of each; `leaky_relu`
# so that a gradient may compute it again: torch's partition of training graphs saves the results
# of operators that it does not know to be cheap.
_MORE = """
upsample_bicubic2d _log_softmax leaky_relu view_copy permute_copy narrow_copy unbind_copy
as_strided_copy tril_indices triu_indices rrelu_with_noise_backward
_batch_norm_with_update_functional batch_norm_backward
"""

# Decomposed where AOTAutograd traces, though exported programs may bring them whole and they have a
# lowering: a gradient saves the statistics of rows, and computes the rest from the input again.
_STATISTICS: list[Any] = [aten._fused_rms_norm, aten._softmax, aten.native_layer_norm]

# Left whole: torch's decomposition writes in place where the result's strides are not the input's,
# or gives another number than eager.
_WHOLE = frozenset(
    named("index_fill.int_Scalar index_fill.int_Tensor multilabel_margin_loss_forward")
)

# Eager writes into `clone_preserve_strides` of the first argument, which is a plain clone where
# elements share memory; torch's fake tensors keep those strides, which cannot hold the result.
_INTO_A_CLONE = named("select_scatter slice_scatter diagonal_scatter as_strided_scatter")

# On the CPU eager saves their statistics in the type of the weight; torch's fake tensors say the
# type of the input, which autograd would take for the backward graph.
_STATISTICS_OF_WEIGHT = named(
    "native_layer_norm native_group_norm native_batch_norm "
    "_native_batch_norm_legit_functional _native_batch_norm_legit.no_stats"
)

Decompositions = dict[OpOverload, Callable[..., Any]]


def _into_a_clone(op: OpOverload, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`op(x, ...) -> op(clone(x), ...)` where a dimension of `x` has a stride of 0, which the clone
    of what has no elements keeps."""
    sizes_and_strides = zip(x.shape, x.stride(), strict=True)
    if not any(s == 0 and n != 1 for n, s in sizes_and_strides) or x.numel() == 0:
        return NotImplemented
    return op(x.clone(), *args, **kwargs)


def _vector_norm(
    x: torch.Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """`norm(x, ord, [-1]) -> norm(x, ord, [rank - 1])`: of dimensions that are counted from the
    last and have size 1, torch's fake tensors keep those that the operator drops.

    `norm(x, 2, [1]) -> sqrt(sum(x * x, [1]))` of what has 32 bits or more: what the norm is of
    (differences) is then computed again by a gradient, not saved. Of 16 bits the lowering keeps
    more of them than this would; of one element it is the magnitude."""
    if x.dim() and any(d < 0 for d in dim or ()):
        dims = [d % x.dim() for d in dim]
        return aten.linalg_vector_norm.default(x, ord, dims, keepdim, dtype=dtype)
    dims = list(dim or range(x.dim())) if x.dim() else []
    one = all(isinstance(x.shape[d], int) and x.shape[d] == 1 for d in dims)
    wide = x.dtype in (torch.float32, torch.float64) and dtype in (None, x.dtype)
    if not isinstance(ord, int | float) or ord != 2 or one or not wide:
        return NotImplemented
    return (x * x).sum(dims, keepdim).sqrt()


@compat.pw_cast_for_opmath
def _smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """torch's rule gives 0 for NaN; this one gives NaN, as eager does."""
    off = x - target
    scaled = grad / x.numel() if reduction == torch.nn._reduction.get_enum("mean") else grad
    return torch.where(off.abs() >= beta, scaled * off.sign(), scaled * off / beta)


@compat.pw_cast_for_opmath
def _group_norm_backward(
    rule: Callable[..., Any], grad: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, *more: Any
) -> Any:
    """torch's rule, of `x - mean` and a mean of 0: its sums of `grad * x` lose the digits that the
    elements of a group have in common (a gradient of 0 was 4.7e-5 of two elements of 16 bits)."""
    of_groups = torch.unflatten(x, 1, (mean.shape[1], x.shape[1] // mean.shape[1]))
    centred = of_groups - mean.reshape(*mean.shape, *[1] * (x.dim() - 1))
    return rule(grad, centred.flatten(1, 2), torch.zeros_like(mean), *more)


def _nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> torch.Tensor:
    """`where(one_hot(target), where(target != ignore_index, -grad * weight, 0), 0)`: torch's
    multiplies by 0 at every other class, which gives NaN for a gradient that is not finite."""
    dim = min(x.dim() - 1, 1)
    target = target.unsqueeze(dim)
    taken = target != ignore_index
    nowhere = torch.zeros_like(x, dtype=torch.bool)
    one_hot = nowhere.scatter(dim, torch.where(taken, target, 0), True)
    if reduction == torch.nn._reduction.get_enum("mean"):
        grad = grad / total_weight
    if grad.dim():
        grad = grad.unsqueeze(dim)
    if weight is not None:
        grad = grad * weight.reshape([-1 if d == dim else 1 for d in range(x.dim())])
    return torch.where(one_hot, torch.where(taken, -grad, 0), 0)


def _widened(op: OpOverload, x: torch.Tensor, *args: Any) -> Any:
    """`op(x, ...) -> op(x.float(), ...)`, the first result in the type of `x`, for 16-bit `x` and
    a weight of f32 on the CPU."""
    weight = next((a for a in args if isinstance(a, torch.Tensor)), None)
    narrow = x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cpu"
    if not narrow or weight is None or weight.dtype is not torch.float32:
        return NotImplemented
    result, *rest = op(x.float(), *args)
    return result.to(x.dtype), *rest


def _widened_bag(weight: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """As `_widened`: of 16-bit rows on the CPU eager leaves out results that a gradient takes, and
    that torch's fake tensors have."""
    narrow = (torch.bfloat16, torch.float16)
    if weight.dtype not in narrow or weight.device.type != "cpu":
        return NotImplemented

    def widen(x: torch.Tensor) -> torch.Tensor:
        return x.float() if x.dtype in narrow else x

    given, named = pytree.tree_map_only(torch.Tensor, widen, (args, kwargs))
    result, *rest = aten._embedding_bag.default(weight.float(), *given, **named)
    return result.to(weight.dtype), *rest


def _of_f32(rule: Callable[..., Any], x: torch.Tensor, *args: Any) -> Any:
    """Of 16 bits the result is no larger than what it would be computed from again."""
    return rule(x, *args) if x.dtype is torch.float32 else NotImplemented


def _without_weight(rule: Callable[..., Any], x: torch.Tensor, size: Any, *args: Any) -> Any:
    """Where weights of a row's own follow, as in diffusion models, whose gradients take what the
    norm gives; a norm's own weight takes it from the input."""
    return NotImplemented if args[0] is not None or args[1] is not None else rule(x, size, *args)


def _first(first: Callable[..., Any] | None, then: Callable[..., Any]) -> Callable[..., Any]:
    """The first of two rules that has an answer."""
    if first is None:
        return then

    def either(*args: Any, **kwargs: Any) -> Any:
        result = first(*args, **kwargs)
        return then(*args, **kwargs) if result is NotImplemented else result

    return either


def decompositions() -> Decompositions:
    """ATen op -> decomposition: torch's core table and all composite ops, less those that have a
    lowering here and those that stay whole by design (attention, matmuls, convolutions).

    With `torch.export`, `scaled_dot_product_attention` then stays the very op that eager runs.
    AOTAutograd, which traces below composite ops, gives the kernel that this op picks for the
    fake tensors' device (`_scaled_dot_product_*`).

    The table is the caller's own. Composite ones that were registered meanwhile are added."""
    names, table = _collected()
    added = map(compat.lookup_op, compat.composite_operators() - names)
    return table | {
        op: compat.decomposition_of(op) for op in added if compat.is_preservable(op) and _goes(op)
    }


@functools.cache
def _collected() -> tuple[Set[str], Decompositions]:
    """The composite operators at the first call, which take a tenth of a second to collect, and the
    table with those."""
    names = compat.composite_operators()
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())
    table.update(compat.get_decompositions([getattr(aten, name) for name in _MORE.split()]))
    table[aten.smooth_l1_loss_backward.default] = _smooth_l1_loss_backward
    norm = aten.native_group_norm_backward.default
    table[norm] = functools.partial(_group_norm_backward, table[norm])
    table[aten.nll_loss_backward.default] = _nll_loss_backward
    table[aten.nll_loss2d_backward.default] = _nll_loss_backward
    own: Decompositions = {op: functools.partial(_into_a_clone, op) for op in _INTO_A_CLONE}
    own[aten.linalg_vector_norm.default] = _vector_norm
    own |= {op: functools.partial(_widened, op) for op in _STATISTICS_OF_WEIGHT}
    own[aten._embedding_bag.default] = _widened_bag
    parts: dict[Any, Callable[..., Any]] = {**compat.get_decompositions(_STATISTICS)}
    parts[aten._softmax.default] = functools.partial(_of_f32, parts[aten._softmax.default])
    plain = functools.partial(_without_weight, parts[aten.native_layer_norm.default])
    parts[aten.native_layer_norm.default] = _first(own[aten.native_layer_norm.default], plain)
    own |= {op: laid_out(op, rule) for op, rule in parts.items()}
    own |= RULES | DISTANCES | FOREACH | ANTIALIAS
    own |= {p.vec: functools.partial(sized, p.default) for p in UPSAMPLING}
    for op, rule in OPERANDS.items():
        own[op] = _first(own.get(op), functools.partial(rule, op))
    torchs = {op: _of_reals(op, laid_out(op, rule)) for op, rule in table.items() if _goes(op)}
    for op, rule in COMPLEX.items():
        before = own.get(op, torchs.get(op))
        own[op] = rule if before is None else _first(rule, before)
    return names, torchs | {op: _decided(rule) for op, rule in own.items()}


def _decided(rule: Callable[..., Any]) -> Callable[..., Any]:
    """An operator stays whole where its rule asks for what only data says."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return rule(*args, **kwargs)
        except GuardOnDataDependentSymNode:
            return NotImplemented

    return run


def _of_reals(op: OpOverload, rule: Callable[..., Any]) -> Callable[..., Any]:
    """A pointwise operator of complex numbers stays whole: kernels do not compute on them, and what
    torch's decompositions give of infinities is not what eager gives."""
    if torch.Tag.pointwise not in op.tags:
        return rule

    def real(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, torch.Tensor) and a.is_complex() for a in args):
            return NotImplemented
        return rule(*args, **kwargs)

    return real


def _goes(op: Any) -> bool:
    return isinstance(op, OpOverload) and op not in TABLE and op not in _WHOLE and not by_design(op)
