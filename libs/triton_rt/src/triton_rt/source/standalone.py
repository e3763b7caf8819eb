"""The text of a jit function and of all that it uses, without the module that it stands in."""

import inspect
import types
from typing import Any

from triton_rt.errors import BadSource
from triton_rt.source.modules import load_module
from triton_rt.source.reached_globals import closed_text, globals_of

#: What a decorator may say beside `@triton.jit`; the text says nothing of it.
_OPTIONS = ("noinline", "debug", "do_not_specialize", "do_not_specialize_on_alignment")


def standalone_text(fn: Any) -> str | None:
    """A module's text that defines the `@triton.jit` function by its name, or None.

    before: `from my_model import kernel` imports the model, and torch, into each compile worker
    after:  the kernel, its helpers and constants as they stand in `my_model`

    Only where the function that the text makes is the same: it is made here and compared, with
    all that it reaches. So None means a decorator with options, names that mean two things in two
    modules, a file that was edited since, a global that a text cannot carry."""
    python = getattr(fn, "fn", None)
    if not inspect.isfunction(python):
        return None
    try:
        text = closed_text(python)
        made = getattr(load_module(python.__name__, text), python.__name__)
    except (BadSource, OSError):
        return None
    return text if _same(fn, made, set()) else None


def _same(a: Any, b: Any, seen: set[int]) -> bool:
    """Whether two globals are the same to a kernel."""
    if a is b or id(a) in seen:
        return True
    if type(a) is not type(b):
        return False
    if not inspect.isfunction(getattr(a, "fn", None)):
        return not isinstance(a, types.ModuleType) and _same_value(a, b)
    seen.add(id(a))
    if any(getattr(a, option, None) != getattr(b, option, None) for option in _OPTIONS):
        return False
    if not _same_code(a.fn.__code__, b.fn.__code__) or list(map(_param, a.params)) != list(
        map(_param, b.params)
    ):
        return False
    theirs = dict(globals_of(b.fn))
    ours = dict(globals_of(a.fn))
    return ours.keys() == theirs.keys() and all(_same(ours[n], theirs[n], seen) for n in ours)


def _same_value(a: Any, b: Any) -> bool:
    a, b = getattr(a, "value", a), getattr(b, "value", b)
    return isinstance(a, bool | int | float | str) and type(a) is type(b) and repr(a) == repr(b)


def _same_code(a: types.CodeType, b: types.CodeType) -> bool:
    """But for the file and the lines."""
    parts = ("co_code", "co_names", "co_varnames", "co_freevars")
    if any(getattr(a, part) != getattr(b, part) for part in parts):
        return False
    return len(a.co_consts) == len(b.co_consts) and all(
        _same_code(x, y)
        if isinstance(x, types.CodeType) and isinstance(y, types.CodeType)
        else type(x) is type(y) and repr(x) == repr(y)
        for x, y in zip(a.co_consts, b.co_consts, strict=True)
    )


def _param(param: Any) -> tuple[Any, ...]:
    default = param.default
    specialised = (param.do_not_specialize, param.do_not_specialize_on_alignment)
    return (param.name, param.annotation, *specialised, type(default), repr(default))
