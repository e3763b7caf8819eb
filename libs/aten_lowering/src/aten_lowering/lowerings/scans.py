"""Running sums, products and extremes along a dimension."""

from typing import Any

import sympy
import torch

from aten_lowering.builder import Operand
from aten_lowering.call import Call, opmath
from aten_lowering.errors import require
from aten_lowering.frames import ReductionFrame
from aten_lowering.registry import Lowering, Table
from loop_ir import DType

aten = torch.ops.aten
table = Table()


# From here on a line is shared by programs, which wait for each other.
_LONG = 1 << 22


def _stands_alone(call: Call, input: Operand) -> bool:
    """The line is long, it is an argument of the program, of the type that is scanned, and the
    result is one of the program: a kernel would do nothing else on the way."""
    points = sympy.Mul(*input.size)
    return (
        bool(points.is_Integer and points >= _LONG)
        and input.dtype is call.out.dtype
        and all(n.op == "placeholder" for n in call.node.all_input_nodes)
        and all(n.op == "output" for n in call.node.users)
    )


def _scan(op: str, of_integers: bool = True) -> Lowering:
    """The input is converted to the type of the result, as eager does, and scanned in its opmath
    type. Eager's sums start from 0, so that there is no -0 among them, but where it copies a number
    or, on a GPU, has but one line to scan."""

    def lowering(call: Call, input: Operand, dim: int, dtype: Any = None) -> None:
        require(of_integers or input.dtype.is_float, "logcumsumexp of this input")
        frame = ReductionFrame(call, input, [dim])
        k, out = frame.k, call.out
        require(out.dtype is not DType.bool_, f"{op} with a bool result")
        one_line = call.for_gpu and all(input.size[d] == 1 for d in frame.kept)
        wide = op == "logsumexp" or out.dtype.itemsize == 8
        alone = one_line and wide and _stands_alone(call, input)
        require(not alone, "CUDA's own kernel reads one long line once")
        coords = frame.start()
        result = k.load(input, coords).to(out.dtype).to(opmath(out.dtype))
        result = k.scan(op, result) if input.size else result  # a number is its own fold
        plain = not input.size or one_line
        if op != "prod" and result.dtype.is_float and not plain:
            result = result + 0.0
        call.store(k, result, coords)

    return lowering


table.add(aten.cumsum.default, _scan("sum"))
table.add(aten.cumprod.default, _scan("prod"))
table.add(aten.logcumsumexp.default, _scan("logsumexp", of_integers=False))


def _extreme(op: str) -> Lowering:
    """Running extremes and the places of the last ones."""

    def lowering(call: Call, input: Operand, dim: int) -> None:
        frame = ReductionFrame(call, input, [dim])
        k = frame.k
        coords = frame.start()
        computed = DType.i32 if input.dtype is DType.bool_ else opmath(input.dtype)
        value = k.load(input, coords).to(computed)
        for result, scan in zip((call.result(0), call.result(1)), (op, f"arg{op}"), strict=True):
            if result is not None:
                k.store(result.operand, coords, k.scan(scan, value))
        call.emit_kernel(k)

    return lowering


table.add(aten.cummax.default, _extreme("max"))
table.add(aten.cummin.default, _extreme("min"))
