"""Whether two candidates computed the same."""

from collections.abc import Sequence

import torch

from tuning.errors import WrongResult

#: Relative tolerances by dtype: a few roundings of the output, and float32 sums in other orders.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "float16": 1e-2, "bfloat16": 4e-2}


def compare(name: str, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Raises `WrongResult` naming the worst element. Integers must be equal; floats may differ by
    a tolerance of their dtype, relative to themselves or to the root mean square; NaN is NaN."""
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.numel() == 0:
            continue
        if not a.dtype.is_floating_point:
            wrong = a != b
        else:
            tolerance = _TOLERANCE.get(str(a.dtype).removeprefix("torch."), 0.3)
            x, y = (t if t.dtype == torch.float64 else t.float() for t in (a, b))
            scale = torch.nan_to_num(y, 0.0, 0.0, 0.0).square().mean().sqrt()
            off = (x - y).abs() > tolerance * torch.maximum(y.abs(), scale)
            same = (x == y) | (x.isnan() & y.isnan())
            wrong = ~same & (off | ~(x.isfinite() & y.isfinite()))
        count = int(wrong.sum())
        if count:
            at = tuple(int(i) for i in wrong.nonzero()[0])
            raise WrongResult(
                f"{name}: output {number} ({a.dtype}, shape {tuple(a.shape)}) differs from the "
                f"reference candidate's in {count} of {a.numel()} elements, first at {at}: "
                f"{a[at].item()} instead of {b[at].item()}"
            )
