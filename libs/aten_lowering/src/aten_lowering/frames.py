"""The frame of a reduction or scan: parallel axes over the dims that stay, inner over the rest."""

from collections.abc import Iterable

import sympy

from aten_lowering.builder import Coords, KernelBuilder, Operand, Value
from aten_lowering.call import Call, wrap_dim
from aten_lowering.errors import require


class ReductionFrame:
    """Kernel of a reduction of `x` over `dims` (None or empty: over all)."""

    def __init__(self, call: Call, x: Operand, dims: Iterable[int] | None) -> None:
        rank = len(x.size)
        chosen = {wrap_dim(d, rank) for d in dims or range(rank)}
        self.x = x
        self.call = call
        self.reduced = [d for d in range(rank) if d in chosen]
        self.kept = [d for d in range(rank) if d not in chosen]
        require(all(x.size[d] != 0 for d in self.reduced), "a reduction over nothing")
        self.k: KernelBuilder = call.kernel([x.size[d] for d in self.kept])
        self._outer = dict(zip(self.kept, self.k.coords, strict=True))

    @property
    def inner_size(self) -> list[sympy.Expr]:
        """The extents of the reduced dimensions."""
        return [self.x.size[d] for d in self.reduced]

    @property
    def count(self) -> sympy.Expr:
        """Elements that are folded into one."""
        return sympy.Mul(*self.inner_size)

    def start(self) -> Coords:
        """Starts a phase over the reduced dimensions; returns coordinates in `x`."""
        inner = dict(zip(self.reduced, self.k.inner(self.inner_size), strict=True))
        return tuple((self._outer | inner)[d] for d in range(len(self.x.size)))

    def element(self) -> Value:
        """Starts a phase over the reduced dimensions; returns the element of `x`."""
        return self.k.load(self.x, self.start())

    def fold(self, op: str, value: Value) -> tuple[Value, ...]:
        """The results of an entry of `loop_ir.REDUCTIONS`, with which a new phase starts."""
        found = self.k.reduce(op, value)
        self.k.once()
        return found

    def store(self, value: Value, keepdim: bool) -> None:
        """Stores an element of the reduction's result, and emits the kernel."""
        self.call.store(self.k, value, self.out_coords(keepdim))

    def out_coords(self, keepdim: bool) -> Coords:
        """Coordinates in the result of the reduction."""
        if keepdim:
            rank = len(self.x.size)
            return tuple(self._outer.get(d, sympy.S.Zero) for d in range(rank))
        return tuple(self._outer[d] for d in self.kept)
