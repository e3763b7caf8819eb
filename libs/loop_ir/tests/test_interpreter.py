"""The interpreter against torch, operation by operation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loop_ir import (
    OPS,
    REDUCTIONS,
    Axis,
    Buffer,
    Compute,
    CopyBack,
    Device,
    DType,
    Kernel,
    Load,
    Phase,
    Reduce,
    Store,
    TensorRef,
    TensorType,
    contiguous_strides,
    interpret_graph,
    interpret_kernel,
    parse_kernel,
    verify,
)
from loop_ir.errors import ExternNeeded, IndexOutOfRange, InputMismatch
from loop_ir.ir import ITERATED
from loop_ir.ir.scalars import from_bits, philox, round_bf16, to_bits, to_dtype
from symexpr import symbol

torch = pytest.importorskip("torch")
CPU = Device("cpu")
TORCH = {
    DType.f32: torch.float32, DType.f64: torch.float64, DType.f16: torch.float16,
    DType.bf16: torch.bfloat16, DType.i32: torch.int32, DType.i64: torch.int64,
    DType.u8: torch.uint8, DType.bool_: torch.bool, DType.f8e4m3: torch.float8_e4m3fn,
    DType.f8e5m2: torch.float8_e5m2, DType.i8: torch.int8, DType.i16: torch.int16,
}  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 7.25, np.inf, -np.inf, np.nan, 100.0, 1e-3]


def vector(dtype, n):
    return TensorType(dtype, (n,), (1,), CPU)


def elementwise(op, kinds, dtype, n):
    """A kernel `y[i] = op(a0[i], ...)`."""
    i = symbol("i0")
    buffers = [Buffer(f"a{k}", vector(kind, n)) for k, kind in enumerate(kinds)]
    body = [Load(f"v{k}", f"a{k}", i, kind) for k, kind in enumerate(kinds)]
    body.append(Compute("out", op, tuple(f"v{k}" for k in range(len(kinds))), dtype))
    body.append(Store("y", i, "out"))
    return Kernel(
        "k", (*buffers, Buffer("y", vector(dtype, n), True)), (Axis(i, n),),
        (Phase((), tuple(body)),),
    )  # fmt: skip


TORCH_OPS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "neg": torch.neg, "abs": torch.abs,
    "maximum": torch.maximum, "minimum": torch.minimum, "div": torch.true_divide,
    "near_div": torch.true_divide,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder, "fmod": torch.fmod, "pow": torch.pow,
    "fma": lambda a, b, c: torch.addcmul(c, a, b),
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
    "not": torch.bitwise_not, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
    "where": torch.where,
}  # fmt: skip


def oracle(op):
    return TORCH_OPS.get(op) or getattr(torch, op)


def grid(values, arity):
    return [a.reshape(-1).copy() for a in np.meshgrid(*[values] * arity, indexing="ij")]


def run(op, arrays, kinds, dtype):
    kernel = elementwise(op, kinds, dtype, len(arrays[0]))
    verify(kernel)
    return interpret_kernel(kernel, {f"a{k}": a for k, a in enumerate(arrays)})["y"]


FLOAT_OPS = [op for op in OPS if op not in ("and", "or", "xor", "not", "shl", "shr", "cast",
                                            "narrow", "bitcast", "where", "rarely",
                                            "philox", *ITERATED)]  # fmt: skip


@pytest.mark.parametrize("op", FLOAT_OPS)
def test_float_operations_match_torch(op):
    values = np.array(SPECIAL, np.float64)
    arrays = grid(values[:8] if OPS[op] == 3 else values, OPS[op])
    kinds = [DType.f64] * OPS[op]
    boolean = op in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit")
    got = run(op, arrays, kinds, DType.bool_ if boolean else DType.f64)
    want = oracle(op)(*map(torch.tensor, arrays)).numpy()
    if op == "floordiv":
        np.testing.assert_array_equal(np.signbit(got)[got == 0], np.signbit(want)[got == 0])
    if op == "mod":  # division by zero and infinities differ between the two
        with np.errstate(all="ignore"):
            keep = np.isfinite(arrays[0]) & np.isfinite(arrays[1]) & (arrays[1] != 0)
        got, want = got[keep], want[keep]
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg", "abs", "maximum", "minimum",
                                "floordiv", "truncdiv", "mod", "fmod", "and", "or", "xor", "not",
                                "eq", "ne", "lt", "le", "gt", "ge", "fma", "gcd"])  # fmt: skip
@pytest.mark.parametrize("dtype", [DType.i32, DType.i64])
def test_integer_operations_match_torch(op, dtype):
    values = np.array([-7, -3, -1, 1, 2, 5, 2**31 - 1], f"i{dtype.itemsize}")
    arrays = grid(values, OPS[op])
    result = DType.bool_ if op in ("eq", "ne", "lt", "le", "gt", "ge") else dtype
    got = run(op, arrays, [dtype] * OPS[op], result)
    np.testing.assert_array_equal(got, oracle(op)(*map(torch.tensor, arrays)).numpy())


@pytest.mark.parametrize("op", ["shl", "shr"])
def test_shifts(op):
    arrays = [np.array([1, -8, 1000], np.int32), np.array([3, 1, 4], np.int32)]
    want = oracle(op)(*map(torch.tensor, arrays)).numpy()
    np.testing.assert_array_equal(run(op, arrays, [DType.i32] * 2, DType.i32), want)


def test_integer_power_and_where_and_logic():
    a, b = grid(np.array([-3, 0, 2, 5], np.int64), 2)
    got = run("pow", [a, np.abs(b)], [DType.i64] * 2, DType.i64)
    np.testing.assert_array_equal(got, torch.pow(torch.tensor(a), torch.tensor(np.abs(b))))
    p = np.array([True, False])
    got = run("where", [p, np.array([1.0, 2]), np.array([3.0, 4])],
              [DType.bool_, DType.f64, DType.f64], DType.f64)  # fmt: skip
    np.testing.assert_array_equal(got, [1.0, 4.0])
    np.testing.assert_array_equal(run("not", [p], [DType.bool_], DType.bool_), [False, True])


@pytest.mark.parametrize("target", [DType.bf16, DType.f16])
def test_narrow_rounds_as_a_cast_does(target):
    x = np.array([1 / 3, 1e-8, 70000.0, -0.0, np.nan], np.float32)
    got, want = (run(op, [x], [DType.f32], target) for op in ("narrow", "cast"))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("source", [DType.f32, DType.i64, DType.bool_])
@pytest.mark.parametrize("target", list(TORCH))
def test_casts_match_torch(source, target):
    rng = np.random.default_rng(0)
    if source == DType.f32:
        x = (rng.standard_normal(4000) * 10.0 ** rng.integers(-4, 3, 4000)).astype(np.float32)
        if target.is_int or target == DType.u8:
            x = np.abs(np.clip(x, -100, 100)) if target == DType.u8 else np.clip(x, -100, 100)
    elif source == DType.i64:
        x = rng.integers(0, 120, 500)
    else:
        x = rng.integers(0, 2, 20) == 1
    want = torch.tensor(x).to(TORCH[target])
    want = want.float().numpy() if target.is_float and target != DType.f64 else want.numpy()
    got = run("cast", [x], [source], target)
    np.testing.assert_array_equal(got.astype(want.dtype), want)


@pytest.mark.parametrize("dtype", [DType.bf16, DType.f16, DType.f8e4m3, DType.f8e5m2])
def test_bits_of_small_floats(dtype):
    count = 1 << (8 * dtype.itemsize)
    bits = np.arange(count, dtype=f"u{dtype.itemsize}")
    want = torch.tensor(bits.view(f"i{dtype.itemsize}")).view(TORCH[dtype]).float().numpy()
    got = np.asarray(from_bits(bits, dtype), np.float32)
    np.testing.assert_array_equal(got, want)
    real = ~np.isnan(got)
    if dtype.itemsize == 2:
        np.testing.assert_array_equal(to_bits(got, dtype)[real], bits[real])
    else:
        np.testing.assert_array_equal(to_bits(got[real], dtype), bits[real])


def test_bitcast():
    x = np.array([1.0, -2.5, 0.0], np.float32)
    np.testing.assert_array_equal(run("bitcast", [x], [DType.f32], DType.i32), x.view(np.int32))


def test_bf16_rounds_to_nearest_even_after_every_operation():
    rng = np.random.default_rng(1)
    x, y = (round_bf16(rng.standard_normal(1000)) for _ in range(2))
    for op in ("add", "mul", "exp", "div"):
        args = [x, y][: OPS[op]]
        want = oracle(op)(*(torch.tensor(a).bfloat16() for a in args)).float().numpy()
        np.testing.assert_array_equal(run(op, args, [DType.bf16] * OPS[op], DType.bf16), want)


REDUCE = {
    "sum": lambda t: t.sum(-1), "prod": lambda t: t.prod(-1), "max": lambda t: t.amax(-1),
    "min": lambda t: t.amin(-1), "argmax": lambda t: t.argmax(-1), "argmin": lambda t: t.argmin(-1),
    "any": lambda t: t.any(-1), "all": lambda t: t.all(-1),
}  # fmt: skip


@pytest.mark.parametrize("op", list(REDUCTIONS))
@pytest.mark.parametrize("nan", [False, True])
def test_reductions_match_torch(op, nan):
    rng = np.random.default_rng(2)
    x = rng.integers(-3, 4, (5, 2, 6)).astype(np.float64)
    if nan:
        x[3, 1, 2] = np.nan
        x[3, 0, 5] = np.nan
    kind = DType.bool_ if op in ("any", "all") else DType.f64
    if kind == DType.bool_:
        x = x > 0
    dtype = {"argmax": DType.i64, "argmin": DType.i64, "any": DType.bool_, "all": DType.bool_}.get(
        op, DType.f64
    )
    i, r, s = symbol("i0"), symbol("r0"), symbol("r1")
    outs = ("p", "q")[: REDUCTIONS[op][1]]
    inner = (Axis(r, 2), Axis(s, 6))
    kernel = Kernel(
        "k",
        (
            Buffer("x", TensorType(kind, (5, 2, 6), contiguous_strides((5, 2, 6)), CPU)),
            *(Buffer(f"y_{o}", vector(dtype, 5), True) for o in outs),
        ),
        (Axis(i, 5),),
        (
            Phase(
                inner,
                (Load("v", "x", 12 * i + 6 * r + s, kind), Reduce(outs, op, ("v",), dtype)),
            ),
            Phase((), tuple(Store(f"y_{o}", i, o) for o in outs)),
        ),
    )
    verify(kernel)
    got = interpret_kernel(kernel, {"x": x})
    t = torch.tensor(x.reshape(5, 12))
    if op == "welford":
        mean = t.mean(-1)
        np.testing.assert_allclose(got["y_p"], mean)
        np.testing.assert_allclose(got["y_q"], ((t - mean[:, None]) ** 2).sum(-1))
    elif op == "softmax":
        np.testing.assert_array_equal(got["y_p"], t.amax(-1))
        np.testing.assert_allclose(got["y_q"], (t - t.amax(-1)[:, None]).exp().sum(-1))
    else:
        np.testing.assert_array_equal(got["y_p"], REDUCE[op](t).numpy())


GATHER = """\
kernel gather(
    ids: i64[4] cpu,
    table: f32[10, 3] cpu,
    out y: f32[4, 3] cpu,
):
  parallel i0 < 4, i1 < 3:
    once:
      k = load ids[i0]            : i64
      t0 = indirect k < 10
      v = load table[t0*3 + i1]   : f32
      store y[i0*3 + i1] = v
"""


def test_indirect_counts_from_the_end_and_checks_its_range():
    kernel = parse_kernel(GATHER)
    table = np.arange(30, dtype=np.float32).reshape(10, 3)
    ids = np.array([0, -1, 3, -10])
    got = interpret_kernel(kernel, {"ids": ids, "table": table})["y"]
    np.testing.assert_array_equal(got, table[ids])
    with pytest.raises(IndexOutOfRange, match=r"gather: `v = load table.*in \[0, 32\], the extent"):
        interpret_kernel(kernel, {"ids": np.array([0, 10, 0, 0]), "table": table})


def test_atomic_add_and_masks():
    kernel = parse_kernel("""\
kernel scatter(
    ids: i64[6] cpu,
    out y: f32[3] cpu,
):
  parallel i0 < 6:
    once:
      k = load ids[i0]                    : i64
      n = const 4                         : i64
      p = lt(k, n)                        : bool
      t0 = indirect k < 3
      one = const 1.0                     : f32
      store y[t0] += one if p
""")
    ids = np.array([0, 1, 1, 2, 9, 1])
    got = interpret_kernel(kernel, {"ids": ids, "y": np.array([10, 20, 30], np.float32)})["y"]
    np.testing.assert_array_equal(got, [11, 23, 31])


def test_masked_load_reads_nothing_outside():
    kernel = parse_kernel("""\
kernel pad(
    x: f32[3] cpu,
    out y: f32[5] cpu,
):
  parallel i0 < 5:
    once:
      i = index i0 - 1                    : i64
      zero = const 0                      : i64
      three = const 3                     : i64
      a = ge(i, zero)                     : bool
      b = lt(i, three)                    : bool
      m = and(a, b)                       : bool
      v = load x[i0 - 1] if m else -1.0   : f32
      store y[i0] = v
""")
    got = interpret_kernel(kernel, {"x": np.array([1, 2, 3], np.float32)})["y"]
    np.testing.assert_array_equal(got, [-1, 1, 2, 3, -1])


def test_graph_with_extern_matmul_and_copy_back(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 2, 4)
    w = b.constant("w", DType.f32, 3, 4)
    c = b.constant("c", DType.f32, 3)
    y = b.linear(b.unary("tanh", x), w, c)
    z = b.extern("aten.neg.default", y.type, y)
    graph = b.graph(z)
    rng = np.random.default_rng(3)
    x, w, c = (rng.standard_normal(s).astype(np.float32) for s in ((2, 4), (3, 4), (3,)))
    (got,) = interpret_graph(graph, [x], {"w": w, "c": c}, lambda target, a, k: -a[0])
    np.testing.assert_allclose(got, -(np.tanh(x) @ w.T + c), rtol=1e-6)
    with pytest.raises(ExternNeeded, match=r"aten\.neg\.default: pass `extern=callable"):
        interpret_graph(graph, [x], {"w": w, "c": c})
    with pytest.raises(InputMismatch, match=r"x: expected sizes \(2, 4\)"):
        interpret_graph(graph, [x[:, :2]], {"w": w, "c": c})
    with pytest.raises(InputMismatch, match="w: expected a constant"):
        interpret_graph(graph, [x])
    with pytest.raises(InputMismatch, match="expected elements of f32"):
        interpret_graph(graph, [x.astype(np.int64)], {"w": w, "c": c})


def test_copy_back_changes_the_input(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 2, 4)
    y = b.unary("neg", x)
    graph = b.graph(y)
    copy = CopyBack(TensorRef(y.name, y.type), TensorRef("x", x.type))
    graph = replace(graph, nodes=(*graph.nodes, copy))
    verify(graph)
    array = np.arange(8, dtype=np.float32).reshape(2, 4)
    (got,) = interpret_graph(graph, [array])
    np.testing.assert_array_equal(array, got)
    np.testing.assert_array_equal(got, -np.arange(8).reshape(2, 4))


def test_to_dtype_wraps_integers():
    np.testing.assert_array_equal(to_dtype(np.array([300, -1]), DType.u8), [44, 255])


def test_philox_is_random123s():
    """Known answers of Philox-2x32-10 from Random123's `kat_vectors`, both words of a block; the
    key is the low half of the seed, and its high half is xored into the block's."""
    vectors = [(0, 0, 0xFF1DAE59, 0x6CD10DF2),
               (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, 0x2C3F628B, 0xAB4FD7AD),
               (0x13198A2E, 0x85A308D3243F6A88, 0xDD7CE038, 0xF62A4C12)]  # fmt: skip
    for key, block, *expected in vectors:
        # the number of a block has 63 bits, the highest is the seed's
        seed = np.uint64(key | block >> 63 << 63).astype(np.int64)
        counter = np.array([2 * block, 2 * block + 1], object) & 0xFFFFFFFFFFFFFFFF
        words = philox(seed, counter.astype(np.uint64).astype(np.int64))
        assert words.tolist() == expected
