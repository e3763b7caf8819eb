"""What the TMA unit asks of a tensor, by name and number.

The rules are those of `cuTensorMapEncodeTiled` (CUDA driver API, section "Tensor Map Object
Management") without interleaving and element strides, Triton's, whose sizes are 32-bit, and one
that is in neither: how far a store at the edge goes."""

from collections.abc import Iterator
from dataclasses import dataclass

from triton_rt.tma.layout import SWIZZLE_BYTES, MapLayout

MAX_RANK, MAX_BOX = 5, 256
ALIGNMENT = 16
_MAX_SIZE, _MAX_STRIDE = 2**31 - 1, 2**40


@dataclass(frozen=True)
class Violation:
    """A broken rule: its name, the number found, and the rule in words."""

    rule: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}, got {self.number}"


def map_strides(
    shape: tuple[int, ...], strides: tuple[int, ...], element_bytes: int
) -> tuple[int, ...]:
    """Strides in elements with those that are never used made legal: in a dimension of size 1 only
    index 0 lies inside, so any stride reads the same elements."""
    unit = max(1, ALIGNMENT // element_bytes)
    out = [unit if n == 1 else s for n, s in zip(shape, strides, strict=True)]
    if shape and shape[-1] == 1:
        out[-1] = 1
    return tuple(out)


def violations(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    element_bytes: int,
    layout: MapLayout | None = None,
    *,
    written: bool = False,
) -> Iterator[Violation]:
    """All broken rules of a tensor, and of the box if a layout is given. Sizes and strides are in
    elements, the inner dimension last. `written`: the kernel stores or reduces through the map."""
    if not 1 <= len(shape) <= MAX_RANK:
        yield Violation("rank", len(shape), f"a tensor map has 1 to {MAX_RANK} dimensions")
        return
    whole = f"must be a multiple of {ALIGNMENT} bytes"
    if rest := address % ALIGNMENT:
        yield Violation(
            "address alignment", rest, f"the address ({address:#x}) {whole}; the remainder"
        )
    for axis, size in enumerate(shape):
        if not 1 <= size <= _MAX_SIZE:
            yield Violation("size", size, f"size {axis} must be 1 to {_MAX_SIZE}")
    used = map_strides(shape, strides, element_bytes)
    for axis, stride in enumerate(used[:-1]):
        step = stride * element_bytes
        if step % ALIGNMENT:
            yield Violation("stride alignment", step, f"stride {axis} {whole}")
        if not 0 < step < _MAX_STRIDE:
            yield Violation("stride range", step, f"stride {axis} must be 1 to 2^40 - 1 bytes")
    if used[-1] != 1:
        yield Violation("inner stride", used[-1], "the last stride must be 1 element")
    row = shape[-1] * element_bytes
    if written and row % ALIGNMENT:
        # Stores are clipped at the next 16 bytes, and not at the last element
        # (triton-lang/triton#11583; seen on an H200 with every element type).
        yield Violation("written row", row, f"the last size of a tensor that is written {whole}")
    if layout is not None:
        yield from box_violations(layout)


def box_violations(layout: MapLayout) -> Iterator[Violation]:
    """Broken rules of a box and its swizzle."""
    for axis, size in enumerate(layout.box):
        if not 1 <= size <= MAX_BOX:
            yield Violation("box size", size, f"box size {axis} must be 1 to {MAX_BOX} elements")
    inner = layout.box[-1] * layout.element_bytes
    if inner % ALIGNMENT:
        yield Violation("inner box", inner, f"its bytes must be a multiple of {ALIGNMENT}")
    limit = SWIZZLE_BYTES.get(layout.swizzle)
    if limit is not None and inner > limit:
        yield Violation(
            "swizzle", inner, f"the inner extent of the box may be {limit} bytes with this swizzle"
        )
