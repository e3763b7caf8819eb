"""What a kernel is measured on: tensors with the layouts of its buffers, in memory of their own."""

import functools
from collections.abc import Collection, Mapping, Sequence

import sympy
import torch
from torch import Tensor

from fx_emit import TORCH_DTYPE
from loop_ir import Compute, Const, DType, Indirect, Kernel, Load, TensorType
from loop_ir.ir import defined_values, reads, statements, used_values, writes
from planner.tensors import Buffers, layout_at, random_tensor
from symexpr import evaluate
from triton_emit import TritonKernel

Hints = Mapping[str, int]

# torch makes no random numbers of these.
_NOT_RANDOM = (DType.u16, DType.u32, DType.u64)


def why_not(kernel: Kernel, given: Collection[str] = ()) -> str:
    """Why a kernel cannot be measured on numbers that are made up, but for `given` buffers; empty
    where it can."""
    for buffer in kernel.buffers:
        dtype = buffer.type.dtype
        if dtype.is_complex or dtype in _NOT_RANDOM:
            return f"{buffer.name} is {dtype.value}"
    known = places(kernel) is not None or set(reads(kernel)) <= set(given) - set(writes(kernel))
    return "" if known else "it computes places in memory from data"


def places(kernel: Kernel) -> dict[str, tuple[sympy.Expr, ...]] | None:
    """The buffers that hold places in others, with what those places must be below. None where a
    place is computed from data by more than a choice or a cast: numbers that are made up could lie
    outside of the memory."""
    made = {out: s for s in statements(kernel) for out in defined_values(s)}
    found: dict[str, tuple[sympy.Expr, ...]] = {}

    @functools.cache
    def from_data(value: str) -> bool:
        stmt = made[value]
        return isinstance(stmt, Load) or any(map(from_data, used_values(stmt)))

    @functools.cache
    def is_place(value: str, extent: sympy.Expr) -> bool:
        stmt = made[value]
        if isinstance(stmt, Load):
            found[stmt.buffer] = (*found.get(stmt.buffer, ()), extent)
            return not stmt.dtype.is_float and stmt.other == 0
        if isinstance(stmt, Const):
            return stmt.value == 0
        if isinstance(stmt, Compute) and stmt.op in ("cast", "where"):
            values = stmt.args[1:] if stmt.op == "where" else stmt.args
            return all(is_place(v, extent) for v in values)
        return not from_data(value)

    for stmt in statements(kernel):
        if isinstance(stmt, Indirect) and not is_place(stmt.value, stmt.extent):
            return None
    return found


def overwritten(kernel: Kernel) -> set[str]:
    """Buffers whose first values have no part in what the kernel does."""
    return set(writes(kernel)) - set(reads(kernel))


def arguments(
    kernel: Kernel,
    emitted: Sequence[TritonKernel],
    hints: Hints,
    given: Mapping[str, Tensor] | None = None,
) -> list[Tensor | int]:
    """The arguments that a kernel takes, however it was emitted: random floats, places that exist,
    the same each time; of what it only reads, those that are given. torch's own random numbers stay
    where they are."""
    types = {b.name: b.type for b in kernel.buffers}
    below = {}
    for name, limits in (places(kernel) or {}).items():
        most = 1 << (8 * types[name].dtype.itemsize - 1)
        below[name] = min(most, *(int(evaluate(e, hints)) for e in limits))
    read = {n: t for n, t in (given or {}).items() if n not in writes(kernel)}
    made = Buffers(types.items(), hints, below, read)
    zeroed = [e.zeroed.type for e in emitted if e.zeroed is not None]
    largest = max(zeroed, key=lambda t: layout_at(t, hints)[0], default=None)
    more = [] if largest is None else [random_tensor(largest, hints).zero_()]
    return [*map(made.argument, emitted[0].args), *more]


def layouts(kernel: Kernel, emitted: TritonKernel, hints: Hints) -> list[Tensor | int]:
    """The same without memory, to look up what was measured on such."""
    types = {b.name: b.type for b in kernel.buffers}

    def tensor(type_: TensorType) -> Tensor:
        size, stride = layout_at(type_, hints)
        return torch.empty_strided(size, stride, dtype=TORCH_DTYPE[type_.dtype], device="meta")

    zeroed = [] if emitted.zeroed is None else [tensor(emitted.zeroed.type)]
    return [
        *(
            tensor(types[a]) if isinstance(a, str) else int(evaluate(a, hints))
            for a in emitted.args
        ),
        *zeroed,
    ]
