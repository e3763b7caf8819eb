"""Arguments of a launch, checked and packed in Python.

The native launcher does the same in C; it comes here when something is wrong, for the words."""

import struct
from dataclasses import dataclass
from typing import Any

import torch

from triton_rt import errors
from triton_rt.element_types import parse_descriptor, torch_dtype
from triton_rt.source import KernelParam, flatten
from triton_rt.tma import Address, as_tensor_map, is_descriptor

_INTS = {"i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "bool": "<?"}
_INTS |= {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q"}
_MAX_GRID = (2**31 - 1, 65535, 65535)
# Parameters with a bit of their own in the native launcher's mask; all others share the next one.
OWN_BITS = 62


@dataclass(frozen=True)
class Packed:
    """`device` is None without pointer parameters, -1 for the CPU, else the GPU's index. The value
    of a descriptor is empty: it depends on the variant (`Entry.slots`)."""

    grid: tuple[int, int, int]
    values: list[bytes]
    alignment: int
    device: int | None


def pack(name: str, params: tuple[KernelParam, ...], grid: Any, args: tuple[Any, ...]) -> Packed:
    """Checks a call and packs it; raises the `LaunchError` that fits."""
    sizes = check_grid(name, grid)
    args = flatten(args)
    if len(args) != len(params):
        raise errors.WrongArgumentCount(
            f"{name} takes {len(params)} arguments after the grid "
            f"({', '.join(f'{p.name}: {p.kind}' for p in params)}), got {len(args)}"
        )
    values: list[bytes] = []
    alignment = 0
    device: int | None = None
    first = ""
    for i, (param, arg) in enumerate(zip(params, args, strict=True)):
        if param.is_pointer or param.is_descriptor:
            tensor = arg if param.is_pointer else _base_of(name, param, arg)
            _check_tensor(name, param, tensor)
            where = tensor.get_device()
            if device is None:
                device, first = where, param.name
            elif where != device:
                raise errors.WrongDevice(
                    f"{name}: {param.name} is on {_where(where)}, {first} on {_where(device)}; "
                    "all must be on one device"
                )
            number = tensor.data_ptr()
            values.append(struct.pack("<Q", number) if param.is_pointer else b"")
        else:
            number = _number(name, param, arg)
            values.append(_pack_scalar(name, param, number))
        if param.may_align and number % 16 == 0:
            alignment |= 1 << i
    own = alignment & ((1 << OWN_BITS) - 1)
    known = own | rest_of(params)
    return Packed(sizes, values, known if alignment & known == known else own, device)


def rest_of(params: tuple[KernelParam, ...]) -> int:
    """The mask of all parameters past `OWN_BITS` that may be known to be divisible by 16: a variant
    takes all of them for that, or none."""
    return sum(1 << i for i, p in enumerate(params) if i >= OWN_BITS and p.may_align)


def check_grid(name: str, grid: Any) -> tuple[int, int, int]:
    """One to three sizes -> three; raises `BadGrid`."""
    if isinstance(grid, int):
        grid = (grid,)
    ok = isinstance(grid, (tuple, list)) and 1 <= len(grid) <= 3
    if not ok or not all(isinstance(n, int) for n in grid):
        raise errors.BadGrid(f"{name}: the grid must be 1 to 3 integers, got {grid!r}")
    sizes = (*grid, 1, 1)[:3]
    for axis, size, limit in zip("xyz", sizes, _MAX_GRID, strict=True):
        if not 0 <= size <= limit:
            raise errors.BadGrid(
                f"{name}: grid {tuple(grid)} has {size} in {axis}, allowed are 0 to {limit}"
            )
    return sizes


def _where(device: int) -> str:
    return "cpu" if device < 0 else f"cuda:{device}"


def described(params: tuple[KernelParam, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Flat arguments, with a tensor map in place of each tensor that came as a descriptor."""
    return tuple(
        as_tensor_map(arg, block[1]) if (block := parse_descriptor(param.kind)) else arg
        for param, arg in zip(params, flatten(args), strict=True)
    )


def _base_of(name: str, param: KernelParam, arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        return arg  # described by the parameter's block
    if not is_descriptor(arg):
        raise errors.WrongDescriptor(
            f"{name}: {param.name} is a {param.kind}: expected a tensor, or a TensorMap of such "
            f"blocks, got {_describe(arg)}"
        )
    block = parse_descriptor(param.kind)
    if block is None or tuple(arg.block_shape) != block[1]:
        raise errors.WrongDescriptor(
            f"{name}: {param.name} is a {param.kind}, the descriptor's block is "
            f"{list(arg.block_shape)}"
        )
    return arg.base


def _check_tensor(name: str, param: KernelParam, arg: Any) -> None:
    element = param.element
    if isinstance(arg, Address):
        if arg.kind != element:
            raise errors.WrongDType(
                f"{name}: {param.name} is {param.kind}, got an address of {arg.kind}"
            )
        return
    if not isinstance(arg, torch.Tensor):
        raise errors.WrongArgumentType(
            f"{name}: {param.name} is a pointer ({param.kind}): expected a tensor, got "
            f"{_describe(arg)}"
        )
    if arg.dtype != torch_dtype(element):
        raise errors.WrongDType(
            f"{name}: {param.name} is {param.kind}: expected a tensor of "
            f"{torch_dtype(element)}, got {arg.dtype} of shape {tuple(arg.shape)}"
        )
    if arg.device.type not in ("cpu", "cuda"):
        raise errors.WrongDevice(
            f"{name}: {param.name} is on {arg.device}; kernels run on cuda, or on cpu interpreted"
        )


def _describe(arg: Any) -> str:
    if isinstance(arg, torch.Tensor):
        return f"a tensor of {arg.dtype}, shape {tuple(arg.shape)}"
    return f"{type(arg).__name__} {repr(arg)[:80]}"


def _number(name: str, param: KernelParam, arg: Any) -> Any:
    is_integer, is_tensor = param.kind in _INTS, hasattr(arg, "data_ptr")
    if not is_tensor and hasattr(arg, "__index__" if is_integer else "__float__"):
        return arg.__index__() if is_integer else float(arg)
    wanted = "an integer" if is_integer else "a number"
    raise errors.WrongArgumentType(
        f"{name}: {param.name} is {param.kind}: expected {wanted}, got "
        f"{_describe(arg)}{'; call .item() on it' if is_tensor else ''}"
    )


def _pack_scalar(name: str, param: KernelParam, number: Any) -> bytes:
    if param.kind in _INTS:
        try:
            return struct.pack(_INTS[param.kind], bool(number) if param.kind == "bool" else number)
        except struct.error:
            raise errors.BadScalar(
                f"{name}: {param.name} = {number} does not fit {param.kind}"
            ) from None
    if param.kind == "f64":
        return struct.pack("<d", number)
    tensor = torch.tensor(number, dtype=torch_dtype(param.kind))
    bits = {2: torch.int16, 4: torch.int32}[tensor.element_size()]
    return int(tensor.view(bits).item()).to_bytes(tensor.element_size(), "little", signed=True)
