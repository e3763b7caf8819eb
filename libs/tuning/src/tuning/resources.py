"""What a compiled kernel takes of a multiprocessor, read from its cubin: no GPU, no driver."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from triton_rt import Binary
from triton_rt.errors import BadBinary

# Attributes of the .nv.info section (as cuobjdump -elf names them): (symbol, value) pairs.
_EIATTR_FRAME_SIZE, _EIATTR_REGCOUNT = 0x11, 0x2F
_EIFMT_SVAL = 4

#: Shared memory that the system takes of each block, in bytes (CUDA programming guide, compute
#: capabilities 8.x to 12.x). From sm_90 on, the cubin counts it as static shared memory.
SYSTEM_SHARED = 1024


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes of a multiprocessor.

    Of one block: `threads`, `shared_bytes` (static, dynamic and the system's). Of one thread:
    `registers`, `local_bytes` (stack frame: spilled registers, and arrays indexed at run time)."""

    threads: int
    registers: int
    shared_bytes: int
    local_bytes: int
    num_ctas: int = 1


def resources(binary: Binary) -> Resources:
    """Raises `BadBinary` where the cubin is no ELF file with a `.nv.info` section."""
    registers = local = static = 0
    found = False
    for name, start, size in _sections(binary.cubin):
        if name == ".nv.info":
            for attribute, value in _attributes(binary.cubin[start : start + size]):
                if attribute == _EIATTR_REGCOUNT:
                    found, registers = True, max(registers, value)
                elif attribute == _EIATTR_FRAME_SIZE:
                    local = max(local, value)
        elif name == f".nv.shared.{binary.name}":
            static = size
    if not found:
        raise BadBinary(f"{binary.name}: the cubin says nothing of its registers (no .nv.info)")
    if binary.target.arch < 90:
        static += SYSTEM_SHARED
    shared = binary.shared_bytes + max(static, SYSTEM_SHARED)
    return Resources(32 * binary.num_warps, registers, shared, local, binary.num_ctas)


def _sections(elf: bytes) -> Iterator[tuple[str, int, int]]:
    """(name, offset, bytes) of the sections of a 64-bit little-endian ELF file."""
    try:
        if elf[:6] != b"\x7fELF\x02\x01":
            raise BadBinary(f"not a 64-bit ELF file: starts with {elf[:6]!r}")
        table = struct.unpack_from("<Q", elf, 40)[0]
        entry, count, names = struct.unpack_from("<HHH", elf, 58)
        headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
        for header in headers:
            at = headers[names][4] + header[0]
            yield elf[at : elf.index(b"\0", at)].decode(), header[4], header[5]
    except (struct.error, IndexError, ValueError) as error:
        raise BadBinary(f"a damaged cubin: {error}") from None


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _EIFMT_SVAL:  # the others hold their value in the two bytes of the size
            if size >= 8:
                yield attribute, struct.unpack_from("<II", info, at)[1]
            at += size
