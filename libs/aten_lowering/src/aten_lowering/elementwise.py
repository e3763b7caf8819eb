"""The frame of a pointwise kernel: promote, load, compute, store."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch._ops import OpOverload

from aten_lowering.builder import KernelBuilder, Number, Operand, Value
from aten_lowering.call import Call, torch_dtype
from aten_lowering.errors import require
from aten_lowering.registry import Table
from aten_lowering.torch_compat import Promotion, elementwise_dtypes
from loop_ir import DType, Kernel, Origin

# What is computed at a point: gets the promoted inputs, gives the value to store.
Body = Callable[..., Value]


def promoted(call: Call, names: Sequence[str], kind: Promotion) -> tuple[DType, DType]:
    """Type to convert operands to as eager does, and type to compute in.

    `bf16 + bf16` gives (bf16, f32); `i64 / i64` gives (f32, f32); comparisons give the common type.
    """
    known = [_known_number(call.fakes[n]) for n in names if call.fakes[n] is not None]
    compute, _ = elementwise_dtypes(*known, type_promotion_kind=kind)
    no_bool = Promotion.NO_OPMATH if kind is Promotion.ALWAYS_BOOL else kind
    _, common = elementwise_dtypes(*known, type_promotion_kind=no_bool)
    return torch_dtype(common), torch_dtype(compute)


def _known_number(fake: Any) -> Any:
    """A SymInt promotes like any int, a SymFloat like any float, a SymBool like any bool."""
    if isinstance(fake, torch.SymFloat | torch.SymBool):
        return 1.0 if isinstance(fake, torch.SymFloat) else True
    return 1 if isinstance(fake, torch.SymInt) else fake


def load_as(
    k: KernelBuilder,
    x: Operand | Number,
    size: Sequence[sympy.Expr],
    common: DType,
    compute: DType,
    rounded: bool = False,
) -> Value:
    """A tensor or number at the current point: converted to the common type, then to the one to
    compute in. Python numbers keep their value up to the type that is computed in, unless they
    are to be `rounded` to the common type."""
    if not isinstance(x, Operand):
        return k.number(x, common if rounded else compute).to(compute)
    value = k.load_broadcast(x, size, k.coords)
    return value.to(common).to(compute)


@dataclass(frozen=True)
class Elementwise:
    """A lowering of operators whose element is `body` of the promoted elements of their arguments.

    given: arguments that it takes as they are, by name, and maybe `call`. rounded: what eager does
    with a number beside 16-bit floats differs from kernel to kernel: `iter.scalar_value<scalar_t>`
    rounds it to their type, `<opmath_t>` does not; None: it does on the CPU."""

    body: Body
    given: frozenset[str]
    kind: Promotion
    rounded: bool | None

    def __call__(self, call: Call, **arguments: Any) -> None:
        """Emits the kernel; `arguments` are those of `call`. Such as are None stay None."""
        names = [n for n in call.arguments if n not in self.given]
        given = {n: call if n == "call" else call.arguments[n] for n in self.given}
        rounded = call.on_cpu if self.rounded is None else self.rounded
        common, compute = promoted(call, names, self.kind)
        size, k = call.out.size, call.kernel()
        values = (
            x if x is None else load_as(k, x, size, common, compute, rounded)
            for x in (call.arguments[n] for n in names)
        )
        call.store(k, self.body(*values, **given))


def elementwise(
    table: Table,
    *ops: OpOverload,
    kind: Promotion = Promotion.DEFAULT,
    rounded: bool | None = False,
) -> Callable[[Body], Body]:
    """Enters a function that computes one element as the lowering of `ops`. It takes the
    arguments of the schema in order, promoted (`Elementwise` says what `rounded` means):

        @elementwise(table, aten.atan2.default, kind=Promotion.INT_TO_FLOAT)
        def atan2(y: Value, x: Value) -> Value:
            return y("atan2", x)

    but for those that it takes by name alone, as they are. `call` among them is the `Call`:

        @elementwise(table, aten.softplus.default)
        def softplus(x: Value, *, beta: Number, threshold: Number) -> Value: ...

    Raises `ValueError` where it takes another number of arguments than the schema has."""

    def register(body: Body) -> Body:
        named = inspect.signature(body).parameters.values()
        parameters = [p for p in named if p.default is p.empty]
        given = frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        for op in ops:
            names = {a.name for a in op._schema.arguments}
            taken = len(parameters) - len(given) + len(given & names)
            if taken != len(names) or given - names - {"call"}:
                raise ValueError(f"{op} has {len(names)} arguments, not {taken}")
            table.add(op, Elementwise(body, given, kind, rounded))
        return body

    return register


def function(table: Table, *ops: OpOverload) -> Callable[[Body], Body]:
    """`elementwise` for functions of floats; integers are converted first."""
    return elementwise(table, *ops, kind=Promotion.INT_TO_FLOAT)


def rows(table: Table, enter: Callable[..., Callable[[Body], Body]], **bodies: Body) -> None:
    """Enters expressions of one element as the lowerings of the operators of these names. enter:
    `elementwise`, `function` or what takes the same."""
    for name, body in bodies.items():
        enter(table, getattr(torch.ops.aten, name).default)(body)


def arithmetic(x: Value) -> Value:
    """`x`, which must not be bool: eager refuses to compute on those."""
    require(x.dtype is not DType.bool_, "arithmetic on bool")
    return x


def copy_kernel(name: str, source: Operand, target: Operand, origin: Origin) -> Kernel:
    """`target = source`, broadcast and converted. Torch has found their sizes equal, and guards: an
    expression may stand for a number."""
    require(len(source.size) <= len(target.size), "a copy of more dimensions")
    sizes = zip(source.size, target.size[len(target.size) - len(source.size) :], strict=True)
    same = tuple(n if n == 1 else m for n, m in sizes)
    source = replace(source, ref=replace(source.ref, type=replace(source.type, size=same)))
    k = KernelBuilder(name, target.size, origin)
    value = k.load_broadcast(source, target.size, k.coords)
    k.store(target, k.coords, value)
    return k.finish()
