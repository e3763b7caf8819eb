"""Comparison, logic and bits, element by element."""

from functools import partial

import torch

from aten_lowering.builder import KernelBuilder, Number, Operand, Value
from aten_lowering.call import Call
from aten_lowering.elementwise import Body, elementwise, load_as, promoted, rows
from aten_lowering.errors import require
from aten_lowering.registry import Lowering, Table
from aten_lowering.torch_compat import Promotion
from loop_ir import DType

aten = torch.ops.aten
table = Table()


def _comparison(op: str) -> Lowering:
    def lowering(call: Call, input: Operand, other: Operand | Number) -> None:
        common, compute = promoted(call, ["self", "other"], Promotion.ALWAYS_BOOL)
        if common is DType.bool_:
            common = compute = DType.i32
        size, k = call.out.size, call.kernel()
        x = load_as(k, input, size, common, compute)
        y = load_as(k, other, size, common, compute, rounded=True)
        call.store(k, x(op, y))

    return lowering


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    for _overload in ("Tensor", "Scalar"):
        table.add(getattr(getattr(aten, _name), _overload), _comparison(_name))


def _classification(op: str) -> Body:
    """What no integer is."""
    return lambda x: x(op) if x.dtype.is_float else x.k.const(False, DType.bool_)


rows(
    table,
    partial(elementwise, kind=Promotion.ALWAYS_BOOL),
    isnan=_classification("isnan"),
    isinf=_classification("isinf"),
    signbit=lambda x: x("signbit") if x.dtype.is_float else x < 0,  # of -0.0 it is
)


def _truth(call: Call, k: KernelBuilder, x: Operand) -> Value:
    return k.load_broadcast(x, call.out.size, k.coords).to(DType.bool_)


def _logical(op: str) -> Lowering:
    def lowering(call: Call, input: Operand, other: Operand) -> None:
        k = call.kernel()
        call.store(k, _truth(call, k, input)(op, _truth(call, k, other)))

    return lowering


@table.lowers(aten.logical_not.default)
def logical_not(call: Call, input: Operand) -> None:
    """Whether an element is 0."""
    k = call.kernel()
    call.store(k, ~_truth(call, k, input))


# -- bits


def _bitwise(op: str) -> Body:
    return lambda x, y: _bits(x)(op, y)


def _bits(x: Value) -> Value:
    require(not x.dtype.is_float, "bits of a float")
    return x


for _op in ("and", "or", "xor"):
    table.add(getattr(aten, f"logical_{_op}").default, _logical(_op))
    for _overload in ("Tensor", "Scalar", "Scalar_Tensor"):
        elementwise(table, getattr(getattr(aten, f"bitwise_{_op}"), _overload))(_bitwise(_op))


rows(table, elementwise, bitwise_not=lambda x: ~_bits(x))  # of booleans, "not"


def _shift_by(op: str) -> Body:
    def body(x: Value, y: Value) -> Value:
        """By the width or more, or a negative count: 0, or -1 of a negative number to the right."""
        require(x.dtype.is_int, "a shift of something else than an integer")
        last = 8 * x.dtype.itemsize - 1
        signed = x.dtype.value.startswith("i")
        inside = (y >= 0) & (y <= last) if signed else y <= last
        if op == "shr" and signed:
            return x >> inside.choose(y, last)
        return inside.choose(x(op, inside.choose(y, 0)), 0)

    return body


def _shift(op: str) -> Body:
    def body(x: Value, y: Value, *, call: Call) -> Value:
        """Only by a known count that fits: eager defines the others, machines differ."""
        require(x.dtype.is_int, "a shift of something else than an integer")
        count = call.arguments["other"]
        fits = isinstance(count, int) and 0 <= count < 8 * x.dtype.itemsize - 1
        require(fits, f"a shift by {count}")
        return x(op, y)

    return body


for _op, _packets in (
    ("shl", (aten.bitwise_left_shift, aten.__lshift__)),
    ("shr", (aten.bitwise_right_shift, aten.__rshift__)),
):
    _by_tensors = (_packets[0].Tensor, _packets[0].Scalar_Tensor, _packets[1].Tensor)
    elementwise(table, *_by_tensors)(_shift_by(_op))
    elementwise(table, _packets[0].Tensor_Scalar, _packets[1].Scalar)(_shift(_op))
