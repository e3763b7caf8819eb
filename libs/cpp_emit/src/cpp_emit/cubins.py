"""Kernel binaries inside the C++ text.

A binary is any object with
    cubin   bytes of the compiled kernel
    name    the symbol in it
    shared  bytes of dynamic shared memory
    num_warps
and, where it has them,
    aligned                 names of the parameters (or their positions) that this code takes to be
                            multiples of 16: addresses in bytes, integers in units
    params                  its run-time parameters, each a name or an object with `.name`: all of
                            the kernel's, in order
    global_scratch_size, profile_scratch_size    bytes; must be zero
    num_ctas, cooperative, launch_pdl            must be 1, False, False
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wrapper_ir.ops import DefineKernel

from cpp_emit.errors import BinaryError
from cpp_emit.extern import string_literal

_BYTES_A_LINE = 48


@dataclass(frozen=True)
class Image:
    """What a launch needs of one binary."""

    cubin: bytes
    symbol: str
    shared: int
    warps: int
    required: int


@dataclass(frozen=True)
class Images:
    """C++ text of one kernel's binaries: an array called `variable` of `count` images."""

    variable: str
    count: int
    declarations: tuple[str, ...]
    definitions: tuple[str, ...]


def images(kernel: DefineKernel, binary: Any) -> Images:
    """C++ text of the binaries of a kernel, the one that asks for most first. Raises BinaryError."""
    if binary is None:
        raise BinaryError(
            f"kernel {kernel.name}: no binary given; mode \"aot\" needs one for each kernel that "
            "is launched on a GPU"
        )
    several = list(binary) if isinstance(binary, (list, tuple)) else [binary]
    found = sorted((image(kernel, b) for b in several), key=lambda i: -i.required.bit_count())
    variable = f"images_{_identifier(kernel.name)}"
    declarations, definitions, rows = [], [], []
    for number, one in enumerate(found):
        data = f"cubin_{_identifier(kernel.name)}_{number}"
        declarations.append(f"extern const char {data}[];  // {len(one.cubin)} bytes, at the end")
        rows.append(
            f"    {{cpp_emit_data::{data}, {string_literal(one.symbol)}, {one.shared}, "
            f"{one.warps}, {one.required}ull}},"
        )
        definitions += [
            "",
            f"alignas(16) const char cpp_emit_data::{data}[] =",
            *(f"    {line}" for line in _literal(one.cubin)),
        ]
        definitions[-1] += ";"
    return Images(
        variable,
        len(found),
        (
            "}  // namespace cpp_emit",
            "namespace cpp_emit_data {",
            *declarations,
            "}",
            "namespace cpp_emit {",
            f"static const Image {variable}[] = {{",
            *rows,
            "};",
        ),
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
    for name in ("global_scratch_size", "profile_scratch_size"):
        if getattr(binary, name, 0):
            raise BinaryError(
                f"kernel {kernel.name}: {name} is {getattr(binary, name)} bytes; the C++ launcher "
                "gives no scratch memory"
            )
    for name, expected in (("num_ctas", 1), ("cooperative", False), ("launch_pdl", False)):
        if getattr(binary, name, expected) != expected:
            raise BinaryError(
                f"kernel {kernel.name}: {name} is {getattr(binary, name)!r}; the C++ launcher "
                f"does only {expected!r}"
            )
    declared = [p.name for p in kernel.params]
    params = getattr(binary, "params", None)
    if params is not None:
        given = [p if isinstance(p, str) else getattr(p, "name", None) for p in params]
        if given != declared:
            raise BinaryError(
                f"kernel {kernel.name}: the binary takes {given}, the program passes {declared}"
            )
    return Image(
        cubin,
        attribute("name", str),
        int(attribute("shared", int)),
        int(attribute("num_warps", int)),
        required_bits(kernel, binary),
    )


def required_bits(kernel: DefineKernel, binary: Any) -> int:
    """One bit for each parameter that the binary takes to be a multiple of 16. A binary that says
    nothing was compiled from the promises of the kernel's own parameters."""
    aligned: Sequence[Any] | None = getattr(binary, "aligned", None)
    if aligned is None:
        return sum(1 << i for i, p in enumerate(kernel.params) if p.aligned)
    names = [p.name for p in kernel.params]
    bits = 0
    for item in aligned:
        if isinstance(item, int) and 0 <= item < len(names):
            bits |= 1 << item
        elif item in names:
            bits |= 1 << names.index(item)
        else:
            raise BinaryError(f"kernel {kernel.name}: aligned parameter {item!r} is not one of it")
    return bits


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)


def _literal(data: bytes) -> list[str]:
    """String literals: a compiler reads them many times faster than a list of numbers."""
    return [
        '"' + "".join(f"\\{b:03o}" for b in data[i : i + _BYTES_A_LINE]) + '"'
        for i in range(0, len(data), _BYTES_A_LINE)
    ]
