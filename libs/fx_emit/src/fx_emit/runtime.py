"""torch as the runtime of `wrapper_ir.interpret`: the oracle of the emitted modules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fx_emit import host
from fx_emit.torch_types import IR_DTYPE, TORCH_DTYPE, operator_of, torch_device, torch_value
from wrapper_ir import DefineKernel, Device, DType

Ints = tuple[int, ...]


class TorchRuntime:
    """`load_kernel` gives the launcher `launcher(grid, *args)` of a kernel; `operators` are extern
    calls that are not in `torch.ops`."""

    def __init__(
        self,
        load_kernel: Callable[[DefineKernel], Callable[..., Any]],
        operators: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.load_kernel = load_kernel
        self.operators = operators or {}
        self.loaded: dict[DefineKernel, Callable[..., Any]] = {}

    def empty_strided(self, size: Ints, stride: Ints, dtype: DType, device: Device) -> Any:
        """New memory of this layout, uninitialised."""
        return torch.empty_strided(
            size, stride, dtype=TORCH_DTYPE[dtype], device=torch_device(device)
        )

    def as_strided(self, base: Any, size: Ints, stride: Ints, offset: int, dtype: DType) -> Any:
        """A view of the storage of `base`, at another element type too."""
        return host.reinterpret(base, TORCH_DTYPE[dtype], size, stride, offset)

    def launch(self, kernel: DefineKernel, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        """Runs a kernel, which is loaded on its first launch."""
        if kernel not in self.loaded:
            self.loaded[kernel] = self.load_kernel(kernel)
        self.loaded[kernel](grid, *args)

    def extern(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls an operator of torch, or of `operators`."""
        operator = operator_of(target, self.operators)
        return operator(*map(torch_value, args), **{k: torch_value(v) for k, v in kwargs.items()})

    def copy(self, src: Any, dst: Any) -> None:
        """Writes the elements of `src` into `dst`."""
        dst.copy_(src)

    def size(self, tensor: Any) -> Ints:
        """The sizes of a tensor."""
        return tuple(tensor.shape)

    def stride(self, tensor: Any) -> Ints:
        """The strides of a tensor, in elements."""
        return tuple(tensor.stride())

    def dtype(self, tensor: Any) -> DType:
        """The element type of a tensor."""
        return IR_DTYPE[tensor.dtype]
