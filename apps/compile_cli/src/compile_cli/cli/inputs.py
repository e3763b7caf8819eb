"""Input specs: `i64[2,32]<1000` -> a tensor of random token ids."""

import re
from dataclasses import dataclass

import torch

from compile_cli.errors import BadInputSpec, UsageError
from fx_emit import TORCH_DTYPE

# Element types by the names they print as: `bf16`.
DTYPES: dict[str, torch.dtype] = {d.value: dtype for d, dtype in TORCH_DTYPE.items()}

_DTYPE = re.compile(r"[a-z]+[a-z0-9]*")
_DIM = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*=\s*)?(\d+)\s*")
_HIGH = re.compile(r"<\s*(\d+)$")


@dataclass(frozen=True)
class InputSpec:
    """One input tensor: element type, sizes, the names of its dynamic dimensions (dim -> name),
    and for integers the exclusive upper bound of its values."""

    dtype: torch.dtype
    size: tuple[int, ...]
    dynamic: tuple[tuple[int, str], ...] = ()
    high: int | None = None

    def make(self, generator: torch.Generator, device: torch.device) -> torch.Tensor:
        """Random values: normal floats, integers in [0, high), fair booleans."""
        if self.dtype == torch.bool:
            value = torch.randint(0, 2, self.size, generator=generator).bool()
        elif self.dtype.is_floating_point or self.dtype.is_complex:
            value = torch.randn(self.size, generator=generator).to(self.dtype)
        else:
            high = 2 if self.high is None else self.high
            value = torch.randint(0, high, self.size, generator=generator).to(self.dtype)
        return value.to(device)


def parse_input(spec: str) -> InputSpec:
    """Reads `DTYPE[SIZE, NAME=SIZE, ...]<HIGH`.

    >>> parse_input("i64[batch=2, 32]<1000")
    InputSpec(dtype=torch.int64, size=(2, 32), dynamic=((0, 'batch'),), high=1000)
    """
    match = _DTYPE.match(spec)
    if not match or match.group() not in DTYPES:
        raise BadInputSpec(spec, 0, f"an element type: {', '.join(DTYPES)}")
    dtype = DTYPES[match.group()]
    at = match.end()
    if not spec.startswith("[", at):
        raise BadInputSpec(spec, at, "'[' and the sizes")
    at += 1
    size: list[int] = []
    dynamic: list[tuple[int, str]] = []
    while not (not size and spec.startswith("]", at)):
        dim = _DIM.match(spec, at)
        if not dim:
            raise BadInputSpec(spec, at, "a size, such as 32 or batch=2")
        if dim.group(1):
            dynamic.append((len(size), dim.group(1)))
        size.append(int(dim.group(2)))
        at = dim.end()
        if spec.startswith("]", at):
            break
        if not spec.startswith(",", at):
            raise BadInputSpec(spec, at, "',' or ']'")
        at += 1
    at += 1
    high = None
    if at < len(spec):
        bound = _HIGH.match(spec, at)
        if not bound:
            raise BadInputSpec(spec, at, "the end, or '<' and the bound of the values")
        if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
            raise BadInputSpec(spec, at, "no bound: only integers take one")
        high = int(bound.group(1))
        if high < 1:
            raise BadInputSpec(spec, at, "a bound of at least 1")
    return InputSpec(dtype, tuple(size), tuple(dynamic), high)


def parse_dynamic(specs: list[str], names: list[str]) -> dict[str, set[int]]:
    """`["ids.0", "mask.0"]` or `["0"]` (that dimension of every input) -> input name -> dims."""
    out: dict[str, set[int]] = {}
    for spec in specs:
        name, _, dim = spec.rpartition(".")
        if not dim.isdigit() or (name and name not in names):
            raise UsageError(
                f"cannot read --dynamic {spec!r}\n"
                f"  expected: INPUT.DIM with INPUT one of {', '.join(names)}, or a plain DIM for "
                "that dimension of every input"
            )
        for each in [name] if name else names:
            out.setdefault(each, set()).add(int(dim))
    return out
