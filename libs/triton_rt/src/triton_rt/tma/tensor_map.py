"""`TensorMap`: a tensor that a kernel reads and writes by blocks, through the TMA unit."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from triton_rt.element_types import kind_of, torch_dtype
from triton_rt.errors import TensorMapRule, WrongDescriptor
from triton_rt.tma.encode import encode
from triton_rt.tma.layout import DATA_TYPES, SWIZZLES, MapLayout
from triton_rt.tma.rules import MAX_RANK, Violation, violations

if TYPE_CHECKING:
    import torch

_PADDINGS = ("zero", "nan")


@dataclass(frozen=True)
class Address:
    """Memory that is no torch tensor, where a tensor is expected; `owner` is kept alive."""

    address: int
    kind: str
    device: int = 0
    owner: Any = None

    @classmethod
    def like(cls, tensor: torch.Tensor) -> Address:
        """Where a tensor lies now, without keeping it alive."""
        return cls(tensor.data_ptr(), kind_of(tensor.dtype), tensor.get_device())

    @functools.cached_property
    def dtype(self) -> torch.dtype:
        """The element type, as a tensor's."""
        return torch_dtype(self.kind)

    def data_ptr(self) -> int:
        """The address, as a tensor's."""
        return self.address

    def get_device(self) -> int:
        """The index of the device, as of a tensor: -1 for host memory."""
        return self.device


class TensorMap:
    """A view of memory by blocks; the argument for a kernel's `tensordesc<...>` parameter.

    `base` is a tensor (a view counts from its own first element) or an `Address`; it is kept alive.
    `shape` and `strides`, in elements, default to the tensor's; `block` is what the kernel loads
    and stores at once. Elements outside of `shape` read as zero, or as NaN with `padding="nan"`,
    and are not written. `swizzle` ("none", "32B", "64B", "128B") matters for `packed` alone: a
    Triton kernel brings its own.

    Making one checks what can never work; alignment and strides are checked by `check`, and by the
    launch (`TensorMapRule`), so that a tensor that breaks them can take another kernel.

    >>> import torch
    >>> m = TensorMap(torch.zeros(100, 64), (16, 32))
    >>> m.shape, m.strides, m.kind, m.problems()
    ((100, 64), (64, 1), 'f32', ())
    """

    __slots__ = (
        "__weakref__",
        "base",
        "block",
        "kind",
        "padding",
        "ready",
        "shape",
        "strides",
        "swizzle",
    )

    def __init__(
        self,
        base: torch.Tensor | Address,
        block: Sequence[int],
        *,
        shape: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
        padding: str = "zero",
        swizzle: str = "none",
    ) -> None:
        if shape is None or strides is None:
            if isinstance(base, Address):
                raise WrongDescriptor("a TensorMap of an address needs its shape and strides")
            shape = base.shape if shape is None else shape
            strides = base.stride() if strides is None else strides
        self.base = base
        self.block = tuple(map(operator.index, block))
        self.shape = tuple(map(operator.index, shape))
        self.strides = tuple(map(operator.index, strides))
        self.padding = padding
        self.swizzle = swizzle
        #: By slot of a kernel: the address, and the argument's bytes there (see slots.py).
        self.ready: dict[Any, tuple[int, bytes]] = {}
        try:
            self.kind = kind_of(base.dtype)
        except KeyError:
            self.kind = str(base.dtype)
        self._check_form()

    def moved(self, base: torch.Tensor | Address, shape: Sequence[int]) -> TensorMap:
        """The same over other memory of the same element type, and with other sizes: what a launch
        checks is not looked at here."""
        other = TensorMap.__new__(TensorMap)
        other.base, other.block, other.shape = base, self.block, tuple(shape)
        other.strides, other.padding, other.swizzle = self.strides, self.padding, self.swizzle
        other.kind, other.ready = self.kind, {}
        return other

    def _check_form(self) -> None:
        if self.kind not in DATA_TYPES:
            raise WrongDescriptor(
                f"TMA has no elements of {self.kind}; it has {' '.join(DATA_TYPES)}"
            )
        ranks = {len(self.shape), len(self.strides), len(self.block)}
        if len(ranks) > 1 or not 1 <= len(self.shape) <= MAX_RANK:
            raise WrongDescriptor(
                f"shape {self.shape}, strides {self.strides} and block {self.block} must have the "
                f"same 1 to {MAX_RANK} dimensions"
            )
        if self.padding not in _PADDINGS or self.swizzle not in SWIZZLES:
            raise WrongDescriptor(
                f"padding {self.padding!r} is one of {_PADDINGS}, swizzle {self.swizzle!r} one of "
                f"{tuple(SWIZZLES)}"
            )
        if self.padding == "nan" and self.kind[0] in "iu":
            raise WrongDescriptor(f"{self.kind} has no NaN: use padding='zero'")

    def __repr__(self) -> str:
        return (
            f"TensorMap({self.kind} at {self.address:#x}, shape={self.shape}, "
            f"strides={self.strides}, block={self.block})"
        )

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The block, by the name that Triton's `TensorDescriptor` has for it."""
        return self.block

    @property
    def address(self) -> int:
        """Where the tensor lies now: its storage may have been replaced since."""
        return self.base.data_ptr()

    def problems(
        self, layout: MapLayout | None = None, *, written: bool = False
    ) -> tuple[Violation, ...]:
        """The TMA rules that this tensor breaks, now; those of the box too if a layout is given,
        and those of stores and reductions if it is `written`."""
        size = DATA_TYPES[self.kind][1]
        address = self.address
        return tuple(violations(address, self.shape, self.strides, size, layout, written=written))

    def check(self, layout: MapLayout | None = None, *, written: bool = False) -> None:
        """Raises `TensorMapRule` for the first broken rule."""
        raise_violation(str(self), self.problems(layout, written=written))

    @property
    def packed(self) -> bytes:
        """The CUtensorMap, for kernels of any origin: the box is the whole block, with this map's
        own swizzle. Needs the CUDA driver. (A kernel that writes through it writes on to the next
        16 bytes at the end of a row: `check(written=True)`.)"""
        layout = MapLayout.of_block(self.kind, self.block, self.swizzle)
        self.check(layout)
        return encode(self.address, self.shape, self.strides, layout, self.padding == "nan")

    def to_triton(self) -> Any:
        """The same as Triton's `TensorDescriptor`, for Triton's own `kernel[grid](...)`."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(
            self.base, list(self.shape), list(self.strides), list(self.block), self.padding
        )


# Of `describe`: by address, layout, type and block, a map whose bytes others of the same take.
_described: dict[tuple[Any, ...], TensorMap] = {}
_KEPT = 4096


def describe(tensor: torch.Tensor, block: tuple[int, ...]) -> TensorMap:
    """`TensorMap(tensor, block)` for host programs, whose tensors come to lie where others of the
    same layout lay before: on a GPU, such maps share what launches have made of them. The tensor
    is kept alive by the map alone."""
    key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, block)
    like = _described.get(key)
    if like is None:
        made = TensorMap(tensor, block)
        if tensor.get_device() < 0:
            return made
        like = made.moved(Address.like(tensor), made.shape)
        if len(_described) >= _KEPT:
            _described.clear()
        _described[key] = like
    out = like.moved(tensor, like.shape)
    out.ready = like.ready
    return out


def raise_violation(what: str, broken: Sequence[Violation]) -> None:
    """Raises `TensorMapRule` for the first of them, if any."""
    if broken:
        first = broken[0]
        raise TensorMapRule(
            f"{what} breaks a rule of TMA: {first}. Align or pad the tensor, or launch a kernel "
            "without TMA (triton_rt.with_fallback)",
            rule=first.rule,
            number=first.number,
        )


def is_descriptor(arg: Any) -> bool:
    """A `TensorMap`, or Triton's `TensorDescriptor`, which is recognised by its fields."""
    return isinstance(arg, TensorMap) or (
        hasattr(arg, "base") and hasattr(arg, "block_shape") and hasattr(arg, "strides")
    )


def as_tensor_map(arg: Any, block: Sequence[int] = ()) -> TensorMap:
    """A `TensorMap` as it is; Triton's `TensorDescriptor`, or a tensor by blocks, as one. Raises
    `WrongDescriptor`."""
    if isinstance(arg, TensorMap):
        return arg
    if block and hasattr(arg, "data_ptr") and hasattr(arg, "stride"):
        return TensorMap(arg, block)
    if not is_descriptor(arg):
        raise WrongDescriptor(f"expected a TensorMap or a TensorDescriptor, got {arg!r:.80}")
    padding = getattr(arg, "padding", "zero")
    return TensorMap(
        arg.base, arg.block_shape, shape=arg.shape, strides=arg.strides, padding=padding
    )
