"""A kernel's descriptor parameters: from an argument to the bytes that the kernel takes.

Triton gives a host-side descriptor to a kernel as several parameters, in this order:

    with TMA   CUtensorMap by value, sizes (i32), strides (i64)
    without    address, sizes (i64), strides (i64), padding is NaN (i1), sizes (i32), strides (i64)

(`make_launcher` in triton/backends/nvidia/driver.py of 3.6: the last two groups are the fields of
the descriptor that the language shows, `desc.shape` and `desc.strides`.)
"""

import functools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

from triton_rt.compiler import Binary
from triton_rt.element_types import parse_descriptor
from triton_rt.errors import WrongDescriptor
from triton_rt.launch import native
from triton_rt.tma import (
    DATA_TYPES,
    MAP_BYTES,
    MapLayout,
    TensorMap,
    as_tensor_map,
    encode,
    raise_violation,
    violations,
)

_ADDRESS_BYTES = 8


class Slot:
    """One descriptor parameter of a compiled kernel: `slot(argument)` is the kernel's parameters,
    each in 8 bytes but a tensor map, which comes first and has 128. `layout` is None where the
    kernel was compiled without TMA; `written`: the kernel writes through it. native: `encode_slot`
    of the launcher in C, which gives None where a rule is broken."""

    def __init__(
        self,
        where: str,
        kind: str,
        layout: MapLayout | None,
        written: bool = False,
        native: Callable[..., bytes | None] | None = None,
    ) -> None:
        parsed = parse_descriptor(kind)
        assert parsed is not None, kind
        self.where = where
        self.element, self.block = parsed
        self.layout = layout
        self.written = written
        self.native = None if layout is None or layout.fp4 else native
        self._bytes = functools.lru_cache(maxsize=256)(self._make)

    @property
    def head(self) -> int:
        """Bytes of the first parameter."""
        return _ADDRESS_BYTES if self.layout is None else MAP_BYTES

    def __call__(self, arg: Any) -> bytes:
        """Raises `WrongDescriptor`, `TensorMapRule`."""
        if type(arg) is TensorMap:
            address: int = arg.base.data_ptr()
            known = arg.ready.get(self)
            if known is not None and known[0] == address:
                return known[1]
            out = self._checked(arg, address)
            arg.ready[self] = (address, out)
            return out
        map = as_tensor_map(arg, self.block)
        return self._checked(map, map.address)

    def _checked(self, map: TensorMap, address: int) -> bytes:
        if map.block != self.block or map.kind != self.element:
            raise WrongDescriptor(
                f"{self.where} takes blocks of {self.element}{list(self.block)}, the descriptor "
                f"has {map.kind}{list(map.block)}"
            )
        return self._bytes(address, map.shape, map.strides, map.padding == "nan")

    def _make(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], nan: bool
    ) -> bytes:
        layout = self.layout
        if self.native is not None and layout is not None:
            numbers = (layout.swizzle, layout.data_type, layout.element_bytes)
            made = self.native(address, shape, strides, layout.box, numbers, self.written, nan)
            if made is not None:
                return made
        rank = len(shape)
        fields = [*(n.to_bytes(8, "little", signed=True) for n in shape), _longs(strides)]
        if self.layout is None:
            head = struct.pack("<Q", address) + _longs(shape) + _longs(strides)
            return b"".join([head, _longs([nan]), *fields])
        size = DATA_TYPES[self.element][1]
        broken = tuple(violations(address, shape, strides, size, self.layout, written=self.written))
        raise_violation(f"{self.where} (shape {shape}, strides {strides})", broken)
        assert len(self.layout.box) == rank
        return b"".join([encode(address, shape, strides, self.layout, nan), *fields])


def _longs(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}q", *map(operator.index, values))


def slots_of(binary: Binary) -> tuple[Slot, ...]:
    """The slots of a binary's descriptor parameters, in order."""
    module = native.extension()
    encode_slot = None if module is None else module.encode_slot
    params = [p for p in binary.params if p.is_descriptor]
    layouts: Sequence[MapLayout | None] = binary.tensor_maps or [None] * len(params)
    return tuple(
        Slot(f"{binary.name}: {p.name}", p.kind, layout, p.mutated, encode_slot)
        for p, layout in zip(params, layouts, strict=True)
    )


def split(data: bytes, head: int) -> list[bytes]:
    """A slot's bytes, parameter by parameter."""
    return [data[:head], *(data[i : i + 8] for i in range(head, len(data), 8))]
