"""Between the host program and triton_rt: kernels by definition, and torch as the runtime of the
reference interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton_rt
from torch import Tensor
from wrapper_ir.ops import DefineKernel, Program, TorchEnum
from wrapper_ir.types import Device, DType

from compile_cli.compiled import dtype_of
from compile_cli.config import Options
from compile_cli.errors import CompileFailed
from compile_cli.inputs import DTYPES


def kernel_source(define: DefineKernel) -> triton_rt.KernelSource:
    """The same kernel as triton_rt names it."""
    params = tuple(
        triton_rt.KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in define.params
    )
    return triton_rt.KernelSource(
        define.name, define.source, params, define.constants, define.num_warps, define.num_stages
    )


@dataclass
class Kernels:
    """The kernels of one program, loaded once each."""

    options: Options
    loaded: dict[str, triton_rt.LazyKernel] = field(default_factory=dict)

    def load(self, define: DefineKernel) -> triton_rt.LazyKernel:
        if define.name not in self.loaded:
            cache = triton_rt.Cache(self.options.cache_path / "kernels")
            self.loaded[define.name] = triton_rt.LazyKernel(kernel_source(define), cache=cache)
        return self.loaded[define.name]


def torch_value(value: Any) -> Any:
    """A value of the IR as torch takes it; anything else comes back as it is."""
    if isinstance(value, DType):
        return DTYPES[value.value]
    if isinstance(value, Device):
        return torch.device(str(value))
    if isinstance(value, TorchEnum):
        return getattr(torch, value.name)
    if isinstance(value, tuple | list):
        return [torch_value(v) for v in value]
    return value


def find_operator(target: str) -> Any:
    """`aten.addmm.default` -> the operator."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise CompileFailed(f"torch has no operator {target}")
    return found


@dataclass
class TorchRuntime:
    """`wrapper_ir.Runtime` over torch tensors and triton_rt kernels."""

    kernels: Kernels

    def empty_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: DType, device: Device
    ) -> Tensor:
        return torch.empty_strided(
            size, stride, dtype=DTYPES[dtype.value], device=torch.device(str(device))
        )

    def as_strided(
        self,
        base: Tensor,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: DType,
    ) -> Tensor:
        wanted = DTYPES[dtype.value]
        start = base.storage_offset()
        if base.dtype != wanted:
            base, start = _reinterpret(base, wanted), start * base.itemsize // wanted.itemsize
        return torch.as_strided(base, size, stride, start + offset)

    def launch(
        self, kernel: DefineKernel, grid: tuple[int, int, int], args: Sequence[Any]
    ) -> None:
        self.kernels.load(kernel)(grid, *args)

    def extern(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        values = [torch_value(a) for a in args]
        return find_operator(target)(*values, **{k: torch_value(v) for k, v in kwargs.items()})

    def copy(self, src: Tensor, dst: Tensor) -> None:
        dst.copy_(src)

    def size(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def stride(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(tensor.stride())

    def dtype(self, tensor: Tensor) -> DType:
        dtype = dtype_of(tensor.dtype)
        if dtype is None:
            raise CompileFailed(f"element type {tensor.dtype} has no name in the host program")
        return dtype


def _reinterpret(base: Tensor, dtype: torch.dtype) -> Tensor:
    """The whole storage of a tensor as a flat tensor of another element type."""
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage())


def kernels_of(program: Program) -> list[DefineKernel]:
    return [op for op in program.ops if isinstance(op, DefineKernel)]
