"""How a kernel wants its tensor maps: what the compiler decided, as numbers of cuda.h."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: By name, CU_TENSOR_MAP_SWIZZLE_* of cuda.h.
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
#: Bytes over which a swizzle permutes chunks: the inner extent of a box may not be wider.
SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128, 4: 128, 5: 128, 6: 128}

#: kind -> (CU_TENSOR_MAP_DATA_TYPE_*, bytes of an element). Those without a type of their own are
#: copied as unsigned integers of their width, which TMA does not look into.
DATA_TYPES = dict.fromkeys(("u8", "i8", "f8e4m3", "f8e5m2"), (0, 1))
DATA_TYPES |= {"u16": (1, 2), "i16": (1, 2), "u32": (2, 4), "i32": (3, 4), "u64": (4, 8)}
DATA_TYPES |= {"i64": (5, 8), "f16": (6, 2), "f32": (7, 4), "f64": (8, 8), "bf16": (9, 2)}

#: Triton numbers types on the device otherwise than cuda.h does.
_FROM_DEVICE = {8: 10, 9: 8, 10: 9}


@dataclass(frozen=True)
class MapLayout:
    """What a tensor map holds beside the tensor: `box` is what one copy moves, in elements, inner
    dimension last; `swizzle` and `data_type` are numbers of cuda.h; `fp4`: elements are pairs of
    4-bit numbers in a byte, padded to 8 bits in shared memory."""

    swizzle: int
    data_type: int
    element_bytes: int
    box: tuple[int, ...]
    fp4: bool = False

    @classmethod
    def of_block(cls, kind: str, block: tuple[int, ...], swizzle: str = "none") -> MapLayout:
        """A box that is the whole block; for kernels that are not Triton's."""
        number, size = DATA_TYPES[kind]
        return cls(SWIZZLES[swizzle], number, size, block)

    @classmethod
    def from_triton(cls, record: dict[str, Any]) -> MapLayout:
        """From an entry of the compiler's `tensordesc_meta`."""
        return cls(
            record["swizzle"],
            _FROM_DEVICE.get(record["elem_type"], record["elem_type"]),
            record["elem_size"],
            tuple(record["block_size"]),
            bool(record["fp4_padded"]),
        )

    def to_record(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> MapLayout:
        """Inverse of `to_record`; raises `TypeError` for a missing or unknown field."""
        return cls(**{**record, "box": tuple(record["box"])})
