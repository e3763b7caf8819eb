"""`triton.language` as an interpreted kernel sees it.

Nothing of Triton is patched. A kernel's globals are *translated*: each Triton module becomes a
`View` whose builtins are bound to our semantic, each jit function becomes a rewritten Python
function whose globals are translated in turn, tensors are a subclass whose operators are bound.
So an interpreted kernel and the compiler live side by side in a process, in any order and thread,
whether or not Triton was imported with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import threading
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime.interpreter import InterpretedFunction, TensorHandle
from triton.runtime.jit import ConstexprFunction, JITCallable

from triton_rt.errors import InterpreterError, NotInterpretable
from triton_rt.interp import reduce
from triton_rt.interp.builder import NumpyBuilder
from triton_rt.interp.floats import numpy_dtype
from triton_rt.interp.operators import quick
from triton_rt.interp.rewrite import rewrite
from triton_rt.source import globals_of


class Interpreted:
    """A jit function inside an interpreted kernel: call it as a function, or pass it on."""

    def __init__(self, world: World, origin: Any) -> None:
        self.world = world
        self.origin = origin
        self.fn = origin.fn
        self.__name__ = origin.fn.__name__
        self._rewritten: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.rewritten(*args, **kwargs)

    @property
    def rewritten(self) -> Callable[..., Any]:
        if self._rewritten is None:
            lines = getattr(self.origin, "raw_src", None)
            known = (lines, self.origin.starting_line_number) if lines else None
            self._rewritten = self.world.rewrite(self.fn, known)
        return self._rewritten


class View:
    """Read-only view of a module, with its members translated when they are first asked for."""

    def __init__(self, world: World, module: types.ModuleType) -> None:
        self.__dict__["_world"] = world
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        module: types.ModuleType = self.__dict__["_module"]
        override = _OVERRIDES.get(name) if module in (tl, core) else None
        if override is not None:
            value: Any = functools.partial(override, self.__dict__["_world"])
        else:
            value = self.__dict__["_world"].translate(getattr(module, name))
        self.__dict__[name] = value
        return value

    def __repr__(self) -> str:
        return f"<interpreted view of {self.__dict__['_module'].__name__}>"


class World:
    """One interpreter: a builder, Triton's semantic over it, and everything translated so far."""

    def __init__(self) -> None:
        self.builder = NumpyBuilder()
        self.tensor = _tensor_class(self)
        self.semantic = _semantic_class(self.tensor)(self.builder)
        self.lock = threading.RLock()
        self._memo: dict[int, tuple[Any, Any]] = {}

    # -- translation ------------------------------------------------------------------------

    def translate(self, value: Any) -> Any:
        """What an interpreted kernel gets where a compiled one would see `value`."""
        known = self._memo.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        out = self._translate(value)
        if out is not value:
            self._memo[id(value)] = (value, out)
        return out

    def _translate(self, value: Any) -> Any:
        if value is core.tensor:
            return self.tensor
        if isinstance(value, types.ModuleType):
            if value.__name__ == "triton.language.extra.libdevice":
                value = tl.extra.cuda.libdevice
            return View(self, value) if _mentions_triton(value) else value
        if isinstance(value, ConstexprFunction):
            return functools.partial(_constexpr_call, value)
        if isinstance(value, (JITCallable, InterpretedFunction)):
            return Interpreted(self, value)
        if core.is_builtin(value):
            override = _OVERRIDES.get(value.__name__)
            return functools.partial(override, self) if override else self.bind(value)
        if value is core.range or value is core.static_range:
            return _range
        if type(value) in (tuple, list):
            return type(value)(self.translate(v) for v in value)
        if type(value) is dict:
            return {k: self.translate(v) for k, v in value.items()}
        if isinstance(value, core.constexpr):
            inner = self.translate(value.value)
            return value if inner is value.value else core.constexpr(inner)
        return value

    def bind(self, builtin: Callable[..., Any]) -> Callable[..., Any]:
        """A Triton builtin with its `_semantic` argument filled in."""
        semantic, adopt = self.semantic, self.adopt
        inner = getattr(builtin, "__wrapped__", builtin)  # without Triton's check of `_semantic`

        @functools.wraps(builtin)
        def bound(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return adopt(inner(*args, **kwargs))

        return bound

    def adopt(self, value: Any) -> Any:
        """Tensors made by code of `triton.language` itself become ours."""
        kind = type(value)
        if kind is core.tensor:
            return self.tensor(value.handle, value.type)
        if kind is tuple or kind is core.tuple:
            return tuple(self.adopt(v) for v in value)
        if kind is core.tensor_descriptor:
            return _Descriptor(self, value)
        return value

    def rewrite(
        self, fn: Callable[..., Any], source: tuple[list[str], int] | None = None
    ) -> Callable[..., Any]:
        """`fn` as a Python function on our tensors; its globals are translated as they are now.
        source: its lines, and the number of the first, where they are known."""
        namespace = {name: self.translate(value) for name, value in globals_of(fn)}
        namespace["__builtins__"] = builtins
        namespace["__name__"] = fn.__module__
        namespace.setdefault("min", functools.partial(_min, self))
        namespace.setdefault("max", functools.partial(_max, self))
        namespace.setdefault("range", _range)
        namespace.setdefault("print", functools.partial(_device_print, self))
        namespace["__to_tensor__"] = self._to_tensor
        namespace["__truth__"] = self._truth
        namespace["__and__"] = functools.partial(self._logical, "logical_and", False)
        namespace["__or__"] = functools.partial(self._logical, "logical_or", True)
        namespace["__not__"] = self._not
        out = rewrite(fn, namespace, source)
        if fn.__defaults__:
            out.__defaults__ = tuple(self.translate(_plain(d)) for d in fn.__defaults__)
        if fn.__kwdefaults__:
            out.__kwdefaults__ = {
                k: self.translate(_plain(d)) for k, d in fn.__kwdefaults__.items()
            }
        return out

    # -- what the rewritten source calls ----------------------------------------------------

    def _to_tensor(self, value: Any) -> Any:
        if isinstance(value, core.constexpr):
            value = value.value
        if isinstance(value, (bool, int, float)):
            return self.semantic.to_tensor(value)
        return value

    def _truth(self, value: Any) -> bool:
        if isinstance(value, core.tensor):
            data = value.handle.data
            if data.size != 1 or value.type.is_block():
                raise InterpreterError(
                    f"the truth of a block of shape {data.shape} was asked for (if, while or a "
                    "conditional expression): use tl.where"
                )
            return bool(data.reshape(-1)[0])
        return bool(value)

    def _logical(self, method: str, absorbing: bool, *thunks: Callable[[], Any]) -> Any:
        tensors: list[Any] = []
        value: Any = None
        for thunk in thunks:
            value = thunk()
            if isinstance(value, core.tensor):
                tensors.append(value)
            elif bool(value) is absorbing:
                return value
        if not tensors:
            return value
        combine = getattr(self.semantic, method)
        return functools.reduce(combine, tensors)

    def _not(self, value: Any) -> Any:
        return self.semantic.not_(value) if isinstance(value, core.tensor) else not value


def _mentions_triton(module: types.ModuleType) -> bool:
    """Plain modules (`math`, `torch`) stay as they are; ours to view are those with jit functions,
    Triton's own, and packages, whose submodules may have them."""
    if module.__name__ == "triton" or module.__name__.startswith("triton."):
        return True
    if hasattr(module, "__path__") and module.__name__.partition(".")[0] not in ("torch", "numpy"):
        return True
    return any(
        isinstance(v, (JITCallable, InterpretedFunction)) or v is tl for v in vars(module).values()
    )


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, core.constexpr) else value


def _constexpr_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {k: _plain(v) for k, v in kwargs.items() if k not in ("_semantic", "_generator")}
    return function.fn(*(_plain(a) for a in args), **kwargs)


# -- tensors --------------------------------------------------------------------------------


class _Block(core.block_type):  # type: ignore[misc]
    """A block type, one object per element type and shape, so that what Triton derives from it
    for each operation is derived once."""

    _known: ClassVar[dict[tuple[Any, ...], _Block]] = {}

    def __init__(self, scalar: Any, shape: tuple[int, ...]) -> None:
        super().__init__(scalar, list(shape))
        self.key = shape
        self.tensor_shape = core.tuple([core.constexpr(n) for n in shape])
        self.tensor_numel = core.constexpr(math.prod(shape))

    @classmethod
    def of(cls, scalar: Any, shape: tuple[int, ...]) -> _Block:
        key: tuple[Any, ...] = (scalar.name, shape)
        if scalar.is_ptr():  # pointers differ by more than their name
            if scalar.element_ty.is_ptr():
                return cls(scalar, shape)
            key = (scalar.element_ty.name, shape, scalar.address_space, scalar.const)
        known = cls._known.get(key)
        if known is None:
            known = cls._known[key] = cls(scalar, shape)
        return known

    def with_element_ty(self, scalar_ty: Any) -> _Block:
        return _Block.of(scalar_ty, self.key)

    def to_ir(self, builder: Any) -> _Block:
        return self


_ONE, _NO_SHAPE = core.constexpr(1), core.tuple([])


def _tensor_class(world: World) -> type:
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
            if type.__class__ is not _Block:
                type = _Block.of(scalar, tuple(int(n) for n in type.shape))
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
        if name in _OVERRIDES and not name.startswith("__"):
            members[name] = _method(functools.partial(_OVERRIDES[name], world))
        elif core.is_builtin(member) or isinstance(member, (JITCallable, InterpretedFunction)):
            slow = _method(_late(world, member))
            members[name] = _item(slow) if name == "__getitem__" else quick(name, slow, _Block)
        elif inspect.isfunction(member) and not name.startswith("_") and member.__closure__:
            inner = [c.cell_contents for c in member.__closure__]
            jit = next((c for c in inner if isinstance(c, InterpretedFunction)), None)
            if jit is not None:
                members[name] = _method(_late(world, jit))
    return type("tensor", (core.tensor,), members)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return method


def _late(world: World, member: Any) -> Callable[..., Any]:
    """Translated at the first call: the semantic does not exist while the class is made."""
    cell: list[Callable[..., Any]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not cell:
            cell.append(world.bind(member) if core.is_builtin(member) else world.translate(member))
        return cell[0](*args, **kwargs)

    return call


_WHOLE = slice(None)


def _item(slow: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`x[:, None]` and its like, of a block: the same numbers in another shape."""

    def item(self: Any, index: Any) -> Any:
        type = self.type
        if (
            index.__class__ is not tuple
            or type.__class__ is not _Block
            or any(i is not None and i != _WHOLE for i in index)
        ):
            return slow(self, index)
        sizes = list(type.key)
        for axis, i in enumerate(index):
            if i is None:
                sizes.insert(axis, 1)
        shape = tuple(sizes)
        handle = TensorHandle(self.handle.data.reshape(shape), self.handle.dtype)
        return self.__class__(handle, _Block.of(type.scalar, shape))

    return item


def _semantic_class(tensor_class: type) -> Any:
    integers: dict[int, Any] = {}
    ranges: dict[tuple[int, int], Any] = {}

    class NumpySemantic(TritonSemantic):  # type: ignore[misc]
        tensor = tensor_class

        def _has_native_tma(self) -> bool:
            return True

        def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
            """Two operands of one shape, which is most often, stay as they are; of one rank,
            the sizes of one are stretched."""
            left, right = lhs.type.__class__ is _Block, rhs.type.__class__ is _Block
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
            if type.__class__ is not _Block or axis < 0:
                return super().expand_dims(input, axis)
            shape = (*type.key[:axis], 1, *type.key[axis:])
            handle = TensorHandle(input.handle.data.reshape(shape), input.handle.dtype)
            return self.tensor(handle, _Block.of(type.scalar, shape))

        def to_tensor(self, x: Any, check_type: bool = True) -> Any:
            if x.__class__ is not int:
                return super().to_tensor(x, check_type)
            known = integers.get(x)
            if known is None:
                known = super().to_tensor(x, check_type)
                if len(integers) < 4096:
                    integers[x] = known
            return known

        def arange(self, start: int, end: int, *, ret_ty: Any = None) -> Any:
            if ret_ty is not None:
                return super().arange(start, end, ret_ty=ret_ty)
            known = ranges.get((start, end))
            if known is None:
                known = super().arange(start, end)
                known.handle.data.flags.writeable = False  # all programs share it
                if len(ranges) < 4096:
                    ranges[start, end] = known
            return known

        def splat(self, value: Any, shape: Any) -> Any:
            if value.type.is_block() or not len(shape):
                return super().splat(value, shape)
            return self._stretched(value, tuple(shape))

        def _stretched(self, value: Any, shape: tuple[int, ...]) -> Any:
            """`value` as a block of `shape`, which its own shape broadcasts to."""
            type = value.type
            if type.__class__ is _Block and type.key == shape:
                return value
            handle = value.handle
            data = np.empty(shape, handle.data.dtype)
            data[...] = handle.data
            return self.tensor(
                TensorHandle(data, handle.dtype.scalar), _Block.of(type.scalar, shape)
            )

    return NumpySemantic


_DESCRIPTOR_METHODS = (
    "load", "store", "gather", "scatter",
    *(f"atomic_{op}" for op in ("add", "min", "max", "and", "or", "xor")),
)  # fmt: skip


class _Descriptor(core.tensor_descriptor):  # type: ignore[misc]
    """A tensor descriptor whose methods work outside of the compiler."""

    def __init__(self, world: World, origin: Any) -> None:
        self.__dict__.update(vars(origin))
        for name in _DESCRIPTOR_METHODS:
            method = getattr(core.tensor_descriptor_base, name)
            self.__dict__[name] = functools.partial(world.bind(method), self)


# -- functions that need the compiler's regions, or act on the compiler itself ---------------


def _range(start: Any, stop: Any = None, step: Any = None, **_: Any) -> builtins.range:
    low, high = (0, start) if stop is None else (start, stop)
    return builtins.range(
        int(_plain(low)), int(_plain(high)), int(_plain(1 if step is None else step))
    )


def _min(world: World, *args: Any) -> Any:
    if any(isinstance(a, core.tensor) for a in args):
        return functools.reduce(world.translate(tl.minimum), args)
    return builtins.min(*map(_plain, args))


def _max(world: World, *args: Any) -> Any:
    if any(isinstance(a, core.tensor) for a in args):
        return functools.reduce(world.translate(tl.maximum), args)
    return builtins.max(*map(_plain, args))


def _static_assert(world: World, cond: Any, msg: str = "", **_: Any) -> None:
    if not _plain(cond):
        raise AssertionError(_plain(msg) or "tl.static_assert failed")


def _device_assert(world: World, cond: Any, msg: str = "", mask: Any = None, **_: Any) -> None:
    failed = ~np.asarray(cond.handle.data if isinstance(cond, core.tensor) else cond, dtype=bool)
    if mask is not None:
        failed = failed & np.asarray(mask.handle.data, dtype=bool)
    if failed.any():
        raise AssertionError(_plain(msg) or "tl.device_assert failed")


def _device_print(world: World, prefix: str, *args: Any, **_: Any) -> None:
    values = " ".join(str(a) for a in args)
    builtins.print(f"pid {world.builder.grid_idx} {_plain(prefix)} {values}")  # noqa: T201


def _static_print(world: World, *values: Any, **_: Any) -> None:
    builtins.print(*values)  # noqa: T201


def _reduce(
    world: World, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any
) -> Any:
    return reduce.reduce(world, input, _plain(axis), world.translate(combine_fn), _plain(keep_dims))


def _scan(
    world: World, input: Any, axis: Any, combine_fn: Any, reverse: Any = False, **_: Any
) -> Any:
    return reduce.scan(world, input, _plain(axis), world.translate(combine_fn), _plain(reverse))


def _reduce_with_indices(
    world: World, input: Any, axis: Any, combine_fn: Any, keep_dims: Any = False, **_: Any
) -> Any:
    axis = _plain(axis)
    if axis is None:
        input, axis = world.semantic.reshape(input, [int(_plain(input.numel))], False), 0
    shape = [int(_plain(s)) for s in input.shape]
    axis = axis % len(shape)
    along = np.arange(shape[axis], dtype=np.int32).reshape(
        [-1 if d == axis else 1 for d in builtins.range(len(shape))]
    )
    index = world.tensor(
        TensorHandle(np.broadcast_to(along, shape), core.int32), core.block_type(core.int32, shape)
    )
    return _reduce(world, (input, index), axis, combine_fn, keep_dims)


def _map_elementwise(world: World, scalar_fn: Any, *args: Any, pack: Any = 1, **_: Any) -> Any:
    raise NotInterpretable("tl.map_elementwise has no interpreted form: write it with tl.where")


def _inline_asm(world: World, *args: Any, **_: Any) -> Any:
    raise NotInterpretable("tl.inline_asm_elementwise: PTX runs on a GPU only")


def _hint(world: World, input: Any, values: Any, **_: Any) -> Any:
    return input


def _nothing(world: World, **_: Any) -> None:
    """Programs and launches run one after another: what one waits for is done."""


_OVERRIDES: dict[str, Callable[..., Any]] = {
    "static_assert": _static_assert,
    "static_print": _static_print,
    "device_assert": _device_assert,
    "device_print": _device_print,
    "reduce": _reduce,
    "associative_scan": _scan,
    "_reduce_with_indices": _reduce_with_indices,
    "map_elementwise": _map_elementwise,
    "inline_asm_elementwise": _inline_asm,
    "multiple_of": _hint,
    "max_contiguous": _hint,
    "max_constancy": _hint,
    "gdc_wait": _nothing,
    "gdc_launch_dependents": _nothing,
}


@functools.lru_cache(maxsize=1)
def world() -> World:
    """The interpreter of this process; `World.lock` is held while a kernel runs."""
    return World()
