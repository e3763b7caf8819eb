"""The text of a user's Triton kernel as a definition of the host program."""

import ast
import sys
from typing import Any

import triton_rt
from aten_lowering import KernelObject
from loop_ir import DType, Ref
from wrapper_ir import DefineKernel, KernelParam


class Unsaid(Exception):
    """A launch of the program cannot say this; the message is the reason that is reported."""


def alias(name: str) -> str:
    """The last line of a definition: its name."""
    return f"\n{name} = _captured\n"


def definition(
    name: str,
    kernel: KernelObject,
    params: tuple[KernelParam, ...],
    constants: dict[str, Any],
    options: dict[str, Any],
) -> DefineKernel:
    """The kernel's own text under the name `name`. Element types and functions as constants are
    bound in a kernel around it, since a definition's constants are plain.

    The text imports the user's modules only where it cannot carry what it needs of them, or where
    two of them mean two things by a name: importing them may take each compile worker seconds."""
    bound = {k: v for k, v in constants.items() if isinstance(v, DType | Ref)}
    plain = {k: v for k, v in constants.items() if k not in bound}
    odd = [k for k, v in plain.items() if not isinstance(v, bool | int | float | str | None)]
    if odd:
        raise Unsaid(f"its constant {odd[0]} is a {type(plain[odd[0]]).__name__}")

    def written(alone: bool) -> tuple[str, str]:
        """The name that is free in its text, and that."""
        text, free = _text(kernel.function, alone), name
        while free != kernel.name and free in _top_level(text):
            free += "_"
        if bound:
            text = _bind(free, text, kernel, [p.name for p in params], list(plain), bound, alone)
        return free, text + alias(free)

    try:
        own, text = written(alone=True)
    except Unsaid:
        own, text = written(alone=False)
    options = {**options, "contract": True}  # as Triton does by itself
    return DefineKernel(own, text, params, tuple(plain.items()), **options)


def _text(function: Any, alone: bool) -> str:
    """A module in which `_captured` is the function. `alone`: without the user's module, if that
    can be. Raises `Unsaid` if it needs more than a text can carry."""
    found_alone = triton_rt.standalone_text(function) if alone else None
    if found_alone is not None:
        return f"{found_alone}_captured = {function.fn.__name__}\n"
    try:
        text = triton_rt.KernelSource.from_jit(function, {}).text
    except (triton_rt.errors.BadSource, OSError) as error:
        raise Unsaid(str(error)) from error
    name = function.fn.__name__
    if not text.startswith("from "):
        return f"{text}_captured = {name}\n"
    module = sys.modules[function.fn.__module__]
    for attribute in (name, *vars(module)):
        value: Any = getattr(module, attribute, None)
        path = attribute
        while value is not function and hasattr(value, "run") and hasattr(value, "fn"):
            value, path = value.fn, f"{path}.fn"
        if value is function:
            found = path.replace(attribute, "_captured", 1)
            line = f"from {module.__name__} import {attribute} as _captured\n"
            return line if found == "_captured" else f"{line}_captured = {found}\n"
    raise Unsaid(f"its module {module.__name__} has it under no name")


def _bind(
    name: str,
    text: str,
    kernel: KernelObject,
    params: list[str],
    plain: list[str],
    bound: dict[str, Any],
    alone: bool,
) -> str:
    """`_kernel(x, n, F)` -> `_kernel(x, n)`, with F fixed."""
    lines = [text, "import triton", "import triton.language as tl", "_captured_inner = _captured"]
    passed = {n: n for n in (*params, *plain)}
    for i, (constant, value) in enumerate(bound.items()):
        if isinstance(value, DType):
            passed[constant] = f"tl.{value.triton_name}"
            continue
        function = kernel.objects[value.name]
        if not hasattr(function, "params"):
            raise Unsaid(f"its constant {constant} is a {type(function).__name__}")
        other = _text(function, alone)
        _check_names(constant, "\n".join(lines), other)
        lines += [other, f"_captured_function{i} = _captured"]
        passed[constant] = f"_captured_function{i}"
    order = [n for n in kernel.function.arg_names if n in passed]
    heads = [n if n in params else f"{n}: tl.constexpr" for n in order if n not in bound]
    call = ", ".join(f"{n}={passed[n]}" for n in order)
    lines += ["@triton.jit", f"def {name}({', '.join(heads)}):", f"    _captured_inner({call})"]
    return "\n".join([*lines, f"_captured = {name}", ""])


def _check_names(constant: str, text: str, other: str) -> None:
    """Two texts in one module may define a name twice, but not as two things."""
    known = _top_level(text)
    for name, what in _top_level(other).items():
        if name != "_captured" and known.get(name, what) != what:
            raise Unsaid(f"its constant {constant} uses another {name} than the kernel")


def _top_level(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in ast.parse(text).body:
        if isinstance(item, ast.FunctionDef):
            found[item.name] = ast.dump(item)
        elif isinstance(item, ast.Assign):
            found.update((ast.unparse(target), ast.dump(item.value)) for target in item.targets)
        elif isinstance(item, ast.Import | ast.ImportFrom):
            source = getattr(item, "module", "")
            found.update((a.asname or a.name, f"{source}.{a.name}") for a in item.names)
    return found
