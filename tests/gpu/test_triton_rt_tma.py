"""triton_rt's tensor descriptors on a real GPU: against torch, with TMA and without."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch

import triton_rt as rt
from triton_rt import KernelParam, KernelSource, LazyKernel, TensorMap, errors
from triton_rt.element_types import KINDS, torch_dtype
from triton_rt.launch import dispatch
from triton_rt.tma.layout import DATA_TYPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

DEVICE = "cuda"
HEADER = "import triton\nimport triton.language as tl\n\n"


def make(
    signature: str, body: str, *, tma: bool = True, num_warps: int = 4, **constants: Any
) -> KernelSource:
    """`make("x:tensordesc<f32[8,8]> y:*f32! t.0:i32", body)`; `!` marks what is mutated."""
    params = []
    for part in signature.split():
        name, kind = part.split(":")
        params.append(KernelParam(name, kind.rstrip("!"), mutated=kind.endswith("!")))
    names = list(dict.fromkeys(p.name.partition(".")[0] for p in params))
    names += [f"{n}: tl.constexpr" for n in constants]
    text = f"{HEADER}@triton.jit\ndef kernel({', '.join(names)}):\n"
    text += textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    return KernelSource(
        "kernel", text, tuple(params), tuple(constants.items()), num_warps=num_warps, tma=tma
    )


def values(shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Random values that every element type holds exactly."""
    small = torch.randint(0 if kind[0] == "u" else -8, 8, shape, device=DEVICE)
    return (
        small.to(torch.float32).to(torch_dtype(kind))
        if kind[0] in "fb"
        else small.to(torch_dtype(kind))
    )


def raw(x: torch.Tensor) -> torch.Tensor:
    """Bits, so that float8 compares."""
    return x.contiguous().view(torch.uint8)


def padded(shape: tuple[int, ...], kind: str, margin: int = 32) -> torch.Tensor:
    """A view of random values whose rows have room after them, so that its strides are legal."""
    unit = 16 // torch_dtype(kind).itemsize
    row = -(-shape[-1] // unit) * unit + margin
    return values((*shape[:-1], row), kind)[..., : shape[-1]]


@pytest.fixture(params=["native", "python"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each launcher in turn; kernels must be made inside of the test."""
    if request.param == "python":
        monkeypatch.setattr(dispatch.native, "extension", lambda: None)
    return str(request.param)


# -- loads and stores ------------------------------------------------------------------------


COPY = """
i = tl.program_id(0) * x.block_shape[0]
j = tl.program_id(1) * x.block_shape[1]
y.store([i, j], x.load([i, j]))
"""

COPY_KINDS = [k for k in KINDS if k in DATA_TYPES]


@pytest.mark.parametrize("kind", COPY_KINDS)
@pytest.mark.parametrize("tma", [True, False])
def test_copy_with_odd_sizes(kind: str, tma: bool) -> None:
    """Blocks over the edges: what is outside is neither read into the result, nor written. With TMA
    the rows that are written are of whole 16 bytes."""
    desc = f"tensordesc<{kind}[32,64]>"
    kernel = LazyKernel(make(f"x:{desc} y:{desc}!", COPY, tma=tma))
    unit = 16 // torch_dtype(kind).itemsize if tma else 1
    for rows, cols in ((1, 1), (33, 65), (100, 77)):
        wide = -(-cols // unit) * unit
        x = padded((rows, cols), kind)
        whole = padded((rows + 3, wide + 5), kind)
        before, y = whole.clone(), whole[:rows, :wide]
        grid = (-(-rows // 32), -(-wide // 64))
        kernel(grid, TensorMap(x, (32, 64)), TensorMap(y, (32, 64)))
        before[:rows, :wide] = 0
        before[:rows, :cols] = x
        assert torch.equal(raw(whole), raw(before)), (rows, cols)


@pytest.mark.parametrize("kind", ["i8", "bf16", "f32"])
def test_ragged_rows_are_not_written_by_tma(kind: str) -> None:
    """TMA would write on to the next 16 bytes: the kernel without it runs."""
    desc = f"tensordesc<{kind}[32,64]>"
    kernel = rt.with_fallback(LazyKernel(make(f"x:{desc} y:{desc}", COPY)))
    for cols in range(60, 78):
        x, whole = padded((40, cols), kind), padded((43, cols + 5), kind)
        before, y = whole.clone(), whole[:40, :cols]
        kernel((2, 2), TensorMap(x, (32, 64)), TensorMap(y, (32, 64)))
        before[:40, :cols] = x
        assert torch.equal(raw(whole), raw(before)), cols
        if cols * x.itemsize % 16:
            with pytest.raises(errors.TensorMapRule, match="written row"):
                kernel.tma((2, 2), TensorMap(x, (32, 64)), TensorMap(y, (32, 64)))


def test_copy_by_both_launchers(launcher: str) -> None:
    """Also with so many parameters that they leave the launcher's stack."""
    count = 9
    params = " ".join(f"x{i}:tensordesc<f32[16,32]>" for i in range(count))
    total = " + ".join(f"x{i}.load([0, 0])" for i in range(count))
    total += " + " + " + ".join(f"x{i}.shape[0] * x{i}.strides[0]" for i in range(count))
    kernel = LazyKernel(
        make(
            f"a:i32 {params} y:tensordesc<f32[16,32]>! b:f32", f"y.store([0, 0], b * ({total}) + a)"
        )
    )
    xs = [values((10 + i, 32 + 4 * i), "f32") for i in range(count)]
    y = torch.zeros(16, 32, device=DEVICE)
    kernel((1,), 7, *(TensorMap(x, (16, 32)) for x in xs), TensorMap(y, (16, 32)), 0.5)
    expected = torch.zeros(16, 32, device=DEVICE)
    for x in xs:
        part = x[:16, :32]
        expected[: len(part)] += part
        expected += x.shape[0] * x.stride(0)
    assert torch.equal(y, 0.5 * expected + 7)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("tma", [True, False])
def test_ranks(rank: int, tma: bool) -> None:
    block = (2, 2, 4, 4, 16)[5 - rank :]
    shape = (3, 5, 6, 9, 27)[5 - rank :]
    sizes = ",".join(map(str, block))
    loops = "".join(
        "    " * d + f"for i{d} in range({-(-n // b)}):\n"
        for d, (n, b) in enumerate(zip(shape, block, strict=True))
    )
    at = ", ".join(f"i{d} * {b}" for d, b in enumerate(block))
    body = loops + "    " * rank + f"y.store([{at}], x.load([{at}]) * 2)"
    desc = f"tensordesc<f16[{sizes}]>"
    kernel = LazyKernel(make(f"x:{desc} y:{desc}!", body, tma=tma))
    x, y = padded(shape, "f16", 8), padded((*shape[:-1], 32), "f16", 16)
    kernel((1,), TensorMap(x, block), TensorMap(y, block))
    assert torch.equal(y[..., :27], x * 2) and not y[..., 27:].any()


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_padding(tma: bool, padding: str) -> None:
    source = make(
        "x:tensordesc<bf16[16,16]> out:*bf16! i:i32 j:i32",
        """
        at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out + at, x.load([i, j]))
        """,
        tma=tma,
    )
    kernel = LazyKernel(source)
    x = values((10, 24), "bf16")
    for i, j in ((0, 0), (8, 16), (-8, -8), (10, 0), (0, 24), (-16, 0), (0, 32)):
        out = torch.full((16, 16), 77.0, dtype=torch.bfloat16, device=DEVICE)
        kernel((1,), TensorMap(x, (16, 16), padding=padding), out, i, j)
        fill = 0.0 if padding == "zero" else math.nan
        wide = torch.full((64, 80), fill, dtype=torch.bfloat16, device=DEVICE)
        wide[16:26, 16:40] = x
        assert torch.equal(
            out.nan_to_num(99), wide[16 + i : 32 + i, 16 + j : 32 + j].nan_to_num(99)
        ), (i, j)


@pytest.mark.parametrize("rows", [8, 128, 256])
def test_blocks_wider_than_a_box(rows: int) -> None:
    """One block of 512 bytes a row and more takes several copies of 128 bytes."""
    desc = f"tensordesc<f32[{rows},128]>"
    kernel = LazyKernel(make(f"x:{desc} y:{desc}!", COPY, num_warps=8))
    x, y = values((300, 200), "f32"), torch.zeros(300, 200, device=DEVICE)
    kernel((-(-300 // rows), 2), TensorMap(x, (rows, 128)), TensorMap(y, (rows, 128)))
    assert torch.equal(x, y)


MATMUL = """
i, j = tl.program_id(0) * 64, tl.program_id(1) * 64
acc = tl.zeros((64, 64), tl.float32)
for k in range(0, tl.cdiv(K, 32)):
    acc = tl.dot(a.load([i, k * 32]), b.load([k * 32, j]), acc)
c.store([i, j], acc.to(c.dtype))
"""


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("tma", [True, False])
def test_matmul(kind: str, tma: bool) -> None:
    """Operands of the tensor cores, whose layouts in shared memory the maps must match."""
    kernel = LazyKernel(
        make(
            f"a:tensordesc<{kind}[64,32]> b:tensordesc<{kind}[32,64]> "
            f"c:tensordesc<{kind}[64,64]>! K:i32",
            MATMUL,
            tma=tma,
        )
    )
    for m, n, k in ((64, 64, 32), (200, 136, 72)):
        a, b, c = values((m, k), kind), values((k, n), kind), padded((m, n), kind)
        kernel(
            (-(-m // 64), -(-n // 64)),
            TensorMap(a, (64, 32)), TensorMap(b, (32, 64)), TensorMap(c, (64, 64)), k,
        )  # fmt: skip
        assert torch.equal(c.float(), (a.double() @ b.double()).to(c.dtype).float())


# -- reductions ------------------------------------------------------------------------------

REDUCTIONS = [
    ("add", "f32"), ("add", "f16"), ("add", "bf16"), ("add", "i32"), ("add", "u32"), ("add", "u64"),
    *(("min", k) for k in ("i32", "u32", "i64", "u64", "f16", "bf16")),
    *(("max", k) for k in ("i32", "u32", "i64", "u64", "f16", "bf16")),
    ("and", "i32"), ("or", "u64"), ("xor", "u32"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "kind"), REDUCTIONS)
def test_reductions(op: str, kind: str) -> None:
    """Ten programs reduce into every element, over the edges too."""
    desc = f"tensordesc<{kind}[16,32]>"
    kernel = LazyKernel(
        make(
            f"x:tensordesc<{kind}[1,16,32]> y:{desc}!",
            f"""
            i, j = tl.program_id(1) * 16, tl.program_id(2) * 32
            y.atomic_{op}([i, j], x.load([tl.program_id(0), i, j]).reshape(16, 32))
            """,
        )
    )
    x, y = padded((10, 21, 40), kind), padded((21, 40), kind)
    wide = torch.float64 if kind[0] in "fb" else torch.int64
    all_ = torch.cat([y[None], x]).to(wide)
    kernel((10, 2, 2), TensorMap(x, (1, 16, 32)), TensorMap(y, (16, 32)))
    if op in ("add", "min", "max"):
        expected = {"add": all_.sum(0), "min": all_.amin(0), "max": all_.amax(0)}[op]
    else:
        combine = getattr(torch, f"bitwise_{op}")
        expected = all_[0]
        for part in all_[1:]:
            expected = combine(expected, part)
    got = y.to(wide)
    if kind[0] == "u" and op == "add":
        expected = expected % 2**32 if kind == "u32" else expected
    assert torch.equal(got, expected)


@pytest.mark.parametrize(("op", "kind"), [("add", "f32"), ("add", "bf16"), ("max", "i32")])
def test_reductions_without_tma(op: str, kind: str) -> None:
    desc = f"tensordesc<{kind}[16,32]>"
    kernel = LazyKernel(
        make(f"x:{desc} y:{desc}!", f"y.atomic_{op}([5, 3], x.load([5, 3]))", tma=False)
    )
    x, y = padded((18, 34), kind), padded((18, 34), kind)
    expected = y.clone()
    part = x[5:, 3:]
    expected[5:, 3:] = expected[5:, 3:] + part if op == "add" else torch.maximum(y[5:, 3:], part)
    kernel((1,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    assert torch.equal(y, expected)


# -- gathers ---------------------------------------------------------------------------------

GATHER = """
rows = tl.load(index + tl.arange(0, 32))
y.scatter(x.gather(rows, 16) * 2, rows, 0)
"""


def test_gathers_take_the_variant_without_tma_before_blackwell() -> None:
    source = make("x:tensordesc<f32[1,32]> y:tensordesc<f32[1,32]>! index:*i32", GATHER)
    major = torch.cuda.get_device_capability()[0]
    x = values((50, 40), "f32")
    index = torch.randperm(60, device=DEVICE)[:32].int()
    args = (TensorMap(x, (1, 32)),)
    if major < 10:
        with pytest.raises(errors.NoTmaGather, match="gather4"):
            LazyKernel(source)((1,), *args, TensorMap(torch.zeros_like(x), (1, 32)), index)
    for tma in (False, True)[: 1 + (major >= 10)]:
        y = torch.zeros(50, 40, device=DEVICE)
        LazyKernel(replace(source, tma=tma))((1,), *args, TensorMap(y, (1, 32)), index)
        expected = torch.zeros_like(y)
        inside = index[index < 50].long()
        expected[inside, :24] = 2 * x[inside, 16:]
        assert torch.equal(y, expected)
