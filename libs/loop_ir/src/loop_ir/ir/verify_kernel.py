"""The rules of a kernel of loop IR, checked: names, axes, types, bounds, writes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from keyword import kwlist

import sympy

from loop_ir import errors
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import CACHE, disjoint, linear, nonnegative, same, span
from loop_ir.ir.analysis import at_hints, hints_of, lows_of
from loop_ir.ir.names import defined_values, expression, used_values
from loop_ir.ir.printer import print_stmt
from symexpr import free_symbols
from tensor_ir import DType

NAME = re.compile(rf"(?!(?:{'|'.join(kwlist)})$)[A-Za-z_]\w*", re.ASCII)
_ARITHMETIC = """
add sub mul neg abs maximum minimum floordiv truncdiv mod fmod pow fma
"""
_INT_OR_FLOAT = frozenset(_ARITHMETIC.split())
_PREDICATES = frozenset(("isnan", "isinf", "signbit"))
_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
_LOGIC = frozenset(("and", "or", "xor", "not"))
_OF_INTS = frozenset(("shl", "shr", "gcd"))


@dataclass
class _Value:
    dtype: DType
    inner: tuple[ir.Axis, ...]
    reduced_in: int | None


@dataclass
class KernelVerifier:
    """One kernel; `run` raises the `VerifyError` of the first rule that it breaks."""

    kernel: ir.Kernel
    values: dict[str, _Value] = field(default_factory=dict)
    indirect: dict[sympy.Symbol, tuple[tuple[ir.Axis, ...], sympy.Expr]] = field(
        default_factory=dict
    )
    stored: dict[str, list[ir.Store]] = field(default_factory=dict)
    over: dict[ir.Store, dict[sympy.Symbol, sympy.Expr]] = field(default_factory=dict)
    loaded: dict[str, list[ir.Load]] = field(default_factory=dict)
    stmt: ir.Stmt | None = None

    def run(self) -> None:
        """Raises the `VerifyError` of the first rule that the kernel breaks."""
        kernel = self.kernel
        self.sizes = {sympy.Symbol(s.name, integer=True): s for s in kernel.symbols}
        self.buffers = {b.name: b for b in kernel.buffers}
        self._names()
        for number, phase in enumerate(kernel.phases):
            self.stmt = None
            self._axes(phase)
            for stmt in phase.body:
                self._stmt(stmt, phase, number)
        self._writes()

    def fail(self, error: type[errors.VerifyError], detail: str) -> None:
        """Raises `error` about the statement that is looked at, or the kernel as a whole."""
        statement = "" if self.stmt is None else print_stmt(self.stmt)
        raise error(detail, self.kernel.name, statement)

    def _names(self) -> None:
        kernel = self.kernel
        names = [kernel.name, *(b.name for b in kernel.buffers), *(s.name for s in kernel.symbols)]
        axes = [kernel.axes, *(p.axes for p in kernel.phases)]
        names += (a.symbol.name for group in axes for a in group)
        names += (
            s.symbol.name for p in kernel.phases for s in p.body if isinstance(s, ir.Indirect)
        )
        for name in names:
            if not NAME.fullmatch(name):
                self.fail(errors.InvalidName, f"{name!r} is no identifier")
        if len(self.buffers) != len(kernel.buffers):
            self.fail(
                errors.DuplicateDefinition, f"buffer {first_twice(b.name for b in kernel.buffers)}"
            )
        symbols = [*(s.name for s in kernel.symbols), *(a.symbol.name for a in kernel.axes)]
        if len(set(symbols)) != len(symbols):
            self.fail(errors.DuplicateDefinition, f"symbol {first_twice(symbols)}")
        for buffer in kernel.buffers:
            for expr in (*buffer.type.size, *buffer.type.stride):
                self._size(expr, "layout", buffer.name)
            if buffer.type.offset != 0:
                self.fail(
                    errors.LayoutMismatch, f"buffer {buffer.name} starts at {buffer.type.offset}"
                )
        for axis in kernel.axes:
            self._size(axis.extent, "extent", axis.symbol)

    def _size(self, expr: sympy.Expr, what: str, of: object) -> None:
        unknown = free_symbols(expr) - self.sizes.keys()
        if unknown:
            self.fail(
                errors.UndefinedSymbol,
                f"the {what} of {of} uses {listed(unknown)}, which the kernel does not declare",
            )

    def _axes(self, phase: ir.Phase) -> None:
        taken = {*self.sizes, *(a.symbol for a in self.kernel.axes)}
        for axis in phase.axes:
            if axis.symbol in taken:
                self.fail(errors.DuplicateDefinition, f"symbol {axis.symbol}")
            taken.add(axis.symbol)
            self._size(axis.extent, "extent", axis.symbol)

    def _stmt(self, stmt: ir.Stmt, phase: ir.Phase, number: int) -> None:
        self.stmt = stmt
        for name in used_values(stmt):
            self._use(name, phase, number)
        expr = expression(stmt)
        if expr is not None:
            self._expr(expr, phase)
        self._types(stmt, phase)
        inner = () if isinstance(stmt, ir.Reduce) else phase.axes
        for name in defined_values(stmt):
            if not NAME.fullmatch(name):
                self.fail(errors.InvalidName, f"{name!r} is no identifier")
            if name in self.values:
                self.fail(errors.DuplicateDefinition, f"value {name}")
            dtype: DType = stmt.dtype  # type: ignore[union-attr]  # only stores define nothing
            reduced_in = number if isinstance(stmt, ir.Reduce) else None
            self.values[name] = _Value(dtype, inner, reduced_in)

    def _use(self, name: str, phase: ir.Phase, number: int) -> None:
        value = self.values.get(name)
        if value is None:
            self.fail(errors.UndefinedValue, f"{name} is not defined before")
            return
        if value.reduced_in == number:
            self.fail(errors.ReduceTooEarly, f"{name} is reduced in this phase")
        if value.inner and value.inner != phase.axes:
            self.fail(errors.PhaseMismatch, f"{name} belongs to `over {_axes(value.inner)}`")

    def _expr(self, expr: sympy.Expr, phase: ir.Phase) -> None:
        known = {*self.sizes, *(a.symbol for a in (*self.kernel.axes, *phase.axes))}
        for s in free_symbols(expr) - known:
            if s not in self.indirect:
                self.fail(errors.UndefinedSymbol, f"symbol {s} is not known here")
            inner = self.indirect[s][0]
            if inner and inner != phase.axes:
                self.fail(errors.PhaseMismatch, f"{s} belongs to `over {_axes(inner)}`")

    def _types(self, stmt: ir.Stmt, phase: ir.Phase) -> None:
        match stmt:
            case ir.Load():
                self._buffer_type(stmt.buffer, stmt.dtype)
                self._mask(stmt.mask)
                self.loaded.setdefault(stmt.buffer, []).append(stmt)
                if stmt.mask is None:
                    self._bounds(stmt.buffer, stmt.index, phase)
            case ir.Store():
                value = self.values[stmt.value]
                self._buffer_type(stmt.buffer, value.dtype)
                self._mask(stmt.mask)
                if stmt.mode not in ir.STORES:
                    self.fail(errors.UnknownOp, f"no store mode {stmt.mode!r}")
                if stmt.mode == "sum":
                    self._walked_sum(stmt, phase)
                self.stored.setdefault(stmt.buffer, []).append(stmt)
                self.over[stmt] = {a.symbol: a.extent for a in (*self.kernel.axes, *phase.axes)}
                if stmt.mask is None:
                    self._bounds(stmt.buffer, stmt.index, phase)
            case ir.Compute():
                self._compute(stmt)
            case ir.Reduce() | ir.Scan():
                self._fold(stmt, phase)
            case ir.Indirect():
                if not self.values[stmt.value].dtype.is_int:
                    self.fail(errors.ElementType, f"{stmt.value} is no integer")
                self._size(stmt.extent, "extent", stmt.symbol)
                axes = {a.symbol for p in self.kernel.phases for a in p.axes}
                axes |= {a.symbol for a in self.kernel.axes}
                if stmt.symbol in (self.indirect.keys() | self.sizes.keys() | axes):
                    self.fail(errors.DuplicateDefinition, f"symbol {stmt.symbol}")
                self.indirect[stmt.symbol] = (phase.axes, stmt.extent)
            case ir.Index():
                if not (stmt.dtype.is_int if stmt.expr.is_integer else stmt.dtype is DType.f64):
                    self.fail(errors.ElementType, "an index is an integer, a computed float f64")
            case ir.Const():
                if isinstance(stmt.value, float) and not stmt.dtype.is_float:
                    self.fail(errors.ElementType, f"{stmt.value!r} is no {stmt.dtype.value}")

    def _walked_sum(self, stmt: ir.Store, phase: ir.Phase) -> None:
        axes = self.kernel.axes
        if not (axes and phase.axes and stmt.mask is None) or self.values[stmt.value].dtype not in (
            DType.f32,
            DType.f64,
        ):
            self.fail(errors.MisplacedSum, "a sum over rows is of f32 or f64, at all inner points")
        elif axes[-1].symbol in free_symbols(stmt.index):
            self.fail(errors.MisplacedSum, f"it runs over {axes[-1].symbol}, which its index names")

    def _buffer_type(self, name: str, dtype: DType) -> None:
        buffer = self.buffers.get(name)
        if buffer is None:
            self.fail(errors.UndefinedBuffer, f"{name} is not declared")
            return
        if buffer.type.dtype != dtype:
            self.fail(
                errors.ElementType, f"{name} holds {buffer.type.dtype.value}, not {dtype.value}"
            )

    def _mask(self, mask: str | None) -> None:
        if mask is not None and self.values[mask].dtype != DType.bool_:
            self.fail(errors.ElementType, f"mask {mask} is no bool")

    def _compute(self, stmt: ir.Compute) -> None:
        op, dtype = stmt.op, stmt.dtype
        if op not in ir.OPS:
            self.fail(errors.UnknownOp, f"no operation {op}")
        if len(stmt.args) != ir.OPS[op]:
            self.fail(errors.Arity, f"{op} takes {ir.OPS[op]} arguments, got {len(stmt.args)}")
        kinds = [self.values[a].dtype for a in stmt.args]
        if op == "cast":
            return
        if op == "narrow":
            if kinds[0] != DType.f32 or dtype not in (DType.bf16, DType.f16):
                self.fail(errors.ElementType, "narrow takes f32 and gives bf16 or f16")
            return
        if op == "bitcast":
            if kinds[0].itemsize != dtype.itemsize:
                self.fail(errors.ElementType, "bitcast keeps the number of bits")
            return
        if op in ("where", "rarely"):
            if kinds[0] != DType.bool_:
                self.fail(errors.ElementType, f"condition {stmt.args[0]} is no bool")
            kinds = kinds[1:]
        first = kinds[0]
        if any(k != first for k in kinds):
            names = ", ".join(k.value for k in kinds)
            self.fail(errors.ElementType, f"arguments differ in type: {names}")
        if op == "philox":
            if first != DType.i64 or dtype != DType.u32:
                self.fail(errors.ElementType, "philox of i64 gives u32")
            return
        result = DType.bool_ if op in _COMPARISONS or op in _PREDICATES else first
        if dtype != result:
            self.fail(errors.ElementType, f"{op} of {first.value} gives {result.value}")
        if op in _INT_OR_FLOAT:
            fits = first.is_int or first.is_float
        elif op in _LOGIC:
            fits = first.is_int or first == DType.bool_
        elif op in _OF_INTS:
            fits = first.is_int
        elif op in _COMPARISONS or op == "where":
            fits = True
        else:
            fits = first.is_float
        if not fits:
            self.fail(errors.ElementType, f"{op} does not take {first.value}")

    def _fold(self, stmt: ir.Reduce | ir.Scan, phase: ir.Phase) -> None:
        scan = isinstance(stmt, ir.Scan)
        if stmt.op not in (ir.SCANS if scan else ir.REDUCTIONS):
            self.fail(errors.UnknownOp, f"no {'scan' if scan else 'reduction'} {stmt.op}")
        args, outs = (1, 1) if scan else ir.REDUCTIONS[stmt.op]
        if (len(stmt.args), len(defined_values(stmt))) != (args, outs):
            self.fail(errors.Arity, f"{stmt.op} has {args} arguments and {outs} results")
        if not phase.axes:
            self.fail(errors.MisplacedReduce, "the phase is `once`")
        kind = self.values[stmt.args[0]].dtype
        fits = True
        if stmt.op in ("any", "all"):
            fits = kind == DType.bool_
        elif stmt.op in ("welford", "softmax", "logsumexp"):
            fits = kind.is_float
        elif scan or stmt.op in ("sum", "prod"):
            fits = kind.is_float or kind.is_int
        if not fits:
            self.fail(errors.ElementType, f"{stmt.op} does not take {kind.value}")
        place = stmt.op in ("argmax", "argmin")
        expected = DType.i64 if place else kind
        if stmt.dtype != expected:
            what = f"{stmt.op} of {kind.value} gives {expected.value}"
            self.fail(errors.ElementType, what)
        if place and isinstance(stmt, ir.Scan) and stmt.reverse:
            self.fail(errors.BackwardPlaces, f"{stmt.op} is no reverse scan")

    def _bounds(self, buffer: str, index: sympy.Expr, phase: ir.Phase) -> None:
        """Fails only where an index leaves the storage at the hints."""
        axes = [(a.symbol, a.extent) for a in (*self.kernel.axes, *phase.axes)]
        axes += [(s, e) for s, (_, e) in self.indirect.items()]
        extent = span(self.buffers[buffer].type)
        ends = _ends(index, tuple(axes))
        if ends is None:
            return
        low, high = ends
        if same(high + 1, extent) and same(low, sympy.S.Zero):
            return
        lows = lows_of(self.sizes.values())
        if nonnegative(sympy.expand(low), lows) and nonnegative(
            sympy.expand(extent - 1 - high), lows
        ):
            return
        # Without hints no value is known to occur: `given` conditions may exclude a typical one.
        hints = hints_of(s for s in self.kernel.symbols if s.hint is not None)
        if any(at_hints(e, hints) == 0 for _, e in axes):
            return
        values = {s: sympy.Integer(hints[s.name]) for s in self.sizes if s.name in hints}
        first, last = low.xreplace(values), high.xreplace(values)
        size = extent.xreplace(values)
        if not (first.is_Integer and last.is_Integer and size.is_Integer):
            return
        if first < 0 or last >= size:
            at = f" at {hints}" if hints else ""
            self.fail(
                errors.OutOfBounds,
                f"reaches [{first}, {last}] of {buffer} with {size} elements{at}",
            )

    def _writes(self) -> None:
        for buffer in self.kernel.buffers:
            stores = self.stored.get(buffer.name, [])
            self.stmt = stores[0] if stores else None
            if buffer.written != bool(stores):
                verb = "declared as written but not stored to" if buffer.written else "stored to"
                self.fail(errors.NotWritten, f"{buffer.name} is {verb}")
            modes = {s.mode for s in stores}
            if len(stores) > 1 and (len(modes) > 1 or not modes <= ir.ATOMICS):
                lows = lows_of(self.sizes.values())
                for one, two in combinations(stores, 2):
                    self.stmt = two
                    if not disjoint(one.index, two.index, self.over[one], self.over[two], lows):
                        self.fail(errors.WriterConflict, f"{buffer.name} is stored to twice")
            for load in self.loaded.get(buffer.name, []):
                self.stmt = load
                if any(s.index != load.index for s in stores):
                    self.fail(errors.ReadOfOwnWrite, f"stores use other indices of {buffer.name}")


def _axes(axes: Iterable[ir.Axis]) -> str:
    return ", ".join(f"{a.symbol} < {a.extent}" for a in axes)


def listed(symbols: Iterable[sympy.Symbol]) -> str:
    """Names of symbols for a message, sorted."""
    return ", ".join(sorted(map(str, symbols)))


def first_twice(names: Iterable[str]) -> str:
    """The first name that occurs again, for a message."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return f"{name} twice"
        seen.add(name)
    return "twice"


@lru_cache(CACHE)
def _ends(
    index: sympy.Expr, axes: tuple[tuple[sympy.Symbol, sympy.Expr], ...]
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The least and the largest place of an index over axes of these extents, if it is linear."""
    form, extents = linear(index, tuple(s for s, _ in axes)), dict(axes)
    if form is None:
        return None
    low = high = form.rest
    for s, c in form.terms:
        if c.could_extract_minus_sign():
            low = low + c * (extents[s] - 1)
        else:
            high = high + c * (extents[s] - 1)
    return low, high
