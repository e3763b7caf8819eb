"""Functions of f32 over all 2**32 bit patterns: within 2 ulp of what is right, rounded, or no worse
than CUDA's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

CHUNK = 1 << 26
ALLOWED = 2.0  # ulp

Function = Callable[[Tensor], Tensor]


def exact_gelu(x: Tensor) -> Tensor:
    """Without the cancellation of `1 + erf(x)`."""
    return 0.5 * x * torch.special.erfc(x * -math.sqrt(0.5))


# What is compiled, and what is right in f64 where that is not the same formula.
FUNCTIONS: dict[str, tuple[Function, Function | None]] = {
    "exp": (torch.exp, None),
    "expm1": (torch.expm1, None),
    "log1p": (torch.log1p, None),
    "tanh": (torch.tanh, None),
    "sigmoid": (torch.sigmoid, None),
    "erf": (torch.erf, None),
    "softplus": (F.softplus, None),
    "silu": (F.silu, None),
    "gelu": (F.gelu, exact_gelu),
    "mish": (F.mish, None),
    "elu": (F.elu, None),
    "sin": (torch.sin, None),
    "cos": (torch.cos, None),
    "pow": (lambda x: x.pow(2.25), None),
    "pow of less": (lambda x: x.pow(-0.75), None),
    "odd power": (lambda x: x.pow(7), None),
}


def ulp(got: Tensor, want: Tensor) -> Tensor:
    """The largest distance from the right number of f32 in units of its last place (subnormal ones
    have those of the least normal number); what overflows is 2**128. Of what is NaN on either side,
    infinity, but where both are: 0."""
    want = want.float().double()
    exponent = (want.view(torch.int64) & (0x7FF << 52)).view(torch.float64)
    unit = exponent.clamp_(2.0**-126, 2.0**127).mul_(2.0**-23)
    off = got.double().clamp_(-(2.0**128), 2.0**128)
    off = off.sub_(want.clamp(-(2.0**128), 2.0**128)).abs_().div_(unit)
    nan = want.isnan()
    off.masked_fill_(nan, 0.0).masked_fill_(nan != got.isnan(), math.inf)
    return off.max()


def test_all_floats(options: dict[str, Any]) -> None:
    def all_of_them(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x) for function, _ in FUNCTIONS.values())

    first = torch.arange(CHUNK, device="cuda", dtype=torch.int32)
    compiled = compile_cli.compile(all_of_them, (first.view(torch.float32),), options=options)
    worst = {name: [torch.zeros((), device="cuda", dtype=torch.float64)] * 2 for name in FUNCTIONS}
    for chunk in range((1 << 32) // CHUNK):
        # the largest patterns wrap around: they are those of negative numbers
        start = chunk * CHUNK - (1 << 32 if chunk * CHUNK >= 1 << 31 else 0)
        x = (first + start).view(torch.float32)
        wide = x.double()
        for (name, (function, exact)), got in zip(FUNCTIONS.items(), compiled(x), strict=True):
            want = (exact or function)(wide)
            for side, result in enumerate((got, function(x))):
                worst[name][side] = torch.maximum(worst[name][side], ulp(result, want))
    found = {name: (mine.item(), eager.item()) for name, (mine, eager) in worst.items()}
    behind = {name: pair for name, pair in found.items() if pair[0] > max(ALLOWED, pair[1])}
    assert not behind, f"{behind} of {found}"
