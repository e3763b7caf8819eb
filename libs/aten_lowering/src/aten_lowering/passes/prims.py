"""Operators of `torch.ops.prims` as those of ATen that mean the same."""

from collections.abc import Mapping

import torch
from torch import fx
from torch._ops import OpOverload

aten = torch.ops.aten

# Named alike, with the arguments of the overload `default`, and of the overload `Tensor`.
_DEFAULTS = """
abs acos acosh asin asinh atan atan2 atanh bitwise_not cat ceil clone cos cosh digamma
erf erfc exp exp2 expm1 floor fmax fmin hypot lgamma log log10 log1p log2 maximum minimum
neg nextafter reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc
"""
_TENSORS = """
add bitwise_and bitwise_or bitwise_xor eq fmod frexp ge gt le lt mul ne remainder sub
"""
# Those of `torch.special`.
_SPECIAL = {
    **{n: n for n in ("bessel_j0", "bessel_j1", "erfcx", "ndtri", "spherical_bessel_j0")},
    **{f"bessel_{n}": n for n in ("i0e", "i1", "i1e")},
}
_SAME: Mapping[OpOverload, OpOverload] = {
    **{getattr(torch.ops.prims, n).default: getattr(aten, n).default for n in _DEFAULTS.split()},
    **{getattr(torch.ops.prims, n).default: getattr(aten, n).Tensor for n in _TENSORS.split()},
    **{
        getattr(torch.ops.prims, n).default: getattr(aten, f"special_{m}").default
        for n, m in _SPECIAL.items()
    },
    torch.ops.prims.bessel_i0.default: aten.i0.default,
    torch.ops.prims.erf_inv.default: aten.erfinv.default,
    torch.ops.prims.pow.default: aten.pow.Tensor_Tensor,
    torch.ops.prims.where.default: aten.where.self,
    torch.ops.prims.shift_left.default: aten.bitwise_left_shift.Tensor,
    torch.ops.prims.shift_right_arithmetic.default: aten.bitwise_right_shift.Tensor,
}
_EXTREMES = {torch.ops.prims.amax.default: aten.amax, torch.ops.prims.amin.default: aten.amin}


def prims(graph: fx.Graph) -> None:
    """`prims.mul(x, y)` -> `aten.mul.Tensor(x, y)`, `prims.convert_element_type(x, t)` ->
    `aten._to_copy(x, dtype=t)`; divisions (of integers, C's) and reductions likewise."""
    for node in graph.nodes:
        if not isinstance(node.target, OpOverload) or node.target.namespace != "prims":
            continue
        args, kwargs = node.args, dict(node.kwargs)
        kind = kwargs.pop("output_dtype", None)
        if node.target in _SAME:
            node.target = _SAME[node.target]
        elif node.target is torch.ops.prims.convert_element_type.default and len(args) == 2:
            node.target, node.args = aten._to_copy.default, args[:1]
            node.kwargs = {"dtype": args[1]}
        elif node.target is torch.ops.prims.div.default:
            node.target = aten.div.Tensor
            if not node.meta["val"].dtype.is_floating_point:
                node.target, node.kwargs = aten.div.Tensor_mode, {"rounding_mode": "trunc"}
        elif node.target is torch.ops.prims.sum.default:
            node.target = aten.sum.dim_IntList
            node.kwargs = {"dtype": kind or node.meta["val"].dtype}
        elif node.target in _EXTREMES and kind is None and len(args) == 2:
            node.target, node.args = _EXTREMES[node.target].default, (args[0], args[1] or [])
