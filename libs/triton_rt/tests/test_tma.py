"""Tensor descriptors and tuples as arguments: rules, interpreter, compiler, launch."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import re
import shutil
import struct
import subprocess
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_rt import (
    Binary,
    Kernel,
    KernelParam,
    KernelSource,
    LazyKernel,
    MapPlan,
    Target,
    TensorMap,
    Workspace,
    compile,
    errors,
    set_allocator,
    use_allocator,
    wire,
    with_fallback,
)
from triton_rt.config import Config
from triton_rt.kinds import KINDS, parse_descriptor, torch_dtype, triton_name
from triton_rt.launch import Entry, dispatch, driver, native
from triton_rt.tma import Address, as_tensor_map, workspace
from triton_rt.tma.encode import encode
from triton_rt.tma.layout import DATA_TYPES, MapLayout
from triton_rt.tma.rules import map_strides, violations
from triton_rt.tma.slots import slots_of, split
from triton_rt.tuples import flatten, nest

Make = Callable[..., KernelSource]


@pytest.fixture
def kernel_of(make_source: Make) -> Make:
    """`make_source`, where dotted parameters are elements of one parameter."""

    def make(signature: str, body: str, *, tma: bool = True, **constants: object) -> KernelSource:
        source = make_source(signature, body, **constants)
        names = dict.fromkeys(p.name.partition(".")[0] for p in source.params)
        names |= dict.fromkeys(n.partition(".")[0] for n in constants)
        text = re.sub(r"def kernel\(.*\)", f"def kernel({', '.join(names)})", source.text)
        text = (
            re.sub(r"\b([A-Z])([,)])", r"\1: tl.constexpr\2", text, count=0) if constants else text
        )
        return replace(source, text=text, tma=tma)

    return make


COPY = """
i = tl.program_id(0) * x.block_shape[0]
j = tl.program_id(1) * x.block_shape[1]
y.store([i, j], x.load([i, j]))
"""


def values(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Random values that every element type holds exactly, in rows of whole 16 bytes."""
    unit = 16 // torch_dtype(kind).itemsize
    row = -(-shape[-1] // unit) * unit + 32
    data = torch.randint(0 if kind[0] == "u" else -8, 8, (*shape[:-1], row))
    data = data.float() if kind[0] in "fb" else data
    return data.to(torch_dtype(kind))[..., : shape[-1]]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


# -- kinds and tuples ---------------------------------------------------------------


def test_descriptor_kinds() -> None:
    assert parse_descriptor("tensordesc<bf16[64,32]>") == ("bf16", (64, 32))
    assert parse_descriptor("*bf16") is None and parse_descriptor("tensordesc<f32[]>") is None
    assert triton_name("tensordesc<f32[8, 4]>") == "tensordesc<fp32[8, 4]>"
    param = KernelParam("x", "tensordesc<f8e4m3[16,32]>")
    assert param.is_descriptor and not param.is_pointer and not param.may_align
    assert param.element == "f8e4m3"


@pytest.mark.parametrize(
    "kind",
    [
        "tensordesc<q7[8]>",
        "tensordesc<f32[12]>",
        "tensordesc<f32[1,1,1,1,1,8]>",
        "tensordesc<f32>",
        "tensordesc<bool[16]>",
    ],
)
def test_kinds_that_cannot_be(kind: str) -> None:
    with pytest.raises(errors.BadSource, match="parameter x"):
        KernelParam("x", kind)


@given(
    st.recursive(st.integers(), lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple))
)
def test_tuples_come_apart_and_together(value: Any) -> None:
    leaves: dict[str, Any] = {}

    def name_all(name: str, item: Any) -> None:
        if isinstance(item, tuple):
            for i, part in enumerate(item):
                name_all(f"{name}.{i}", part)
        else:
            leaves[name] = item

    name_all("t", value)
    assert nest(leaves) == {"t": value}
    assert flatten((value,)) == tuple(leaves.values())


@pytest.mark.parametrize("names", [("t.0", "t.2"), ("t.1",), ("t", "t.0"), ("t.0", "t.0.1")])
def test_tuples_with_holes(names: tuple[str, ...], kernel_of: Make) -> None:
    with pytest.raises(ValueError, match=r"missing|given twice|inside"):
        nest(dict.fromkeys(names, 1))
    source = KernelSource(
        "k", "import triton\n@triton.jit\ndef k(t): pass\n",
        tuple(KernelParam(n, "i32") for n in names),
    )  # fmt: skip
    with pytest.raises(errors.BadSource, match="tuple parameters"):
        source.signature()


TUPLES = ("t.0:i32 t.1.0:tensordesc<f32[16,32]> t.1.1:*f32! y:tensordesc<f32[16,32]>!", """
    v = t[1][0].load([0, 0]) + t[0] * t[2]
    y.store([0, 0], v)
    tl.store(t[1][1], tl.sum(tl.sum(v, 1), 0))
""")  # fmt: skip


def tuple_source(make: Make, tma: bool = True) -> KernelSource:
    return replace(make(*TUPLES, tma=tma), constants=(("t.2", 3),))


def test_tuples_are_interpreted_and_compiled(kernel_of: Make) -> None:
    source = tuple_source(kernel_of)
    assert source.signature() == {
        "t": ("i32", ("tensordesc<fp32[16, 32]>", "*fp32"), "constexpr"),
        "y": "tensordesc<fp32[16, 32]>",
    }
    assert source.paths() == {
        "t.0": (0, 0), "t.1.0": (0, 1, 0), "t.1.1": (0, 1, 1), "y": (1,), "t.2": (0, 2)
    }  # fmt: skip
    x, y, s = values((16, 32), "f32"), torch.zeros(16, 32), torch.zeros(1)
    args = (5, (TensorMap(x, (16, 32)), s)), TensorMap(y, (16, 32))
    kernel = LazyKernel(source)
    kernel((1,), *args)
    assert torch.equal(y, x + 15) and s.item() == (x + 15).sum().item()
    kernel((1,), *flatten(args))
    assert kernel.alignment(*args) == 0b100
    for tma in (True, False):
        binary = compile(tuple_source(kernel_of, tma), Target(90), alignment=0b100)
        assert len(binary.tensor_maps) == (2 if tma else 0)
    assert wire.source_from_record(json.loads(json.dumps(wire.source_to_record(source)))) == source
    with pytest.raises(errors.WrongArgumentCount):
        kernel((1,), 5, *args[1:])


# -- the rules ---------------------------------------------------------------

LAYOUT = MapLayout.of_block("f32", (16, 32), "128B")
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("rank", 0, {"shape": (), "strides": ()}),
    ("address alignment", 8, {"address": 4104}),
    ("size", 0, {"shape": (0, 32)}),
    ("size", 2**31, {"shape": (2**31, 32)}),
    ("stride alignment", 120, {"strides": (30, 1)}),
    ("stride range", 0, {"strides": (0, 1)}),
    ("stride range", -128, {"strides": (-32, 1)}),
    ("stride range", 2**40, {"strides": (2**38, 1)}),
    ("inner stride", 2, {"strides": (64, 2)}),
    ("written row", 120, {"shape": (20, 30), "written": True}),
    ("box size", 512, {"layout": replace(LAYOUT, box=(512, 32))}),
    ("inner box", 8, {"layout": replace(LAYOUT, box=(16, 2))}),
    ("swizzle", 256, {"layout": replace(LAYOUT, box=(16, 64))}),
    ("swizzle", 64, {"layout": replace(LAYOUT, box=(16, 16), swizzle=1)}),
]


@pytest.mark.parametrize(("rule", "number", "change"), CASES)
def test_each_rule_is_named_with_its_number(rule: str, number: int, change: dict[str, Any]) -> None:
    legal = {"address": 4096, "shape": (20, 32), "strides": (32, 1), "element_bytes": 4}
    assert not list(violations(**legal, layout=LAYOUT, written=True))  # type: ignore[arg-type]
    broken = list(violations(**{**legal, "layout": LAYOUT, **change}))  # type: ignore[arg-type]
    assert [(v.rule, v.number) for v in broken] == [(rule, number)]
    assert str(number) in str(broken[0])


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(-9, 99)), min_size=1, max_size=5),
    st.sampled_from([1, 2, 4, 8]),
)
def test_strides_of_one_element_never_matter(dims: list[tuple[int, int]], size: int) -> None:
    shape, strides = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    used = map_strides(shape, strides, size)
    for n, before, after in zip(shape, strides, used, strict=True):
        assert after == before or n == 1
    rules = {v.rule for v in violations(4096, (1,) * len(dims), strides, size)}
    assert not rules


def test_maps_that_can_never_work() -> None:
    x = torch.zeros(16, 32)
    for args, kwargs in (
        ((x, (16,)), {}),
        ((x, (16, 32)), {"strides": (1,)}),
        ((x, (16, 32)), {"padding": "one"}),
        ((x, (16, 32)), {"swizzle": "7B"}),
        ((x.int(), (16, 32)), {"padding": "nan"}),
        ((x.bool(), (16, 32)), {}),
        ((x.to(torch.complex64), (16, 32)), {}),
        ((Address(4096, "f32"), (16, 32)), {}),
    ):
        with pytest.raises(errors.WrongDescriptor):
            TensorMap(*args, **kwargs)  # type: ignore[arg-type]
    with pytest.raises(errors.WrongDescriptor, match="expected a TensorMap"):
        as_tensor_map(x)


def test_a_map_keeps_its_tensor() -> None:
    x = torch.zeros(64, 32)
    map = TensorMap(x[3:], (16, 32))
    address = x.data_ptr() + 3 * 32 * 4
    view = weakref.ref(map.base)
    del x
    gc.collect()
    assert view() is not None and map.address == address
    other = map.to_triton()
    assert isinstance(other, TensorDescriptor) and other.block_shape == [16, 32]
    assert as_tensor_map(other).shape == (61, 32) and "shape=(61, 32)" in repr(map)
    del map, other
    gc.collect()
    assert view() is None


def test_plans() -> None:
    x = torch.arange(4000.0)
    plan = MapPlan((8, 16), ("m", lambda s: s["n"] // 2), ("n", 1), offset=lambda s: 4 * s["m"])
    map = plan.bind(x, {"m": 12, "n": 64, "other": 1})
    assert (map.shape, map.strides) == ((12, 32), (64, 1))
    assert map.address == x.data_ptr() + 48 * 4 and map.base.owner is x  # type: ignore[union-attr]
    assert MapPlan((16,)).bind(x).shape == (4000,)
    with pytest.raises(errors.WrongDescriptor, match="size 'n' is not given; given are m"):
        plan.bind(x, {"m": 3})


# -- the interpreter ---------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k in KINDS if k in DATA_TYPES])
@pytest.mark.parametrize("tma", [True, False])
def test_interpreted_copies(kind: str, tma: bool, kernel_of: Make) -> None:
    desc = f"tensordesc<{kind}[16,32]>"
    kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}!", COPY, tma=tma))
    wide = 48 if tma else 37  # rows that are written by TMA are of whole 16 bytes
    x, whole = values((21, 37), kind), values((25, wide + 6), kind)
    before, y = whole.clone(), whole[:21, :wide]
    kernel((2, 2), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    before[:21, :wide] = 0
    before[:21, :37] = x
    assert torch.equal(bits(whole), bits(before))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_interpreted_ranks_and_fields(rank: int, kernel_of: Make) -> None:
    block, shape = (2, 2, 4, 4, 16)[5 - rank :], (2, 2, 3, 4, 13)[5 - rank :]
    sizes, zeros = ",".join(map(str, block)), ", ".join("0" * rank)
    total = " + ".join(f"x.shape[{d}] * x.strides[{d}]" for d in range(rank))
    kernel = LazyKernel(
        kernel_of(
            f"x:tensordesc<f16[{sizes}]> y:tensordesc<f16[{sizes}]>! o:*i64!",
            f"y.store([{zeros}], x.load([{zeros}]) * 2)\ntl.store(o, {total})",
        )
    )
    x, y, o = values(shape, "f16"), torch.zeros(block, dtype=torch.float16), torch.zeros(1).long()
    kernel((1,), TensorMap(x, block), TensorMap(y, block), o)
    assert torch.equal(y[tuple(slice(n) for n in shape)], x * 2)
    assert y.sum() == (x * 2).sum()
    assert o.item() == sum(n * s for n, s in zip(x.shape, x.stride(), strict=True))


def test_interpreted_padding(kernel_of: Make) -> None:
    body = """
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, x.load([i, j]))
    """
    kernel = LazyKernel(kernel_of("x:tensordesc<bf16[16,16]> out:*bf16! i:i32 j:i32", body))
    x = values((10, 24), "bf16")
    for i, j, padding in ((8, 16, "nan"), (-8, -8, "zero"), (10, 0, "zero"), (0, 32, "nan")):
        out = torch.full((16, 16), 77.0, dtype=torch.bfloat16)
        kernel((1,), TensorMap(x, (16, 16), padding=padding), out, i, j)
        wide = torch.full((64, 80), 0 if padding == "zero" else math.nan, dtype=torch.bfloat16)
        wide[16:26, 16:40] = x
        expected = wide[16 + i : 32 + i, 16 + j : 32 + j]
        assert torch.equal(out.nan_to_num(9), expected.nan_to_num(9))


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("add", "f32"),
        ("add", "bf16"),
        ("add", "u32"),
        ("min", "i64"),
        ("max", "f16"),
        ("min", "u64"),
        ("max", "bf16"),
        ("and", "i32"),
        ("or", "u64"),
        ("xor", "u32"),
    ],
)
def test_interpreted_reductions(op: str, kind: str, kernel_of: Make) -> None:
    body = f"y.atomic_{op}([tl.program_id(0) * 16, 0], x.load([tl.program_id(0) * 16, 0]))"
    desc = f"tensordesc<{kind}[16,32]>"
    kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}!", body))
    x, y = values((21, 32), kind), values((21, 32), kind)
    wide = torch.float64 if kind[0] in "fb" else torch.int64
    a, b = y.to(wide), x.to(wide)
    combine = {"add": torch.add, "min": torch.minimum, "max": torch.maximum}
    expected = combine.get(op, getattr(torch, f"bitwise_{op}", None))(a, b)  # type: ignore[misc]
    kernel((2,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    assert torch.equal(y.to(wide), expected)


def test_reductions_into_one_place(kernel_of: Make) -> None:
    """Rows with a stride of 0 are added one after the other."""
    body = "y.atomic_add([0, 0], x.load([0, 0]))"
    desc = "tensordesc<f32[4,8]>"
    kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}!", body, tma=False))
    x, y = values((4, 8), "f32"), torch.zeros(8)
    kernel((1,), TensorMap(x, (4, 8)), TensorMap(y, (4, 8), shape=(4, 8), strides=(0, 1)))
    assert torch.equal(y, x.sum(0))


GATHER = """
rows = tl.load(index + tl.arange(0, 32))
y.scatter(x.gather(rows, 8) * 2, rows, 0)
"""


def test_interpreted_gathers(kernel_of: Make) -> None:
    desc = "tensordesc<f32[1,32]>"
    kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}! index:*i32", GATHER))
    x, y = values((50, 40), "f32"), torch.zeros(50, 40)
    index = torch.randperm(60)[:32].int()
    kernel((1,), TensorMap(x, (1, 32)), TensorMap(y, (1, 32)), index)
    expected, inside = torch.zeros_like(y), index[index < 50].long()
    expected[inside, :32] = 2 * x[inside, 8:]
    assert torch.equal(y, expected)


def test_the_interpreter_keeps_the_rules(kernel_of: Make) -> None:
    """What a GPU would refuse, do wrong, or stop at, is an error here; without TMA it works."""
    desc = "tensordesc<f32[16,32]>"
    body = "y.store([i, j], x.load([i, 0]))"
    for tma in (True, False):
        kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}! i:i32 j:i32", body, tma=tma))
        base = values((16, 80), "f32")
        out = torch.zeros(16, 64)
        for x, y, j, rule in (
            (base[:, 1:], out, 0, "address alignment"),
            (base[:, ::2], out, 0, "inner stride"),
            (base, out[:, :30], 0, "written row"),
            (base, out, 3, "offset alignment"),
        ):
            args = (TensorMap(x, (16, 32)), TensorMap(y, (16, 32)), 0, j)
            if tma:
                with pytest.raises(errors.TensorMapRule, match=rule) as caught:
                    kernel((1,), *args)
                assert caught.value.rule == rule
            else:
                out.zero_()
                kernel((1,), *args)
                end = min(32, y.shape[1] - j)
                assert torch.equal(y[:, j : j + end], x[:, :end])
                assert out.count_nonzero() == x[:, :end].count_nonzero()


MADE = """
a = tl.make_tensor_descriptor(x, [m, n], [stride, 1], [16, 32])
b = tl.make_tensor_descriptor(y, [m, n], [stride, 1], [16, 32])
for i in range(0, m, 16):
    for j in range(0, n, 32):
        b.store([i, j], a.load([i, j]) * 3)
"""
MADE_SIGNATURE = "x:*f32 y:*f32! m:i32 n:i32 stride:i64"


def test_fallback_of_descriptors_made_in_the_kernel(kernel_of: Make) -> None:
    plan = MapPlan((16, 32), ("m", "n"), ("stride", 1))
    kernel = with_fallback(LazyKernel(kernel_of(MADE_SIGNATURE, MADE)), maps={"x": plan, "y": plan})
    for shift, n, stride, rules in (
        (0, 72, 76, set()), (1, 72, 76, {"address alignment"}), (0, 70, 72, {"written row"}),
        (0, 70, 71, {"stride alignment", "written row"}),
    ):  # fmt: skip
        x, y = values((4000,), "f32")[shift:], torch.zeros(4000)[shift:]
        assert {v.rule for v in kernel.why_not(x, y, 40, n, stride)} == rules
        kernel((1,), x, y, 40, n, stride)
        view = x.as_strided((40, n), (stride, 1), shift)
        assert torch.equal(y.as_strided((40, n), (stride, 1), shift), view * 3)
        if rules:
            with pytest.raises(errors.TensorMapRule):
                kernel.tma((1,), x, y, 40, n, stride)
    with pytest.raises(errors.BadSource, match="no parameter z"):
        with_fallback(kernel.tma, maps={"z": plan})
    with pytest.raises(errors.WrongArgumentCount):
        kernel((1,), x, y)


def test_a_fallback_of_ones_own(kernel_of: Make) -> None:
    desc = "tensordesc<f32[16,32]>"
    calls: list[Any] = []
    tma = LazyKernel(kernel_of(f"x:{desc} y:{desc}!", COPY))
    kernel = with_fallback(tma, lambda grid, *args: calls.append(args))
    x, y = values((16, 40), "f32"), torch.zeros(16, 32)
    kernel((1, 1), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    assert torch.equal(y, x[:, :32]) and not calls
    kernel((1, 1), TensorMap(x[:, 1:], (16, 32)), TensorMap(y, (16, 32)))
    assert len(calls) == 1


def test_descriptors_of_addresses_and_other_tensors(kernel_of: Make) -> None:
    desc = "tensordesc<f32[16,32]>"
    kernel = LazyKernel(kernel_of(f"x:{desc} y:{desc}!", COPY))
    x, y = values((16, 32), "f32"), torch.zeros(16, 32)
    where = Address(x.data_ptr(), "f32", -1)
    kernel(
        (1, 1),
        TensorMap(where, (16, 32), shape=(16, 32), strides=x.stride()),
        TensorMap(y, (16, 32)),
    )
    assert torch.equal(x, y)
    good = TensorDescriptor.from_tensor(y, [16, 32])
    kernel((1, 1), TensorDescriptor.from_tensor(x, [16, 32]), good)
    for bad, error in (
        (x, errors.WrongDescriptor),
        (TensorMap(x, (32, 16)), errors.WrongDescriptor),
        (TensorMap(x.half(), (16, 32)), errors.WrongDType),
        (
            TensorMap(Address(4096, "f16", -1), (16, 32), shape=(1, 1), strides=(1, 1)),
            errors.WrongDType,
        ),
        (None, errors.WrongDescriptor),
    ):
        with pytest.raises(error):
            kernel((1, 1), bad, good)


# -- the compiler ---------------------------------------------------------------


def test_layouts_by_target(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<bf16[64,128]> y:tensordesc<bf16[64,128]>!", COPY)
    hopper = compile(source, Target(90))
    assert hopper.tensor_maps == (MapLayout(3, 9, 2, (64, 64)),) * 2
    assert [s.head for s in slots_of(hopper)] == [128, 128]
    for other in (compile(source, Target(80)), compile(replace(source, tma=False), Target(90))):
        assert other.tensor_maps == () and [s.head for s in slots_of(other)] == [8, 8]
    assert Binary.from_bytes(hopper.to_bytes()) == hopper


def test_a_binary_without_its_layouts_is_refused(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<f32[16,32]> y:tensordesc<f32[16,32]>!", COPY)
    binary = compile(source, Target(90))
    header = {"tensor_maps": [m.to_record() for m in binary.tensor_maps]}
    record = json.loads(re.search(rb"\{.*\}", binary.to_bytes().split(b"\x7fELF")[0])[0])  # type: ignore[index]
    assert record["tensor_maps"] == json.loads(json.dumps(header["tensor_maps"]))
    del record["tensor_maps"][0]["swizzle"]
    with pytest.raises(errors.BadBinary, match="swizzle"):
        Binary._from_record(record, binary.cubin, "")
    del record["tensor_maps"]
    with pytest.raises(errors.BadBinary, match="lacks tensor_maps"):
        Binary._from_record(record, binary.cubin, "")


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tma", [True, False])
def test_slots_are_what_the_kernel_takes(
    rank: int, tma: bool, kernel_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of the kernel's parameters as PTX declares them."""
    monkeypatch.setattr("triton_rt.tma.slots.encode", lambda *a: bytes(128))
    block = (2, 2, 4, 4, 16)[5 - rank :]
    zeros = ", ".join("0" * rank)
    body = f"tl.store(o, tl.sum(x.load([{zeros}]).reshape({math.prod(block)}), 0))"
    source = kernel_of(f"x:tensordesc<f16[{','.join(map(str, block))}]> o:*f16!", body, tma=tma)
    binary = compile(source, Target(90), keep_ptx=True)
    declared = re.findall(
        r"\.param [^\n]*?\.(?:b8 \w+\[(\d+)\]|[usb](\d+) )", binary.ptx.split("{")[0]
    )
    sizes = [int(a) if a else int(b) // 8 for a, b in declared]
    x = torch.zeros(block, dtype=torch.float16)
    (slot,) = slots_of(binary)
    ours = [len(v) for v in split(slot(TensorMap(x, block)), slot.head)]
    assert len(ours) == len(sizes) - 3  # o, and two kinds of scratch
    assert all(theirs in (size, 1, 4) for size, theirs in zip(ours, sizes, strict=False))


def test_cubins_are_those_of_triton(kernel_of: Make) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from triton_rt import load_jit

    source = kernel_of("x:tensordesc<f32[16,32]> y:tensordesc<f32[16,32]>!", COPY)
    theirs = triton.compile(
        ASTSource(load_jit(source), source.signature(), {}, {}), target=GPUTarget("cuda", 90, 32)
    )
    assert compile(source, Target(90)).cubin == theirs.asm["cubin"]


def test_gathers_need_blackwell(kernel_of: Make) -> None:
    source = kernel_of("x:tensordesc<f32[1,32]> y:tensordesc<f32[1,32]>! index:*i32", GATHER)
    with pytest.raises(errors.NoTmaGather, match=r"kernel for sm_90 .*gather4.*tma=False"):
        compile(source, Target(90))
    assert not compile(replace(source, tma=False), Target(90)).tensor_maps
    assert len(compile(source, Target(100)).tensor_maps) == 2


def test_sixteen_bit_minima_compile_without_a_gpu(kernel_of: Make) -> None:
    """Triton asks the machine's driver whether the chip has TMA; here, the target is asked."""
    desc = "tensordesc<bf16[16,32]>"
    compile(kernel_of(f"x:{desc} y:{desc}!", "y.atomic_min([0, 0], x.load([0, 0]))"), Target(90))


MADE_INSIDE = """
d = tl.make_tensor_descriptor(p, [16, 32], [32, 1], [16, 32])
d.store([0, 0], a.load([0, 0]))
"""
CHOSEN = """
d = a
for i in range(n):
    if i > 3:
        d = b
    else:
        d = c
d.store([0, 0], tl.zeros((16, 32), tl.float32))
"""
WRITES = [
    ("b.store([0, 0], a.load([0, 0]))", [False, True, False]),
    ("for i in range(3):\n    c.atomic_add([i, 0], a.load([0, 0]))", [False, False, True]),
    ("put(t, a.load([0, 0]))", [False, False, True]),
    (MADE_INSIDE, [False, False, False]),
    (CHOSEN, [True, True, True]),
]


@pytest.mark.parametrize(("body", "written"), WRITES)
def test_what_is_written_is_found(body: str, written: list[bool], make_source: Make) -> None:
    """Whatever is declared, the binary knows which descriptors the kernel writes through."""
    desc = "tensordesc<f32[16,32]>"
    header = "@triton.jit\ndef put(t, v):\n    t[0].store([0, 0], v)\n"
    source = make_source(
        f"a:{desc} b:{desc} c:{desc} p:*f32 n:i32", "t = (c,)\n" + body, header=header
    )
    binary = compile(source, Target(90))
    assert [p.mutated for p in binary.params[:3]] == written


# -- the launch, as the driver sees it --------------------------------------------------------


class FakeTensor:
    """What the launcher asks of a CUDA tensor."""

    def __init__(self, address: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.address, self.dtype, self.shape = address, dtype, shape
        self.device = torch.device("cuda", 0)

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return 0

    def stride(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))


class Encoded(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_uint32) for n in ("calls", "type", "rank", "interleave", "swizzle")),
        *((n, ctypes.c_uint32) for n in ("promotion", "fill", "unaligned")),
        ("box", ctypes.c_uint32 * 5),
        ("steps", ctypes.c_uint32 * 5),
        ("address", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 5),
    )


class Launched(ctypes.Structure):
    _fields_ = (
        ("launches", ctypes.c_uint32),
        ("head", ctypes.c_uint32 * 22),
        ("function", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 160),
    )


class FakeCuda:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.encoded = Encoded.in_dll(library, "encoded")
        self.record = Launched.in_dll(library, "record")

    def arguments(self, count: int) -> list[int]:
        """The next launch's first words are kept; of the last one, here they are."""
        return list(self.record.args)[:count]

    def keep(self, count: int) -> None:
        ctypes.c_uint32.in_dll(self.library, "arg_count").value = count


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    out = tmp_path_factory.mktemp("fake") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(out), str(source)], check=True)
    return out


@pytest.fixture(params=["native", "python"])
def fake(
    request: pytest.FixtureRequest, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeCuda]:
    """Both launchers over a fresh copy of the fake driver."""
    module = native._extension(Config(tmp_path.parent / "launcher-cache"))
    assert module is not None, "the native launcher did not build"
    mine = tmp_path / "libfakecuda.so"
    shutil.copy(library, mine)
    opened = driver.Driver(ctypes.CDLL(str(mine)))
    monkeypatch.setattr(driver, "driver", lambda: opened)
    monkeypatch.setattr(dispatch, "_raw_stream", lambda: lambda device: 0x57)
    monkeypatch.setattr("triton_rt.launch.args.torch.Tensor", (torch.Tensor, FakeTensor))
    module.set_symbols_from(opened.address)
    monkeypatch.setattr(native, "extension", lambda: module if request.param == "native" else None)
    encode.cache_clear()
    yield FakeCuda(opened.library)
    encode.cache_clear()


@pytest.fixture(scope="module")
def copies() -> dict[bool, Binary]:
    """The copy kernel with TMA and without, between other arguments."""
    text = (
        "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(n, x, s, y):\n"
        "    y.store([n, 0], x.load([n, 0]) * s)\n"
    )
    desc = "tensordesc<f32[16,64]>"
    params = (
        KernelParam("n", "i32"), KernelParam("x", desc), KernelParam("s", "f32"),
        KernelParam("y", desc, mutated=True),
    )  # fmt: skip
    sources = {tma: KernelSource("kernel", text, params, tma=tma) for tma in (True, False)}
    return {tma: compile(source, Target(90), alignment=0) for tma, source in sources.items()}


def launcher_of(binary: Binary, seen: list[Any] | None = None) -> Any:
    entry = Entry(0xF00D, 0xC0, 128, 0, 1, False, False, 0, 0, slots=slots_of(binary))
    return dispatch.make_dispatcher(
        binary.name, binary.params, lambda *key: entry, lambda *a: (seen or []).append(a)
    )


def test_a_map_as_the_driver_sees_it(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    launch = launcher_of(copies[True])
    x = FakeTensor(0x1000, torch.float32, (40, 128))
    y = FakeTensor(0x9000, torch.float32, (30, 64))
    fake.keep(14)
    launch((3,), 7, TensorMap(x, (16, 64), padding="nan"), 0.5, TensorMap(y, (16, 64)))  # type: ignore[arg-type]
    half = int.from_bytes(struct.pack("<f", 0.5), "little")
    assert fake.arguments(14) == [
        7, 0x1000, 40, 128, 128, 1, half, 0x9000, 30, 64, 64, 1, 0, 0
    ]  # fmt: skip
    launch((3,), 7, TensorMap(y, (16, 64)), 0.5, TensorMap(x, (16, 64)))  # type: ignore[arg-type]
    e = fake.encoded
    assert (e.calls, e.type, e.rank, e.interleave, e.swizzle, e.promotion) == (3, 7, 2, 0, 3, 2)
    assert (e.address, e.fill, e.unaligned) == (0x1000, 0, 0)
    assert list(e.sizes)[:2] == [128, 40] and list(e.strides)[:2] == [512, 0]
    assert list(e.box)[:2] == [32, 16] and list(e.steps)[:2] == [1, 1]


def test_a_descriptor_without_tma(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    launch = launcher_of(copies[False])
    x = FakeTensor(0x1004, torch.float32, (40, 30))
    fake.keep(24)
    map = TensorMap(x, (16, 64), padding="nan")  # type: ignore[arg-type]
    launch((3,), 7, map, 0.0, TensorMap(x, (16, 64)))  # type: ignore[arg-type]
    fields = [0x1004, 40, 30, 30, 1]
    again = [40, 30, 30, 1]
    assert fake.arguments(24) == [7, *fields, 1, *again, 0, *fields, 0, *again, 0, 0]
    assert fake.encoded.calls == 0


def test_one_map_however_often(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    """Encoded once for a tensor and a block; again when either is another one."""
    launch = launcher_of(copies[True])
    x = FakeTensor(0x1000, torch.float32, (40, 128))
    map = TensorMap(x, (16, 64))  # type: ignore[arg-type]
    descriptor = TensorDescriptor.__new__(TensorDescriptor)
    descriptor.__dict__.update(
        base=x, shape=[40, 128], strides=[128, 1], block_shape=[16, 64], padding="zero"
    )
    for _ in range(5):
        launch((1,), 0, map, 1.0, TensorMap(x, (16, 64)))  # type: ignore[arg-type]
        launch((1,), 0, descriptor, 1.0, map)
    assert fake.encoded.calls == 1
    fake.keep(2)
    x.address = 0x2000  # the storage moved: the map follows
    launch((1,), 0, map, 1.0, map)
    assert fake.encoded.calls == 2 and fake.arguments(2) == [0, 0x2000]
    descriptor.shape = [20, 128]
    launch((1,), 0, descriptor, 1.0, map)
    assert fake.encoded.calls == 3 and fake.encoded.sizes[1] == 20
    x.address = 0x1000
    launch((1,), 0, map, 1.0, map)
    assert fake.encoded.calls == 3


def test_rules_are_checked_before_the_launch(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    launch, plain = launcher_of(copies[True]), launcher_of(copies[False])
    good = TensorMap(FakeTensor(0x1000, torch.float32, (40, 128)), (16, 64))  # type: ignore[arg-type]
    ragged = FakeTensor(0x1000, torch.float32, (40, 30))
    moved = FakeTensor(0x1004, torch.float32, (40, 128))
    for x, y, rule, number in (
        (TensorMap(ragged, (16, 64)), good, "stride alignment", 120),  # type: ignore[arg-type]
        (TensorMap(moved, (16, 64)), good, "address alignment", 4),  # type: ignore[arg-type]
        (good, TensorMap(moved, (16, 64)), "address alignment", 4),  # type: ignore[arg-type]
        (good, TensorMap(ragged, (16, 64), strides=(32, 1)), "written row", 120),  # type: ignore[arg-type]
    ):
        with pytest.raises(
            errors.TensorMapRule, match=rf"kernel: [xy] .*{rule}.*{number}"
        ) as caught:
            launch((1,), 0, x, 1.0, y)
        assert (caught.value.rule, caught.value.number) == (rule, number)
        assert fake.record.launches == 0
    launch((1,), 0, TensorMap(ragged, (16, 64), strides=(32, 1)), 1.0, good)  # type: ignore[arg-type]
    plain((1,), 0, TensorMap(ragged, (16, 64)), 1.0, TensorMap(moved, (16, 64)))  # type: ignore[arg-type]
    assert fake.record.launches == 2


def test_descriptors_that_do_not_fit(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    seen: list[Any] = []
    launch = launcher_of(copies[True], seen)
    x = FakeTensor(0x1000, torch.float32, (40, 128))
    good = TensorMap(x, (16, 64))  # type: ignore[arg-type]
    half = FakeTensor(0x1000, torch.float16, (40, 128))
    for bad, error in (
        (x, errors.WrongDescriptor),
        (7, errors.WrongDescriptor),
        (TensorMap(x, (32, 64)), errors.WrongDescriptor),  # type: ignore[arg-type]
        (TensorMap(x, (8, 16, 64), shape=(1, 1, 1), strides=(1, 1, 1)), errors.WrongDescriptor),  # type: ignore[arg-type]
        (TensorMap(half, (16, 64)), errors.WrongDType),  # type: ignore[arg-type]
        (TensorMap(torch.zeros(16, 64), (16, 64)), errors.WrongDevice),
    ):
        with pytest.raises(error):
            launch((1,), 0, good, 1.0, bad)
    assert fake.record.launches == 0
    for _ in range(3):
        launch.clear()
        launch((1,), 0, good, 1.0, good)
    assert fake.record.launches == 3


def test_many_descriptors_leave_the_stack(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    layout = copies[True].tensor_maps[0]
    params = tuple(KernelParam(f"p{i}", "tensordesc<f32[16,64]>") for i in range(7))
    binary = replace(copies[True], params=params, tensor_maps=(layout,) * 7)
    launch = launcher_of(binary)
    maps = [
        TensorMap(FakeTensor(0x1000 * (i + 1), torch.float32, (40 + i, 128)), (16, 64))  # type: ignore[arg-type]
        for i in range(7)
    ]
    fake.keep(37)
    launch((1,), *maps)
    expected = [v for i in range(7) for v in (0x1000 * (i + 1), 40 + i, 128, 128, 1)]
    assert fake.arguments(37) == [*expected, 0, 0]


def test_tuples_as_the_driver_sees_them(fake: FakeCuda, kernel_of: Make) -> None:
    binary = compile(tuple_source(kernel_of), Target(90), alignment=0)
    launch = launcher_of(binary)
    x, y = (FakeTensor(a, torch.float32, (16, 32)) for a in (0x1000, 0x2000))
    fake.keep(14)
    maps = [TensorMap(t, (16, 32)) for t in (x, y)]  # type: ignore[arg-type]
    for args in (((5, (maps[0], y)), maps[1]), (5, maps[0], y, maps[1])):
        launch((1,), *args)
        assert fake.arguments(14) == [
            5, 0x1000, 16, 32, 32, 1, 0x2000, 0x2000, 16, 32, 32, 1, 0, 0
        ]  # fmt: skip


def test_fallback_when_only_the_binary_knows(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    """A kernel that does not say what it writes."""
    params = tuple(replace(p, mutated=False) for p in copies[True].params)
    text = "import triton\n@triton.jit\ndef kernel(n, x, s, y): pass\n"
    calls: list[Any] = []
    tma = LazyKernel(KernelSource("kernel", text, params))
    tma.launch = launcher_of(copies[True])
    kernel = with_fallback(tma, lambda *args: calls.append(args))
    ragged = FakeTensor(0x1000, torch.float32, (40, 30))
    map = TensorMap(ragged, (16, 64), strides=(32, 1))  # type: ignore[arg-type]
    assert not kernel.why_not(0, map, 1.0, map)
    kernel((1,), 0, map, 1.0, map)
    assert len(calls) == 1 and fake.record.launches == 0


# -- workspaces ---------------------------------------------------------------


def test_workspaces(kernel_of: Make) -> None:
    binary = compile(kernel_of(MADE_SIGNATURE, MADE), Target(90), alignment=0)
    space = Workspace.of(binary, num_programs=10)
    assert space.num_descriptors == 2 and space.nbytes() == 10 * 2 * 128
    buffer = torch.empty(space.nbytes(), dtype=torch.uint8)
    space._memory[0, 9] = (space.nbytes(), buffer)
    assert space.memory(2560, 0, 9) is buffer
    with pytest.raises(errors.WorkspaceTooSmall, match=r"needs 2561 bytes.*2560.*10 programs x 2"):
        space.memory(2561, 0, 9)
    with pytest.raises(errors.WorkspaceTooSmall, match="multiples of 256"):
        space(128, 256, 0)
    with space.use():
        assert workspace.allocate(256, 0, 9) is buffer
    space.clear()
    assert not space._memory
    for wrong in ((0, None), (1, 0)):
        with pytest.raises(errors.WorkspaceTooSmall, match="empty"):
            Workspace(*wrong)


def test_workspaces_default_to_the_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda d: type("P", (), {"multi_processor_count": 132})
    )
    assert Workspace(3).nbytes(0) == 132 * 3 * 128


def test_allocators_are_of_the_context() -> None:
    import contextvars

    first, second = Workspace(1, 1), Workspace(1, 2)
    for space in (first, second):
        space._memory[0, 0] = (space.nbytes(), torch.empty(space.nbytes(), dtype=torch.uint8))

    def run() -> None:
        set_allocator(first)
        assert workspace.allocate(8, 0, 0).nbytes == 128
        with use_allocator(second):
            assert workspace.allocate(8, 0, 0).nbytes == 256
        assert workspace.allocate(8, 0, 0).nbytes == 128

    contextvars.copy_context().run(run)
    assert workspace._allocator.get() is None


def test_kernels_of_one_binary_take_descriptors(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    kernel = Kernel(copies[True])
    x = TensorMap(FakeTensor(0x1000, torch.float32, (40, 128)), (16, 64))  # type: ignore[arg-type]
    kernel((1,), 0, x, 1.0, x)
    assert fake.record.launches == 1


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    section = text.split("## Tensor descriptors (TMA)")[1]
    exec(section.split("```python\n")[1].split("```")[0], {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True" and second.startswith("address alignment:") and second.endswith("got 4")
