"""A numpy runtime, and a strategy that makes valid programs for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import strategies as st

from symexpr import symbol
from wrapper_ir import (
    Allocate,
    Assert,
    Comment,
    Constant,
    CopyBack,
    DefineKernel,
    Describe,
    Device,
    DType,
    ExternCall,
    If,
    KernelParam,
    Launch,
    Param,
    Program,
    Ref,
    Return,
    Symbol,
    SymbolDef,
    TensorType,
    View,
    contiguous_strides,
)

CPU = Device("cpu")
NUMPY = {
    DType.bool_: np.bool_, DType.u8: np.uint8, DType.i8: np.int8, DType.i16: np.int16,
    DType.i32: np.int32, DType.i64: np.int64, DType.f16: np.float16, DType.f32: np.float32,
    DType.f64: np.float64,
}  # fmt: skip


class NumpyRuntime:
    """Kernels and operators are Python functions, found by name. `log` records every call."""

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self.functions = functions
        self.log: list[str] = []

    def _array(self, memory: Any, size: Any, stride: Any, dtype: DType, start: int) -> Any:
        kind = np.dtype(NUMPY[dtype])
        strides = tuple(s * kind.itemsize for s in stride)
        return np.ndarray(size, kind, buffer=memory, offset=start, strides=strides)

    def empty_strided(self, size: Any, stride: Any, dtype: DType, device: Device) -> Any:
        span = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        memory = np.full(max(1, span * dtype.itemsize), 0xAB, np.uint8)
        self.log.append(f"empty {span * dtype.itemsize}")
        return self._array(memory, size, stride, dtype, 0)

    def as_strided(self, base: Any, size: Any, stride: Any, offset: int, dtype: DType) -> Any:
        memory = base
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        start = base.ctypes.data - memory.ctypes.data + offset * dtype.itemsize
        return self._array(memory, size, stride, dtype, 0 if 0 in size else start)

    def launch(self, kernel: DefineKernel, grid: Any, args: Any) -> None:
        self.log.append(f"launch {kernel.name} {grid}")
        self.functions[kernel.name](grid, *args, **dict(kernel.constants))

    def extern(self, target: str, args: Any, kwargs: Any) -> Any:
        self.log.append(f"extern {target}")
        return self.functions[target](*args, **kwargs)

    def copy(self, src: Any, dst: Any) -> None:
        dst[...] = src

    def size(self, tensor: Any) -> Any:
        return tensor.shape

    def stride(self, tensor: Any) -> Any:
        return tuple(s // tensor.itemsize for s in tensor.strides)

    def dtype(self, tensor: Any) -> DType:
        return next(d for d, n in NUMPY.items() if np.dtype(n) == tensor.dtype)


def _fill(grid: Any, out: Any, value: float) -> None:
    out[...] = value + np.arange(out.size).reshape(out.shape)


def _accumulate(grid: Any, x: Any, out: Any, scale: int) -> None:
    out += x.sum() * scale % 97


def _total(grid: Any, blocks: Any, out: Any) -> None:
    out += blocks.base.sum() % 89


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "fill": _fill,
    "accumulate": _accumulate,
    "total": _total,
    "test.double.default": lambda x: np.ascontiguousarray(x * 2 % 101),
    "test.increment_.default": lambda x, by: x.__iadd__(by),
    "test.pair.default": lambda x: (np.ascontiguousarray(x + 1), np.ascontiguousarray(x - 1)),
}
FILL = DefineKernel(
    "fill", "def fill(out, value):\n    ...\n",
    (KernelParam("out", "*f32", True), KernelParam("value", "f32")),
)  # fmt: skip
ACCUMULATE = DefineKernel(
    "accumulate", "def accumulate(x, out, scale):\n\n    ...",
    (KernelParam("x", "*f32"), KernelParam("out", "*f32", True), KernelParam("scale", "i32")),
    num_warps=8, comment="two\nlines \\ and a #",
)  # fmt: skip
TOTAL = DefineKernel(
    "total", "def total(blocks, out): ...\n",
    (KernelParam("blocks", "tensordesc<f32[2,4]>"), KernelParam("out", "*f32", True)), num_ctas=2,
)  # fmt: skip


def tensor(*size: Any, dtype: DType = DType.f32) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(tuple(map(sympy.sympify, size))), CPU)


def views(type: TensorType) -> list[TensorType]:
    """Layouts inside a contiguous matrix."""
    a, b = type.size
    return [
        TensorType(type.dtype, (b, a), (1, b), CPU),
        TensorType(type.dtype, (a * b,), (1,), CPU),
        TensorType(type.dtype, (a,), (b,), CPU, b - 1),
        TensorType(type.dtype, (3, a, b), (0, b, 1), CPU),
    ]


KINDS = ["view", "launch", "describe", "call", "pair", "if"]


@st.composite
def _programs(draw: st.DrawFn) -> Program:
    s0 = symbol("s0")
    sizes = st.sampled_from([s0, sympy.Integer(4), s0 * 2, sympy.Integer(1), s0 + 3])
    types: dict[str, TensorType] = {"x": tensor(s0, 4), "y": tensor(4, s0)}
    writable = ["y"]
    whole = ["x", "y"]  # contiguous matrices, to view and call
    ops: list[Any] = [SymbolDef("s0", "x", 0, draw(st.sampled_from(["", "batch"]))), FILL]
    ops += [Comment("text # \\n"), ACCUMULATE, TOTAL, Constant("c", tensor(2, 2), "weights.0")]
    types["c"] = tensor(2, 2)
    whole.append("c")
    names = (f"t{i}" for i in range(1000))
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["alloc"] * 3 + KINDS))
        if kind == "alloc":
            out, type = next(names), tensor(draw(sizes), draw(sizes))
            ops += [Allocate(out, type), Launch("fill", (s0, 1, 1), (Ref(out), 1.0))]
            types[out] = type
            writable.append(out)
            whole.append(out)
        elif kind == "view":
            src, out = draw(st.sampled_from(whole)), next(names)
            types[out] = draw(st.sampled_from(views(types[src])))
            ops.append(View(out, src, types[out], draw(st.sampled_from(["", "aten.t"]))))
        elif kind == "launch":
            src, dst = draw(st.sampled_from(sorted(types))), draw(st.sampled_from(writable))
            ops.append(Launch("accumulate", (s0 * 2, 1, 1), (Ref(src), Ref(dst), s0 + 1)))
        elif kind == "describe":
            src, dst = draw(st.sampled_from(whole)), draw(st.sampled_from(writable))
            out = next(names)
            ops.append(Describe(out, src, (2, 4), draw(st.sampled_from(["", "k.py:3"]))))
            for _ in range(draw(st.integers(1, 2))):
                ops.append(Launch("total", (s0, 1, 1), (Ref(out), Ref(dst))))
        elif kind == "call":
            src, out = draw(st.sampled_from(whole)), next(names)
            types[out] = types[src]
            ops.append(ExternCall("test.double.default", (Ref(src),), (), ((out, types[src]),)))
            whole.append(out)
            writable.append(out)
        elif kind == "pair":
            src, out = draw(st.sampled_from(whole)), next(names)
            outs = draw(st.sampled_from([((out, types[src]), None), (None, (out, types[src]))]))
            types[out] = types[src]
            ops.append(ExternCall("test.pair.default", (Ref(src),), (), outs, True))
            whole.append(out)
        else:
            dst, temporary = draw(st.sampled_from(writable)), next(names)
            body = (
                Allocate(temporary, tensor(s0, 2)),
                Launch("fill", (1, 1, 1), (Ref(temporary), 2.0)),
                Launch("accumulate", (1, 1, 1), (Ref(temporary), Ref(dst), 3)),
            )
            call = ExternCall("test.increment_.default", (Ref(dst), 5), mutates=(dst,))
            other = draw(st.sampled_from([(), (call,)]))
            ops.append(If(s0 * s0 > draw(st.integers(0, 40)), body, other, "small"))
    ops.append(Assert(s0 <= 9, 'batch "s0"'))
    if draw(st.booleans()):
        ops.append(CopyBack("x", "x"))
    returned = draw(st.lists(st.sampled_from(sorted(types)), max_size=3, unique=True))
    values = (*map(Ref, returned), Ref("y"), s0 * 3, None, 1.5, True)
    ops.append(Return(values))
    params = (Param("x", types["x"]), Param("y", types["y"]), Param("n", None))
    symbols = (Symbol("s0", 1, 9, draw(st.sampled_from([None, 2, 9]))), Symbol("n", None, 5))
    return Program("generated", params, tuple(ops), symbols)


@pytest.fixture(scope="session")
def programs() -> st.SearchStrategy[Program]:
    return _programs()


@pytest.fixture(scope="session")
def runtime() -> Callable[..., NumpyRuntime]:
    """`runtime(**functions)`: a fresh runtime that knows FUNCTIONS and these."""
    return lambda **functions: NumpyRuntime({**FUNCTIONS, **functions})


@pytest.fixture(scope="session")
def run_generated() -> Callable[[Program, int], list[Any]]:
    """Runs a program of the strategy: its results and the final value of `y`."""
    from wrapper_ir import interpret

    def run(program: Program, s0: int) -> list[Any]:
        x = np.arange(s0 * 4, dtype=np.float32).reshape(s0, 4)
        y = np.ones((4, s0), np.float32)
        constants = {"weights.0": np.eye(2, dtype=np.float32)}
        values = interpret(program, [x, y, 3], NumpyRuntime(FUNCTIONS), constants)
        return [v.copy() if isinstance(v, np.ndarray) else v for v in (*values, y)]

    return run


@pytest.fixture(scope="session")
def golden() -> Callable[[str], str]:
    return lambda name: (Path(__file__).parent / "golden" / name).read_text()
