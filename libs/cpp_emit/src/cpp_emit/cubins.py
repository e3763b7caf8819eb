"""Kernel binaries inside the C++ text.

A binary is any object with these attributes (triton_rt's `Binary` is one):
    name            the symbol in the cubin
    cubin           bytes of the compiled kernel
    shared_bytes    dynamic shared memory
    num_warps
    alignment       bit i: parameter i is taken to be a multiple of 16 (the address of a pointer in
                    bytes, the value of an integer); without it, the promises of the kernel's own
                    parameters hold
and, where it has them,
    params                                          the run-time parameters (objects with `.name`)
    global_scratch_bytes, global_scratch_align      memory that each program gets, such as for the
                                                    tensor maps that it makes (at most 256 aligned)
    tensor_maps                                     for each descriptor the layout of its tensor map
                                                    (`swizzle`, `data_type`: numbers of cuda.h,
                                                    `element_bytes`, `box`, `fp4`); empty where the
                                                    kernel takes descriptors without TMA
    num_ctas                                        blocks of a program, as the definition says
    profile_scratch_bytes                           must be 0
    pdl                                             launched as the kernel before it ends, as the
                                                    definition says (`overlap`)
    cooperative                                     must be False
"""

from dataclasses import dataclass
from typing import Any

from cpp_emit.errors import BinaryError
from cpp_emit.extern import string_literal
from wrapper_ir import DefineKernel
from wrapper_ir.analysis import descriptor_kind

_BYTES_A_LINE = 48
# Parameters with a bit of their own in the library's masks (cuda.h); all others share the next one.
_OWN_BITS = 62


@dataclass(frozen=True)
class Image:
    """What a launch needs of one binary."""

    cubin: bytes
    symbol: str
    shared: int
    warps: int
    required: int
    scratch: int
    ctas: int
    overlap: bool
    maps: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Images:
    """C++ text of one kernel's binaries: an array called `variable` of `count` images."""

    variable: str
    count: int
    declarations: tuple[str, ...]
    definitions: tuple[str, ...]


def images(kernel: DefineKernel, binary: Any) -> Images:
    """C++ text of the binaries of a kernel, the one that asks for most first.

    Raises BinaryError."""
    if binary is None:
        raise BinaryError(
            f'kernel {kernel.name}: no binary given; mode "aot" needs one for each kernel that '
            "is launched on a GPU"
        )
    several = list(binary) if isinstance(binary, (list, tuple)) else [binary]
    found = sorted((image(kernel, b) for b in several), key=lambda i: -i.required.bit_count())
    variable = f"images_{_identifier(kernel.name)}"
    declarations, definitions, rows = [], [], []
    for number, one in enumerate(found):
        data = f"cubin_{_identifier(kernel.name)}_{number}"
        declarations.append(f"extern const char {data}[];  // {len(one.cubin)} bytes, at the end")
        maps = "nullptr"
        if one.maps:
            maps = f"maps_{_identifier(kernel.name)}_{number}"
            declarations += _maps(maps, one)
        rest = ""
        if one.maps or one.overlap:
            rest = f", {one.ctas}, {maps}, {len(one.maps)}" + ", true" * one.overlap
        elif one.ctas != 1:
            rest = f", {one.ctas}"
        rows.append(
            f"    {{{data}, {string_literal(one.symbol)}, {one.shared}, "
            f"{one.warps}, {one.required}ull, {one.scratch}{rest}}},"
        )
        definitions += [
            "",
            f"alignas(16) const char {data}[] =",
            *(f"    {line}" for line in _literal(one.cubin)),
        ]
        definitions[-1] += ";"
    return Images(
        variable,
        len(found),
        (*declarations, f"static const Image {variable}[] = {{", *rows, "};"),
        tuple(definitions),
    )


def image(kernel: DefineKernel, binary: Any) -> Image:
    """Reads a binary by its attributes, and refuses what the launcher does not do."""

    def attribute(name: str, type: type) -> Any:
        value = getattr(binary, name, None)
        if not isinstance(value, type):
            raise BinaryError(
                f"kernel {kernel.name}: a binary needs {name}: {type.__name__}, got {value!r}"
            )
        return value

    cubin = bytes(attribute("cubin", bytes))
    if not cubin:
        raise BinaryError(f"kernel {kernel.name}: its cubin is empty")
    if getattr(binary, "profile_scratch_bytes", 0):
        raise BinaryError(
            f"kernel {kernel.name}: profile_scratch_bytes is {binary.profile_scratch_bytes}; the "
            "C++ launcher gives no memory for profiles"
        )
    if getattr(binary, "global_scratch_align", 1) > 256:
        raise BinaryError(
            f"kernel {kernel.name}: global_scratch_align is {binary.global_scratch_align}; "
            "allocations start at multiples of 256"
        )
    if getattr(binary, "cooperative", False):
        raise BinaryError(
            f"kernel {kernel.name}: cooperative is {binary.cooperative!r}; the C++ launcher does "
            "only False"
        )
    ctas, overlap = getattr(binary, "num_ctas", 1), bool(getattr(binary, "pdl", False))
    if ctas != kernel.num_ctas:
        raise BinaryError(
            f"kernel {kernel.name}: the binary has num_ctas {ctas}, the program {kernel.num_ctas}"
        )
    if overlap != kernel.overlap:
        raise BinaryError(
            f"kernel {kernel.name}: the binary has pdl {overlap}, the program {kernel.overlap}"
        )
    declared = [p.name for p in kernel.params]
    params = getattr(binary, "params", None)
    if params is not None:
        given = [p if isinstance(p, str) else getattr(p, "name", None) for p in params]
        if given != declared:
            raise BinaryError(
                f"kernel {kernel.name}: the binary takes {given}, the program passes {declared}"
            )
        _check_written(kernel, params)
    return Image(
        cubin,
        attribute("name", str),
        int(attribute("shared_bytes", int)),
        int(attribute("num_warps", int)),
        required_bits(kernel, binary),
        int(getattr(binary, "global_scratch_bytes", 0)),
        ctas,
        overlap,
        map_layouts(kernel, binary),
    )


def _check_written(kernel: DefineKernel, params: Any) -> None:
    """What is written must keep a rule more (see descriptor.h)."""
    for ours, theirs in zip(kernel.params, params, strict=True):
        written = getattr(theirs, "mutated", False) and not ours.mutated
        if written and descriptor_kind(ours.kind) is not None:
            raise BinaryError(
                f"kernel {kernel.name}: the binary writes through the descriptor {ours.name}, "
                "which the program does not say (`mutated`)"
            )


def map_layouts(kernel: DefineKernel, binary: Any) -> tuple[tuple[int, ...], ...]:
    """The fields of `MapLayout` in C++, for each descriptor."""
    found = tuple(getattr(binary, "tensor_maps", ()))
    count = len(_descriptors(kernel))
    if found and len(found) != count:
        raise BinaryError(
            f"kernel {kernel.name}: the binary has {len(found)} tensor_maps, the program "
            f"{count} descriptors"
        )
    return tuple(
        (m.swizzle, m.data_type, m.element_bytes, int(m.fp4), len(m.box), *(*m.box, 0, 0, 0, 0)[:5])
        for m in found
    )


def _maps(name: str, image: Image) -> list[str]:
    rows = [
        f"    {{{', '.join(map(str, m[:5]))}, {{{', '.join(map(str, m[5:]))}}}}},"
        for m in image.maps
    ]
    return [f"static const MapLayout {name}[] = {{", *rows, "};"]


def _descriptors(kernel: DefineKernel) -> list[int]:
    return [i for i, p in enumerate(kernel.params) if descriptor_kind(p.kind) is not None]


def required_bits(kernel: DefineKernel, binary: Any) -> int:
    """One bit for each parameter that the binary takes to be a multiple of 16, or for a descriptor
    to keep the rules of TMA; one for all of those past the 62nd."""
    alignment: int | None = getattr(binary, "alignment", None)
    if alignment is None:
        alignment = sum(1 << i for i, p in enumerate(kernel.params) if p.aligned)
    if alignment >> len(kernel.params):
        raise BinaryError(
            f"kernel {kernel.name}: alignment {alignment:#b} names more than its "
            f"{len(kernel.params)} parameters"
        )
    described = sum(1 << i for i in _descriptors(kernel))
    maps = getattr(binary, "tensor_maps", ())
    required = alignment | described if maps else alignment & ~described
    rest = required >> _OWN_BITS << _OWN_BITS
    return required ^ rest | (bool(rest) << _OWN_BITS)


def alignment_of(kernel: DefineKernel, mask: int) -> int:
    """A bit for each parameter of a launch whose mask in the library is this one."""
    may = sum(1 << i for i, p in enumerate(kernel.params) if p.kind[0] in "*iut")
    shared = -1 << _OWN_BITS
    return may & (mask | shared if mask >> _OWN_BITS & 1 else mask & ~shared)


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _literal(data: bytes) -> list[str]:
    """String literals: a compiler reads them many times faster than a list of numbers."""
    return [
        '"' + "".join(f"\\{b:03o}" for b in data[i : i + _BYTES_A_LINE]) + '"'
        for i in range(0, len(data), _BYTES_A_LINE)
    ]
