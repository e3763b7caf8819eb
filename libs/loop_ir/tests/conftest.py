"""Graphs as a lowering makes them: one kernel an operator, each with a buffer of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import sympy

from loop_ir import (
    Axis,
    Buffer,
    Compute,
    Const,
    Device,
    DType,
    Extern,
    Graph,
    GraphInput,
    Index,
    Indirect,
    Kernel,
    Load,
    Matmul,
    Operand,
    Origin,
    Phase,
    Reduce,
    Scan,
    Store,
    Symbol,
    TensorRef,
    TensorType,
    contiguous_strides,
)
from symexpr import symbol

CUDA = Device("cuda", 0)
F32 = DType.f32


def contiguous(dtype, size):
    return TensorType(dtype, tuple(size), contiguous_strides(tuple(size)), CUDA)


def ref(name, type):
    return TensorRef(name, type)


@dataclass
class Tensor:
    """A strided view of a buffer, as the lowering tracks it."""

    name: str
    type: TensorType

    @property
    def size(self):
        return self.type.size

    def view(self, size, stride):
        return Tensor(self.name, TensorType(self.type.dtype, size, stride, CUDA))

    def transpose(self, a, b):
        size, stride = list(self.type.size), list(self.type.stride)
        size[a], size[b] = size[b], size[a]
        stride[a], stride[b] = stride[b], stride[a]
        return self.view(tuple(size), tuple(stride))

    def reshape(self, *size):
        assert self.type.is_contiguous
        return self.view(tuple(map(sympy.sympify, size)), contiguous_strides(size))

    def expand(self, *size):
        pad = len(size) - len(self.size)
        old = (1,) * pad + tuple(self.size)
        strides = (0,) * pad + tuple(self.type.stride)
        stride = tuple(st if n == m else 0 for n, m, st in zip(old, size, strides, strict=True))
        return self.view(size, stride)


@dataclass
class Builder:
    """Makes graphs op by op."""

    name: str = "g"
    symbols: tuple[Symbol, ...] = ()
    inputs: list = field(default_factory=list)
    nodes: list = field(default_factory=list)
    constants: list = field(default_factory=list)
    types: dict = field(default_factory=dict)
    count: int = 0

    def input(self, name, dtype, *size):
        type = contiguous(dtype, size)
        self.inputs.append(GraphInput(name, type))
        self.types[name] = type
        return Tensor(name, type)

    def constant(self, name, dtype, *size):
        type = contiguous(dtype, size)
        self.constants.append((name, type))
        self.types[name] = type
        return Tensor(name, type)

    def fresh(self, base):
        self.count += 1
        return f"{base}_{self.count}"

    def new(self, base, dtype, size):
        name = self.fresh(base)
        self.types[name] = contiguous(dtype, size)
        return Tensor(name, self.types[name])

    def _index(self, t, point):
        pad = len(point) - len(t.size)
        return sympy.Add(
            *(st * p for n, st, p in zip(t.size, t.type.stride, point[pad:], strict=True) if n != 1)
        )

    def _kernel(self, base, tensors, out, axes, phases):
        names = dict.fromkeys(t.name for t in tensors)
        outs = out if isinstance(out, list) else [out]
        buffers = [Buffer(n, self.types[n]) for n in names]
        buffers += [Buffer(o.name, self.types[o.name], True) for o in outs]
        origin = Origin(f"aten.{base}.default", f"model.py:{len(self.nodes) + 1}")
        used = set()
        for e in [a.extent for a in axes] + [
            e for b in buffers for e in (*b.type.size, *b.type.stride)
        ]:
            used |= {s.name for s in sympy.sympify(e).free_symbols}
        self.nodes.append(
            Kernel(
                f"op_{outs[0].name}",
                tuple(buffers),
                tuple(axes),
                tuple(phases),
                tuple(s for s in self.symbols if s.name in used),
                (origin,),
            )
        )

    def axes(self, size, letter="i", start=0):
        return [Axis(symbol(f"{letter}{n + start}"), sympy.sympify(e)) for n, e in enumerate(size)]

    def pointwise(self, base, body, *tensors, dtype=None, size=None):
        """`body(values, emit) -> value`; values are f32 (floats) or as they are."""
        size = size or max((t.size for t in tensors), key=len)
        dtype = dtype or tensors[0].type.dtype
        out = self.new(base, dtype, size)
        axes = self.axes(size)
        point = [a.symbol for a in axes]
        stmts = []
        emit = Emitter(stmts)
        values = [emit.load(t.name, self._index(t, point), t.type.dtype) for t in tensors]
        value = body(values, emit)
        if emit.types[value] != dtype:
            value = emit.op("cast", value, dtype=dtype)
        stmts.append(Store(out.name, self._index(out, point), value))
        self._kernel(base, tensors, out, axes, [Phase((), tuple(stmts))])
        return out

    def unary(self, op, x):
        return self.pointwise(op, lambda v, e: e.op(op, v[0]), x)

    def binary(self, op, x, y):
        return self.pointwise(op, lambda v, e: e.op(op, v[0], v[1]), x, y)

    def gelu(self, x):
        def body(v, e):
            half, r, one = e.const(0.5), e.const(0.7071067811865476), e.const(1.0)
            erf = e.op("erf", e.op("mul", v[0], r))
            return e.op("mul", e.op("mul", v[0], half), e.op("add", erf, one))

        return self.pointwise("gelu", body, x)

    def copy(self, base, x):
        """A contiguous copy of a view."""
        return self.pointwise(base, lambda v, e: v[0], x, size=x.size)

    def pad(self, x, left, right):
        """Zeros around the last axis: a masked load at a shifted point."""
        n = x.size[-1]
        out = self.new("pad", x.type.dtype, (*x.size[:-1], n + left + right))
        axes = self.axes(out.size)
        point = [a.symbol for a in axes]
        shifted = [*point[:-1], point[-1] - left]
        stmts = [Index("at", shifted[-1], DType.i64), Const("zero", 0, DType.i64)]
        stmts += [Const("end", int(n), DType.i64), Compute("p", "ge", ("at", "zero"), DType.bool_)]
        stmts += [Compute("q", "lt", ("at", "end"), DType.bool_)]
        stmts += [Compute("inside", "and", ("p", "q"), DType.bool_)]
        index = sympy.expand(
            sympy.Add(*(s * p for s, p in zip(x.type.stride, shifted, strict=True)))
        )
        stmts.append(Load("v0", x.name, index, x.type.dtype, "inside", 0))
        stmts.append(Store(out.name, self._index(out, point), "v0"))
        self._kernel("constant_pad_nd", [x], out, axes, [Phase((), tuple(stmts))])
        return out

    def flip(self, x):
        """Reverses the last axis."""
        out = self.new("flip", x.type.dtype, x.size)
        axes = self.axes(out.size)
        point = [a.symbol for a in axes]
        turned = [*point[:-1], x.size[-1] - 1 - point[-1]]
        index = sympy.expand(
            sympy.Add(*(s * p for s, p in zip(x.type.stride, turned, strict=True)))
        )
        stmts = [
            Load("v0", x.name, index, x.type.dtype),
            Store(out.name, self._index(out, point), "v0"),
        ]
        self._kernel("flip", [x], out, axes, [Phase((), tuple(stmts))])
        return out

    def gather(self, ids, table):
        rows, width = table.size
        out = self.new("embedding", table.type.dtype, (*ids.size, width))
        axes = self.axes(out.size)
        point = [a.symbol for a in axes]
        t0 = symbol("t0")
        stmts = [
            Load("v0", ids.name, self._index(ids, point[:-1]), ids.type.dtype),
            Indirect(t0, "v0", rows),
            Load("v1", table.name, width * t0 + point[-1], table.type.dtype),
            Store(out.name, self._index(out, point), "v1"),
        ]
        self._kernel("embedding", [ids, table], out, axes, [Phase((), tuple(stmts))])
        return out

    def _rows(self, x):
        outer = self.axes(x.size[:-1])
        inner = (Axis(symbol("r0"), x.size[-1]),)
        return outer, inner, [a.symbol for a in (*outer, *inner)]

    def reduce(self, op, x):
        """Over the last axis, which is kept with size 1."""
        out = self.new(op, x.type.dtype, (*x.size[:-1], sympy.S.One))
        outer, inner, point = self._rows(x)
        first, second = [], []
        emit = Emitter(first)
        value = emit.load(x.name, self._index(x, point), x.type.dtype)
        first.append(Reduce(("acc",), op, (value,), F32))
        emit.types["acc"] = F32
        emit.stmts = second
        result = "acc" if out.type.dtype == F32 else emit.op("cast", "acc", dtype=out.type.dtype)
        second.append(Store(out.name, self._index(out, [*point[:-1], 0]), result))
        self._kernel(op, [x], out, outer, [Phase(inner, tuple(first)), Phase((), tuple(second))])
        return out

    def scan(self, op, x, reverse=False):
        """Along the last axis."""
        out = self.new(op, x.type.dtype, x.size)
        outer, inner, point = self._rows(x)
        body = []
        emit = Emitter(body)
        value = emit.load(x.name, self._index(x, point), x.type.dtype)
        body.append(Scan("running", op, (value,), F32, reverse))
        emit.types["running"] = F32
        same = out.type.dtype == F32
        result = "running" if same else emit.op("cast", "running", dtype=out.type.dtype)
        body.append(Store(out.name, self._index(out, point), result))
        self._kernel(op, [x], out, outer, [Phase(inner, tuple(body))])
        return out

    def layer_norm(self, x, weight, bias, eps=1e-5):
        out = self.new("layer_norm", x.type.dtype, x.size)
        outer, inner, point = self._rows(x)
        a, b, c = [], [], []
        e = Emitter(a)
        v = e.load(x.name, self._index(x, point), x.type.dtype)
        a.append(Reduce(("mean", "m2"), "welford", (v,), F32))
        e.types.update(mean=F32, m2=F32)
        e.stmts = b
        n = int(x.size[-1])
        rstd = e.op("rsqrt", e.op("add", e.op("div", "m2", e.const(float(n))), e.const(eps)))
        e.stmts = c
        y = e.op("mul", e.op("sub", v, "mean"), rstd)
        w = e.load(weight.name, point[-1], weight.type.dtype)
        s = e.load(bias.name, point[-1], bias.type.dtype)
        y = e.op("add", e.op("mul", y, w), s)
        if x.type.dtype != F32:
            y = e.op("cast", y, dtype=x.type.dtype)
        c.append(Store(out.name, self._index(out, point), y))
        phases = [Phase(inner, tuple(a)), Phase((), tuple(b)), Phase(inner, tuple(c))]
        self._kernel("native_layer_norm", [x, weight, bias], out, outer, phases)
        return out

    def softmax(self, x):
        out = self.new("softmax", x.type.dtype, x.size)
        outer, inner, point = self._rows(x)
        a, b, c = [], [], []
        e = Emitter(a)
        v = e.load(x.name, self._index(x, point), x.type.dtype)
        a.append(Reduce(("top",), "max", (v,), F32))
        e.types["top"] = F32
        e.stmts = b
        z = e.op("exp", e.op("sub", v, "top"))
        b.append(Reduce(("total",), "sum", (z,), F32))
        e.types["total"] = F32
        e.stmts = c
        y = e.op("div", z, "total")
        if x.type.dtype != F32:
            y = e.op("cast", y, dtype=x.type.dtype)
        c.append(Store(out.name, self._index(out, point), y))
        self._kernel("_softmax", [x], out, outer, [Phase(inner, tuple(p)) for p in (a, b, c)])
        return out

    def linear(self, x, weight, bias=None):
        """x [..., k] @ weight[n, k].T + bias."""
        n, k = weight.size
        rows = sympy.Mul(*x.size[:-1])
        out = self.new("linear", x.type.dtype, (rows, n))
        a = ref(x.name, TensorType(x.type.dtype, (rows, k), (k, 1), CUDA))
        b = ref(weight.name, TensorType(weight.type.dtype, (k, n), (1, k), CUDA))
        c = None if bias is None else ref(bias.name, bias.type)
        args = (a, b) if c is None else (c, a, b)
        target = "aten.mm.default" if c is None else "aten.addmm.default"
        extern = Extern(target, args, (), ((out.name, out.type),), fallback=False)
        self.nodes.append(
            Matmul(
                out.name,
                out.type,
                (Operand(a), Operand(b)),
                c,
                extern,
                None,
                (Origin("aten.linear.default"),),
            )
        )
        return out.reshape(*x.size[:-1], n)

    def extern(self, target, out_type, *args):
        out = self.new(target.split(".")[1], out_type.dtype, out_type.size)
        refs = tuple(ref(t.name, t.type) for t in args)
        self.nodes.append(
            Extern(target, refs, (), ((out.name, out.type),), fallback=False,
                   origins=(Origin(target),))
        )  # fmt: skip
        return out

    def graph(self, *outputs):
        return Graph(
            self.name,
            tuple(self.inputs),
            tuple(self.nodes),
            tuple(ref(t.name, t.type) for t in outputs),
            self.symbols,
            tuple(self.constants),
        )


class Emitter:
    def __init__(self, stmts):
        self.stmts = stmts
        self.types = {}
        self.count = 0

    def name(self):
        self.count += 1
        return f"v{self.count - 1}"

    def load(self, buffer, index, dtype):
        out = self.name()
        self.stmts.append(Load(out, buffer, sympy.sympify(index), dtype))
        self.types[out] = dtype
        if dtype in (DType.bf16, DType.f16):
            return self.op("cast", out, dtype=F32)
        return out

    def const(self, value, dtype=F32):
        out = self.name()
        self.stmts.append(Const(out, value, dtype))
        self.types[out] = dtype
        return out

    def op(self, op, *args, dtype=None):
        out = self.name()
        if dtype is None:
            dtype = self.types[args[-1]]
            if op in ("eq", "ne", "lt", "le", "gt", "ge"):
                dtype = DType.bool_
        self.stmts.append(Compute(out, op, tuple(args), dtype))
        self.types[out] = dtype
        return out


def build_encoder(
    layers=2, batch=2, seq=32, hidden=64, heads=4, vocab=50, dtype=F32, symbolic=False
):
    """A BERT-style encoder: embeddings, attention mask, layers with attention as an extern call."""
    symbols = (Symbol("s0", 1, 64, batch),) if symbolic else ()
    s = symbol("s0") if symbolic else batch
    b = Builder("encoder", symbols)
    ids = b.input("ids", DType.i64, s, seq)
    mask = b.input("mask", DType.i64, s, seq)
    pos = b.constant("pos", DType.i64, 1, seq)
    emb = b.constant("emb", dtype, vocab, hidden)
    pemb = b.constant("pemb", dtype, seq, hidden)

    def norm(x, name):
        w = b.constant(f"{name}_w", dtype, hidden)
        c = b.constant(f"{name}_b", dtype, hidden)
        return b.layer_norm(x, w, c)

    def linear(x, name, n, k):
        return b.linear(x, b.constant(f"{name}_w", dtype, n, k), b.constant(f"{name}_b", dtype, n))

    tok = b.gather(ids, emb)
    p = b.gather(pos, pemb)
    x = norm(b.binary("add", tok, p), "ln0")
    # mask: (b, s) -> bool -> (b, 1, s, s) additive
    keep = b.pointwise(
        "ne", lambda v, e: e.op("ne", v[0], e.const(0, DType.i64)), mask, dtype=DType.bool_
    )
    expanded = b.copy(
        "expand",
        keep.view((s, 1, seq, seq), (seq, 0, 0, 1)),
    )
    additive = b.pointwise(
        "where",
        lambda v, e: e.op("where", v[0], e.const(0.0), e.const(-1e9)),
        expanded,
        dtype=dtype,
    )
    head = hidden // heads
    for n in range(layers):
        qkv = []
        for part in "qkv":
            y = linear(x, f"l{n}_{part}", hidden, hidden)
            qkv.append(y.reshape(s, seq, heads, head).transpose(1, 2))
        att = b.extern(
            "aten.attention.default", contiguous(dtype, (s, heads, seq, head)), *qkv, additive
        )
        merged = b.copy("clone", att.transpose(1, 2)).reshape(s, seq, hidden)
        y = linear(merged, f"l{n}_o", hidden, hidden)
        x = norm(b.binary("add", x, y), f"l{n}_ln1")
        y = b.gelu(linear(x, f"l{n}_up", 4 * hidden, hidden))
        y = linear(y, f"l{n}_down", hidden, 4 * hidden)
        x = norm(b.binary("add", x, y), f"l{n}_ln2")
    return b.graph(x)


def attention(target, args, kwargs):
    """The extern call of `build_encoder`."""
    q, k, v, mask = (np.asarray(a, np.float64) for a in args)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + mask
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    return ((scores / scores.sum(-1, keepdims=True)) @ v).astype(np.float32)


def random_inputs(graph, seed=0, **sizes):
    """Inputs and constants for a graph."""
    rng = np.random.default_rng(seed)
    values = {s.name: s.hint for s in graph.symbols} | sizes
    env = {symbol(n): sympy.Integer(v) for n, v in values.items()}

    def make(name, type):
        shape = tuple(int(n.xreplace(env)) for n in type.size)
        if type.dtype == DType.i64:
            if "mask" in name:
                return rng.integers(0, 2, shape)
            return (
                np.arange(int(np.prod(shape))).reshape(shape)
                if "pos" in name
                else rng.integers(0, 50, shape)
            )
        return rng.standard_normal(shape).astype(np.float32)

    return (
        [make(i.name, i.type) for i in graph.inputs],
        {name: make(name, type) for name, type in graph.constants},
    )


@pytest.fixture
def make_builder():
    return Builder


@pytest.fixture
def encoder():
    return build_encoder


@pytest.fixture
def inputs_of():
    return random_inputs


@pytest.fixture
def run_attention():
    return attention
