"""Types, symbols and plain values as text. `tensor_ir.scanner` reads them back."""

import json
from collections.abc import Iterable
from functools import lru_cache

import sympy

from symexpr import sstr
from tensor_ir.dtypes import DType
from tensor_ir.types import Device, TensorType, contiguous_strides
from tensor_ir.values import Plain, Symbol, TorchEnum


@lru_cache(1 << 12)
def print_type(type: TensorType) -> str:
    """`bf16[s0, 768] cuda:0 stride (768, 1) offset 5`, stride and offset where not the default."""
    text = f"{type.dtype.value}[{', '.join(map(sstr, type.size))}] {type.device}"
    if type.stride != contiguous_strides(type.size):
        text += f" stride {print_tuple(map(sstr, type.stride))}"
    if type.offset != 0:
        text += f" offset {sstr(type.offset)}"
    return text


def print_symbol(symbol: Symbol) -> str:
    """`s0 in [1, 64] hint 2`; an open bound is `*`, and what is unknown is left out."""
    text = symbol.name
    if symbol.low is not None or symbol.high is not None:
        low, high = ("*" if b is None else str(b) for b in (symbol.low, symbol.high))
        text += f" in [{low}, {high}]"
    if symbol.hint is not None:
        text += f" hint {symbol.hint}"
    return text


def print_plain(value: Plain) -> str:
    """A value that is no tensor and no tuple: `dtype f32`, `layout strided`, `s0*2`, `1.5`."""
    if isinstance(value, TorchEnum):
        return f"{value.kind} {value.name}"
    if isinstance(value, Device):
        return f"device {value}"
    if isinstance(value, DType):
        return f"dtype {value.value}"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if value is sympy.true or value is sympy.false:
        return str(bool(value))
    if isinstance(value, sympy.Basic):
        return str(sstr(value))
    return repr(value)


def print_tuple(items: Iterable[str]) -> str:
    """`(a, b)`, `(a,)`, `()`."""
    texts = list(items)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
