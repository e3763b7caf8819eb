"""Tensor maps as 128 bytes, through the CUDA driver."""

import ctypes
import functools

from triton_rt import driver as cuda
from triton_rt.errors import CudaError, DriverTooOld
from triton_rt.tma.layout import MapLayout
from triton_rt.tma.rules import map_strides

MAP_BYTES = 128
_MAP_ALIGN = 64
_INTERLEAVE_NONE, _L2_PROMOTION_128B = 0, 2
_FILL_ZERO, _FILL_NAN = 0, 1


@functools.lru_cache(maxsize=8192)
def encode(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], layout: MapLayout, nan: bool
) -> bytes:
    """The CUtensorMap of a tensor; sizes and strides in elements, the inner dimension last.

    A pure function of its arguments: a map names an address and a layout and nothing of who owns
    the memory, so that a tensor allocated where a freed one lay, with the same layout, has the same
    map. That is why answers are kept, and are never stale. The tensor must keep the rules of
    `rules.violations`; the driver's refusal is a `CudaError` with all numbers."""
    opened = cuda.driver()
    if not opened.address("cuTensorMapEncodeTiled"):
        raise DriverTooOld("the CUDA driver lacks cuTensorMapEncodeTiled: 12.0 or later is needed")
    rank = len(shape)
    used = map_strides(shape, strides, layout.element_bytes)
    sizes = list(shape)
    if layout.fp4:
        sizes[-1] *= 2
    # Outer strides in bytes and the box, from the inner dimension out, as the driver counts.
    outer = [s * layout.element_bytes for s in used[:-1]][::-1]
    room = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGN)
    start = ctypes.addressof(room)
    place = start + -start % _MAP_ALIGN
    try:
        with opened.any_context():  # the driver asks for one, though nothing in a map names it
            opened.call(
                "cuTensorMapEncodeTiled",
                ctypes.c_void_p(place),
                layout.data_type,
                rank,
                ctypes.c_void_p(address),
                (ctypes.c_uint64 * rank)(*sizes[::-1]),
                (ctypes.c_uint64 * rank)(*outer, 0),
                (ctypes.c_uint32 * rank)(*layout.box[::-1]),
                (ctypes.c_uint32 * rank)(*(1,) * rank),
                _INTERLEAVE_NONE,
                layout.swizzle,
                _L2_PROMOTION_128B,
                _FILL_NAN if nan else _FILL_ZERO,
            )
    except CudaError as error:
        raise CudaError(
            f"{error}: tensor map of address {address:#x}, shape {shape}, strides {strides}, "
            f"{layout}"
        ) from None
    return ctypes.string_at(place, MAP_BYTES)
