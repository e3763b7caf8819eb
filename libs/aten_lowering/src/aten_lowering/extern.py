"""ATen calls as `Extern` nodes: exact arguments, mutation and results from the op's schema."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

from aten_lowering.builder import Operand
from aten_lowering.errors import CannotLower
from aten_lowering.meta import device_of, dtype_of, expr
from loop_ir import Extern, GraphArg, Origin, TorchEnum

aten = torch.ops.aten

# Operators whose results hold what the memory held.
_UNFILLED = "empty empty_strided empty_permuted empty_like new_empty new_empty_strided"
UNFILLED = tuple(f"aten.{name}." for name in _UNFILLED.split())

# Extern calls that are the plan, not a gap: what the vendor's libraries do best. (`matmul` is not
# here: eager itself turns it into views and mm or bmm.)
_VENDOR = """
aten.scaled_dot_product_attention. aten._scaled_dot_product_
aten.convolution. aten._convolution. aten.cudnn_convolution
aten.mm. aten.bmm. aten.addmm. aten.baddbmm. aten.linear. aten._scaled_mm. aten._grouped_mm.
aten._scaled_mm_v2. aten._scaled_grouped_mm aten._int_mm. aten._weight_int4pack_mm.
aten.lstm. aten.gru. aten.rnn_tanh. aten.rnn_relu. aten._cudnn_rnn. aten._fft_
aten_lowering.fetch
"""
_WHOLE = (*_VENDOR.split(), *UNFILLED)


@dataclass(frozen=True)
class Fallback:
    """Why a node stayed an extern call: `aten.cumsum.default`, `model.py:7`, `no lowering`."""

    op: str
    source: str
    reason: str


def by_design(op: OpOverload) -> bool:
    """The op stays extern on purpose: attention, matmuls, convolutions, random numbers (where
    the stream has to be eager's), uninitialised memory."""
    return str(op).startswith(_WHOLE) or torch.Tag.nondeterministic_seeded in op.tags


def bind(node: fx.Node, op: OpOverload) -> dict[str, Any]:
    """Every argument of the schema by name, defaults filled in."""
    bound: dict[str, Any] = {}
    for i, a in enumerate(op._schema.arguments):
        if i < len(node.args) and not a.kwarg_only:
            bound[a.name] = node.args[i]
        elif a.name in node.kwargs:
            bound[a.name] = node.kwargs[a.name]
        elif a.has_default_value():
            bound[a.name] = a.default_value
        else:
            raise CannotLower(f"{op} lacks its argument `{a.name}`")
    unknown = set(node.kwargs) - set(bound)
    if unknown:
        raise CannotLower(f"{op} has no argument {sorted(unknown)}")
    return bound


def rebind(node: fx.Node, **changes: Any) -> None:
    """Calls the operator of a node with other values of these arguments."""
    op: Any = node.target
    bound = bind(node, op) | changes
    node.args = tuple(bound[a.name] for a in op._schema.arguments if not a.kwarg_only)
    by_name = (a for a in op._schema.arguments if a.kwarg_only)
    node.kwargs = {a.name: v for a in by_name if (v := bound[a.name]) != a.default_value}


def extern_argument(value: Any) -> GraphArg:
    """An argument in the IR's terms. Raises `CannotLower` for what it has no word for."""
    match value:
        case Operand():
            return value.ref
        case list() | tuple():
            return tuple(extern_argument(v) for v in value)
        case None | bool() | int() | float() | str() | complex() | sympy.Expr():
            return value
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return expr(value)
        case torch.dtype():
            return dtype_of(value)
        case torch.device():
            return device_of(value)
        case torch.layout() | torch.memory_format():
            kind = "layout" if isinstance(value, torch.layout) else "memory_format"
            return TorchEnum(kind, str(value).removeprefix("torch."))
    raise CannotLower(f"an argument of type {type(value).__name__}")


def operands(value: Any) -> list[Operand]:
    """The tensors in an argument, lists included."""
    if isinstance(value, Operand):
        return [value]
    if isinstance(value, list | tuple):
        return [x for v in value for x in operands(v)]
    return []


def extern_call(
    target: str,
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    results: Iterable[Any],
    written: Iterable[Any],
    origin: Origin,
    several: bool,
    fallback: bool = False,
) -> Extern:
    """The call, which makes the buffers of those results that are tensors, and writes to those of
    the arguments `written`. several: it gives a tuple."""
    return Extern(
        target=target,
        args=tuple(map(extern_argument, args)),
        kwargs=tuple((name, extern_argument(value)) for name, value in kwargs.items()),
        outs=tuple((r.ref.buffer, r.type) if isinstance(r, Operand) else None for r in results),
        tuple_result=several,
        mutates=tuple(dict.fromkeys(x.ref.buffer for value in written for x in operands(value))),
        fallback=fallback,
        origins=(origin,),
    )


def written_arguments(op: OpOverload) -> list[str]:
    """Names of the arguments that the op writes to."""
    return [
        a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write
    ]


def returned_arguments(op: OpOverload) -> dict[int, str]:
    """Results that are an argument written in place: `add_(Tensor(a!) self, ...) -> Tensor(a!)`
    gives `{0: "self"}`."""
    found: dict[int, str] = {}
    for i, r in enumerate(op._schema.returns):
        if r.alias_info is None or not r.alias_info.is_write:
            continue
        for a in op._schema.arguments:
            if a.alias_info is not None and a.alias_info.before_set & r.alias_info.before_set:
                found[i] = a.name
    return found
