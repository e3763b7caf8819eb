"""CUDA's libdevice functions on CPU arrays, by symbol (`__nv_tanhf`, `__nv_pow`, ...).

Values come from torch's CPU functions: within an ulp or two of libdevice, not bit-equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from triton_rt.errors import NotInterpretable

Tensor = torch.Tensor


def call(symbol: str, args: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Applies the libdevice function `symbol` elementwise.

    Raises `NotInterpretable` for the functions that are not in the table.
    """
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    function = _TABLE.get(name) or _TABLE.get(name.removesuffix("f"))
    if function is None:
        raise NotInterpretable(
            f"libdevice function {symbol} has no CPU form here; known: {', '.join(sorted(_TABLE))}"
        )
    out = function(*(torch.from_numpy(np.array(a)) for a in args))
    result: np.ndarray[Any, Any] = out.numpy()
    return result


def _integer_power(x: Tensor, n: Tensor) -> Tensor:
    return torch.pow(x.to(torch.float64), n).to(x.dtype)


def _log_of_gamma_exp(x: Tensor) -> Tensor:
    """Gamma function, with the sign that `exp(lgamma)` loses for negative non-integers."""
    wide = x.to(torch.float64)
    size = torch.exp(torch.lgamma(wide))
    negative = (wide < 0) & (torch.remainder(torch.floor(wide), 2) != 0)
    at_pole = (wide < 0) & (wide == torch.floor(wide))
    out = torch.where(negative, -size, size)
    return torch.where(at_pole, torch.full_like(out, float("nan")), out).to(x.dtype)


def _cbrt(x: Tensor) -> Tensor:
    return torch.from_numpy(np.cbrt(x.numpy()))


def _flag(x: Tensor) -> Tensor:
    return x.to(torch.int32)


_TABLE: dict[str, Callable[..., Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "fmod", "hypot", "lgamma", "log", "log10", "log1p", "log2", "nextafter", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "ldexp"]
    },
    "abs": torch.abs,
    "fabs": torch.abs,
    "pow": torch.pow,
    "powi": _integer_power,
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": lambda x: (
        torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))
        if x.dtype == torch.float64
        else torch.from_numpy(
            np.trunc(x.numpy().astype(np.float64) + np.copysign(0.5, x.numpy())).astype(
                x.numpy().dtype
            )
        )
    ),
    "llrint": lambda x: torch.round(x).to(torch.int64),
    "llround": lambda x: torch.trunc(
        x.to(torch.float64) + torch.copysign(torch.tensor(0.5, dtype=torch.float64), x)
    ).to(torch.int64),
    "remainder": lambda x, y: torch.from_numpy(_ieee_remainder(x.numpy(), y.numpy())),
    "isnan": lambda x: _flag(torch.isnan(x)),
    "isnand": lambda x: _flag(torch.isnan(x)),
    "isinf": lambda x: _flag(torch.isinf(x)),
    "isinfd": lambda x: _flag(torch.isinf(x)),
    "finite": lambda x: _flag(torch.isfinite(x)),
    "isfinited": lambda x: _flag(torch.isfinite(x)),
    "signbit": lambda x: _flag(torch.signbit(x)),
    "signbitd": lambda x: _flag(torch.signbit(x)),
    "exp10": lambda x: torch.pow(torch.tensor(10.0, dtype=x.dtype), x),
    "cbrt": _cbrt,
    "rcbrt": lambda x: 1 / _cbrt(x),
    "tgamma": _log_of_gamma_exp,
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "erfcx": torch.special.erfcx,
    "erfcinv": lambda x: torch.erfinv(1 - x),
    "sinpi": lambda x: torch.sin(x * torch.pi),
    "cospi": lambda x: torch.cos(x * torch.pi),
    "fdim": lambda x, y: torch.clamp(x - y, min=0),
    "fma": lambda x, y, z: (x.to(torch.float64) * y.to(torch.float64) + z.to(torch.float64)).to(
        x.dtype
    ),
    "saturate": lambda x: torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0),
    "fdividef": lambda x, y: x / y,
    **{
        f"{prefix}{op}_rn": function
        for prefix in ("f", "d")
        for op, function in {
            "add": torch.add,
            "sub": torch.sub,
            "mul": torch.mul,
            "div": torch.div,
            "sqrt": torch.sqrt,
            "rsqrt": torch.rsqrt,
            "rcp": torch.reciprocal,
        }.items()
    },
    "float_as_int": lambda x: x.view(torch.int32),
    "int_as_float": lambda x: x.view(torch.float32),
    "double_as_longlong": lambda x: x.view(torch.int64),
    "longlong_as_double": lambda x: x.view(torch.float64),
    **{
        f"{source}2{target}_rn": convert
        for source in ("int", "ll", "double", "float")
        for target, convert in {
            "float": lambda x: x.to(torch.float32),
            "double": lambda x: x.to(torch.float64),
            "int": lambda x: torch.round(x).to(torch.int32),
            "ll": lambda x: torch.round(x).to(torch.int64),
        }.items()
        if source != target
    },
}


def _ieee_remainder(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """C `remainder`: x - n*y with n the nearest integer to x/y, ties to even."""
    out: np.ndarray[Any, Any] = (x - np.rint(x / y) * y).astype(x.dtype)
    return out
