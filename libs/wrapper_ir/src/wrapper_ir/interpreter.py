"""The reference meaning of a program: what every emitter is tested against."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import sympy

from symexpr import evaluate
from tensor_ir import (
    Arg,
    Device,
    DType,
    Ref,
    TensorType,
    contiguous_strides,
    print_symbol,
    print_type,
)
from wrapper_ir import errors
from wrapper_ir import ops as ir
from wrapper_ir.analysis import evaluate_type, extent, sizes_of_params, subgraph_of
from wrapper_ir.collectives import as_plain
from wrapper_ir.control import Steps, run_control

Ints = tuple[int, ...]


class Runtime(Protocol):
    """What a program needs of its host, duck-typed: tensors are whatever these take and give.

    Sizes, strides and offsets are ints counted in elements. A predicate of control has a truth
    value, what binds a symbol is one for `int`, and what a scan runs over has a `shape`."""

    def empty_strided(self, size: Ints, stride: Ints, dtype: DType, device: Device) -> Any:
        """New memory of this layout, uninitialised."""

    def as_strided(self, base: Any, size: Ints, stride: Ints, offset: int, dtype: DType) -> Any:
        """A view of the memory of `base`, `offset` elements of `dtype` after its first element.
        It may reach past the last element of `base`, as far as the storage goes."""

    def launch(
        self, kernel: ir.DefineKernel, grid: tuple[int, int, int], args: Sequence[Any]
    ) -> None:
        """Tensors, numbers, and for `tensordesc<...>` parameters a `Descriptor`."""

    def extern(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls an operator. `Device`, `DType` and `TorchEnum` arguments come as they are."""

    def copy(self, src: Any, dst: Any) -> None:
        """Writes the elements of `src` into `dst`."""

    def size(self, tensor: Any) -> Ints:
        """The sizes of a tensor."""

    def stride(self, tensor: Any) -> Ints:
        """The strides of a tensor, in elements."""

    def dtype(self, tensor: Any) -> DType:
        """The element type of a tensor."""


@dataclass(frozen=True)
class Descriptor:
    """What `describe` gives: a tensor, kept alive, and the block by which a kernel copies it. The
    fields are those of Triton's `TensorDescriptor`."""

    base: Any
    shape: Ints
    strides: Ints
    block_shape: Ints
    padding: str = "zero"

    @classmethod
    def of(cls, tensor: Any, block: Ints) -> Descriptor:
        """The descriptor of a whole tensor: anything with a `shape` and a method `stride`."""
        return cls(tensor, tuple(tensor.shape), tuple(tensor.stride()), block)


@dataclass
class _Storage:
    """`root` is a tensor whose first element lies `start` bytes into the storage."""

    root: Any
    start: int
    bytes: int


@dataclass
class _Machine:
    runtime: Runtime
    constants: Mapping[str, Any]
    inputs: Mapping[str, Any]
    tensors: dict[str, Any] = field(default_factory=dict)
    storages: dict[str, _Storage] = field(default_factory=dict)
    kernels: dict[str, ir.DefineKernel] = field(default_factory=dict)
    subgraphs: dict[str, ir.Program | ir.DefineControl] = field(default_factory=dict)
    env: dict[str, int] = field(default_factory=dict)


def interpret(
    program: ir.Program,
    inputs: Sequence[Any],
    runtime: Runtime,
    constants: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """Runs a valid program, op by op.

    Raises `InputMismatch` where an argument differs from its declaration in element type, rank,
    size, or stride (of dimensions that hold more than one element), or a symbol leaves its
    declared range; `ResultMismatch` where an operator returns another size than declared, or an
    alias of another layout (any other layout or element type is converted to the declared one);
    `StorageTooSmall`, `AssertionFailed`, `MissingConstant`."""
    machine = _Machine(runtime, constants or {}, _named(program, inputs))
    machine.env.update(bind_inputs(program, inputs, runtime))
    for param, value in zip(program.params, inputs, strict=True):
        if param.type is not None:
            _own(machine, param.name, param.type, value)
    return _run(machine, program.ops)


def bind_inputs(program: ir.Program, inputs: Sequence[Any], runtime: Runtime) -> dict[str, int]:
    """Values of the symbols for these arguments, all of which are checked against their
    declarations (errors: see `interpret`)."""
    named = _named(program, inputs)
    env: dict[str, int] = {}
    for param in program.params:
        value = named[param.name]
        if param.type is None:
            if not isinstance(value, int) or isinstance(value, bool):
                raise errors.InputMismatch(param.name, "an integer", repr(value))
            env[param.name] = value
            continue
        dtype, size = runtime.dtype(value), runtime.size(value)
        if dtype != param.type.dtype:
            raise errors.InputMismatch(param.name, param.type.dtype.value, dtype.value)
        if len(size) != len(param.type.size):
            raise errors.InputMismatch(
                param.name, f"rank {len(param.type.size)}", f"rank {len(size)}"
            )
    for op in sizes_of_params(program):
        tensor = named[op.tensor]
        env[op.symbol] = op.value(runtime.size(tensor), runtime.stride(tensor))
    for s in program.symbols:
        value = env.get(s.name, s.low if s.low is not None else s.high)
        if value is not None and (
            (s.low is not None and value < s.low) or (s.high is not None and value > s.high)
        ):
            raise errors.InputMismatch(s.name, print_symbol(s), str(value))
    for param in program.params:
        if param.type is not None:
            _check_input(param.name, param.type, named[param.name], runtime, env)
    return env


def _named(program: ir.Program, inputs: Sequence[Any]) -> dict[str, Any]:
    if len(inputs) != len(program.params):
        raise errors.InputCountMismatch(len(program.params), len(inputs))
    return {p.name: v for p, v in zip(program.params, inputs, strict=True)}


def _check_input(
    name: str, type: TensorType, value: Any, runtime: Runtime, env: Mapping[str, int]
) -> None:
    expected, stride, _ = evaluate_type(type, env)
    size, got = runtime.size(value), runtime.stride(value)
    if size != expected:
        raise errors.InputMismatch(name, f"size {expected} ({print_type(type)})", f"size {size}")
    if not same_addresses(size, stride, got):
        raise errors.InputMismatch(name, f"stride {stride} ({print_type(type)})", f"stride {got}")


def same_addresses(size: Ints, a: Ints, b: Ints) -> bool:
    """Whether two strides address the same elements: sizes 0 and 1 do not count."""
    return 0 in size or all(x == y for n, x, y in zip(size, a, b, strict=True) if n > 1)


def _own(machine: _Machine, name: str, type: TensorType, value: Any) -> None:
    start = int(evaluate(type.offset, machine.env)) * type.dtype.itemsize
    machine.tensors[name] = value
    machine.storages[name] = _Storage(value, start, type.storage_bytes(machine.env))


def _run(machine: _Machine, ops: Sequence[ir.Op]) -> tuple[Any, ...]:
    for op in ops:
        if isinstance(op, ir.Return):
            return tuple(_value(machine, v) for v in op.values)
        _step(machine, op)
    return ()


def _step(machine: _Machine, op: ir.Op) -> None:
    env, runtime = machine.env, machine.runtime
    match op:
        case ir.SymbolDef(of="item"):
            env[op.symbol] = int(_tensor(machine, op.tensor))
        case ir.Comment() | ir.SymbolDef() | ir.Return():
            pass  # sizes of parameters are bound before the first op
        case ir.DeviceGuard() | ir.StreamSwitch() | ir.StreamWait():
            pass  # one op follows the other
        case ir.Workspace():
            _step(machine, ir.Allocate(op.out, op.type))
            runtime.extern("aten.zero_.default", (_tensor(machine, op.out),), {})
        case ir.DefineKernel():
            machine.kernels[op.name] = op
        case ir.DefineSubgraph():
            machine.subgraphs[op.program.name] = op.program
        case ir.DefineControl():
            machine.subgraphs[op.name] = op
        case ir.Assert():
            if not bool(evaluate(op.condition, env)):
                values = ", ".join(f"{k}={v}" for k, v in env.items())
                raise errors.AssertionFailed(f"{op.message} ({values})" if values else op.message)
        case ir.Constant():
            if op.key not in machine.constants:
                raise errors.MissingConstant(op.out, op.key)
            value = machine.constants[op.key]
            dtype = runtime.dtype(value)
            if dtype != op.type.dtype:
                raise errors.InputMismatch(op.out, op.type.dtype.value, dtype.value)
            _check_input(op.out, op.type, value, runtime, env)
            _own(machine, op.out, op.type, value)
        case ir.Allocate():
            size, stride, _ = evaluate_type(op.type, env)
            value = runtime.empty_strided(size, stride, op.type.dtype, op.type.device)
            _own(machine, op.out, op.type, value)
        case ir.CommAllocate():
            _step(machine, as_plain(op))
        case ir.Free() | ir.CommFree():
            _kill(machine, op.name)
        case ir.Reuse():
            storage = _storage(machine, op.src)
            _kill(machine, op.src)
            _share(machine, op.out, op.type, storage)
        case ir.View():
            _share(machine, op.out, op.type, _storage(machine, op.src))
        case ir.Describe():
            _describe(machine, op)
        case ir.Launch():
            if op.kernel not in machine.kernels:
                raise errors.UndefinedKernel(f"no kernel {op.kernel}")
            grid = tuple(int(evaluate(g, env)) for g in op.grid)
            args = [_value(machine, a) for a in op.args]
            if 0 not in grid:
                runtime.launch(machine.kernels[op.kernel], (grid[0], grid[1], grid[2]), args)
        case ir.ExternCall():
            _extern(machine, op)
        case ir.CopyBack():
            runtime.copy(_tensor(machine, op.src), _tensor(machine, op.dst))
        case ir.If():
            _run(machine, op.then if bool(evaluate(op.condition, env)) else op.orelse)


def _tensor(machine: _Machine, name: str) -> Any:
    if name not in machine.tensors:
        raise errors.UndefinedName(f"no tensor {name} is alive here")
    return machine.tensors[name]


def _storage(machine: _Machine, name: str) -> _Storage:
    _tensor(machine, name)
    return machine.storages[name]


def _kill(machine: _Machine, name: str) -> None:
    dead = _storage(machine, name)
    for alias in [n for n, s in machine.storages.items() if s is dead]:
        del machine.tensors[alias], machine.storages[alias]


def _share(machine: _Machine, name: str, type: TensorType, storage: _Storage) -> None:
    size, stride, offset = evaluate_type(type, machine.env)
    needed, itemsize = type.storage_bytes(machine.env), type.dtype.itemsize
    if needed > storage.bytes:
        raise errors.StorageTooSmall(name, needed, storage.bytes)
    offset = offset - storage.start // itemsize if extent(size, stride) else 0
    value = machine.runtime.as_strided(storage.root, size, stride, offset, type.dtype)
    machine.tensors[name] = value
    # A reused storage keeps all of its bytes under a name of its own.
    machine.storages[name] = storage


def _describe(machine: _Machine, op: ir.Describe) -> None:
    runtime, base = machine.runtime, _tensor(machine, op.src)
    machine.tensors[op.out] = Descriptor(base, runtime.size(base), runtime.stride(base), op.block)
    machine.storages[op.out] = machine.storages[op.src]


def _extern(machine: _Machine, op: ir.ExternCall) -> None:
    runtime = machine.runtime
    args = [_value(machine, a) for a in op.args]
    kwargs = {k: _value(machine, v) for k, v in op.kwargs}
    subgraph = subgraph_of(op)
    if subgraph is None:
        result = runtime.extern(op.target, args, kwargs)
    else:
        result = _subgraph(machine, subgraph, args, op.outs)
    results = tuple(result) if op.tuple_result else (result,) * min(1, len(op.outs))
    if len(results) != len(op.outs):
        raise errors.ResultMismatch(
            op.target, "a tuple", f"{len(results)} results", f"{len(op.outs)} results"
        )
    for symbol, (i, dim) in op.places().items():
        machine.env[symbol] = runtime.size(results[i])[dim]
    for out, value in zip(op.outs, results, strict=True):
        if out is None:
            continue
        name, type = out
        if op.alias is None:
            _own(machine, name, type, _conformed(machine, op.target, name, type, value))
        else:
            machine.tensors[name] = _conformed(machine, op.target, name, type, value, alias=True)
            machine.storages[name] = _storage(machine, op.alias)


def _subgraph(
    machine: _Machine, name: str, args: Sequence[Any], outs: Sequence[tuple[str, TensorType] | None]
) -> tuple[Any, ...]:
    runtime, called = machine.runtime, machine.subgraphs[name]
    if isinstance(called, ir.Program):
        return interpret(called, args, runtime, machine.constants)

    def function(subgraph: str, *given: Any) -> tuple[Any, ...]:
        return _subgraph(machine, subgraph, given, ())

    def at(tensor: Any, i: int) -> Any:
        size, stride = runtime.size(tensor), runtime.stride(tensor)
        dtype = runtime.dtype(tensor)
        return runtime.as_strided(tensor, size[1:], stride[1:], i * stride[0], dtype)

    def new(tensor: Any, count: int) -> Any:
        size = (count, *runtime.size(tensor))
        stride = tuple(map(int, contiguous_strides(tuple(map(sympy.Integer, size)))))
        device = next(out[1].device for out in outs if out is not None)
        return runtime.empty_strided(size, stride, runtime.dtype(tensor), device)

    functions = [functools.partial(function, subgraph) for subgraph in called.subgraphs]
    return run_control(called, functions, args, Steps(at, new, runtime.copy))


def _conformed(
    machine: _Machine, target: str, name: str, type: TensorType, value: Any, alias: bool = False
) -> Any:
    """A result in the declared layout and element type: itself, or a converted copy where the
    operator made another (fake tensors do not know every kernel). A size is never changed, and an
    alias never copied: `ResultMismatch`."""
    runtime = machine.runtime
    size, stride, _ = evaluate_type(type, machine.env)
    dtype, got, got_stride = runtime.dtype(value), runtime.size(value), runtime.stride(value)
    if got == size and dtype == type.dtype and same_addresses(size, stride, got_stride):
        return value
    if got == size and not alias:
        copy = runtime.empty_strided(size, stride, type.dtype, type.device)
        runtime.copy(value, copy)
        return copy
    found = f"{dtype.value}{list(got)} stride {got_stride}"
    raise errors.ResultMismatch(target, name, f"{print_type(type)} = {list(size)} {stride}", found)


def _value(machine: _Machine, arg: Arg) -> Any:
    if isinstance(arg, Ref):
        return _tensor(machine, arg.name)
    if isinstance(arg, tuple):
        return tuple(_value(machine, a) for a in arg)
    if isinstance(arg, sympy.logic.boolalg.Boolean) and not isinstance(arg, sympy.Symbol):
        return bool(evaluate(arg, machine.env))
    if isinstance(arg, sympy.Expr):
        return int(evaluate(arg, machine.env))
    return arg
