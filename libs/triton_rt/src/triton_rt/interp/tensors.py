"""`tl.tensor` and `tl.tensor_descriptor` with operators that work outside of the compiler, on numpy
arrays, and Triton's semantic over them."""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import InterpretedFunction, TensorHandle
from triton.runtime.jit import JITCallable

from triton_rt.errors import InterpreterError
from triton_rt.interp.floats import numpy_dtype
from triton_rt.interp.operators import NUMBERS, Block, quick
from triton_rt.interp.overrides import OVERRIDES
from triton_rt.interp.world import World

_ONE, _NO_SHAPE = core.constexpr(1), core.tuple([])


def tensor_class(world: World) -> type:
    """`tl.tensor` with operators and methods that work outside of the compiler."""

    def __init__(self: Any, handle: Any, type: Any) -> None:
        scalar = type.scalar
        self.handle = handle
        self.dtype = scalar
        if not type.is_block():
            self.type, self.shape, self.numel = type, _NO_SHAPE, _ONE
            if handle.__class__ is not TensorHandle:  # nothing, or a block pointer
                return
        else:
            if type.__class__ is not Block:
                type = Block.of(scalar, tuple(int(n) for n in type.shape))
            self.type, self.shape, self.numel = type, type.tensor_shape, type.tensor_numel
        data = handle.data
        want = numpy_dtype(scalar)
        if data.dtype != want:
            # The compiler's integer types carry no sign; numpy's do.
            same = data.itemsize == want.itemsize and data.dtype.kind in "iu" and want.kind in "iu"
            data = data.view(want) if same else data.astype(want)
        if data is not handle.data or handle.dtype is not scalar:
            self.handle = TensorHandle(data, scalar, handle.attr)

    def __index__(self: Any) -> int:
        if self.handle.data.size != 1:
            raise InterpreterError("a block was used as a Python integer; only scalars can be")
        return int(self.handle.data.reshape(-1)[0])

    members: dict[str, Any] = {
        "__init__": __init__,
        "__index__": __index__,
        "__int__": __index__,
        "__repr__": lambda self: repr(self.handle.data),
        "__str__": lambda self: str(self.handle.data),
        "__hash__": object.__hash__,
        "T": property(lambda self: world.semantic.permute(self, (1, 0))),
    }
    for name, member in inspect.getmembers(core.tensor):
        if name in members:
            continue
        if name in OVERRIDES:  # the method has not the function's name
            member = getattr(core, name)
        if core.is_builtin(member) or isinstance(member, (JITCallable, InterpretedFunction)):
            slow = _late(world, member)
            members[name] = _item(world, slow) if name == "__getitem__" else quick(name, slow)
        elif inspect.isfunction(member) and not name.startswith("_") and member.__closure__:
            inner = [c.cell_contents for c in member.__closure__]
            jit = next((c for c in inner if isinstance(c, InterpretedFunction)), None)
            if jit is not None:
                members[name] = _late(world, jit)
    return type("tensor", (core.tensor,), members)


def _late(world: World, member: Any) -> Callable[..., Any]:
    """Translated at the first call: the semantic does not exist while the class is made."""
    cell: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not cell:
            cell.append(world.translate(member))
        return cell[0](*args, **kwargs)

    return call


_WHOLE = slice(None)


def _item(world: World, slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`x[:, None]` and its like, of a block: the same numbers in another shape."""

    def item(self: Any, index: Any) -> Any:
        if index.__class__ is not tuple or any(i is not None and i != _WHOLE for i in index):
            return slow(self, index)
        for axis, i in enumerate(index):
            if i is None:
                self = world.semantic.expand_dims(self, axis)
        return self

    return item


def semantic_class(tensor_type: Any) -> Any:
    """Triton's semantic over tensors of that class, with shorter ways to what is frequent."""
    # One tensor of each, which all programs share.
    constant = functools.lru_cache(4096, typed=True)(TritonSemantic.scalar_constant)
    numbers = functools.lru_cache(4096)(TritonSemantic.arange)

    class NumpySemantic(TritonSemantic):  # type: ignore[misc]  # Triton has no types
        tensor = tensor_type

        def _has_native_tma(self) -> bool:
            return True

        def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
            """Two operands of one shape, which is most often, stay as they are; of one rank,
            the sizes of one are stretched."""
            left, right = lhs.type.__class__ is Block, rhs.type.__class__ is Block
            if not left and not right:
                return lhs, rhs
            if not left:
                return self._stretched(lhs, rhs.type.key), rhs
            if not right:
                return lhs, self._stretched(rhs, lhs.type.key)
            one, other = lhs.type.key, rhs.type.key
            if one == other:
                return lhs, rhs
            if len(one) == len(other) and all(
                a == b or a == 1 or b == 1 for a, b in zip(one, other, strict=True)
            ):
                shape = tuple(map(builtins.max, one, other))
                return self._stretched(lhs, shape), self._stretched(rhs, shape)
            return super().broadcast_impl_value(lhs, rhs)

        def expand_dims(self, input: Any, axis: int) -> Any:
            type = input.type
            if type.__class__ is not Block or axis < 0:
                return super().expand_dims(input, axis)
            shape = (*type.key[:axis], 1, *type.key[axis:])
            handle = TensorHandle(input.handle.data.reshape(shape), input.handle.dtype)
            return self.tensor(handle, Block.of(type.scalar, shape))

        def scalar_constant(self, value: Any, dtype: Any) -> Any:
            kept = not dtype.is_ptr()  # whose types have no hash
            return constant(self, value, dtype) if kept else super().scalar_constant(value, dtype)

        def arange(self, start: int, end: int, *, ret_ty: Any = None) -> Any:
            if ret_ty is not None:
                return super().arange(start, end, ret_ty=ret_ty)
            return numbers(self, start, end)

        def cast(self, input: Any, dst_ty: Any, rounding: Any = None) -> Any:
            same = input.dtype is dst_ty.scalar
            return input if same else super().cast(input, dst_ty, rounding)

        def binary_op_type_checking_impl(self, lhs: Any, rhs: Any, *more: Any, **how: Any) -> Any:
            """Two operands of one type, which is most often, are only broadcast."""
            if lhs.__class__ is tensor_type and rhs.__class__ is tensor_type:
                name = lhs.dtype.name
                if name in NUMBERS and name == rhs.dtype.name:
                    return self.broadcast_impl_value(lhs, rhs)
            return super().binary_op_type_checking_impl(lhs, rhs, *more, **how)

        def splat(self, value: Any, shape: Any) -> Any:
            if value.type.is_block() or not len(shape):
                return super().splat(value, shape)
            return self._stretched(value, tuple(shape))

        def _stretched(self, value: Any, shape: tuple[int, ...]) -> Any:
            """`value` as a block of `shape`, which its own shape broadcasts to."""
            type = value.type
            if type.__class__ is Block and type.key == shape:
                return value
            handle = value.handle
            data = np.empty(shape, handle.data.dtype)
            data[...] = handle.data
            return self.tensor(
                TensorHandle(data, handle.dtype.scalar), Block.of(type.scalar, shape)
            )

    return NumpySemantic


_ATOMICS = ("add", "min", "max", "and", "or", "xor")
_DESCRIPTOR_METHODS = ("load", "store", "gather", "scatter", *(f"atomic_{op}" for op in _ATOMICS))


class BoundDescriptor(core.tensor_descriptor):  # type: ignore[misc]  # Triton has no types
    """A tensor descriptor whose methods work outside of the compiler."""

    def __init__(self, world: World, origin: Any) -> None:
        self.__dict__.update(vars(origin))
        for name in _DESCRIPTOR_METHODS:
            method = getattr(core.tensor_descriptor_base, name)
            self.__dict__[name] = functools.partial(world.bind(method), self)
