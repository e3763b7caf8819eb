"""triton_rt on a real GPU: launches, variants, resources, graphs, errors, tuning."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import Any

import pytest
import torch

import triton_rt as rt
from triton_rt import KernelParam, KernelSource, LazyKernel, Target, errors
from triton_rt.driver import driver
from triton_rt.launch import dispatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

HEADER = """
import triton
import triton.language as tl

@triton.jit
def welford(m1, s1, n1, m2, s2, n2):
    n = n1 + n2
    delta = m2 - m1
    w = tl.where(n == 0, 0.0, n2 / n)
    return m1 + delta * w, s1 + s2 + delta * delta * n1 * w, n
"""


def make(signature: str, body: str, num_warps: int = 4, **constants: Any) -> KernelSource:
    params = []
    for part in signature.split():
        name, kind = part.split(":")
        params.append(KernelParam(name, kind.rstrip("!"), mutated=kind.endswith("!")))
    names = [p.name for p in params] + [f"{n}: tl.constexpr" for n in constants]
    text = f"{HEADER}\n@triton.jit\ndef kernel({', '.join(names)}):\n"
    text += textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    return KernelSource("kernel", text, tuple(params), tuple(constants.items()), num_warps)


ADD = make(
    "x:*f32 y:*f32! n:i32",
    """
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
    """,
    B=1024,
)

ROWS = make(
    "x:*bf16 out:*f32! at:*i32! n:i32",
    """
    row = tl.program_id(0)
    i = tl.arange(0, B)
    v = tl.load(x + row * n + i, i < n, other=-float("inf")).to(tl.float32)
    top, where = tl.max(v, 0, return_indices=True)
    z = tl.where(i < n, v, 0.0)
    ones = tl.where(i < n, 1.0, 0.0)
    mean, m2, count = tl.reduce((z, tl.zeros([B], tl.float32), ones), 0, welford)
    tl.store(out + row * 3 + 0, tl.sum(z, 0))
    tl.store(out + row * 3 + 1, mean)
    tl.store(out + row * 3 + 2, m2 / count)
    tl.store(at + row, where)
    """,
    B=1024,
)


@pytest.fixture(params=["native", "python"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each launcher in turn; kernels must be made inside of the test."""
    if request.param == "python":
        monkeypatch.setattr(dispatch.native, "extension", lambda: None)
    else:
        assert dispatch.native.extension() is not None, "the native launcher did not build"
    return str(request.param)


def test_elementwise(launcher: str) -> None:
    kernel = LazyKernel(ADD)
    for n in (1, 1000, 4096, 100_001):
        x = torch.randn(n, device="cuda")
        y = torch.zeros(n + 8, device="cuda")
        kernel((-(-n // 1024),), x, y, n)
        assert torch.equal(y[:n], x + 1) and y[n:].eq(0).all()


def test_unaligned_pointers_and_sizes(launcher: str) -> None:
    """Every alignment of both pointers gives the right numbers, each by a variant of its own."""
    kernel = LazyKernel(ADD)
    x, y = torch.randn(9000, device="cuda"), torch.zeros(9000, device="cuda")
    for shift_x in range(5):
        for shift_y in range(5):
            for n in (4096, 4097):
                y.zero_()
                kernel((-(-n // 1024),), x[shift_x:], y[shift_y:], n)
                assert torch.equal(y[shift_y : shift_y + n], x[shift_x : shift_x + n] + 1)
                assert y[shift_y + n :].eq(0).all()
    assert {mask for _, mask in kernel._binaries} == set(range(8))


def test_reductions_agree_with_float64_and_with_the_interpreter(launcher: str) -> None:
    kernel = LazyKernel(ROWS)
    x = torch.randn(33, 777, device="cuda").bfloat16()
    out = torch.zeros(33, 3, device="cuda")
    at = torch.zeros(33, device="cuda", dtype=torch.int32)
    kernel(33, x, out, at, 777)
    wide = x.double()
    expected = torch.stack([wide.sum(1), wide.mean(1), wide.var(1, correction=0)], 1)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    cpu_out, cpu_at = torch.zeros(33, 3), torch.zeros(33, dtype=torch.int32)
    kernel(33, x.cpu(), cpu_out, cpu_at, 777)
    torch.testing.assert_close(out.cpu(), cpu_out, rtol=1e-4, atol=1e-4)
    assert torch.equal(at.cpu(), cpu_at)


SCALARS = {
    "bool": (True, torch.bool), "i8": (-7, torch.int8), "i16": (-700, torch.int16),
    "i32": (-70_000, torch.int32), "i64": (-(2**40) + 1, torch.int64), "u8": (250, torch.uint8),
    "u16": (65_000, torch.uint16), "u32": (2**32 - 5, torch.uint32),
    "u64": (2**63 + 5, torch.uint64),
    "f16": (1.5, torch.float16), "bf16": (-2.25, torch.bfloat16), "f32": (0.1, torch.float32),
    "f64": (0.1, torch.float64),
}  # fmt: skip


def test_arguments_of_every_kind(launcher: str) -> None:
    signature = " ".join(f"o{k}:*{k}! s{k}:{k}" for k in SCALARS)
    body = "\n".join(f"tl.store(o{k}, s{k})" for k in SCALARS)
    outs = {k: torch.zeros(1, dtype=d, device="cuda") for k, (_, d) in SCALARS.items()}
    args = [a for k, (value, _) in SCALARS.items() for a in (outs[k], value)]
    LazyKernel(make(signature, body))(1, *args)
    for kind, (value, dtype) in SCALARS.items():
        expected = torch.tensor([value], dtype=dtype)
        got = outs[kind].cpu()
        assert got.item() == expected.item(), f"{kind}: {got.item()} for {value}"


def test_a_hundred_arguments(launcher: str) -> None:
    names = [f"p{i}" for i in range(100)]
    source = make(
        "out:*i64! " + " ".join(f"{n}:i64" for n in names),
        "tl.store(out, " + " + ".join(f"{n} * {i + 1}" for i, n in enumerate(names)) + ")",
    )
    out = torch.zeros(1, dtype=torch.int64, device="cuda")
    LazyKernel(source)(1, out, *range(100))
    assert out.item() == sum(i * (i + 1) for i in range(100))


DOT = make(
    "a:*bf16 z:*f32!",
    """
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    acc = tl.zeros([N, N], tl.float32)
    for k in range(4):
        t = tl.load(a + k * N * N + at)
        acc = tl.dot(t, tl.trans(t), acc)
    tl.store(z + at, acc)
    """,
    num_warps=8,
    N=128,
)


def test_more_than_48_kilobytes_of_shared_memory(launcher: str) -> None:
    kernel = LazyKernel(DOT)
    a = torch.randn(4, 128, 128, device="cuda").bfloat16()
    z = torch.zeros(128, 128, device="cuda")
    kernel(1, a, z)
    assert kernel.binary(alignment=0b11).shared_bytes > 48 * 1024
    expected = (a.double() @ a.double().mT).sum(0)
    torch.testing.assert_close(z.double(), expected, rtol=1e-3, atol=1e-2)


def test_too_much_shared_memory_is_an_error() -> None:
    kernel = LazyKernel(replace(DOT, constants=(("N", 256),), num_stages=4))
    a = torch.zeros(4, 256, 256, device="cuda").bfloat16()
    binary = kernel.binary(alignment=0b11)
    if binary.shared_bytes <= 232_448:
        pytest.skip(f"this compiler needs only {binary.shared_bytes} bytes")
    with pytest.raises(errors.OutOfSharedMemory, match="bytes of shared memory"):
        kernel(1, a, torch.zeros(256, 256, device="cuda"))


STAGES = make(
    "a:*bf16 b:*bf16 z:*f32! n:i32",
    """
    i, j, k = tl.arange(0, 128), tl.arange(0, 256), tl.arange(0, 32)
    acc = tl.zeros([128, 256], tl.float32)
    for at in range(0, n, 32):
        x = tl.load(a + i[:, None] * n + at + k[None, :])
        y = tl.load(b + (at + k)[:, None] * 256 + j[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(z + i[:, None] * 256 + j[None, :], acc)
    """,
    num_warps=8,
)


def test_shared_memory_to_the_limit(launcher: str) -> None:
    """A pipeline of nine stages, which takes nearly all; and launches that ask for every byte."""
    limit = driver().device(0).shared
    if limit < 232_448:
        pytest.skip(f"nine stages need 221184 bytes, this GPU has {limit}")
    a, b = torch.randn(128, 640, device="cuda"), torch.randn(640, 256, device="cuda")
    a, b = a.bfloat16(), b.bfloat16()
    binary = rt.compile(replace(STAGES, num_stages=9), alignment=0b1111)
    assert binary.shared_bytes > 0.95 * limit
    for size in (binary.shared_bytes, limit):
        z = torch.zeros(128, 256, device="cuda")
        rt.Kernel(replace(binary, shared_bytes=size))(1, a, b, z, 640)
        torch.testing.assert_close(z.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-2)
    with pytest.raises(errors.OutOfSharedMemory, match=rf"needs {limit + 1} .* has {limit}"):
        rt.Kernel(replace(binary, shared_bytes=limit + 1))(1, a, b, z, 640)


def test_grid_of_three_dimensions_and_zero(launcher: str) -> None:
    source = make(
        "y:*i32!",
        """
        x, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        at = (k * tl.num_programs(1) + j) * tl.num_programs(0) + x
        tl.store(y + at, at + 1)
        """,
    )
    kernel = LazyKernel(source)
    y = torch.zeros(2 * 3 * 5, dtype=torch.int32, device="cuda")
    kernel((2, 0, 5), y)
    assert y.eq(0).all()
    kernel((2, 3, 5), y)
    assert y.tolist() == list(range(1, 31))


def test_clusters(launcher: str) -> None:
    """Two CTAs a program (Hopper and later)."""
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need compute capability 9.0")
    kernel = LazyKernel(replace(ADD, num_ctas=2))
    x, y = torch.randn(5000, device="cuda"), torch.zeros(5000, device="cuda")
    kernel(5, x, y, 5000)
    assert kernel.binary(alignment=0b011).num_ctas == 2
    assert torch.equal(y, x + 1)


def test_global_scratch(launcher: str) -> None:
    """A descriptor made on the device lives in scratch memory that the launcher allocates."""
    source = make(
        "x:*f32 y:*f32! m:i32 n:i32",
        """
        row = tl.program_id(0) * 16
        s = tl.make_tensor_descriptor(x, [m, n], [n, 1], [16, 32])
        d = tl.make_tensor_descriptor(y, [m, n], [n, 1], [16, 32])
        for k in range(0, n, 32):
            d.store([row, k], s.load([row, k]) * 2)
        """,
    )
    if torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("descriptors need TMA of compute capability 9.0 to use scratch memory")
    kernel = LazyKernel(source)
    x = torch.randn(100, 96, device="cuda")
    y = torch.zeros_like(x)
    kernel(7, x, y, 100, 96)
    assert kernel.binary(alignment=0b1011).global_scratch_bytes > 0
    assert torch.equal(y, 2 * x)


def test_current_stream_is_used(launcher: str) -> None:
    kernel = LazyKernel(ADD)
    x, y = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda")
    kernel(1, x, y, 1024)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(41.0)
        kernel(1, x, y, 1024)
        assert not stream.query(), "the launch waited for the stream"
    stream.synchronize()
    assert y.eq(42).all()


def test_cuda_graph_capture(launcher: str) -> None:
    """Captured with its first call, so the module is loaded during the capture."""
    kernel = LazyKernel(ADD)
    kernel.binary(alignment=0b111)
    x, y = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(1, x, y, 1024)
        kernel(1, y, x, 1024)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert x.eq(6).all() and y.eq(5).all()


def test_other_devices(launcher: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    kernel = LazyKernel(ADD)
    for device in (1, 0, 1):  # the current device stays 0
        x = torch.randn(2048, device=f"cuda:{device}")
        y = torch.zeros_like(x)
        kernel(2, x, y, 2048)
        assert torch.equal(y, x + 1)
    with pytest.raises(errors.WrongDevice, match=r"y is on cuda:1, x on cuda:0"):
        kernel(1, torch.zeros(4, device="cuda:0"), torch.zeros(4, device="cuda:1"), 4)


def test_errors(launcher: str) -> None:
    kernel = LazyKernel(ADD)
    x = torch.zeros(8, device="cuda")
    cases: list[tuple[type[Exception], tuple[Any, ...]]] = [
        (errors.WrongArgumentCount, (1, x, x)),
        (errors.WrongDType, (1, x, x.double(), 8)),
        (errors.WrongDevice, (1, x, x.cpu(), 8)),
        (errors.WrongArgumentType, (1, x, 0, 8)),
        (errors.WrongArgumentType, (1, x, x, torch.tensor(8))),
        (errors.BadScalar, (1, x, x, 2**31)),
        (errors.BadGrid, ((1, 70_000), x, x, 8)),
    ]
    for error, (grid, *args) in cases:
        with pytest.raises(error):
            kernel(grid, *args)
    with pytest.raises(errors.WrongTarget, match="sm_80"):
        if Target.current().arch == 80:
            raise errors.WrongTarget("sm_80 is this GPU")
        LazyKernel(ADD, target=Target(80))(1, x, x, 8)
    binary = rt.compile(ADD, alignment=0b111)
    with pytest.raises(errors.MisalignedArgument, match="x, n divisible by 16"):
        rt.Kernel(binary)(1, torch.zeros(9, device="cuda")[1:], x, 3)
    kernel(1, x, x, 8)
    assert x.eq(1).all(), "a refused call leaves the next one working"


# -- kinds of launches -------------------------------------------------------------------------


def test_cooperative_launch(launcher: str) -> None:
    kernel = LazyKernel(replace(ADD, cooperative=True))
    x, y = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
    kernel(4, x, y, 4096)
    assert torch.equal(y, x + 1)
    with pytest.raises(errors.CooperativeGridTooLarge, match=r"1000000 blocks resident .* holds"):
        kernel(1_000_000, x, y, 4096)
    kernel(4, x, y, 4096)


def test_programmatic_dependent_launch(launcher: str) -> None:
    """Each launch may begin while the one before ends, and waits for it before it reads."""
    source = make(
        "x:*f32! n:i32",
        """
        tl.extra.cuda.gdc_wait()
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(x + i, tl.load(x + i, i < n) * 2 + 1, i < n)
        tl.extra.cuda.gdc_launch_dependents()
        """,
        B=1024,
    )
    kernel = LazyKernel(replace(source, pdl=True))
    x = torch.zeros(1 << 16, device="cuda")
    for _ in range(10):
        kernel(64, x, 1 << 16)
    assert x.eq(1023).all()


@pytest.mark.parametrize("early", [False, True])
def test_overlapped_launches_wait_for_each_other(launcher: str, early: bool) -> None:
    """Each reads what the one before wrote, between kernels of torch, eagerly and in a graph."""
    n = 1 << 20
    source = make(
        "x:*f32 y:*f32! n:i32",
        """
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + (n - 1 - i), tl.load(x + i, i < n) + 1, i < n)
        """,
        B=2048,
        num_warps=8,
    )
    kernel = LazyKernel(rt.overlapped(source, early=early))
    a, b = torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")
    first = torch.arange(n, device="cuda", dtype=torch.float32) % 1000

    def run() -> None:
        a.copy_(first)
        for _ in range(10):
            kernel(n // 2048, a, b, n)
            kernel(n // 2048, b, a, n)
        a.mul_(2)

    for _ in range(5):
        run()
        assert torch.equal(a, 2 * (first + 20))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(5):
        a.zero_()
        b.zero_()
        graph.replay()
        assert torch.equal(a, 2 * (first + 20))


def test_hooks_see_launches(launcher: str) -> None:
    kernel = LazyKernel(ADD)
    x, y = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda")
    seen: list[rt.LaunchRecord] = []
    done: list[str] = []
    with rt.launch_hook(seen.append, lambda record: done.append(record.name)):
        kernel((1, 1), x, y, 1024)
    kernel(1, x, y, 1024)
    (record,) = seen
    assert (record.name, record.grid, record.device) == ("kernel", (1, 1, 1), 0)
    assert record.alignment == 0b111 and record.threads == 128 and done == ["kernel"]
    assert record.stream == torch.cuda.current_stream().cuda_stream


def test_unloading_and_loading_again(launcher: str) -> None:
    kernel = rt.Kernel(rt.compile(ADD, alignment=0))
    x, y = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda")
    for round_ in range(3):
        kernel(1, x, y, 1024)
        x, y = y, x
        kernel.unload()
        assert x.eq(round_ + 1).all()


def test_what_cannot_be_loaded() -> None:
    x, z = torch.zeros(4, 128, 128, device="cuda").bfloat16(), torch.zeros(128, 128, device="cuda")
    binary = rt.compile(DOT, alignment=0)
    with pytest.raises(errors.OutOfRegisters, match=r"1024 threads of \d+ registers"):
        rt.Kernel(replace(binary, num_warps=32))(1, x, z)
    with pytest.raises(errors.CudaError, match=r"loading kernel \(sm_\d+\): cuModuleLoadData"):
        rt.Kernel(replace(binary, cubin=b"\x7fELF" + bytes(1000)))(1, x, z)
    with pytest.raises(errors.CudaError, match="loading other"):
        rt.Kernel(replace(binary, name="other"))(1, x, z)
    rt.Kernel(binary)(1, x, z)


def test_parameters_and_subclasses_are_tensors(launcher: str) -> None:
    class Mine(torch.Tensor):
        pass

    kernel = LazyKernel(ADD)
    for wrap in (torch.nn.Parameter, lambda t: t.as_subclass(Mine)):
        x = wrap(torch.randn(1024, device="cuda"))
        y = torch.zeros(1024, device="cuda")
        kernel(1, x, y, 1024)
        assert torch.equal(y, x.detach() + 1)
    meta = torch.zeros(4, device="meta")
    with pytest.raises(errors.WrongDevice, match="meta"):
        kernel(1, meta, torch.zeros(4, device="cuda"), 4)
