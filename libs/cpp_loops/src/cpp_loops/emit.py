"""`emit`: a kernel of loop IR -> a C++ function.

A pointwise kernel goes over the last of its parallel axes in vectors; a reduction over its inner
axes, or, where memory lies along the last parallel axis, over a block of that, with a fold for each
of its points. The other parallel axes are shared between threads where the work is worth it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import sympy

import loop_ir as ir
from cpp_loops.errors import UnsupportedKernel
from cpp_loops.folds import Fold, Running
from cpp_loops.plain_folds import plain_folds
from cpp_loops.scalars import cast, compute, loaded, memory_type, number, stored, value_type
from cpp_loops.values import needs_of
from cpp_loops.walk import LANES, TILE, walk_of
from loop_ir.ir import defined_values, expression, product, ranges_of, results, statements
from symexpr import SymexprError, bounds, one_line, to_cpp

# Elements of a row that f32 sums before that is added to the f64 of the whole row.
_PART = 256
# The operations of stores that combine.
_COMBINES = {"add": "add", "mul": "mul", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True)
class CppKernel:
    """A kernel as text, and how to call it.

    source: a function `extern "C" void kernel_NAME(...)`, for `translation_unit`. params: (name,
    kind, mutated) of each parameter; kind is `*f32`, a pointer to elements of a loop IR type, or
    `i64`. args: what to pass: the name of a buffer, or a size."""

    name: str
    source: str
    params: tuple[tuple[str, str, bool], ...]
    args: tuple[str | sympy.Expr, ...]


def emit(kernel: ir.Kernel) -> CppKernel:
    """The C++ text of a kernel. Raises UnsupportedKernel where an index may be too wide."""
    if all(not p.axes for p in kernel.phases):
        once = ir.Phase((), tuple(statements(kernel)))
        kernel = replace(kernel, phases=(once,))
    try:
        return _Writer(plain_folds(kernel)).emit()
    except SymexprError as error:
        raise UnsupportedKernel(kernel.name, str(error)) from error


class _Writer:
    def __init__(self, kernel: ir.Kernel) -> None:
        self.kernel = kernel
        self.walk = walk_of(kernel)
        self.needs = needs_of(kernel, self.walk)
        self.lines: list[str] = []
        self.depth = 1
        self.ranges = dict(ranges_of(kernel))
        self.made = {n: s for s in statements(kernel) for n in results(s)}
        self.types: dict[str, ir.DType] = {
            n: s.dtype  # type: ignore[union-attr]  # only stores define nothing
            for s in statements(kernel)
            for n in defined_values(s)
        }
        self.memory = {b.name: b.type.dtype for b in kernel.buffers}
        axes = [*kernel.axes, *(a for p in kernel.phases for a in p.axes)]
        used = {
            s for e in (*(a.extent for a in axes), *self._expressions()) for s in e.free_symbols
        }
        sizes = (sympy.Symbol(s.name, integer=True) for s in kernel.symbols)
        self.sizes = [s for s in sizes if s in used]
        self.symbols = {s: _safe(s) for s in self.ranges}
        self.buffers = self._roles()
        self.written = {b.name for b in kernel.buffers if b.written}
        # What is in a variable, by the value's name; the tests of places that are data.
        self.names: dict[str, str] = {}
        self.inside: dict[sympy.Symbol, str] = {}
        self.count = 0

    def _expressions(self) -> list[sympy.Expr]:
        body = list(statements(self.kernel))
        found = [e for s in body if (e := expression(s)) is not None]
        return found + [s.extent for s in body if isinstance(s, ir.Indirect)]

    def _roles(self) -> dict[str, str]:
        """Names by what is done with a buffer."""
        body = list(statements(self.kernel))
        stores = {s.buffer for s in body if isinstance(s, ir.Store)}
        loads = {s.buffer for s in body if isinstance(s, ir.Load)}
        loads |= {s.buffer for s in body if isinstance(s, ir.Store) and s.mode in ir.ATOMICS}
        names: dict[str, str] = {}
        for b in self.kernel.buffers:
            role = "inout" if b.name in loads & stores else "out" if b.name in stores else "in"
            names[b.name] = f"{role}{sum(n.rstrip('0123456789') == role for n in names.values())}"
        return names

    # -- text

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def open(self, text: str) -> None:
        self.line(f"{text} {{" if text else "{")
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")

    def pragma(self, text: str) -> None:
        self.lines.append(f"#pragma omp {text}")

    def index(self, e: sympy.Expr) -> str:
        """An integer expression, or an f64 of sizes."""
        used = {s: self.ranges.get(s, (0, None)) for s in e.free_symbols}
        for part in sympy.preorder_traversal(e) if self.sizes else ():
            if part.is_integer and not part.is_number:
                low, high = bounds(part, used)
                if (low or 0) < -(2**63) or (high or 0) >= 2**63:
                    raise UnsupportedKernel(self.kernel.name, f"{part} may be beyond 64 bits")
        ranges = {self.symbols[s]: r for s, r in used.items()}
        return to_cpp(e.xreplace(self.symbols), ranges=ranges, fits=True)

    def loop(self, axis: ir.Axis, reverse: bool = False, step: int = 1, name: str = "") -> None:
        """Opens a loop over an axis."""
        s, extent = name or str(self.symbols[axis.symbol]), self.index(axis.extent)
        if reverse:
            self.open(f"for (int64_t {s} = ({extent}) - 1; {s} >= 0; --{s})")
        else:
            next_ = f"++{s}" if step == 1 else f"{s} += {step}"
            self.open(f"for (int64_t {s} = 0; {s} < {extent}; {next_})")

    def piece(self, axis: ir.Axis, size: int, begin: str) -> None:
        """Opens the loop over what begins at `begin`, of so many points at most."""
        s, extent = self.symbols[axis.symbol], self.index(axis.extent)
        end = f"least({begin} + {size}, {extent})"
        self.open(f"for (int64_t {s} = {begin}; {s} < {end}; ++{s})")

    # -- the function

    def emit(self) -> CppKernel:
        kernel = self.kernel
        params = [
            (self.buffers[b.name], f"*{b.type.dtype.value}", b.written) for b in kernel.buffers
        ]
        declared = [
            f"{'' if b.written else 'const '}{memory_type(b.type.dtype)}* __restrict__ "
            f"{self.buffers[b.name]}"
            for b in kernel.buffers
        ]
        params += [(str(self.symbols[s]), "i64", False) for s in self.sizes]
        declared += [f"int64_t {self.symbols[s]}" for s in self.sizes]
        self.body()
        head = [f"// {one_line(f'{o.op}   {o.source}'.rstrip())}" for o in kernel.origins]
        head.append(f'extern "C" void kernel_{kernel.name}({", ".join(declared)}) {{')
        source = "\n".join([*head, *self.lines, "}", ""])
        args = (*(b.name for b in kernel.buffers), *self.sizes)
        return CppKernel(kernel.name, source, tuple(params), args)

    def body(self) -> None:
        axes, walk = self.kernel.axes, self.walk
        outer = [a for a in axes[: len(axes) - (walk.lanes or walk.walked)] if a is not walk.tile]
        loops = len(outer) + walk.lanes + (walk.tile is not None)
        parallel = loops > 0 and not walk.serial
        if parallel:
            self.pragma(f"parallel if (({self.index(self.points())}) >= {walk.worth})")
            self.open("")
        for name, inner in self.needs.rows.items():
            length = f"({self.index(product(a.extent for a in inner))})"
            length += f" * {walk.block}" if walk.lanes else ""
            self.line(f"const Row<{value_type(self.types[name])}> {_row(name)}({length});")
        if parallel:
            self.pragma("for" + f" collapse({loops})" * (loops > 1))
        for axis in outer:
            self.loop(axis)
        if walk.tile is not None:
            self.loop(walk.tile, step=TILE, name="first")
        if walk.lanes:
            self.loop(axes[-1], step=walk.block, name="begin")
        if walk.walked:
            self.zero()
            self.loop(axes[-1])
        if walk.tile is not None:
            self.piece(walk.tile, TILE, "first")
        for n, phase in enumerate(self.kernel.phases):
            if walk.lanes:
                self.lane_phase(n, phase)
            elif phase.axes:
                self.row_phase(n, phase)
            else:
                self.statements(n, phase)
        self.close(loops + walk.walked + parallel + (walk.tile is not None))

    def points(self) -> sympy.Expr:
        """About how many points there are, inner ones included."""
        inner = next((p.axes for p in self.kernel.phases if p.axes), ())
        return product(a.extent for a in (*self.kernel.axes, *inner))

    def zero(self) -> None:
        """Sums over rows that are walked over begin with none."""
        for phase in self.kernel.phases:
            for stmt in phase.body:
                if isinstance(stmt, ir.Store) and stmt.mode == "sum":
                    for axis in phase.axes:
                        self.loop(axis)
                    self.line(f"{self.buffers[stmt.buffer]}[{self.index(stmt.index)}] = 0;")
                    self.close(len(phase.axes))

    # -- phases

    def changed(self, phase: ir.Phase) -> tuple[dict[str, Fold], dict[str, Running]]:
        """The variables of its reductions and scans, by the results."""
        folds: dict[str, Fold] = {}
        scans: dict[str, Running] = {}
        for stmt in phase.body:
            if isinstance(stmt, ir.Reduce):
                name = f"fold{self.fresh()}"
                folds[stmt.outs[0]] = Fold(stmt, self.types[stmt.args[0]], name)
            elif isinstance(stmt, ir.Scan):
                scans[stmt.out] = Running(stmt, self.types[stmt.args[0]], f"scan{self.fresh()}")
        return folds, scans

    def fresh(self) -> int:
        """A number for a name."""
        self.count += 1
        return self.count - 1

    def row_phase(self, n: int, phase: ir.Phase) -> None:
        """Over the inner axes, for one point of the parallel ones."""
        folds, scans = self.changed(phase)
        for fold in folds.values():
            self.line(f"{fold.total} {fold.name} = {fold.start};")
        for scan in scans.values():
            self.line(f"{scan.total} {scan.name} = {scan.start};")
            self.line(f"int64_t {scan.name}_at = 0;")
        reverse = any(s.stmt.reverse for s in scans.values())
        for axis in phase.axes[:-1]:
            self.loop(axis, reverse)
        last = phase.axes[-1]
        parts = [f for f in folds.values() if f.part and not reverse]
        names = {f.name: f"{f.name}_part" if f in parts else f.name for f in folds.values()}
        if parts:
            self.loop(last, step=_PART, name="begin")
        for fold in parts:
            self.line(f"{fold.part} {names[fold.name]} = {fold.start};")
        sums = any(isinstance(s, ir.Store) and s.mode == "sum" for s in phase.body)
        if not (scans or sums or self.walk.serial):
            clauses = (f" reduction({f.clause(names[f.name])})" for f in folds.values())
            self.pragma("simd" + "".join(clauses))
        if parts:
            self.piece(last, _PART, "begin")
        else:
            self.loop(last, reverse)
        outside = dict(self.names), dict(self.inside)
        self.statements(n, phase, folds, scans, names)
        self.names, self.inside = outside
        self.close()
        for fold in parts:
            self.line(f"{fold.name} += {names[fold.name]};")
        self.close(len(phase.axes) - 1 + bool(parts))
        for out, fold in folds.items():
            self.define(out, fold.result(fold.name))

    def lane_phase(self, n: int, phase: ir.Phase) -> None:
        """Over the inner axes, and at each of their points over a block of the last parallel
        axis."""
        folds, scans = self.changed(phase)
        variables: tuple[Fold | Running, ...] = (*folds.values(), *scans.values())
        for each in variables:
            self.line(f"{each.total} {each.name}[{LANES}];")
            if isinstance(each, Running):
                self.line(f"int64_t {each.name}_at[{LANES}];")
            self.line(f"for (int64_t l = 0; l < {LANES}; ++l) {each.name}[l] = {each.start};")
        reverse = any(s.stmt.reverse for s in scans.values())
        for axis in phase.axes:
            self.loop(axis, reverse)
        if not self.walk.serial:
            self.pragma("simd")
        self.piece(self.kernel.axes[-1], self.walk.block, "begin")
        if self.walk.block == LANES:
            self.line(f"const int64_t l = {self.symbols[self.kernel.axes[-1].symbol]} - begin;")
        outside = dict(self.names), dict(self.inside)
        lanes = {each.name: f"{each.name}[l]" for each in variables}
        self.statements(n, phase, folds, scans, lanes)
        self.names, self.inside = outside
        self.close(len(phase.axes) + 1)
        for out, fold in folds.items():
            self.names[out] = f"({fold.result(lanes[fold.name])})"

    def flat(self, axes: tuple[ir.Axis, ...]) -> str:
        """The number of an inner point."""
        place: sympy.Expr = sympy.S.Zero
        for axis in axes:
            place = place * axis.extent + axis.symbol
        return self.index(sympy.expand(place))

    def place(self, axes: tuple[ir.Axis, ...]) -> str:
        """The number of an inner point, and of the lane, in a row."""
        text = self.flat(axes)
        return f"({text}) * {self.walk.block} + l" if self.walk.lanes else text

    # -- statements

    def define(self, name: str, text: str) -> None:
        """A variable for a value."""
        self.names[name] = f"v{self.fresh()}"
        self.line(f"const {value_type(self.types[name])} {self.names[name]} = {text};")

    def statements(
        self,
        n: int,
        phase: ir.Phase,
        folds: dict[str, Fold] | None = None,
        scans: dict[str, Running] | None = None,
        variables: dict[str, str] | None = None,
    ) -> None:
        """The statements of a phase, after what it needs of others."""
        for name in self.needs.read[n]:
            axes = self.needs.rows[name]
            self.define(name, f"{_row(name)}[{self.place(axes)}]")
        for stmt in self.needs.again[n]:
            self.statement(stmt)
        for stmt in phase.body:
            if isinstance(stmt, ir.Reduce):
                fold = (folds or {})[stmt.outs[0]]
                target = (variables or {}).get(fold.name, fold.name)
                self.line(fold.step(target, self.names[stmt.args[0]]))
                continue
            if isinstance(stmt, ir.Scan):
                scan = (scans or {})[stmt.out]
                target = (variables or {}).get(scan.name, scan.name)
                self.line(scan.step(target, self.names[stmt.args[0]], self.flat(phase.axes)))
                self.define(stmt.out, scan.result(target))
            else:
                self.statement(stmt)
            for name in defined_values(stmt):
                if name in self.needs.rows:
                    self.line(f"{_row(name)}[{self.place(phase.axes)}] = {self.names[name]};")

    def statement(self, stmt: ir.Stmt) -> None:
        """A statement that is no fold."""
        match stmt:
            case ir.Const():
                self.names[stmt.out] = number(stmt.value, stmt.dtype)
            case ir.Index():
                kind = ir.DType.i64 if stmt.expr.is_integer else ir.DType.f64
                self.define(stmt.out, cast(f"({self.index(stmt.expr)})", kind, stmt.dtype))
            case ir.Compute():
                kinds = [self.types[a] for a in stmt.args]
                made = [self.made[a] for a in stmt.args]
                numbers = [s.value if isinstance(s, ir.Const) else None for s in made]
                args = [self.names[a] for a in stmt.args]
                self.define(stmt.out, compute(stmt, args, kinds, numbers))
            case ir.Indirect():
                at, extent = self.names[stmt.value], self.index(stmt.extent)
                s = self.symbols[stmt.symbol]
                self.line(f"const int64_t {s} = {at} < 0 ? {at} + {extent} : {at};")
                self.inside[stmt.symbol] = f"in_{s}"
                self.line(f"const bool in_{s} = {s} >= 0 && {s} < {extent};")
            case ir.Load():
                self.load(stmt)
            case ir.Store():
                self.store(stmt)

    def guard(self, stmt: ir.Load | ir.Store) -> str:
        """Where a load or store happens at all."""
        parts = [] if stmt.mask is None else [self.names[stmt.mask]]
        found = sorted(self.inside.keys() & stmt.index.free_symbols, key=str)
        return " && ".join([*parts, *(self.inside[s] for s in found)])

    def load(self, stmt: ir.Load) -> None:
        """A load: what a guard leaves out is `other`, or NaN (0 of integers) for places outside."""
        at = f"{self.buffers[stmt.buffer]}[{self.index(stmt.index)}]"
        text, guard = loaded(at, stmt.dtype), self.guard(stmt)
        if guard:
            outside = float("nan") if stmt.dtype.is_float else 0
            other = number(outside if stmt.mask is None else stmt.other, stmt.dtype)
            text = f"{guard} ? {text} : {other}"
        self.define(stmt.out, text)

    def store(self, stmt: ir.Store) -> None:
        """A store, which alone changes the element at the time: kernels that combine are serial."""
        at = f"{self.buffers[stmt.buffer]}[{self.index(stmt.index)}]"
        value, dtype = self.names[stmt.value], self.memory[stmt.buffer]
        if stmt.mode == "sum":
            text = f"{at} + {value}"
        elif stmt.mode == "set":
            text = stored(value, dtype)
        else:
            kinds = ir.DType.i32 if dtype is ir.DType.bool_ else dtype
            old = loaded(at, dtype)
            both = ir.Compute("", _COMBINES[stmt.mode], ("", ""), kinds)
            text = stored(compute(both, (f"({old})", value), (kinds, kinds), (None, None)), dtype)
            if dtype is ir.DType.bool_:
                text = f"({text}) != 0"
        guard = self.guard(stmt)
        self.line(f"{f'if ({guard}) ' if guard else ''}{at} = {text};")


def _row(name: str) -> str:
    return f"row_{name}"


def _safe(s: sympy.Symbol) -> sympy.Symbol:
    """The symbol under a name that means nothing else in C++."""
    plain = re.fullmatch(r"[a-uw-z]\d+", s.name)
    return s if plain else sympy.Symbol(f"{s.name}_", integer=True)
