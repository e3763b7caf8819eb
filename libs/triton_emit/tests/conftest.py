"""Kernels to emit, a runner under Triton's interpreter, and the reference to compare with."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy
import torch

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Index,
    Indirect,
    Kernel,
    Load,
    Origin,
    Phase,
    Reduce,
    Store,
    Symbol,
    TensorType,
    contiguous_strides,
    interpret_kernel,
)
from symexpr import evaluate, symbol
from triton_emit import Schedule, TritonKernel, default_schedule, emit
from triton_rt import KernelParam, KernelSource, load_jit

TORCH = {
    DType.bool_: torch.bool, DType.u8: torch.uint8, DType.u16: torch.uint16,
    DType.u32: torch.uint32, DType.u64: torch.uint64, DType.i8: torch.int8,
    DType.i16: torch.int16, DType.i32: torch.int32, DType.i64: torch.int64,
    DType.f16: torch.float16, DType.bf16: torch.bfloat16, DType.f32: torch.float32,
    DType.f64: torch.float64, DType.f8e4m3: torch.float8_e4m3fn, DType.f8e5m2: torch.float8_e5m2,
}  # fmt: skip

# relative distance of neighbours, the unit of the tolerances
EPS = {DType.f8e4m3: 2.0**-3, DType.f8e5m2: 2.0**-2, DType.bf16: 2.0**-8, DType.f16: 2.0**-11,
       DType.f32: 2.0**-23, DType.f64: 2.0**-52}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another library's conftest has it already
        parser.addoption("--accept", action="store_true", help="rewrite golden files")


def to_torch(array: Any, dtype: DType) -> torch.Tensor:
    data = np.array(array, order="C")
    if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
        return torch.from_numpy(data.astype(np.float32)).to(TORCH[dtype])
    return torch.from_numpy(data).to(TORCH[dtype])


def to_numpy(tensor: torch.Tensor, dtype: DType) -> Any:
    if dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):
        return tensor.float().numpy()
    return tensor.numpy()


def kernel_source(kernel: TritonKernel) -> KernelSource:
    params = tuple(KernelParam(*p) for p in kernel.params)
    if kernel.zeroed is not None:
        params += (KernelParam(kernel.zeroed.name, "*i64", True),)
    return KernelSource(
        kernel.name, kernel.source, params, kernel.constants, kernel.num_warps, kernel.num_stages
    )


def launch(
    kernel: TritonKernel, tensors: Mapping[str, torch.Tensor], symbols: Mapping[str, int]
) -> None:
    """Runs the text on CPU tensors, which it changes."""
    sizes = [a if isinstance(a, str | float) else int(evaluate(a, symbols)) for a in kernel.args]
    args = [tensors[a] if isinstance(a, str) else a for a in sizes]
    zeroed = [] if kernel.zeroed is None else [zeros(kernel.zeroed.type, symbols)]
    grid = tuple(int(evaluate(g, symbols)) for g in kernel.grid)
    run = load_jit(kernel_source(kernel), interpret=True)
    run[grid](*args, *zeroed, **dict(kernel.constants))
    assert not any(z.any() for z in zeroed), kernel.source


def zeros(type_: TensorType, symbols: Mapping[str, int]) -> torch.Tensor:
    size = [int(evaluate(n, symbols)) for n in type_.size]
    return torch.zeros(size, dtype=TORCH[type_.dtype])


def random_array(rng: Any, dtype: DType, size: tuple[int, ...]) -> Any:
    """Ordinary values of an element type; small integers."""
    if dtype is DType.bool_:
        return rng.random(size) < 0.5
    if dtype.is_float:
        values = rng.standard_normal(size)
        return to_numpy(to_torch(values, dtype), dtype)
    low = 0 if dtype.value.startswith("u") else -9
    return rng.integers(low, 9, size).astype(dtype.value.replace("i", "int").replace("u", "uint"))


def check(
    kernel: Kernel,
    schedule: Schedule | None = None,
    tensors: Mapping[str, Any] | None = None,
    symbols: Mapping[str, int] | None = None,
    ulp: float = 4.0,
    seed: int = 0,
) -> TritonKernel:
    """Emits, runs and compares with the reference. `ulp`: allowed distance, in units of the
    result's type relative to the largest magnitude of the result's row."""
    rng = np.random.default_rng(seed)
    sizes = dict(symbols or {})
    given = dict(tensors or {})
    for b in kernel.buffers:
        if b.name not in given:
            size = tuple(int(evaluate(n, sizes)) for n in b.type.size)
            given[b.name] = random_array(rng, b.type.dtype, size)
    expected = interpret_kernel(kernel, given, sizes)
    emitted = emit(kernel, schedule or default_schedule(kernel, sizes))
    actual = {b.name: to_torch(given[b.name], b.type.dtype) for b in kernel.buffers}
    launch(emitted, actual, sizes)
    for b in kernel.buffers:
        if b.written:
            close(to_numpy(actual[b.name], b.type.dtype), expected[b.name], b.type.dtype, ulp,
                  f"{b.name} of\n{emitted.source}")  # fmt: skip
    return emitted


def close(got: Any, want: Any, dtype: DType, ulp: float, source: str) -> None:
    if not dtype.is_float:
        np.testing.assert_array_equal(got, want, err_msg=source)
        return
    want = np.asarray(want, np.float64)
    finite = np.abs(want[np.isfinite(want)])
    scale = np.maximum(np.abs(want), 0.05 * (finite.max() if finite.size else 1.0))
    got = np.asarray(got, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), err_msg=source)
    with np.errstate(invalid="ignore"):
        bad = (np.abs(got - want) > ulp * EPS[dtype] * scale) & (got != want) & ~np.isnan(want)
    assert not bad.any(), f"{got[bad][:5]} is not {want[bad][:5]}\n{source}"


@pytest.fixture(scope="session")
def tools() -> SimpleNamespace:
    """The runner, for test modules (which cannot import each other)."""
    return SimpleNamespace(
        check=check, launch=launch, kernel_source=kernel_source, to_torch=to_torch,
        to_numpy=to_numpy, EPS=EPS, close=close, kernels=KERNELS,
    )  # fmt: skip


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares with `golden/name`; `--accept` rewrites it."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--accept", default=False):
            path.write_text(text)
        assert path.read_text() == text, f"{path} differs; pytest --accept rewrites it"

    return compare


# ---- the kernels of an encoder, in loop IR's text


def tensor(dtype: str, *size: Any) -> TensorType:
    sizes = tuple(size)
    return TensorType(DType(dtype), sizes, contiguous_strides(sizes), Device("cuda", 0))


def _kernels() -> dict[str, Kernel]:
    i, j, r, s0 = map(symbol, ("i0", "i1", "r0", "s0"))
    f32, bf16, i64 = DType.f32, DType.bf16, DType.i64

    def widened(name: str, buffer: str, index: Any) -> tuple[Load, Compute]:
        return (
            Load(f"{name}_raw", buffer, index, bf16),
            Compute(name, "cast", (f"{name}_raw",), f32),
        )

    def norm(value: str, n: int) -> tuple[Any, ...]:
        return (
            Const("n", float(n), f32), Compute("var", "div", ("m2", "n"), f32),
            Const("eps", 1e-5, f32), Compute("shifted", "add", ("var", "eps"), f32),
            Compute("rstd", "rsqrt", ("shifted",), f32),
        )  # fmt: skip

    def scaled(value: str, out: str, index: Any) -> tuple[Any, ...]:
        return (
            Compute("d", "sub", (value, "mean"), f32), Compute("h", "mul", ("d", "rstd"), f32),
            Load("weight", "w", r, f32), Compute("o", "mul", ("h", "weight"), f32),
            Compute("ob", "cast", ("o",), bf16), Store(out, index, "ob"),
        )  # fmt: skip

    def gelu(name: str, rows: Any, symbols: tuple[Symbol, ...]) -> Kernel:
        at = 3072 * i + j
        body = (
            *widened("x0", "x", at), *widened("b0", "b", j), Compute("t", "add", ("x0", "b0"), f32),
            Const("half", 0.5, f32), Compute("u", "mul", ("t", "half"), f32),
            Const("k", 0.7071067811865476, f32), Compute("z", "mul", ("t", "k"), f32),
            Compute("e", "erf", ("z",), f32), Const("one", 1.0, f32),
            Compute("e1", "add", ("e", "one"), f32), Compute("g", "mul", ("u", "e1"), f32),
            Compute("gb", "cast", ("g",), bf16), Store("y", at, "gb"),
        )  # fmt: skip
        return Kernel(
            name,
            (Buffer("x", tensor("bf16", rows, 3072)), Buffer("b", tensor("bf16", 3072)),
             Buffer("y", tensor("bf16", rows, 3072), written=True)),
            (Axis(i, rows), Axis(j, sympy.Integer(3072))), (Phase((), body),), symbols,
            (Origin("aten.add.Tensor", "encoder.py:40"),
             Origin("aten.gelu.default", "encoder.py:41")),
        )  # fmt: skip

    width = sympy.Integer(768)
    row = 768 * i + r
    inner = (Axis(r, width),)
    add_norm = Kernel(
        "add_norm",
        (Buffer("x", tensor("bf16", 64, 768)), Buffer("y", tensor("bf16", 64, 768)),
         Buffer("w", tensor("f32", 768)), Buffer("s", tensor("bf16", 64, 768), True),
         Buffer("o", tensor("bf16", 64, 768), True)),
        (Axis(i, sympy.Integer(64)),),
        (Phase(inner, (*widened("a", "x", row), *widened("b", "y", row),
                       Compute("t", "add", ("a", "b"), f32),
                       Reduce(("mean", "m2"), "welford", ("t",), f32))),
         Phase((), norm("t", 768)),
         Phase(inner, (*scaled("t", "o", row), Compute("tb", "cast", ("t",), bf16),
                       Store("s", row, "tb")))),
        (),
        (Origin("aten.add.Tensor", "encoder.py:43"),
         Origin("aten.native_layer_norm.default", "encoder.py:43")),
    )  # fmt: skip
    at = symbol("at0")
    embed = Kernel(
        "embed_norm",
        (Buffer("ids", tensor("i64", s0, 32)), Buffer("table", tensor("bf16", 1000, 768)),
         Buffer("w", tensor("f32", 768)), Buffer("o", tensor("bf16", s0, 32, 768), True)),
        (Axis(i, s0), Axis(j, sympy.Integer(32))),
        (Phase((), (Load("id", "ids", 32 * i + j, i64), Indirect(at, "id", sympy.Integer(1000)))),
         Phase(inner, (*widened("e", "table", 768 * at + r),
                       Reduce(("mean", "m2"), "welford", ("e",), f32))),
         Phase((), norm("e", 768)),
         Phase(inner, scaled("e", "o", 24576 * i + 768 * j + r))),
        (Symbol("s0", 1, 64, 2),),
        (Origin("aten.embedding.default", "encoder.py:60"),
         Origin("aten.native_layer_norm.default", "encoder.py:61")),
    )  # fmt: skip

    def softmax(name: str, columns: int) -> Kernel:
        over = (Axis(r, sympy.Integer(columns)),)
        place = columns * i + r
        return Kernel(
            name,
            (Buffer("x", tensor("f32", 8, columns)), Buffer("o", tensor("f32", 8, columns), True)),
            (Axis(i, sympy.Integer(8)),),
            (Phase(over, (Load("a", "x", place, f32), Reduce(("m",), "max", ("a",), f32))),
             Phase(over, (Compute("b", "sub", ("a", "m"), f32), Compute("e", "exp", ("b",), f32),
                          Reduce(("z",), "sum", ("e",), f32))),
             Phase(over, (Compute("p", "div", ("e", "z"), f32), Store("o", place, "p")))),
            (), (Origin("aten._softmax.default", "encoder.py:30"),),
        )  # fmt: skip

    mask = Kernel(
        "attention_mask",
        (Buffer("keep", tensor("bool", s0, 32)), Buffer("o", tensor("f32", s0, 1, 32, 32), True)),
        (Axis(i, s0), Axis(j, sympy.Integer(32)), Axis(symbol("i2"), sympy.Integer(32))),
        (Phase((), (Load("k", "keep", 32 * i + symbol("i2"), DType.bool_),
                    Index("row", j, i64), Index("col", symbol("i2"), i64),
                    Compute("causal", "ge", ("row", "col"), DType.bool_),
                    Compute("seen", "and", ("k", "causal"), DType.bool_),
                    Const("zero", 0.0, f32), Const("low", -3.4028234663852886e38, f32),
                    Compute("m", "where", ("seen", "zero", "low"), f32),
                    Store("o", 1024 * i + 32 * j + symbol("i2"), "m"))),),
        (Symbol("s0", 1, 4096, 8),),
        (Origin("aten.where.self", "encoder.py:55"),),
    )  # fmt: skip
    return {
        "gelu_bias": gelu("gelu_bias", sympy.Integer(64), ()),
        "gelu_bias_dynamic": gelu("gelu_bias_dynamic", s0, (Symbol("s0", 1, 65536, 64),)),
        "add_norm": add_norm, "embed_norm": embed, "softmax": softmax("softmax", 1000),
        "softmax_wide": softmax("softmax_wide", 131072), "attention_mask": mask,
    }  # fmt: skip


KERNELS = _kernels()
