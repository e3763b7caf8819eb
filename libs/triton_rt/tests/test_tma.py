"""Tensor descriptors and tuples as arguments: kinds, rules, plans, and the interpreter."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_rt import (
    KernelParam,
    KernelSource,
    LazyKernel,
    MapPlan,
    Target,
    TensorMap,
    compile,
    errors,
    with_fallback,
)
from triton_rt.element_types import KINDS, parse_descriptor, torch_dtype, triton_name
from triton_rt.source.flat_tuples import flatten, nest
from triton_rt.tma import Address, as_tensor_map
from triton_rt.tma.layout import DATA_TYPES, MapLayout
from triton_rt.tma.rules import map_strides, violations

Make = Callable[..., KernelSource]

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
    assert KernelSource.from_record(json.loads(json.dumps(source.to_record()))) == source
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
    z = torch.zeros(16, 32)
    kernel((1, 1), x, z)  # a tensor: the parameter has the block
    assert torch.equal(x, z)
    for bad, error in (
        (x[0], errors.WrongDescriptor),
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


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    section = text.split("## Tensor descriptors (TMA)")[1]
    exec(section.split("```python\n")[1].split("```")[0], {})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True" and second.startswith("address alignment:") and second.endswith("got 4")
