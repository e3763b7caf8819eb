"""What torch's fake tensors say of whole operators otherwise than its kernels do."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering import torch_compat as compat
from aten_lowering import transforms
from aten_lowering.asks_data import COMPOSITES

aten = torch.ops.aten
_torch_of_counts: Callable[..., Tensor] = compat.op_implementations_dict[aten.bincount.default]


def correct_fakes() -> None:
    """Has every fake tensor of the process take these rules."""
    compat.op_implementations_dict.update(_FAKES)
    for op, rule in COMPOSITES.items():
        op.py_kernels.pop(compat.DispatchKey.Autograd, None)
        op.py_kernels[compat.COMPOSITE] = rule
        op._dispatch_cache.clear()
    compat.broadcast_symbols()


def counts(
    mode: Any, op: OpOverload, x: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Tensor:
    """Sums of weights are f32 or f64; torch says integers."""
    result = _torch_of_counts(mode, op, x, weights, minlength)
    if weights is None:
        return result
    narrow = weights.dtype is torch.float32
    with mode:
        return torch.empty_like(result, dtype=torch.float32 if narrow else torch.float64)


def of_data(mode: Any, op: OpOverload) -> Any:
    """A size that is data, which a graph must be allowed to have."""
    if mode.shape_env is None or not mode.shape_env.allow_dynamic_output_shape_ops:
        raise compat.DynamicOutputShapeException(op)
    return mode.shape_env.create_unbacked_symint()


def packed(
    mode: Any, op: OpOverload, x: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """As many elements as lengths say; torch takes them for one of the sequences."""
    elements, steps = of_data(mode, op), of_data(mode, op)
    with mode:
        return x.new_empty(elements, *x.shape[2:]), lengths.new_empty(steps)


def paths(
    mode: Any, op: OpOverload, x: Tensor, targets: Tensor, lengths: Any, longest: Any, *_: Any
) -> tuple[Tensor, Tensor]:
    """`ctc_loss`: losses, and the paths that gradients are computed from, as long as the longest
    target. Where that is data, nothing but gradients may use paths, and with them it is a size."""
    if not isinstance(longest, Tensor):
        most = max(longest, default=0)
    elif torch.is_grad_enabled() and x.requires_grad:
        most = of_data(mode, op)
    else:
        most = targets.shape[-1]
    with mode:
        return x.new_empty(x.shape[1]), x.new_empty(x.shape[1], x.shape[0], 2 * most + 1)


def least_squares(
    mode: Any, op: OpOverload, a: Tensor, b: Tensor, rcond: Any = None, *, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the drivers whose residuals do not hang on ranks, which are data."""
    driver = driver or ("gels" if a.is_cuda else "gelsy")
    if driver not in ("gels", "gelsy"):
        raise compat.DynamicOutputShapeException(op)
    (*batch, m, n), is_vector = a.shape, b.dim() == 1 or b.shape == a.shape[:-1]
    (*more, _, columns) = (*b.shape, 1) if is_vector else b.shape
    batch = list(compat.broadcast_shapes(tuple(batch), tuple(more)))
    rows = compat.sym_max(m, n)
    with mode:
        whole = a.new_empty(*batch, columns, rows).mT.narrow(-2, 0, n)
        solution = whole.squeeze(-1) if is_vector else whole
        full, real = driver == "gels" and m > n, a.real.dtype
        residuals = a.new_empty([*batch, columns] if full else [0], dtype=real)
        ranks = a.new_empty(batch if driver == "gelsy" else [0], dtype=torch.int64)
        return solution, residuals, ranks, a.new_empty([0], dtype=real)


_FAKES: dict[OpOverload, Callable[..., Any]] = {
    **dict.fromkeys(transforms.OPERATORS, transforms.fake),
    aten.bincount.default: counts,
    aten._pack_padded_sequence.default: packed,
    aten._ctc_loss.default: paths,
    aten._ctc_loss.Tensor: paths,
    aten.linalg_lstsq.default: least_squares,
}
