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

# By the functions that they are, of floats (f) and doubles (d).
_OTHER_NAMES: tuple[tuple[Callable[..., Tensor], str], ...] = (
    (torch.abs, "fabs llabs"),
    (torch.round, "rint nearbyint"),
    (lambda x: torch.round(x).to(torch.int64), "llrint"),
    (_round, "round"),
    (lambda x: _round(x).to(torch.int64), "llround"),
    (lambda x, n: torch.pow(x.double(), n).to(x.dtype), "powi"),
    (lambda x: torch.pow(x.new_tensor(10.0).double(), x.double()).to(x.dtype), "exp10"),
    (_cbrt, "cbrt"),
    (_fmod, "fmod"),
    (lambda x: 1 / _cbrt(x), "rcbrt"),
    (_gamma, "tgamma"),
    (_fma, "fma"),
    (lambda x, y: torch.where(x > y, x - y, torch.where(x <= y, 0.0, x - y)), "fdim"),
    (lambda x: torch.nan_to_num(x, nan=0.0).clamp(0.0, 1.0), "saturate"),
    (_flag(torch.isnan), "isnan isnand"),
    (_flag(torch.isinf), "isinf isinfd"),
    (_flag(torch.isfinite), "finite isfinited"),
    (_flag(torch.signbit), "signbit signbitd"),
    (torch.special.i0, "cyl_bessel_i0"),
    (torch.special.i1, "cyl_bessel_i1"),
    (torch.special.ndtr, "normcdf"),
    (torch.special.ndtri, "normcdfinv"),
    (torch.special.erfcx, "erfcx"),
    (lambda x: x.view(torch.int32), "float_as_int"),
    (lambda x: x.view(torch.float32), "int_as_float"),
    (lambda x: x.view(torch.int64), "double_as_longlong"),
    (lambda x: x.view(torch.float64), "longlong_as_double"),
    (torch.add, "fadd_rn dadd_rn"),
    (torch.sub, "fsub_rn dsub_rn"),
    (torch.mul, "fmul_rn dmul_rn"),
    (torch.div, "fdiv_rn ddiv_rn fdividef"),
    (torch.sqrt, "fsqrt_rn dsqrt_rn"),
    (torch.reciprocal, "frcp_rn drcp_rn"),
    (torch.rsqrt, "frsqrt_rn"),
)

_TABLE: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME.split()},
    **{name: getattr(torch.special, f"bessel_{name}") for name in ("j0", "j1", "y0", "y1")},
    **{name: function for function, names in _OTHER_NAMES for name in names.split()},
}
