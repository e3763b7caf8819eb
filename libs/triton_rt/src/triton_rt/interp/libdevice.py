"""CUDA's libdevice functions on CPU arrays, by symbol (`__nv_tanhf`, `__nv_pow`, ...).

Values come from torch's CPU functions: within an ulp or two of libdevice, not bit-equal."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from triton_rt.errors import NotInterpretable

Tensor = torch.Tensor


def call(symbol: str, args: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Applies the libdevice function `symbol` elementwise.

    Raises `NotInterpretable` for the functions that are not in the table."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    function = _TABLE.get(name) or _TABLE.get(name.removesuffix("f"))
    if function is None:
        raise NotInterpretable(
            f"libdevice function {symbol} has no CPU form here; known: {', '.join(sorted(_TABLE))}"
        )
    out = function(*(torch.from_numpy(np.array(a)) for a in args))
    result: np.ndarray[Any, Any] = out.numpy()
    return result


def _round(x: Tensor) -> Tensor:
    """Half away from zero, exactly: `x + 0.5` would round up 0.49999997."""
    whole = torch.trunc(x)
    return torch.where(
        (x - whole).abs() >= 0.5, whole + torch.copysign(torch.ones_like(x), x), whole
    )


def _gamma(x: Tensor) -> Tensor:
    """Gamma from lgamma, with the sign that it loses at negative non-integers."""
    wide = x.to(torch.float64)
    size = torch.exp(torch.lgamma(wide))
    below = torch.floor(wide)
    out = torch.where((wide < 0) & (torch.remainder(below, 2) != 0), -size, size)
    return torch.where((wide < 0) & (wide == below), torch.nan, out).to(x.dtype)


def _cbrt(x: Tensor) -> Tensor:
    return torch.from_numpy(np.cbrt(x.numpy()))


def _fmod(x: Tensor, y: Tensor) -> Tensor:
    """Exact, also where the quotient overflows: there torch has NaN in its vectors."""
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.fmod(x.numpy(), y.numpy()))


def _fma(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Exact product in float64 for float32 arguments; two roundings for float64 ones."""
    wide = torch.float64
    return (x.to(wide) * y.to(wide) + z.to(wide)).to(x.dtype)


def _flag(test: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: test(x).to(torch.int32)


_SAME_NAME = (
    "abs acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc erfinv exp exp2 "
    "expm1 floor hypot lgamma log log10 log1p log2 nextafter pow rsqrt sin sinh sqrt tan tanh "
    "trunc ldexp"
)

_TABLE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    "fabs": torch.abs,
    "llabs": torch.abs,
    "rint": torch.round,
    "nearbyint": torch.round,
    "llrint": lambda x: torch.round(x).to(torch.int64),
    "round": _round,
    "llround": lambda x: _round(x).to(torch.int64),
    "powi": lambda x, n: torch.pow(x.double(), n).to(x.dtype),
    "exp10": lambda x: torch.pow(x.new_tensor(10.0).double(), x.double()).to(x.dtype),
    "cbrt": _cbrt,
    "fmod": _fmod,
    "rcbrt": lambda x: 1 / _cbrt(x),
    "tgamma": _gamma,
    "fma": _fma,
    "fdim": lambda x, y: torch.where(x > y, x - y, torch.where(x <= y, 0.0, x - y)),
    "saturate": lambda x: torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0),
    "fdividef": torch.div,
    "isnan": _flag(torch.isnan),
    "isnand": _flag(torch.isnan),
    "isinf": _flag(torch.isinf),
    "isinfd": _flag(torch.isinf),
    "finite": _flag(torch.isfinite),
    "isfinited": _flag(torch.isfinite),
    "signbit": _flag(torch.signbit),
    "signbitd": _flag(torch.signbit),
    "j0": torch.special.bessel_j0,
    "j1": torch.special.bessel_j1,
    "y0": torch.special.bessel_y0,
    "y1": torch.special.bessel_y1,
    "cyl_bessel_i0": torch.special.i0,
    "cyl_bessel_i1": torch.special.i1,
    "normcdf": torch.special.ndtr,
    "normcdfinv": torch.special.ndtri,
    "erfcx": torch.special.erfcx,
    "float_as_int": lambda x: x.view(torch.int32),
    "int_as_float": lambda x: x.view(torch.float32),
    "double_as_longlong": lambda x: x.view(torch.int64),
    "longlong_as_double": lambda x: x.view(torch.float64),
    "fadd_rn": torch.add,
    "dadd_rn": torch.add,
    "fsub_rn": torch.sub,
    "dsub_rn": torch.sub,
    "fmul_rn": torch.mul,
    "dmul_rn": torch.mul,
    "fdiv_rn": torch.div,
    "ddiv_rn": torch.div,
    "fsqrt_rn": torch.sqrt,
    "dsqrt_rn": torch.sqrt,
    "frcp_rn": torch.reciprocal,
    "drcp_rn": torch.reciprocal,
    "frsqrt_rn": torch.rsqrt,
}
