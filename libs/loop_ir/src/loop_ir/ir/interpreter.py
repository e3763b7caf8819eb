"""The reference meaning of kernels and graphs, in numpy: the oracle of every code generator.

Tensors are numpy arrays with logical sizes; bf16 and 8-bit floats are float32 arrays (see
`loop_ir.ir.scalars`). A kernel is evaluated over all its points at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from loop_ir.errors import ExternNeeded, IndexOutOfRange, InputMismatch, UserKernelNeeded
from loop_ir.ir import nodes as ir
from loop_ir.ir.analysis import writes
from loop_ir.ir.printer import print_stmt
from loop_ir.ir.scalars import Array, compute, from_bits, numpy_dtype, to_bits, to_dtype
from symexpr import ArrayDomain, evaluate
from tensor_ir import DType, TensorType

ExternCallable = Callable[[str, tuple[Any, ...], dict[str, Any]], Any]
Grids = tuple[tuple[int, ...], ...]
UserKernelCallable = Callable[[str, Grids, dict[str, Any], dict[str, Any]], None]

_COMBINES: dict[str, np.ufunc] = {
    "add": np.add,
    "sum": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}

_SCANS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "logsumexp": np.logaddexp,
    "argmax": np.maximum,
    "argmin": np.minimum,
}


def interpret_kernel(
    kernel: ir.Kernel, tensors: Mapping[str, Array], symbols: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """Runs a kernel on numpy arrays; gives the written buffers, as arrays with logical sizes.

    tensors: by buffer name; a written buffer may be given (its old content, for partial stores
    and atomic adds), else it starts as zeros. Nothing given is changed.
    symbols: values of the size symbols; taken from the tensors' sizes where these are symbols.
    Raises `InputMismatch` and `IndexOutOfRange`."""
    env = dict(symbols or {})
    for buffer in kernel.buffers:
        if buffer.name in tensors:
            bind_sizes(buffer.name, buffer.type, np.shape(tensors[buffer.name]), env)
        elif not buffer.written:
            raise InputMismatch(buffer.name, "an array", "nothing")
    storages = {
        b.name: new_storage(b.name, b.type, tensors.get(b.name), env) for b in kernel.buffers
    }
    _Run(kernel, storages, env).run()
    return {b.name: view(storages[b.name], b.type, env).copy() for b in kernel.buffers if b.written}


def interpret_graph(
    graph: ir.Graph,
    inputs: Sequence[Array | int] | Mapping[str, Array | int],
    constants: Mapping[str, Array] | None = None,
    extern: ExternCallable | None = None,
    symbols: Mapping[str, int] | None = None,
    user_kernel: UserKernelCallable | None = None,
) -> tuple[Any, ...]:
    """Runs a graph; gives its outputs.

    inputs: in order, or by name: arrays, and ints for integer inputs. An array that the graph
    writes to (`CopyBack`, `mutates`) is changed.
    extern: runs `(target, args, kwargs)` with arrays (writable views) in place of tensors.
    user_kernel: runs `(kernel, grids, args, constants)`, arguments by parameter name, writing to
    the arrays among them."""
    return _GraphRun(graph, extern, user_kernel).run(inputs, constants or {}, symbols or {})


def bind_sizes(name: str, type: TensorType, shape: Sequence[int], env: dict[str, int]) -> None:
    """Checks a shape against a type; binds the symbols that are sizes of their own."""
    if len(shape) != len(type.size):
        raise InputMismatch(name, f"rank {len(type.size)}", f"shape {tuple(shape)}")
    for size, got in zip(type.size, shape, strict=True):
        if isinstance(size, sympy.Symbol) and size.name not in env:
            env[size.name] = int(got)
    for size, got in zip(type.size, shape, strict=True):
        if all(s.name in env for s in size.free_symbols) and number(size, env) != got:
            raise InputMismatch(name, f"sizes {type.size} at {env}", f"shape {tuple(shape)}")


def number(expr: sympy.Expr, env: Mapping[str, int]) -> int:
    """The value of a size expression for the sizes in `env`."""
    return int(expr) if expr.is_Integer else int(evaluate(expr, env))


def new_storage(
    name: str, type: TensorType, content: Array | None, env: Mapping[str, int]
) -> Array:
    """Flat storage for a layout (offset 0), with `content` in it."""
    empty = any(number(n, env) == 0 for n in type.size)
    length = 0 if empty else number(type.offset + type.extent, env)
    storage = np.zeros(length, numpy_dtype(type.dtype))
    if content is not None:
        array = np.asarray(content)
        if array.dtype.kind != storage.dtype.kind and not (
            array.dtype.kind in "iu" and storage.dtype.kind in "iu"
        ):
            raise InputMismatch(name, f"elements of {type.dtype.value}", str(array.dtype))
        view(storage, type, env)[...] = to_dtype(array, type.dtype)
    return storage


def view(storage: Array, type: TensorType, env: Mapping[str, int]) -> Array:
    """A writable strided view of a storage."""
    size = tuple(number(n, env) for n in type.size)
    if 0 in size:
        return np.zeros(size, storage.dtype)
    item = storage.dtype.itemsize
    strides = tuple(number(s, env) * item for s in type.stride)
    base = storage[number(type.offset, env) :]
    return np.lib.stride_tricks.as_strided(base, size, strides)


def reinterpret(storage: Array, held: DType, dtype: DType) -> Array:
    """A copy of a flat storage as elements of another type, of any width."""
    raw = storage.tobytes() if held.is_complex else to_bits(storage, held).tobytes()
    raw = raw[: len(raw) // dtype.itemsize * dtype.itemsize]
    if dtype.is_complex:
        return np.frombuffer(raw, numpy_dtype(dtype))
    return from_bits(np.frombuffer(raw, f"u{dtype.itemsize}"), dtype)


@dataclass
class _Run:
    """Values are arrays that broadcast over parallel axes, then the inner axes of their phase
    (each phase shape has as many dimensions; a value of `once` has none of the inner ones)."""

    kernel: ir.Kernel
    storages: dict[str, Array]
    env: dict[str, int]
    values: dict[str, Array] = field(default_factory=dict)
    types: dict[str, DType] = field(default_factory=dict)
    indirect: dict[sympy.Symbol, Array] = field(default_factory=dict)

    def run(self) -> None:
        self.outer = tuple(number(a.extent, self.env) for a in self.kernel.axes)
        self.rank = max((len(p.axes) for p in self.kernel.phases), default=0)
        for phase in self.kernel.phases:
            inner = tuple(number(a.extent, self.env) for a in phase.axes)
            pad = self.rank - len(inner)
            self.shape = (*self.outer, *inner, *(1 for _ in range(pad)))
            self.inner = inner
            self.points = self._points((*self.kernel.axes, *phase.axes))
            for stmt in phase.body:
                self._stmt(stmt)

    def _points(self, axes: Sequence[ir.Axis]) -> dict[Any, Any]:
        points: dict[Any, Any] = dict(self.env)
        rank = len(self.shape)
        for position, axis in enumerate(axes):
            shape = [1] * rank
            shape[position] = self.shape[position]
            points[axis.symbol.name] = np.arange(self.shape[position], dtype=np.int64).reshape(
                shape
            )
        return points

    def _eval(self, expr: sympy.Expr) -> Array:
        if expr.is_Integer:
            return np.int64(int(expr))
        points = self.points | {s.name: v for s, v in self.indirect.items()}
        env = {s.name: points[s.name] for s in expr.free_symbols}
        return np.asarray(evaluate(expr, env, ArrayDomain(np)))

    def _stmt(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Load():
                self._define(stmt.out, self._load(stmt), stmt.dtype)
            case ir.Index():
                self._define(stmt.out, to_dtype(self._eval(stmt.expr), stmt.dtype), stmt.dtype)
            case ir.Const():
                self._define(stmt.out, to_dtype(np.asarray(stmt.value), stmt.dtype), stmt.dtype)
            case ir.Compute():
                args = [self.values[a] for a in stmt.args]
                kinds = [self.types[a] for a in stmt.args]
                self._define(stmt.out, compute(stmt.op, args, kinds, stmt.dtype), stmt.dtype)
            case ir.Indirect():
                value = np.asarray(self.values[stmt.value], np.int64)
                extent = number(stmt.extent, self.env)
                self.indirect[stmt.symbol] = np.where(value < 0, value + extent, value)
            case ir.Reduce():
                args = [np.broadcast_to(self.values[a], self.shape) for a in stmt.args]
                for out, result in zip(stmt.outs, self._reduce(stmt, args[0]), strict=True):
                    self._define(out, result, stmt.dtype)
            case ir.Scan():
                x = np.broadcast_to(self.values[stmt.args[0]], self.shape)
                self._define(stmt.out, self._scan(stmt, x), stmt.dtype)
            case ir.Store():
                self._store(stmt)

    def _define(self, name: str, value: Array, dtype: DType) -> None:
        self.values[name] = value
        self.types[name] = dtype

    def _index(self, stmt: ir.Load | ir.Store, mask: Array | None) -> Array:
        """Flat positions at all points; points outside of the mask get position 0."""
        index = np.asarray(self._eval(stmt.index), np.int64)
        if mask is not None:
            shape = np.broadcast_shapes(index.shape, mask.shape)
            index = np.where(mask, np.broadcast_to(index, shape), 0)
        extent = len(self.storages[stmt.buffer])
        points = int(np.prod(self.shape))
        used = index if mask is None else index[np.broadcast_to(mask, index.shape)]
        if points and used.size and (used.min() < 0 or used.max() >= extent):
            low, high = int(used.min()), int(used.max())
            raise IndexOutOfRange(self.kernel.name, print_stmt(stmt), low, high, extent)
        return index

    def _load(self, stmt: ir.Load) -> Array:
        storage = self.storages[stmt.buffer]
        mask = None if stmt.mask is None else np.asarray(self.values[stmt.mask])
        index = self._index(stmt, mask)
        if 0 in self.shape or len(storage) == 0:
            other = to_dtype(np.asarray(stmt.other), stmt.dtype)
            return np.broadcast_to(other, np.shape(index))
        loaded = storage[index]
        if mask is None:
            return loaded
        return np.where(mask, loaded, to_dtype(np.asarray(stmt.other), stmt.dtype))

    def _store(self, stmt: ir.Store) -> None:
        storage = self.storages[stmt.buffer]
        if stmt.mode == "sum":  # also of no rows
            storage[np.asarray(self._eval(stmt.index)).reshape(-1)] = 0
        mask = None if stmt.mask is None else np.asarray(self.values[stmt.mask])
        index = np.broadcast_to(self._index(stmt, mask), self.shape).reshape(-1)
        value = np.broadcast_to(self.values[stmt.value], self.shape).reshape(-1)
        if mask is not None:
            keep = np.broadcast_to(mask, self.shape).reshape(-1)
            index, value = index[keep], value[keep]
        if stmt.mode == "set":
            storage[index] = value
            return
        dtype = self.types[stmt.value]
        combine = _COMBINES[stmt.mode]
        with np.errstate(all="ignore"):
            if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
                for at, item in zip(index, value, strict=True):
                    storage[at] = to_dtype(combine(storage[at], item), dtype)
            else:
                combine.at(storage, index, value)

    def _reduce(self, stmt: ir.Reduce, x: Array) -> list[Array]:
        first = len(self.outer)
        axes = tuple(range(first, first + len(self.inner)))
        empty = any(n == 0 for n in self.inner)
        with np.errstate(all="ignore"):
            if stmt.op in ("argmax", "argmin"):
                return [self._arg_extreme(stmt.op, x)]
            if stmt.op == "welford":
                wide = x.astype(np.float64)
                mean = wide.mean(axes, keepdims=True)
                m2 = ((wide - mean) ** 2).sum(axes, keepdims=True)
                return [to_dtype(mean, stmt.dtype), to_dtype(m2, stmt.dtype)]
            if stmt.op == "softmax":
                wide = x.astype(np.float64)
                peak = wide.max(axes, keepdims=True, initial=-np.inf)
                total = np.exp(wide - peak).sum(axes, keepdims=True)
                total = np.where(peak == -np.inf, 0.0, total)
                return [to_dtype(peak, stmt.dtype), to_dtype(total, stmt.dtype)]
            if stmt.op in ("sum", "prod"):
                wide = x.astype(np.float64) if stmt.dtype.is_float else x.astype(np.int64)
                run = np.sum if stmt.op == "sum" else np.prod
                return [to_dtype(run(wide, axis=axes, keepdims=True), stmt.dtype)]
            if stmt.op in ("any", "all"):
                test = np.any if stmt.op == "any" else np.all
                return [np.asarray(test(x, axis=axes, keepdims=True))]
            if empty:
                raise IndexOutOfRange(self.kernel.name, print_stmt(stmt), 0, 0, 0)
            extreme = np.max if stmt.op == "max" else np.min
            return [np.asarray(extreme(x, axis=axes, keepdims=True))]

    def _scan(self, stmt: ir.Scan, x: Array) -> Array:
        line = x.reshape(*self.outer, math.prod(self.inner))
        if stmt.reverse:
            line = line[..., ::-1]
        wide = line.astype(np.float64) if line.dtype.kind == "f" else line
        fold = _SCANS[stmt.op]
        with np.errstate(all="ignore"):
            if stmt.op in ("sum", "prod") and wide.dtype.kind in "iu":
                found = fold.accumulate(wide, axis=-1, dtype=np.int64)
            else:
                found = fold.accumulate(wide, axis=-1)
        if stmt.op in ("argmax", "argmin"):
            places = np.arange(line.shape[-1], dtype=np.int64)
            hits = (wide == found) | (wide != wide)
            found = np.maximum.accumulate(np.where(hits, places, 0), axis=-1)
        if stmt.reverse:
            found = found[..., ::-1]
        return to_dtype(found, stmt.dtype).reshape(self.shape)

    def _arg_extreme(self, op: str, x: Array) -> Array:
        flat = x.reshape(*self.outer, -1)
        if flat.dtype.kind == "f" and np.isnan(flat).any():
            # numpy's own argmax takes the first NaN too; argmin likewise.
            flat = flat.astype(np.float64)
        found = (np.argmax if op == "argmax" else np.argmin)(flat, axis=-1)
        return found.astype(np.int64).reshape(*self.outer, *(1 for _ in range(self.rank)))


@dataclass
class _GraphRun:
    graph: ir.Graph
    extern: ExternCallable | None
    user_kernel: UserKernelCallable | None
    env: dict[str, int] = field(default_factory=dict)
    storages: dict[str, Array] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def run(
        self,
        inputs: Sequence[Array | int] | Mapping[str, Array | int],
        constants: Mapping[str, Array],
        symbols: Mapping[str, int],
    ) -> tuple[Any, ...]:
        graph = self.graph
        self.env.update(symbols)
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(graph.inputs):
                raise InputMismatch(
                    graph.name, f"{len(graph.inputs)} inputs", f"{len(inputs)} inputs"
                )
            inputs = {i.name: v for i, v in zip(graph.inputs, inputs, strict=True)}
        for item in graph.inputs:
            if item.name not in inputs:
                raise InputMismatch(item.name, "an input", "nothing")
            if item.type is None:
                self.env[item.name] = int(inputs[item.name])
            else:
                bind_sizes(item.name, item.type, np.shape(inputs[item.name]), self.env)
        for name, type in graph.constants:
            if name not in constants:
                raise InputMismatch(name, "a constant", "nothing")
            self._new(name, type, constants[name])
        for item in graph.inputs:
            if item.type is not None:
                self._new(item.name, item.type, inputs[item.name])
        for node in graph.nodes:
            match node:
                case ir.Kernel():
                    self._kernel(node)
                case ir.Extern():
                    self._extern(node)
                case ir.Matmul():
                    self._matmul(node)
                case ir.UserKernel():
                    self._user_kernel(node)
                case ir.CopyBack():
                    src = self._view(node.src)
                    dst = view(self.storages[node.dst.buffer], node.dst.type, self.env)
                    value = np.array(src).reshape(dst.shape)
                    value = np.conj(value) if node.dst.conj else value
                    dst[...] = -value if node.dst.neg else value
        for item in graph.inputs:
            if item.type is not None and isinstance(given := inputs[item.name], np.ndarray):
                content = view(self.storages[item.name], item.type, self.env)
                if given.flags.writeable and not _equal(given, content):
                    given[...] = content
        return tuple(
            np.array(v) if isinstance(v, np.ndarray) else v for v in map(self._arg, graph.outputs)
        )

    def _new(self, name: str, type: TensorType, content: Array | None) -> None:
        self.storages[name] = new_storage(name, type, content, self.env)
        self.types[name] = type

    def _view(self, ref: ir.TensorRef) -> Array:
        """Writable, unless it is seen at another element type, conjugated or negated."""
        storage = self.storages[ref.buffer]
        if (held := self.types[ref.buffer].dtype) != ref.type.dtype:
            storage = reinterpret(storage, held, ref.type.dtype)
        found = view(storage, ref.type, self.env)
        if ref.conj:
            found = np.conj(found)
        return -found if ref.neg else found

    def _kernel(self, kernel: ir.Kernel) -> None:
        for buffer in kernel.buffers:
            if buffer.name not in self.storages:
                self._new(buffer.name, buffer.type, None)
        seen = dict(self.storages)
        for name, storage in seen.items():
            if storage.dtype.kind == "c":
                seen[name] = storage.view(storage.real.dtype)
        _Run(kernel, seen, dict(self.env)).run()

    def _arg(self, arg: ir.GraphArg) -> Any:
        if isinstance(arg, ir.TensorRef):
            return self._view(arg)
        if isinstance(arg, tuple):
            return tuple(map(self._arg, arg))
        if isinstance(arg, sympy.Expr):
            return number(arg, self.env)
        if isinstance(arg, sympy.logic.boolalg.Boolean):
            return bool(evaluate(arg, self.env))
        return arg

    def _extern(self, node: ir.Extern) -> None:
        if self.extern is None:
            raise ExternNeeded(node.target)
        kwargs = {k: self._arg(v) for k, v in node.kwargs}
        result = self.extern(node.target, tuple(map(self._arg, node.args)), kwargs)
        results = tuple(result) if node.tuple_result else (result,)
        for out, value in zip(node.outs, results, strict=False):
            if out is not None:
                bind_sizes(out[0], out[1], np.shape(value), self.env)
                self._new(out[0], out[1], np.asarray(value))
        for name in set(node.binds) - self.env.keys():
            self.env[name] = int(result)

    def _user_kernel(self, node: ir.UserKernel) -> None:
        if self.user_kernel is None:
            raise UserKernelNeeded(node.kernel)
        for name, type in node.outs:
            self._new(name, type, None)
        grids = tuple(tuple(number(e, self.env) for e in grid) for grid in node.grids)
        args = {k: self._arg(v) for k, v in node.args}
        self.user_kernel(node.kernel, grids, args, dict(node.constants))

    def _grouped(self, node: ir.Matmul, a: Array, b: Array) -> Array:
        """NaN in what lies in no group."""
        assert node.groups is not None
        size = tuple(number(n, self.env) for n in node.type.size)
        result = np.full(size, 0.0 if node.jagged == "K" else np.nan)
        start = 0
        for group, end in enumerate(self._view(node.groups).tolist()):
            part = slice(start, end)
            if node.jagged == "M":
                result[part] = a[part] @ b[group]
            elif node.jagged == "N":
                result[:, part] = a[group] @ b[:, part]
            else:
                result[group] = a[:, part] @ b[part]
            start = end
        return result

    def _matmul(self, node: ir.Matmul) -> None:
        for kernel in node.prologues:
            self._kernel(kernel)
        a, b = (np.asarray(self._view(r), np.float64) for r in (node.a, node.b))
        if node.scales is not None:
            rows, columns = (
                np.asarray(self._view(r), np.float64) for r in (node.scales.a, node.scales.b)
            )
            if (blocks := node.scales.blocks) is None:
                a, b = a * rows[:, None], b * columns[..., None, :]
            else:
                m, k, n = (
                    np.arange(n) // of for n, of in zip((*a.shape, b.shape[1]), blocks, strict=True)
                )
                a, b = a * rows[np.ix_(m, k)], b * columns[np.ix_(k, n)]
        result = node.alpha * (a @ b if node.groups is None else self._grouped(node, a, b))
        if node.bias is not None and node.beta != 0:
            result = result + node.beta * np.asarray(self._view(node.bias), np.float64)
        self._new(node.out, node.type, to_dtype(result, node.type.dtype))
        if node.epilogue is not None:
            self._kernel(node.epilogue)
            del self.storages[node.out]
        for kernel in node.prologues:
            for buffer in writes(kernel):
                del self.storages[buffer]


def _equal(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
