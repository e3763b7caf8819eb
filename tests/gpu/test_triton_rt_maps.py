"""triton_rt's tensor maps on a real GPU: which memory, which rules, workspaces, threads, graphs."""

from __future__ import annotations

import textwrap
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

import triton_rt as rt
from triton_rt import KernelParam, KernelSource, LazyKernel, MapPlan, Target, TensorMap, errors
from triton_rt.element_types import torch_dtype
from triton_rt.launch import dispatch
from triton_rt.tma.encode import encode
from triton_rt.tma.layout import MapLayout
from triton_rt.tma.rules import violations

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


@pytest.fixture(params=["native", "python"])
def launcher(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each launcher in turn; kernels must be made inside of the test."""
    if request.param == "python":
        monkeypatch.setattr(dispatch.native, "extension", lambda: None)
    return str(request.param)


# -- which memory ----------------------------------------------------------------------------

SCALE = """
i = tl.program_id(0) * 16
y.store([i, 0], x.load([i, 0]) * 3)
"""
SCALE_SIGNATURE = "x:tensordesc<f32[16,32]> y:tensordesc<f32[16,32]>!"


def test_views_with_offsets_and_fallback() -> None:
    kernel = rt.with_fallback(LazyKernel(make(SCALE_SIGNATURE, SCALE)))
    base = values((64, 80), "f32")
    taken = []
    views = (
        base[5:30, 16:40],
        base[5:30, 3:28],
        base[::2, 4:32],
        base[:, ::2][:, :20],
        base.t()[8:],
    )
    views += (base.reshape(-1)[: 63 * 79].view(63, 79)[:, :30],)
    for x in views:
        y = torch.zeros(len(x), 32, device=DEVICE)[:, : x.shape[1]]
        args = (TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
        broken = kernel.why_not(*args)
        taken.append(broken[0].rule if broken else "tma")
        if broken:
            with pytest.raises(errors.TensorMapRule, match=broken[0].rule) as caught:
                kernel.tma((1,), *args)
            assert caught.value.rule == broken[0].rule
            assert str(caught.value.number) in str(caught.value)
        kernel((-(-len(x) // 16),), *args)
        assert torch.equal(y, x[:, :32] * 3)
    assert taken == [
        "tma", "address alignment", "tma", "inner stride", "stride alignment", "stride alignment"
    ]  # fmt: skip


def test_legal_but_unusual_strides() -> None:
    """Overlapping windows, and strides of sizes of 1."""
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    flat = values((4096,), "f32")
    for shape, strides in (
        ((20, 30), (4, 1)), ((1, 30), (7, 1)), ((1, 1), (3, 5)),
        ((20, 1), (8, 9)),
    ):  # fmt: skip
        x = flat.as_strided(shape, strides)
        y = torch.zeros(shape[0], 32, device=DEVICE)
        kernel((2,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
        assert torch.equal(y[:, : shape[1]], x * 3) and not y[:, shape[1] :].any(), (shape, strides)


def test_symbolic_sizes_between_calls() -> None:
    """The same memory with other sizes each time: every call has its own map."""
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    plan = MapPlan(
        (16, 32), shape=("rows", "cols"), strides=(lambda s: 4 * s["cols"], 1), offset="skip"
    )
    memory, out = values((20000,), "f32"), torch.zeros(20000, device=DEVICE)
    for rows, cols, skip in ((33, 20, 0), (40, 8, 400), (33, 24, 0), (1, 32, 40), (33, 20, 0)):
        sizes = {"rows": rows, "cols": cols, "skip": skip}
        out.zero_()
        kernel((-(-rows // 16),), plan.bind(memory, sizes), plan.bind(out, sizes))
        view = memory.as_strided((rows, cols), (4 * cols, 1), skip)
        assert torch.equal(out.as_strided((rows, cols), (4 * cols, 1), skip), view * 3)
        assert out.count_nonzero() == view.count_nonzero()


def test_addresses_that_are_used_again() -> None:
    """Tensors that take each other's place: maps are as new as the tensors they are made of."""
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    seen = set()
    for step in range(60):
        rows, cols = 17 + step % 5, (32, 16, 8)[step % 3]
        x = values((rows, cols), "f32")
        y = torch.zeros(rows, cols, device=DEVICE)
        seen.add((x.data_ptr(), rows, cols))
        expected = x * 3
        x_map, y_map = TensorMap(x, (16, 32)), TensorMap(y, (16, 32))
        del x  # the map keeps it
        torch.empty(rows * cols, device=DEVICE).fill_(-1)
        kernel((2,), x_map, y_map)
        del x_map
        torch.empty(rows * cols, device=DEVICE).fill_(-1)
        assert torch.equal(y, expected)
    assert len(seen) < 60


def test_a_map_follows_its_tensor() -> None:
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    x, y = values((16, 32), "f32"), torch.zeros(16, 32, device=DEVICE)
    x_map, y_map = TensorMap(x, (16, 32)), TensorMap(y, (16, 32))
    kernel((1,), x_map, y_map)
    x.set_(values((16, 32), "f32"))
    kernel((1,), x_map, y_map)
    assert torch.equal(y, x * 3)
    before = encode.cache_info().misses
    for _ in range(100):
        kernel((1,), x_map, y_map)
        kernel((1,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    assert encode.cache_info().misses == before


def test_tritons_descriptors_and_launches() -> None:
    """A `TensorDescriptor` is taken as it is, and Triton's own launch gives the same."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    source = make(SCALE_SIGNATURE, SCALE)
    x = values((40, 32), "f32")
    outs = [torch.zeros(40, 32, device=DEVICE) for _ in range(2)]
    args = [TensorDescriptor.from_tensor(t, [16, 32]) for t in (x, outs[0])]
    LazyKernel(source)((3,), *args)
    rt.load_jit(source)[(3,)](
        TensorMap(x, (16, 32)).to_triton(), TensorMap(outs[1], (16, 32)).to_triton()
    )
    assert torch.equal(outs[0], x * 3) and torch.equal(outs[1], x * 3)


def test_tuples(launcher: str) -> None:
    kernel = LazyKernel(
        make(
            "t.0:i32 t.1.0:tensordesc<f32[16,32]> t.1.1:*f32! y:tensordesc<f32[16,32]>!",
            """
            v = t[1][0].load([0, 0]) + t[0]
            y.store([0, 0], v)
            tl.store(t[1][1], tl.sum(tl.sum(v, 1), 0))
            """,
        )
    )
    x, y, s = (
        values((16, 32), "f32"),
        torch.zeros(16, 32, device=DEVICE),
        torch.zeros(1, device=DEVICE),
    )
    kernel((1,), (5, (TensorMap(x, (16, 32)), s)), TensorMap(y, (16, 32)))
    assert torch.equal(y, x + 5) and s.item() == (x + 5).sum().item()


def test_wrong_arguments(launcher: str) -> None:
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    x = values((16, 32), "f32")
    good = TensorMap(x, (16, 32))
    for bad, error in (
        (x[0], errors.WrongDescriptor),
        (TensorMap(x, (32, 16)), errors.WrongDescriptor),
        (TensorMap(x.half(), (16, 32)), errors.WrongDType),
        (TensorMap(x.cpu(), (16, 32)), errors.WrongDevice),
        (3, errors.WrongDescriptor),
    ):
        with pytest.raises(error):
            kernel((1,), good, bad)
    kernel((1,), good, good)


def test_tensors_in_place_of_maps(launcher: str) -> None:
    """Others that come to lie where these lay, and other layouts of the same memory."""
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    memory = values((64, 64), "f32")
    for part in (memory[:16, :32], memory[16:32, 32:], memory.view(128, 32)[:16], memory[::4, :32]):
        for _ in range(3):
            wanted, y = torch.zeros(16, 32, device=DEVICE), torch.zeros(16, 32, device=DEVICE)
            kernel((1,), TensorMap(part, (16, 32)), TensorMap(wanted, (16, 32)))
            kernel((1,), part, y)
            assert torch.equal(y, wanted) and y.any()


# -- the driver's rules and ours ---------------------------------------------------------------


def test_the_driver_refuses_what_the_rules_refuse() -> None:
    base = torch.zeros(1 << 16, device=DEVICE).data_ptr()
    layout = MapLayout.of_block("f32", (16, 32), "128B")
    legal = (base, (20, 30), (32, 1), layout)
    cases = [
        legal,
        (base + 4, *legal[1:]),
        (base, (0, 30), (32, 1), layout),
        (base, (20, 30), (30, 1), layout),
        (base, (20, 30), (0, 1), layout),
        (base, (20, 30), (8, 1), layout),
        (base, (20, 30), (2**38, 1), layout),
        (base, (20, 30), (32, 1), replace(layout, box=(512, 32))),
        (base, (20, 30), (32, 1), replace(layout, box=(16, 64))),
        (base, (20, 30), (32, 1), replace(layout, box=(16, 2))),
        (base, (20, 30), (32, 1), replace(layout, box=(16, 32), swizzle=1)),
        (base, (20, 30), (32, 1), replace(layout, box=(16, 256), swizzle=0)),
        (base, (20, 30, 40), (2**30 - 4, 4, 1), replace(layout, box=(1, 1, 32))),
    ]
    for address, shape, strides, box in cases:
        broken = tuple(violations(address, shape, strides, 4, box))
        try:
            encode(address, shape, strides, box, False)
            refused = False
        except errors.CudaError:
            refused = True
        # A stride of 0 is refused here whatever the driver says.
        assert refused == bool(broken) or strides == (0, 1), (shape, strides, box, broken)


def test_a_new_thread_needs_no_context(launcher: str) -> None:
    """A thread that has no context yet encodes maps, and launches with maps of its own."""
    kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
    x, y = values((16, 32), "f32"), torch.zeros(16, 32, device=DEVICE)
    packed: list[bytes] = []

    def work() -> None:
        packed.append(TensorMap(x, (16, 32)).packed)
        kernel((1,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))

    encode.cache_clear()
    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(y, x * 3)
    assert len(packed[0]) == 128 and packed[0] == TensorMap(x, (16, 32)).packed


# -- descriptors made in the kernel --------------------------------------------------------------

MADE = """
x_desc = tl.make_tensor_descriptor(x, [m, n], [stride, 1], [16, 32])
y_desc = tl.make_tensor_descriptor(y, [m, n], [stride, 1], [16, 32])
for i in range(tl.program_id(0) * 16, m, tl.num_programs(0) * 16):
    for j in range(0, n, 32):
        y_desc.store([i, j], x_desc.load([i, j]) * 3)
"""
MADE_SIGNATURE = "x:*f32 y:*f32! m:i32 n:i32 stride:i64"


def test_device_descriptors_and_fallback() -> None:
    plan = MapPlan((16, 32), shape=("m", "n"), strides=("stride", 1))
    kernel = rt.with_fallback(LazyKernel(make(MADE_SIGNATURE, MADE)), maps={"x": plan, "y": plan})
    for shift, n, stride, rule in (
        (0, 72, 76, None), (1, 70, 72, "address alignment"), (0, 70, 71, "stride alignment"),
        (0, 70, 72, "written row"),
    ):  # fmt: skip
        x, y = values((8000,), "f32")[shift:], torch.zeros(8000, device=DEVICE)[shift:]
        broken = kernel.why_not(x, y, 100, n, stride)
        assert (broken[0].rule if broken else None) == rule
        kernel((5,), x, y, 100, n, stride)
        view = x.as_strided((100, n), (stride, 1), shift)
        assert torch.equal(y.as_strided((100, n), (stride, 1), shift), view * 3)


def test_workspaces_of_streams(launcher: str) -> None:
    """Two streams launch from one workspace at once; each has its own memory."""
    kernel = LazyKernel(make(MADE_SIGNATURE, MADE))
    binary = kernel.binary(alignment=0)
    space = rt.Workspace.of(binary)
    assert space.nbytes() == torch.cuda.get_device_properties(0).multi_processor_count * 256
    pairs = [(values((2000, 64), "f32"), torch.zeros(2000, 64, device=DEVICE)) for _ in range(4)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    with space.use():
        for _ in range(20):
            for stream, (x, y) in zip(streams, pairs, strict=True):
                with torch.cuda.stream(stream):
                    kernel((100,), x, y, 2000, 64, 64)
    torch.cuda.synchronize()
    assert all(torch.equal(y, x * 3) for x, y in pairs)
    assert len(space._memory) == 4
    with space.use(), pytest.raises(errors.WorkspaceTooSmall, match="needs 128000 bytes"):
        kernel((500,), *pairs[0], 2000, 64, 64)


def test_allocators(launcher: str) -> None:
    import triton

    kernel = LazyKernel(make(MADE_SIGNATURE, MADE))
    x, y = values((64, 64), "f32"), torch.zeros(64, 64, device=DEVICE)
    calls: list[tuple[int, int, int | None]] = []

    def allocator(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        calls.append((size, alignment, stream))
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)

    with rt.use_allocator(allocator):
        kernel((4,), x, y, 64, 64, 64)
    stream = torch.cuda.current_stream().cuda_stream
    assert torch.equal(y, x * 3) and calls == [(4 * 256, 128, stream)]
    triton.set_allocator(allocator)
    try:
        kernel((4,), x, y.zero_(), 64, 64, 64)
    finally:
        triton.set_allocator(triton.runtime._allocation.NullAllocator())
    assert torch.equal(y, x * 3) and len(calls) == 2
    kernel((4,), x, y.zero_(), 64, 64, 64)
    assert torch.equal(y, x * 3) and len(calls) == 2
    with (
        rt.use_allocator(lambda *a: torch.empty(4096, dtype=torch.uint8, device=DEVICE)[8:]),
        pytest.raises(errors.WorkspaceTooSmall, match="multiple of 128"),
    ):
        kernel((4,), x, y, 64, 64, 64)


@pytest.mark.parametrize("made", ["host", "device"])
def test_cuda_graphs(made: str) -> None:
    x, y = values((64, 32), "f32"), torch.zeros(64, 32, device=DEVICE)
    if made == "host":
        kernel = LazyKernel(make(SCALE_SIGNATURE, SCALE))
        args: tuple[Any, ...] = (TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    else:
        kernel = LazyKernel(make(MADE_SIGNATURE, MADE))
        args = (x, y, 64, 32, 32)
    kernel((4,), *args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel((4,), *args)
    for _ in range(3):
        x.copy_(values((64, 32), "f32"))
        y.zero_()
        junk = torch.empty(1 << 16, device=DEVICE).fill_(7.0)
        graph.replay()
        assert torch.equal(y, x * 3)
        del junk


def test_threads_with_descriptors() -> None:
    """Eight threads on streams of their own, maps made anew each time."""
    host, device = LazyKernel(make(SCALE_SIGNATURE, SCALE)), LazyKernel(make(MADE_SIGNATURE, MADE))
    wrong: list[Any] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for step in range(100):
                x = values((33 + step % 3, 32), "f32")
                y, z = torch.zeros_like(x), torch.zeros_like(x)
                host((3,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
                device((3,), x, z, len(x), 32, 32)
                if not torch.equal(y, x * 3) or not torch.equal(z, x * 3):
                    wrong.append(step)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_binaries_made_elsewhere() -> None:
    """A cubin compiled for this chip without a GPU's help: from its bytes to a launch."""
    source = make(SCALE_SIGNATURE, SCALE)
    data = rt.compile(source, Target.current(), alignment=0).to_bytes()
    binary = rt.Binary.from_bytes(data)
    assert [m.box for m in binary.tensor_maps] == [(16, 32), (16, 32)]
    x, y = values((40, 32), "f32"), torch.zeros(40, 32, device=DEVICE)
    rt.Kernel(binary)((3,), TensorMap(x, (16, 32)), TensorMap(y, (16, 32)))
    assert torch.equal(y, x * 3)
