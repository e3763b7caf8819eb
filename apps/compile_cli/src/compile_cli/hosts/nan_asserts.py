"""`Options.nan_asserts`: what the host program calls between kernels, which says who made a NaN."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.fx.node import has_side_effect

from compile_cli.errors import NotFinite

ASSERT_FINITE = "compile_cli.assert_finite"


@has_side_effect
def assert_finite(tensor: Tensor, name: str, who: str, origin: str) -> tuple[()]:
    """Raises NotFinite unless every element of `tensor` is finite. name: of the tensor in the host
    program. who: what wrote it (`AssertFinite`). origin: operators and lines of the model that this
    came from."""
    value = tensor.detach()
    if value.is_floating_point() and value.element_size() == 1:
        value = value.float()  # torch has no tests of the numbers of 8 bits
    wrong = value.isfinite().logical_not_()
    if not bool(wrong.any()):
        return ()
    nans = int(value.isnan().sum())
    infinities = int(wrong.sum()) - nans
    kinds = [f"{n} {kind}" for n, kind in ((nans, "NaN"), (infinities, "infinite")) if n]
    first = tuple(int(i) for i in wrong.nonzero()[0])
    made = " " in who
    found = "a NaN" if nans else "an infinity"
    lines = [
        f"{who} made {found}" if made else f"the {who} {name} holds {found}",
        f"what:  {' and '.join(kinds)} of {value.numel()} elements of "
        f"{name} {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}, "
        f"the first at {list(first)}",
    ]
    if origin:
        lines.append(f"from:  {origin}")
    lines.append(
        "all that it read is finite" if made else "no kernel made it: it came into the program"
    )
    raise NotFinite("\n  ".join(lines))


OPERATORS: Mapping[str, Callable[..., Any]] = {ASSERT_FINITE: assert_finite}
