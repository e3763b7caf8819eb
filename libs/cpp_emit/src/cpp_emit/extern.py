"""An operator call as C++: three routes, tried in this order.

dispatcher  `torch_call_dispatcher` with a stack of StableIValue. Needs the schema, and arguments of
            types that torch 2.11 converts: tensors, integers, floats, booleans, strings, element
            types, devices, layouts, memory formats, lists and optionals of those. Not `Scalar`.
shim        a C function of torch for one operator (`aoti_torch_cpu_addmm_out`), for the matmuls
            with `Scalar` arguments.
callback    Python makes the call. Always possible; a program that runs without Python has none."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import sympy
from sympy.logic.boolalg import Boolean

from cpp_emit.errors import UnsupportedArgument
from cpp_emit.schema import Schema, Type, bind
from cpp_emit.sites import is_real
from wrapper_ir import Device, DType, ExternCall, Ref, TensorType, TorchEnum


class Scope(Protocol):
    """What an argument printer needs to know of the program around it."""

    def tensor(self, name: str) -> str:
        """The C++ variable of a tensor."""

    def type(self, name: str) -> TensorType:
        """The type of a tensor."""

    def integer(self, value: Any) -> str:
        """An integer or boolean expression."""


class NotExpressible(Exception):
    """A value that a route cannot pass; the message says which. Never leaves this library."""


_ESCAPED = frozenset('"\\?')  # `?` could begin a trigraph


def float_literal(value: float) -> str:
    """The shortest literal of the same double."""
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return ("-" if value < 0 else "") + "std::numeric_limits<double>::infinity()"
    return repr(float(value))


def string_literal(text: str) -> str:
    """Any text; bytes outside printable ASCII as three octal digits, surrogates as `\\ud800`."""
    if text.isascii() and text.isprintable() and _ESCAPED.isdisjoint(text):
        return f'"{text}"'
    out = []
    for byte in text.encode(errors="backslashreplace"):
        char = chr(byte)
        if char in _ESCAPED:
            out.append("\\" + char)
        elif 32 <= byte < 127:
            out.append(char)
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def dtype_code(dtype: DType) -> str:
    """An element type in the emitted text: `dtype::bf16()`."""
    return f"dtype::{dtype.name}()"


def device_code(device: Device) -> str:
    """Raises UnsupportedArgument for a device that is neither cpu nor cuda."""
    if device.kind == "cpu":
        return "cpu()"
    if device.kind == "cuda":
        return f"cuda({-1 if device.index is None else device.index})"
    raise UnsupportedArgument(f"device {device}: only cpu and cuda have a C++ form")


_ENUMS = {
    "memory_format": "contiguous_format channels_last channels_last_3d preserve_format",
    "layout": "strided sparse_coo sparse_csr sparse_csc sparse_bsr sparse_bsc jagged",
}


def _enum(kind: str, value: Any) -> str:
    name = value.name if isinstance(value, TorchEnum) else value
    if isinstance(value, TorchEnum) and value.kind != kind:
        raise NotExpressible(f"{value.kind} {value.name} where a {kind} is due")
    name = str(name).removeprefix("torch.")
    if name not in _ENUMS[kind].split():
        raise NotExpressible(f"{kind} {name}")
    return f"code(aoti_torch_{kind}_{name}())"


def stack_value(value: Any, type: Type, scope: Scope) -> str:
    """A value as StableIValue of a schema type. Raises NotExpressible."""
    if type.is_optional:
        return "none()" if value is None else f"some({stack_value(value, type.inner, scope)})"
    if type.is_list:
        return _list(value, type, scope)
    match type.base:
        case "Tensor" if isinstance(value, Ref):
            return f"tensor({scope.tensor(value.name)})"
        case "int" | "SymInt" if is_int(value):
            return f"integer({scope.integer(value)})"
        case "int" | "SymInt" if isinstance(value, DType):
            return f"code({dtype_code(value)})"
        case "float" | "SymFloat" if is_int(value):
            return f"real({real(value, scope)})"
        case "float" | "SymFloat" if is_number(value):
            return f"real({real(value, scope)})"
        case "bool" | "SymBool" if isinstance(value, (bool, Boolean)):
            return f"boolean({scope.integer(value)})"
        case "str" if isinstance(value, str):
            return f"string({string_literal(value)})"
        case "ScalarType" if isinstance(value, DType):
            return f"code({dtype_code(value)})"
        case "Device" if isinstance(value, Device):
            return f"device({device_code(value)})"
        case "Layout" if isinstance(value, (TorchEnum, str)):
            return _enum("layout", value)
        case "MemoryFormat" if isinstance(value, (TorchEnum, str)):
            return _enum("memory_format", value)
    raise NotExpressible(f"{value!r} as {type}")


def _list(value: Any, type: Type, scope: Scope) -> str:
    if not isinstance(value, tuple):
        if type.list_length is None:
            raise NotExpressible(f"{value!r} as {type}")
        value = (value,) * type.list_length
    if type.inner in (Type("int"), Type("SymInt")) and all(is_int(v) for v in value):
        return f"integers({{{', '.join(scope.integer(v) for v in value)}}})"
    return f"items({{{', '.join(stack_value(v, type.inner, scope) for v in value)}}})"


def is_int(value: Any) -> bool:
    """Whether a value of the IR is an integer, a symbol or an expression among them."""
    if isinstance(value, (bool, int, sympy.Symbol)):
        return not isinstance(value, bool)
    is_expression = isinstance(value, sympy.Expr) and not isinstance(value, Boolean)
    return is_expression and bool(value.is_integer)


def is_number(value: Any) -> bool:
    """Whether a value of the IR is a number, an expression of numbers among them; bool is none."""
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float, sympy.Number)) or is_int(value) or is_real(value)


def real(value: Any, scope: Scope) -> str:
    """A number as a C++ double."""
    if isinstance(value, (int, float, sympy.Number)):
        return float_literal(float(value))
    return f"static_cast<double>({scope.integer(value)})"


_NO_RESOURCE = {"int", "SymInt", "float", "SymFloat", "bool", "SymBool", "ScalarType"}


@dataclass(frozen=True)
class DispatcherCall:
    """`op` and `overload`, the arguments as StableIValue, and how each result is read."""

    op: str
    overload: str
    arguments: tuple[str, ...]
    returns: tuple[Type, ...]


def dispatcher_call(call: ExternCall, schema: Schema, scope: Scope) -> DispatcherCall:
    """The call through the dispatcher. Raises NotExpressible, SchemaError."""
    values = bind(schema, call.args, call.kwargs, call.target)
    arguments = []
    for argument, value in zip(schema.arguments, values, strict=True):
        try:
            arguments.append(stack_value(value, argument.type, scope))
        except NotExpressible as problem:
            raise NotExpressible(f"argument {argument.name!r}: {problem}") from None
    for number, type in enumerate(schema.returns):
        tensors = type.base == "Tensor" and type.modifiers in ((), ("[]",))
        if not tensors and (type.modifiers or type.base not in _NO_RESOURCE):
            raise NotExpressible(f"result {number}: {type}")
    # torch 2.11 reads result i by the type of result n-1-i (torch_call_dispatcher).
    kinds = [(t.base.removeprefix("Sym").lower(), t.modifiers) for t in schema.returns]
    if kinds != kinds[::-1]:
        raise NotExpressible("results of different types")
    return DispatcherCall(schema.name, schema.overload, tuple(arguments), schema.returns)


# target -> (C function without device, names of its tensors, names of its numbers and defaults)
_SHIMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "aten.addmm": ("addmm_out", ("self", "mat1", "mat2")),
    "aten.baddbmm": ("baddbmm_out", ("self", "batch1", "batch2")),
}


def shim_call(call: ExternCall, scope: Scope) -> tuple[str, tuple[str, ...], str | None]:
    """`(function, arguments, out)`: the arguments of `aoti_torch_DEVICE_addmm_out` after its first,
    which is the result: `out`, or for None a tensor to be allocated. Raises NotExpressible.

    The C functions take `beta` and `alpha` as doubles, so only floating-point tensors may go here:
    an integer matmul refuses a floating `alpha`."""
    operator, _, overload = call.target.rpartition(".")
    if operator not in _SHIMS or overload not in ("default", "out"):
        raise NotExpressible("no C function takes its Scalar arguments")
    function, names = _SHIMS[operator]
    args: tuple[Any, ...] = call.args
    kwargs: dict[str, Any] = dict(call.kwargs)
    out = kwargs.pop("out", None)
    placed = (out is None) == (overload == "default") and len(args) == 3
    if not placed or not kwargs.keys() <= {"beta", "alpha"}:
        raise NotExpressible(f"the C function {function} takes ({', '.join(names)}, beta, alpha)")
    arguments = []
    for value in args:
        if not isinstance(value, Ref) or not scope.type(value.name).dtype.is_float:
            raise NotExpressible(f"{value!r} is not a floating-point tensor")
        arguments.append(f"{scope.tensor(value.name)}.get()")
    for key in ("beta", "alpha"):
        if not is_number(kwargs.get(key, 1)):
            raise NotExpressible(f"{key} {kwargs[key]!r}")
        arguments.append(real(kwargs.get(key, 1), scope))
    return function, tuple(arguments), out.name if isinstance(out, Ref) else None
