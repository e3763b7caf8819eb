"""Shapes of kernels beyond rows: no axes, several inner spaces, scatters, in-place, hoisting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sympy
import torch

from loop_ir import (
    LEAST,
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
    Phase,
    Reduce,
    Store,
    Symbol,
    TensorType,
    contiguous_strides,
    parse_kernel,
)  # fmt: skip
from symexpr import symbol
from triton_emit import Schedule, default_schedule, emit

I0, I1, I2, R0, R1 = (symbol(n) for n in ("i0", "i1", "i2", "r0", "r1"))
F32, I64 = DType.f32, DType.i64
N = sympy.Integer
BOTH = [Schedule("persistent", 1, 256), Schedule("persistent", 2, 256),
        Schedule("looped", 1, 32), Schedule("looped", 2, 32)]  # fmt: skip


def tensor(dtype: DType, *size: Any) -> TensorType:
    return TensorType(dtype, size, contiguous_strides(size), Device("cuda", 0))


def buffers(written: tuple[str, ...], **types: TensorType) -> tuple[Buffer, ...]:
    return tuple(Buffer(name, t, name in written) for name, t in types.items())


@pytest.mark.parametrize("schedule", BOTH[::2], ids=lambda s: s.kind)
def test_everything_to_one_number(schedule: Schedule, tools: SimpleNamespace) -> None:
    body = (Load("a", "x", R0, F32), Reduce(("s",), "sum", ("a",), F32))
    kernel = Kernel("total", buffers(("y",), x=tensor(F32, 200), y=tensor(F32, 1)), (),
                    (Phase((Axis(R0, N(200)),), body),
                     Phase((), (Store("y", N(0), "s"),))))  # fmt: skip
    emitted = tools.check(kernel, schedule, ulp=16)
    assert emitted.grid == (1, 1, 1) and "program_id" not in emitted.source


def test_one_number_without_axes(tools: SimpleNamespace) -> None:
    body = (Load("a", "x", N(3), F32), Compute("b", "exp", ("a",), F32), Store("y", N(0), "b"))
    kernel = Kernel("one", buffers(("y",), x=tensor(F32, 4), y=tensor(F32, 1)), (),
                    (Phase((), body),))  # fmt: skip
    emitted = tools.check(kernel)
    assert "x0 = tl.load(in0 + 3)\n" in emitted.source and emitted.constants == ()


@pytest.mark.parametrize("schedule", BOTH, ids=lambda s: f"{s.kind}{s.xblock}")
def test_two_inner_spaces(schedule: Schedule, tools: SimpleNamespace) -> None:
    first = (Load("a", "x", 100 * I0 + R0, F32), Reduce(("s",), "sum", ("a",), F32))
    second = (Load("b", "z", 7 * I0 + R1, F32), Compute("c", "mul", ("b", "s"), F32),
              Reduce(("m",), "max", ("c",), F32), Store("w", 7 * I0 + R1, "c"))  # fmt: skip
    third = (Compute("d", "sub", ("a", "m"), F32), Store("y", 100 * I0 + R0, "d"))
    kernel = Kernel(
        "two", buffers(("y", "w"), x=tensor(F32, 5, 100), z=tensor(F32, 5, 7),
                       y=tensor(F32, 5, 100), w=tensor(F32, 5, 7)),
        (Axis(I0, N(5)),),
        (Phase((Axis(R0, N(100)),), first), Phase((Axis(R1, N(7)),), second),
         Phase((Axis(R0, N(100)),), third)),
    )  # fmt: skip
    tools.check(kernel, schedule, ulp=32)


@pytest.mark.parametrize("schedule", BOTH, ids=lambda s: f"{s.kind}{s.xblock}")
def test_values_that_do_not_vary_are_computed_once(
    schedule: Schedule, tools: SimpleNamespace
) -> None:
    body = (
        Load("scale", "w", I0, F32), Compute("big", "exp", ("scale",), F32),
        Load("a", "x", 40 * I0 + R0, F32), Compute("b", "mul", ("a", "big"), F32),
        Const("one", 1.0, F32), Reduce(("n",), "sum", ("one",), F32),
        Reduce(("k",), "max", ("big",), F32), Reduce(("s",), "sum", ("b",), F32),
    )  # fmt: skip
    after = (Compute("t", "add", ("s", "n"), F32), Compute("u", "add", ("t", "k"), F32),
             Store("y", I0, "u"))  # fmt: skip
    kernel = Kernel(
        "rows", buffers(("y",), w=tensor(F32, 6), x=tensor(F32, 6, 40), y=tensor(F32, 6)),
        (Axis(I0, N(6)),), (Phase((Axis(R0, N(40)),), body), Phase((), after)),
    )  # fmt: skip
    emitted = tools.check(kernel, schedule, ulp=32)
    if schedule.kind == "looped":
        before, _, loop = emitted.source.partition("for start")
        assert "exp_f32(x0)" in before and "exp_f32" not in loop


@pytest.mark.parametrize("dtype", [F32, DType.i64, DType.i32], ids=lambda d: d.value)
def test_scatter_add(dtype: DType, tools: SimpleNamespace) -> None:
    at = symbol("at")
    body = (Load("id", "ids", I0, I64), Indirect(at, "id", N(5)),
            Load("a", "x", 3 * I0 + I1, dtype), Store("y", 3 * at + I1, "a", "add"))  # fmt: skip
    kernel = Kernel(
        "scatter", buffers(("y",), ids=tensor(I64, 50), x=tensor(dtype, 50, 3),
                           y=tensor(dtype, 5, 3)),
        (Axis(I0, N(50)), Axis(I1, N(3))), (Phase((), body),),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    ids = rng.integers(-5, 5, 50)
    emitted = tools.check(kernel, Schedule("flat", 64), {"ids": ids}, ulp=16)
    assert emitted.params[-1][0] == "inout0" and emitted.params[-1][2]


@pytest.mark.parametrize("schedule", BOTH, ids=lambda s: f"{s.kind}{s.xblock}")
def test_a_row_added_to_one_place_counts_every_point(
    schedule: Schedule, tools: SimpleNamespace
) -> None:
    body = (Load("a", "x", I0, F32), Store("y", N(1), "a", "add"))
    kernel = Kernel("count", buffers(("y",), x=tensor(F32, 6), y=tensor(F32, 2)),
                    (Axis(I0, N(6)),), (Phase((Axis(R0, N(40)),), body),))  # fmt: skip
    tools.check(kernel, schedule, ulp=64)


def test_masked_load_and_store(tools: SimpleNamespace) -> None:
    """A pad to the left, and a store to some points only."""
    body = (
        Index("col", I1, I64), Const("two", 2, I64),
        Compute("ok", "ge", ("col", "two"), DType.bool_),
        Load("a", "x", 8 * I0 + I1 - 2, F32, "ok", 7), Const("zero", 0.0, F32),
        Compute("pos", "gt", ("a", "zero"), DType.bool_), Store("y", 10 * I0 + I1, "a", mask="pos"),
    )  # fmt: skip
    kernel = Kernel("pad", buffers(("y",), x=tensor(F32, 5, 8), y=tensor(F32, 5, 10)),
                    (Axis(I0, N(5)), Axis(I1, N(10))), (Phase((), body),))  # fmt: skip
    emitted = tools.check(kernel, Schedule("flat", 16))
    assert "other=7" in emitted.source


def test_in_place(tools: SimpleNamespace) -> None:
    body = (Load("a", "x", I0, F32), Compute("b", "exp", ("a",), F32), Store("x", I0, "b"),
            Load("c", "x", I0, F32), Compute("d", "add", ("c", "a"), F32),
            Store("y", I0, "d"))  # fmt: skip
    kernel = Kernel("exp_", buffers(("x", "y"), x=tensor(F32, 40), y=tensor(F32, 40)),
                    (Axis(I0, N(40)),), (Phase((), body),))  # fmt: skip
    emitted = tools.check(kernel, Schedule("flat", 32))
    assert emitted.source.count("tl.load") == 1, "a value just stored is not loaded back"


def test_transposed_axes_are_recovered_from_the_flat_index() -> None:
    s0 = symbol("s0")
    at = 12 * 64 * I0 + 64 * I1 + I2
    swapped = I0 * 768 + I2 * 12 + I1
    body = (Load("a", "x", swapped, F32), Load("b", "w", 64 * I1 + I2, F32),
            Compute("c", "mul", ("a", "b"), F32), Store("y", at, "c"))  # fmt: skip
    kernel = Kernel(
        "heads", buffers(("y",), x=tensor(F32, s0, 64, 12), w=tensor(F32, 12, 64),
                         y=tensor(F32, s0, 12, 64)),
        (Axis(I0, s0), Axis(I1, N(12)), Axis(I2, N(64))), (Phase((), body),),
        (Symbol("s0", 1, 100),),
    )  # fmt: skip
    text = emit(kernel, Schedule("flat", 256)).source
    assert "i1_2 = xindex % 768\n" in text
    assert "i1 = xindex // 64 % 12\n" in text
    assert "tl.store(out0 + xindex, " in text


A0, A1, S0 = (symbol(n) for n in ("a0", "a1", "s0"))


@pytest.mark.parametrize(
    ("symbols", "size", "values"),
    [
        # integers without bounds, as `pad` takes them
        ((Symbol("a0", LEAST), Symbol("a1", LEAST), Symbol("s0", 0)), S0 + A0 + A1,
         {"s0": 5, "a0": -2, "a1": 4}),
        # a bound on what a convolution takes, far above what there is memory for
        ((Symbol("s0", 0, 2**31 - 1),), S0**3, {"s0": 3}),
    ],
    ids=["sum", "power"],
)  # fmt: skip
def test_sizes_whose_ranges_pass_64_bits_are_computed_by_the_host(
    symbols: tuple[Symbol, ...], size: Any, values: dict[str, int], tools: SimpleNamespace
) -> None:
    body = (Load("a", "x", I1 * 3 + I0, F32), Store("y", I0 * size + I1, "a"))
    kernel = Kernel(
        "sized", buffers(("y",), x=tensor(F32, size, 3), y=tensor(F32, 3, size)),
        (Axis(I0, N(3)), Axis(I1, size)), (Phase((), body),), symbols,
    )  # fmt: skip
    emitted = tools.check(kernel, symbols=values)
    assert size in emitted.args and "floor_" not in emitted.source


def test_a_place_in_a_tensor_needs_no_bound(tools: SimpleNamespace) -> None:
    """Products of an index that is data, and of sizes: addresses within a tensor."""
    rows = symbol("at")
    body = (
        Load("i", "n", I0, I64),
        Indirect(rows, "i", S0**3),
        Load("a", "x", rows * S0**2, F32),
        Store("y", I0, "a"),
    )
    kernel = Kernel(
        "picked", buffers(("y",), n=tensor(I64, 4), x=tensor(F32, S0**5), y=tensor(F32, 4)),
        (Axis(I0, N(4)),), (Phase((), body),), (Symbol("s0", 0, 2**31 - 1),),
    )  # fmt: skip
    given = {"n": np.array([0, 7, 3, -1])}
    tools.check(kernel, tensors=given, symbols={"s0": 2})


@pytest.mark.parametrize("mode", ["set", "add"])
def test_a_place_outside_of_its_tensor_is_not_touched(mode: str, tools: SimpleNamespace) -> None:
    """Eager stops there; a kernel reads NaN, and writes nothing."""
    row = symbol("at")
    body = (
        Load("i", "n", I0, I64), Indirect(row, "i", N(4)), Load("a", "x", row * 8 + I1, F32),
        Store("y", I0 * 8 + I1, "a"), Store("z", row * 8 + I1, "a", mode),
    )  # fmt: skip
    kernel = Kernel(
        "places", buffers(("y", "z"), n=tensor(I64, 5), x=tensor(F32, 4, 8), y=tensor(F32, 5, 8),
                          z=tensor(F32, 4, 8)),
        (Axis(I0, N(5)), Axis(I1, N(8))), (Phase((), body),),
    )  # fmt: skip
    memory = torch.arange(96, dtype=torch.float32)
    x, around = memory.clone()[32:64], memory.clone()
    y = torch.zeros(5, 8)
    given = {"n": torch.tensor([3, 4, -1, -5, 7]), "x": x, "y": y, "z": around[32:64]}
    around[32:64] = 0
    tools.launch(emit(kernel, default_schedule(kernel, {})), given, {})
    assert y.isnan().all(1).tolist() == [False, True, False, True, True]
    assert y[0].tolist() == y[2].tolist() == x[24:].tolist()
    expected = memory.clone()
    expected[32:56] = 0
    expected[56:64] = x[24:] * (2 if mode == "add" else 1)
    assert around.tolist() == expected.tolist()


HALVES = """kernel halves(
    x: f32[2, 3, 4] cuda:0,
    out y: f32[2, 5, 5] cuda:0,
):
  parallel i0 < 2, i2 < 5, i1 < 5:
    once:
      v0 = load x[i0*12 + (i2 + 1)//2*4 + (i1 + 1)//2 - 4*(i2//4)] : f32
      store y[i0*25 + i2*5 + i1] = v0
"""


def test_parts_of_a_flat_index_that_are_named_as_other_axes_are(tools: SimpleNamespace) -> None:
    """The second of three axes is `i2`, its part of the flat index `i1`: both halves were those of
    the third axis."""
    kernel = parse_kernel(HALVES)
    tools.check(kernel, default_schedule(kernel, {}))
