"""Composite operators whose torch's kernels ask data whether arguments are valid, or know no
symbolic sizes: what is data is looked at when the graph runs."""

import functools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from aten_lowering.torch_compat import COMPOSITE, sym_max

aten = torch.ops.aten


def quantile(
    op: OpOverload,
    x: Tensor,
    q: Any,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: str = "linear",
) -> Any:
    """torch's asks data whether quantiles lie in [0, 1], and knows no symbolic sizes. What eager
    refuses is left to its own checks."""
    given = q if isinstance(q, Tensor) else torch.scalar_tensor(q, dtype=x.dtype, device=x.device)
    round_to = {"lower": torch.floor, "higher": torch.ceil, "nearest": torch.round}
    alike = given.dtype == x.dtype and x.dtype in (torch.float32, torch.float64)
    named = interpolation in (*round_to, "linear", "midpoint")
    if not (alike and named and given.dim() < 2 and x.dim()) or x.numel() == 0:
        return op._op_dk(COMPOSITE, x, q, dim, keepdim, interpolation=interpolation)
    if given is q:
        inside = ((q >= 0) & (q <= 1)).all()
        aten._assert_async.msg(inside, "quantile() q values must be in the range [0, 1]")
    elif not 0 <= q <= 1:
        raise RuntimeError(f"quantile() q must be in the range [0, 1] but got {q}")
    rows = (x.flatten() if dim is None else x.movedim(dim, -1)).sort(-1)[0]
    if "nan" in op._schema.name:
        ranks = (given * ((~rows.isnan()).sum(-1, keepdim=True) - 1)).clamp(min=0)
    else:
        last = rows.shape[-1] - 1
        ranks = torch.where(rows.isnan().any(-1, keepdim=True), last, given * last)
    low = round_to.get(interpolation, torch.floor)(ranks).long()
    found = rows.gather(-1, low)
    if interpolation not in round_to:
        weight = torch.full_like(ranks, 0.5) if interpolation == "midpoint" else ranks - low
        found = found.lerp(rows.gather(-1, ranks.ceil().long()), weight)
    found = found.movedim(-1, 0) if given.dim() else found.squeeze(-1)
    if keepdim:
        for d in range(x.dim()) if dim is None else [dim % x.dim()]:
            found = found.unsqueeze(d + given.dim())
    return found


def covariance(
    x: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Any:
    """The same of a covariance: the checks of its weights and of its degrees of freedom."""
    lines = x if x.dim() == 2 else x.reshape(1, -1)
    given = [w for w in (fweights, aweights) if w is not None]
    counted = fweights is None or fweights.dtype in (torch.int32, torch.int64)
    fit = all(w.shape == lines.shape[1:] and not w.is_complex() for w in given)
    if x.dim() > 2 or x.numel() == 0 or not (counted and fit):
        more = {"correction": correction, "fweights": fweights, "aweights": aweights}
        return aten.cov.default._op_dk(COMPOSITE, x, **more)
    if not given:
        off = lines - (lines.sum(1) / lines.shape[1]).unsqueeze(1)
        return (off @ off.t().conj() / sym_max(lines.shape[1] - correction, 0)).squeeze()
    for w in given:
        aten._assert_async.msg((w >= 0).all(), "cov(): weights cannot be negative")
    w = math.prod(given[1:], start=given[0])
    total = w.sum()
    aten._assert_async.msg(total != 0, "cov(): weights sum to zero, can't be normalized")
    off = lines - ((lines * w).sum(1) / total).unsqueeze(1)
    lost: Any = correction
    if aweights is not None and correction != 0:
        lost = correction * (w * aweights).sum() / total
    return (off @ (off * w).t().conj() / (total - lost).clamp(min=0)).squeeze()


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """torch's asks lengths which of its kernels to take."""
    x = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    given = x, targets.to(x.device, torch.int64), input_lengths, target_lengths
    losses: Tensor = aten._ctc_loss(*given, blank, zero_infinity)[0]
    if zero_infinity:
        losses = torch.where(losses == math.inf, 0, losses)
    if reduction == 1:
        return (losses / torch.as_tensor(target_lengths).to(losses).clamp(min=1)).mean()
    if reduction == 2:
        return losses.sum()
    return losses if x is log_probs else losses.squeeze(0)


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    """By their places, whose number is known; torch's takes it from data."""
    if x.dim() != 1 or r < 1:
        return aten.combinations.default._op_dk(COMPOSITE, x, r, with_replacement)
    n = x.shape[0]
    lines = [torch.arange(n, device=x.device).reshape(-1, *[1] * (r - 1 - i)) for i in range(r)]
    taken = x.new_ones([n] * r, dtype=torch.bool)
    for a, b in pairwise(lines):
        taken = taken & (a <= b if with_replacement else a < b)
    top = n + r - 1 if with_replacement else n
    count = math.prod(sym_max(top - i, 0) for i in range(r)) // math.factorial(r)
    return x[aten.nonzero_static(taken, size=count).contiguous()]  # by columns on a GPU


def one_hot(x: Tensor, num_classes: int = -1) -> Any:
    """As many classes as data says: a size that is known when the graph runs."""
    if num_classes != -1 or x.numel() == 0:
        return aten.one_hot.default._op_dk(COMPOSITE, x, num_classes)
    aten._assert_async.msg((x >= 0).all(), "Class values must be non-negative.")
    return (x.unsqueeze(-1) == torch.arange((x.max() + 1).item(), device=x.device)).long()


COMPOSITES: dict[OpOverload, Callable[..., Any]] = {
    aten.cov.default: covariance,
    aten.ctc_loss.IntList: ctc_loss,
    aten.ctc_loss.Tensor: ctc_loss,
    aten.combinations.default: combinations,
    aten.one_hot.default: one_hot,
    **{
        op: functools.partial(quantile, op)
        for packet in (aten.quantile, aten.nanquantile)
        for op in (packet.default, packet.scalar)
    },
}
