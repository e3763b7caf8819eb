"""From torch's view of a value (fake tensors, SymInts, dtypes) to the IR's types."""

import re
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import HigherOrderOperator

from aten_lowering.errors import CannotLower, DependsOnData, SizeOfData, UnsupportedGraph
from loop_ir import Device, DType, Origin, TensorType
from symexpr import UnknownFunction, from_torch

DTYPES: dict[torch.dtype, DType] = {getattr(torch, d.torch_name): d for d in DType}

IntLike = int | torch.SymInt
_CONTROL = ("invoke_subgraph", "cond", "while_loop", "while_loop_stack_output", "scan", "map_impl")
SYMBOLIC = (torch.SymInt, torch.SymFloat)


def dtype_of(dtype: torch.dtype) -> DType:
    """Raises `CannotLower` for types that the IR has no name for (quantised, sub-byte)."""
    try:
        return DTYPES[dtype]
    except KeyError:
        raise CannotLower(f"element type {dtype} is not one of the IR") from None


def device_of(device: torch.device) -> Device:
    """`cuda` without an index is `cuda:0`; the CPU has no index."""
    if device.type == "cpu":
        return Device("cpu")
    return Device(device.type, 0 if device.index is None else device.index)


def expr(value: IntLike | torch.SymFloat | torch.SymBool) -> sympy.Expr:
    """An int, SymInt or SymFloat as an expression over `symexpr.symbol`s, a SymBool as a condition.

    Raises `CannotLower` if it holds a float that depends on data."""
    if isinstance(value, (*SYMBOLIC, torch.SymBool)):
        return _of_torch(value.node.expr)
    return sympy.Integer(value)


@lru_cache(1 << 12)
def _of_torch(raw: sympy.Basic) -> sympy.Expr:
    floats = [s for s in raw.free_symbols if is_unbacked(s) and not s.is_integer]
    if floats:
        raise SizeOfData(f"number {raw} depends on data ({floats[0]} is unbacked)")
    try:
        return from_torch(raw)
    except UnknownFunction as e:
        raise CannotLower(f"size {raw}: {e}") from e


def is_unbacked(symbol: sympy.Symbol | str) -> bool:
    """torch names symbols without a hint `u0, u1, ...` (`zuf0` for floats)."""
    return re.match(r"^(u|zuf)\d+$", symbol if isinstance(symbol, str) else symbol.name) is not None


def tensor_type(fake: torch.Tensor) -> TensorType:
    """The layout of a fake tensor, which begins where its buffer does.

    Raises `CannotLower` where it has none: sparse, quantised."""
    if fake.layout != torch.strided or fake.is_quantized:
        raise CannotLower(f"layout {fake.layout} (quantised: {fake.is_quantized}) is not strided")
    size, stride = (
        tuple([expr(n) if isinstance(n, torch.SymInt) else n for n in numbers])
        for numbers in (fake.shape, fake.stride())
    )
    return _type(fake.dtype, size, stride, fake.device)


@lru_cache(1 << 12)
def _type(
    dtype: torch.dtype, size: tuple[Any, ...], stride: tuple[Any, ...], device: torch.device
) -> TensorType:
    """The very same one for the same layout: those of a graph are compared again and again."""
    return TensorType(dtype_of(dtype), size, stride, device_of(device))


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_TORCH = PurePath(torch.__file__).parent.as_posix()
# Beside torch: the frames in which Dynamo went through `@triton.heuristics`.
_TRITON = (PurePath(torch.__file__).parents[1] / "triton").as_posix()


def source_line(node: fx.Node) -> str:
    """`encoder.py:41`: the innermost frame of the node's stack trace that is not torch's own."""
    trace = node.meta.get("stack_trace") or ""
    frames = [(m["file"], m["line"]) for m in _FRAME.finditer(trace)]
    for file, line in reversed(frames):
        if not file.startswith((_TORCH, _TRITON)):
            return f"{PurePath(file).name}:{line}"
    return ""


def op_name(node: fx.Node) -> str:
    """`aten.add.Tensor`."""
    return str(node.target)


def is_control(node: fx.Node) -> bool:
    """The node calls subgraphs, in a way that `subgraphs` knows."""
    return isinstance(node.target, HigherOrderOperator) and op_name(node) in _CONTROL


def origin(node: fx.Node) -> Origin:
    """The operator of a node and the user's line that it comes from."""
    return Origin(op_name(node), source_line(node))


def unsupported(node: fx.Node, why: CannotLower) -> UnsupportedGraph:
    """The error for a node that no call can stand for."""
    text, hint = (
        node.format_node() or node.name,
        "keep this part of the model out of the compiled graph",
    )
    if isinstance(why, SizeOfData):
        hint = "return what has a known size (a mask, a padded tensor), or " + hint
        return DependsOnData(text, str(why), hint, source_line(node))
    return UnsupportedGraph(text, str(why), hint, source_line(node))
