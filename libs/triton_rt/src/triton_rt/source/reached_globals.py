"""What a kernel's function reaches: its globals, their texts, and all of it as one text."""

import contextlib
import importlib.util
import inspect
import io
import math
import re
import types
from collections.abc import Iterator
from typing import Any

from triton_rt.errors import BadSource


def importable(fn: Any) -> bool:
    """Whether `from module import name` finds the same file, here and in a worker."""
    if "." in fn.__qualname__ or fn.__module__ == "__main__":
        return False
    try:
        spec = importlib.util.find_spec(fn.__module__)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin == inspect.getsourcefile(fn)


def closed_text(fn: Any) -> str:
    """Text of a function that is not importable: the text of its file up to it cannot be run, so
    it must use nothing but Triton, plain constants, and other such functions."""
    parts: dict[str, str] = {}
    imports = ["import triton", "import triton.language as tl"]

    def visit(function: Any) -> None:
        if function.__name__ in parts:
            return
        parts[function.__name__] = ""
        lines = io.StringIO(inspect.getsource(function)).readlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        body = "".join(line[indent:] if line.strip() else line for line in lines)
        for name, value in globals_of(function):
            if isinstance(value, types.ModuleType):
                imports.append(f"import {value.__name__} as {name}")
            elif inspect.isfunction(getattr(value, "fn", None)):
                if value.fn.__module__.startswith("triton."):
                    imports.append(
                        f"from {value.fn.__module__} import {value.fn.__name__} as {name}"
                    )
                else:
                    visit(value.fn)
            elif isinstance(value, (bool, int, float, str)):
                imports.append(f"{name} = {_literal(value)}")
            elif type(value).__name__ == "constexpr":
                imports.append(f"{name} = tl.constexpr({_literal(value.value)})")
            else:
                raise BadSource(
                    f"{fn.__name__}: from_jit cannot carry the global {name} = {value!r}; move the "
                    "kernel to the top level of an importable module"
                )
        parts.pop(function.__name__)
        decorated = re.search(r"^def ", body, re.MULTILINE)
        assert decorated is not None
        parts[function.__name__] = "@triton.jit\n" + body[decorated.start() :]

    visit(fn)
    return "\n".join([*dict.fromkeys(imports), "", *parts.values()]) + "\n"


def _literal(value: Any) -> str:
    """Text that Python reads back as the value: infinities and NaN have no literal."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def globals_of(fn: Any) -> Iterator[tuple[str, Any]]:
    """Names that a function, and those defined in it, take from outside, with their values."""
    names = _names(fn.__code__)
    for name in names:
        if name in fn.__globals__:
            yield name, fn.__globals__[name]
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        # An empty cell is a name that the enclosing function has not bound yet.
        with contextlib.suppress(ValueError):
            yield name, cell.cell_contents


def _names(code: types.CodeType) -> list[str]:
    out = list(dict.fromkeys(code.co_names))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            out.extend(_names(const))
    return out


_IMPORT = r"triton(?:\.\w+)*(?: as \w+)?"
_IMPORTS = re.compile(
    rf"^[ \t]*(?:import {_IMPORT}(?:, {_IMPORT})*|from triton(?:\.\w+)* import \w+(?: as \w+)?)$",
    re.MULTILINE,
)
_ELSEWHERE = re.compile(r"import|\b(?:open|exec|eval|__\w+__)\b")


def reaches_nothing(text: str) -> bool:
    """Whether the text of a kernel alone decides what it is: all that it imports is Triton's, a
    statement a line. False where that is not seen at once, as where a comment says "import"."""
    return _ELSEWHERE.search(_IMPORTS.sub("", text)) is None


def reached_texts(values: list[Any]) -> Iterator[str]:
    """Texts of all functions and values that `values` reach, outside of Triton itself."""
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[Any, tuple[str, ...]]] = [(value, ()) for value in values]
    while stack:
        value, names = stack.pop()
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in ("triton", "torch", "numpy"):
                # An attribute of a module may be a jit function: all that the code names.
                members = vars(value)
                stack.extend((members[n], names) for n in names if n in members)
            continue
        python = getattr(value, "fn", value)
        if not inspect.isfunction(python):
            yield from _value_text(value)
            continue
        if (key := (id(python), hash(names))) in seen or python.__module__.startswith("triton."):
            continue
        seen.add(key)
        # A jit function has the lines that it was made from: the file may have others by now.
        lines = getattr(value, "raw_src", None)
        yield "".join(lines) if lines else inspect.getsource(python)
        for default in python.__defaults__ or ():
            yield from _value_text(default)
        inner = tuple(_names(python.__code__))
        for name, reached in globals_of(python):
            yield from (f"{name}={text}" for text in _value_text(reached))
            stack.append((reached, inner))


def _value_text(value: Any) -> Iterator[str]:
    inner = getattr(value, "value", value)
    if isinstance(inner, (bool, int, float, str, type(None), tuple)):
        yield repr(inner)
    elif type(inner).__name__ == "dtype":
        yield str(inner)
