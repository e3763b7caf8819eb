"""Lets the native launcher read tensors through torch's stable C ABI, where that is proven to work.

A `torch.Tensor` object holds an `at::Tensor`, which is what the `aoti_torch_*` functions take. Its
place in the object is no part of any promise, so it is looked for (the word that equals
`Tensor._cdata`), and the answers are compared with Python's on tensors of every dtype; on any
difference the launcher goes on calling the tensors' methods."""

import ctypes
import functools
import types
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils._python_dispatch import _disable_current_modes

from triton_rt.element_types import KINDS, torch_dtype

_FUNCTIONS = ("data_ptr", "dtype", "device_type", "device_index", "dim", "sizes", "strides")


def enable(module: types.ModuleType) -> bool:
    """Turns the fast path on if it passes; says whether it did."""
    offset = _handle_offset()
    addresses = [_address(f"aoti_torch_get_{name}") for name in _FUNCTIONS]
    if offset is None or 0 in addresses:
        return False
    stream = _address("aoti_torch_get_current_cuda_stream")
    device = _address("aoti_torch_get_current_device_index")
    module.use_torch(torch.Tensor, torch.nn.Parameter, offset, *addresses, stream, device)
    with _disable_current_modes():
        agrees = _agrees(module)
    if not agrees:
        module.forget_torch()
    return agrees


def dtype_number(module: types.ModuleType, dtype: torch.dtype) -> int:
    """torch's number of a dtype, as the fast path sees it; -1 where the fast path is off."""
    try:
        # A kernel may be loaded while a compiler traces: under fake tensors, say.
        with _disable_current_modes():
            number: int = module.view(torch.empty(0, dtype=dtype))[2]
    except TypeError:
        return -1
    return number


def _handle_offset() -> int | None:
    """Where `torch.Tensor` objects hold their `at::Tensor`, in bytes; None if that is unclear."""
    with _disable_current_modes():
        probes = [torch.empty(3), torch.empty(2, 2)[1:], torch.nn.Parameter(torch.empty(1))]
    head = object.__basicsize__
    end = min(torch.Tensor.__basicsize__, torch.nn.Parameter.__basicsize__)
    places = [
        offset
        for offset in range(head, end - 7, 8)
        if all(ctypes.c_uint64.from_address(id(t) + offset).value == t._cdata for t in probes)
    ]
    return places[0] if len(places) == 1 else None


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    names = ("libtorch_cpu.so", "libtorch_cuda.so")
    return tuple(ctypes.CDLL(str(folder / n)) for n in names if (folder / n).exists())


def _address(name: str) -> int:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0


def _probes() -> Iterator[torch.Tensor]:
    for kind in KINDS:
        dtype = torch_dtype(kind)
        base = torch.empty(12, dtype=dtype)
        yield from (base, base[3:], base.reshape(3, 4).t(), base[:0])
    yield torch.nn.Parameter(torch.empty(5))


def _agrees(module: types.ModuleType) -> bool:
    numbers: dict[int, torch.dtype] = {}
    for tensor in _probes():
        try:
            address, device, number, *layout = module.view(tensor)
        except (TypeError, ValueError):
            return False
        if (address, device) != (tensor.data_ptr(), tensor.get_device()):
            return False
        if layout != [tuple(tensor.shape), tensor.stride()]:
            return False
        if numbers.setdefault(number, tensor.dtype) != tensor.dtype:
            return False
    return len(numbers) == len(KINDS)
