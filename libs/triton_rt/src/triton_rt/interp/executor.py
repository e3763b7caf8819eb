"""An interpreted kernel that is called as a compiled one: `kernel[grid](*args, **kwargs)`."""

import inspect
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from triton.language import core
from triton.runtime.interpreter import TensorHandle

from triton_rt import errors
from triton_rt.element_types import kind_of, triton_type
from triton_rt.interp.floats import narrow, numpy_dtype
from triton_rt.interp.lang import Interpreter, world
from triton_rt.interp.memory import Memory
from triton_rt.tma import Address, TensorMap, as_tensor_map, is_descriptor, raise_violation

#: Launch options of `JITFunction.__getitem__` that mean nothing to an interpreter.
_OPTIONS = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "debug", "launch_pdl", "warmup", "stream"}
    | {"launch_cooperative_grid", "enable_fp_fusion", "instrumentation_mode", "ir_override"}
)

Grid = tuple[int, ...] | list[int] | Callable[[Mapping[str, Any]], tuple[int, ...]]


class InterpretedKernel:
    """A `@triton.jit` function (or a plain one) that runs on CPU tensors.

    `kernel[grid](*args, **kwargs)`: arguments that are annotated `tl.constexpr` are passed as they
    are, like those named in `constants`; all others as the scalars and pointers that a GPU would
    get. `scalar_types` names the kinds (`i32`, `f64`, ...) of scalar parameters; without it an int
    is i32, or i64 where it does not fit, and a float is f32, as in Triton. Elements of a tuple `t`
    are named `t.0`, `t.1`. Loads and stores outside of the storages of the arguments raise
    `OutOfBounds`. `tma=False`: descriptors of any address and stride, as compiled with it."""

    def __init__(
        self,
        fn: Any,
        scalar_types: Mapping[str, str] | None = None,
        constants: Iterable[str] = (),
        *,
        tma: bool = True,
    ) -> None:
        self.tma = tma
        self.fn = fn.fn if hasattr(fn, "fn") else fn
        self.origin = fn
        self.__name__ = self.fn.__name__
        self.signature = inspect.signature(self.fn)
        self.arg_names = list(self.signature.parameters)
        self.scalar_types = dict(scalar_types or {})
        annotated = (
            p.name for p in self.signature.parameters.values() if _is_constexpr(p.annotation)
        )
        self.constexprs = frozenset((*annotated, *constants))

    def __repr__(self) -> str:
        return f"InterpretedKernel({self.__name__})"

    def __getitem__(self, grid: Grid) -> Callable[..., None]:
        return lambda *args, **kwargs: self.launch(grid, args, kwargs)

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **kwargs: Any) -> None:
        """Launches, as `JITFunction.run` does; nothing happens on a warm-up."""
        if not warmup:
            self.launch(grid, args, kwargs)

    def launch(self, grid: Grid, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """One launch; raises `InterpreterError` with the kernel's own error as its cause."""
        kwargs = {k: v for k, v in kwargs.items() if k in self.arg_names or k not in _OPTIONS}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise errors.WrongArgumentType(f"{self.__name__}: {error}") from None
        bound.apply_defaults()
        values = dict(bound.arguments)
        sizes = normal_grid(grid(values) if callable(grid) else grid, self.__name__)
        if 0 in sizes:
            return
        interpreter = world()
        with interpreter.lock, np.errstate(all="ignore"):
            self._run(interpreter, values, sizes)

    def _run(
        self, interpreter: Interpreter, values: dict[str, Any], sizes: tuple[int, int, int]
    ) -> None:
        kernel = interpreter.translate(self.origin)
        function = getattr(kernel, "rewritten", None) or interpreter.rewrite(self.fn)
        builder = interpreter.builder
        outer = (builder.memory, builder.grid_dim, builder.grid_idx, builder.tma, builder.arguments)
        builder.memory = Memory(_ranges(values.values()))
        builder.grid_dim = sizes
        builder.tma = self.tma
        builder.arguments = [
            _word(v, self.scalar_types.get(n))
            for n, v in values.items()
            if n not in self.constexprs
        ]
        try:
            call = {name: self._argument(interpreter, name, v) for name, v in values.items()}
            for z in range(sizes[2]):
                for y in range(sizes[1]):
                    for x in range(sizes[0]):
                        builder.grid_idx = (x, y, z)
                        function(**call)
        except errors.TritonRTError as error:
            error.add_note(f"in {self.__name__}, program {builder.grid_idx} of grid {sizes}")
            raise
        except Exception as error:
            # Any error of the kernel's own Python, or of Triton's type checks, is the kernel's.
            raise errors.InterpreterError(
                f"{self.__name__}, program {builder.grid_idx} of grid {sizes}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            builder.memory, builder.grid_dim, builder.grid_idx, builder.tma, builder.arguments = (
                outer
            )

    def _argument(self, interpreter: Interpreter, name: str, value: Any) -> Any:
        if name in self.constexprs:
            return interpreter.translate(value)
        if isinstance(value, tuple):
            items = (self._argument(interpreter, f"{name}.{i}", v) for i, v in enumerate(value))
            return tuple(items)
        if is_descriptor(value) and not isinstance(value, torch.Tensor):
            return self._descriptor(interpreter, name, as_tensor_map(value))
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                raise errors.WrongDevice(
                    f"{self.__name__}: argument {name} is on {value.device}; the interpreter runs "
                    "on CPU tensors: compile the kernel, or move the tensor"
                )
            try:
                pointer = core.pointer_type(triton_type(kind_of(value.dtype)))
            except KeyError:
                raise errors.WrongDType(
                    f"{self.__name__}: argument {name} is a tensor of {value.dtype}, which Triton "
                    "has no pointer to"
                ) from None
            return _pointer(interpreter, value.data_ptr(), pointer)
        if isinstance(value, (bool, int, float)):
            return _scalar(interpreter, value, self.scalar_types.get(name))
        return interpreter.translate(value)

    def _descriptor(self, interpreter: Interpreter, name: str, map: TensorMap) -> Any:
        if map.base.get_device() >= 0:
            raise errors.WrongDevice(
                f"{self.__name__}: the descriptor {name} is of cuda:{map.base.get_device()}; the "
                "interpreter runs on CPU tensors"
            )
        pointer = core.pointer_type(triton_type(map.kind))
        if self.tma:
            raise_violation(f"{self.__name__}: {name}", map.problems())
        shape = [_scalar(interpreter, n, "i32") for n in map.shape]
        strides = [_scalar(interpreter, s, "i64") for s in map.strides]
        handle = interpreter.builder.create_make_tensor_descriptor(
            _pointer(interpreter, map.address, pointer).handle,
            [n.handle for n in shape],
            [s.handle for s in strides],
            list(map.block),
            pointer.element_ty.is_int_signed(),
            interpreter.semantic._str_to_padding_option(map.padding),
        )
        block = core.block_type(pointer.element_ty, list(map.block))
        return interpreter.adopt(core.tensor_descriptor(handle, shape, strides, block))


def _word(value: Any, kind: str | None) -> int:
    """An address or an f64 as the eight bytes that a kernel finds where it lies."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    bits = struct.pack("<d", value) if kind == "f64" else b""
    return int.from_bytes(bits, "little", signed=True)


def _pointer(interpreter: Interpreter, address: int, type: Any) -> Any:
    data = np.array([address], dtype=np.uint64)
    return interpreter.tensor(TensorHandle(data, type), type)


def _scalar(interpreter: Interpreter, value: bool | int | float, kind: str | None) -> Any:
    if kind is None:
        if isinstance(value, bool):
            kind = "bool"
        elif isinstance(value, float):
            kind = "f32"
        else:
            kind = "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    scalar = triton_type(kind)
    if scalar.is_bf16():
        data = narrow(np.array([value], np.float32), scalar)
    else:
        data = np.array([value], dtype=numpy_dtype(scalar))
    return interpreter.tensor(TensorHandle(data, scalar), scalar)


def _is_constexpr(annotation: Any) -> bool:
    return annotation is core.constexpr or (
        isinstance(annotation, str) and "constexpr" in annotation
    )


def _ranges(values: Iterable[Any]) -> Iterable[tuple[int, int]]:
    for value in values:
        if isinstance(value, tuple):
            yield from _ranges(value)
        elif isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        elif isinstance(value, Address):
            if value.owner is not None:
                yield from _ranges((value.owner,))
        elif is_descriptor(value):
            yield from _ranges((value.base,))
            if isinstance(value.base, Address) and value.base.owner is None:
                map = as_tensor_map(value)
                last = sum((n - 1) * s for n, s in zip(map.shape, map.strides, strict=True))
                yield map.address, map.address + (last + 1) * map.base.dtype.itemsize


def normal_grid(grid: Any, name: str) -> tuple[int, int, int]:
    """One to three sizes -> three; raises `BadGrid`."""
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(n, int) and n >= 0 for n in sizes):
        raise errors.BadGrid(f"{name}: the grid must be 1 to 3 non-negative integers, got {grid!r}")
    return (*sizes, 1, 1)[:3]
