"""`triton.language` as an interpreted kernel sees it.

Nothing of Triton is patched. A kernel's globals are *translated*: each Triton module becomes a
`View` whose builtins are bound to our semantic, each jit function becomes a rewritten Python
function whose globals are translated in turn, tensors are a subclass whose operators are bound.
So an interpreted kernel and the compiler live side by side in a process, in any order and thread,
whether or not Triton was imported with TRITON_INTERPRET=1."""

from __future__ import annotations

import builtins
import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language import core
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import ConstexprFunction, JITCallable

from triton_rt.errors import InterpreterError
from triton_rt.interp.builder import NumpyBuilder
from triton_rt.interp.overrides import OVERRIDES, device_print, int_range, maximum, minimum
from triton_rt.interp.rewrite import rewrite
from triton_rt.interp.tensors import BoundDescriptor, semantic_class, tensor_class
from triton_rt.interp.world import plain
from triton_rt.source import globals_of


class Interpreted:
    """A jit function inside an interpreted kernel: call it as a function, or pass it on."""

    def __init__(self, world: Interpreter, origin: Any) -> None:
        self.world = world
        self.origin = origin
        self.fn = origin.fn
        self.__name__ = origin.fn.__name__
        self._rewritten: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.rewritten(*args, **kwargs)

    @property
    def rewritten(self) -> Callable[..., Any]:
        """The function as it runs on numpy arrays, made at its first call."""
        if self._rewritten is None:
            lines = getattr(self.origin, "raw_src", None)
            known = (lines, self.origin.starting_line_number) if lines else None
            self._rewritten = self.world.rewrite(self.fn, known)
        return self._rewritten


class View:
    """Read-only view of a module, with its members translated when they are first asked for."""

    def __init__(self, world: Interpreter, module: types.ModuleType) -> None:
        self.__dict__["_world"] = world
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        module: types.ModuleType = self.__dict__["_module"]
        override = OVERRIDES.get(name) if module in (tl, core) else None
        if override is not None:
            value: Any = functools.partial(override, self.__dict__["_world"])
        else:
            value = self.__dict__["_world"].translate(getattr(module, name))
        self.__dict__[name] = value
        return value

    def __repr__(self) -> str:
        return f"<interpreted view of {self.__dict__['_module'].__name__}>"


class Interpreter:
    """One interpreter: a builder, Triton's semantic over it, and everything translated so far."""

    def __init__(self) -> None:
        self.builder = NumpyBuilder()
        self.tensor = tensor_class(self)
        self.semantic = semantic_class(self.tensor)(self.builder)
        self.lock = threading.RLock()
        self._memo: dict[int, tuple[Any, Any]] = {}

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
            override = OVERRIDES.get(value.__name__)
            return functools.partial(override, self) if override else self.bind(value)
        if value is core.range or value is core.static_range:
            return int_range
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
            return BoundDescriptor(self, value)
        return value

    def rewrite(
        self, fn: Callable[..., Any], source: tuple[list[str], int] | None = None
    ) -> Callable[..., Any]:
        """`fn` as a Python function on our tensors; its globals are translated as they are now.
        source: its lines, and the number of the first, where they are known."""
        namespace = {name: self.translate(value) for name, value in globals_of(fn)}
        namespace["__builtins__"] = builtins
        namespace["__name__"] = fn.__module__
        namespace.setdefault("min", functools.partial(minimum, self))
        namespace.setdefault("max", functools.partial(maximum, self))
        namespace.setdefault("range", int_range)
        namespace.setdefault("print", functools.partial(device_print, self))
        namespace["__to_tensor__"] = self._to_tensor
        namespace["__truth__"] = self._truth
        namespace["__and__"] = functools.partial(self._logical, "logical_and", False)
        namespace["__or__"] = functools.partial(self._logical, "logical_or", True)
        namespace["__not__"] = self._not
        out = rewrite(fn, namespace, source)
        if fn.__defaults__:
            out.__defaults__ = tuple(self.translate(plain(d)) for d in fn.__defaults__)
        if fn.__kwdefaults__:
            out.__kwdefaults__ = {k: self.translate(plain(d)) for k, d in fn.__kwdefaults__.items()}
        return out

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


def _constexpr_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs = {k: plain(v) for k, v in kwargs.items() if k not in ("_semantic", "_generator")}
    return function.fn(*(plain(a) for a in args), **kwargs)


@functools.lru_cache(maxsize=1)
def world() -> Interpreter:
    """The interpreter of this process; `Interpreter.lock` is held while a kernel runs."""
    return Interpreter()
