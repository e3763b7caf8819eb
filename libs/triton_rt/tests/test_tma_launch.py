"""Launches with descriptors, as a stand-in for libcuda sees them."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import shutil
import struct
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from triton_rt import (
    Binary,
    Kernel,
    KernelParam,
    KernelSource,
    LazyKernel,
    Target,
    TensorMap,
    compile,
    driver,
    errors,
    with_fallback,
)
from triton_rt.config import Config
from triton_rt.launch import Entry, dispatch, native, torch_abi
from triton_rt.launch.slots import Slot, slots_of
from triton_rt.tma import describe
from triton_rt.tma.encode import encode
from triton_rt.tma.layout import DATA_TYPES, MapLayout
from triton_rt.tma.rules import violations

Make = Callable[..., KernelSource]
TENSOR = torch.Tensor


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
    def __init__(self, library: ctypes.CDLL, native: bool) -> None:
        self.library = library
        self.native = native
        self.encoded = Encoded.in_dll(library, "encoded")
        self.record = Launched.in_dll(library, "record")

    def arguments(self, count: int) -> list[int]:
        """The next launch's first words are kept; of the last one, here they are."""
        return list(self.record.args)[:count]

    def keep(self, count: int) -> None:
        ctypes.c_uint32.in_dll(self.library, "arg_count").value = count


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
    yield FakeCuda(opened.library, request.param == "native")
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
    assert e.calls == (4 if fake.native else 3)  # in C, each parameter has its own
    assert (e.type, e.rank, e.interleave, e.swizzle, e.promotion) == (7, 2, 0, 3, 2)
    assert (e.address, e.fill, e.unaligned) == (0x1000, 0, 0)
    assert list(e.sizes)[:2] == [128, 40] and list(e.strides)[:2] == [512, 0]
    assert list(e.box)[:2] == [32, 16] and list(e.steps)[:2] == [1, 1]
    described = fake.arguments(14)
    launch((3,), 7, y, 0.5, x)  # tensors, of which only methods are known
    assert fake.arguments(14) == described


def test_a_thread_without_a_context_encodes_maps(
    fake: FakeCuda, copies: dict[bool, Binary]
) -> None:
    """The context of a device in use is current meanwhile, and none afterwards."""
    context = ctypes.c_uint64.in_dll(fake.library, "current_context")
    driver.driver().device(0)
    context.value = 0
    x = TensorMap(FakeTensor(0x1000, torch.float32, (40, 64)), (16, 64))  # type: ignore[arg-type]
    assert len(x.packed) == 128
    assert context.value == 0 and fake.encoded.calls == 1
    launcher_of(copies[True])((1,), 0, x, 1.0, x)
    assert context.value == 0 and fake.record.launches == 1


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
    """Encoded once for a tensor and a block (in C: and a parameter); again when either is another
    one."""
    launch = launcher_of(copies[True])
    each = 2 if fake.native else 1
    x = FakeTensor(0x1000, torch.float32, (40, 128))
    map = TensorMap(x, (16, 64))  # type: ignore[arg-type]
    descriptor = TensorDescriptor.__new__(TensorDescriptor)
    descriptor.__dict__.update(
        base=x, shape=[40, 128], strides=[128, 1], block_shape=[16, 64], padding="zero"
    )
    for _ in range(5):
        launch((1,), 0, map, 1.0, TensorMap(x, (16, 64)))  # type: ignore[arg-type]
        launch((1,), 0, descriptor, 1.0, map)
    assert fake.encoded.calls == each
    fake.keep(2)
    x.address = 0x2000  # the storage moved: the map follows
    launch((1,), 0, map, 1.0, map)
    assert fake.encoded.calls == 2 * each and fake.arguments(2) == [0, 0x2000]
    descriptor.shape = [20, 128]
    launch((1,), 0, descriptor, 1.0, map)
    assert fake.encoded.calls == 2 * each + 1 and fake.encoded.sizes[1] == 20
    x.address = 0x1000
    launch((1,), 0, map, 1.0, map)
    assert fake.encoded.calls == 2 * each + 1


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
        (FakeTensor(0x1000, torch.float32, (40,)), errors.WrongDescriptor),
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
    source = kernel_of(
        "t.0:i32 t.1.0:tensordesc<f32[16,32]> t.1.1:*f32! y:tensordesc<f32[16,32]>!",
        "y.store([0, 0], t[1][0].load([0, 0]) + t[0] * t[2])",
    )
    binary = compile(replace(source, constants=(("t.2", 3),)), Target(90), alignment=0)
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


def test_kernels_of_one_binary_take_descriptors(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    kernel = Kernel(copies[True])
    x = TensorMap(FakeTensor(0x1000, torch.float32, (40, 128)), (16, 64))  # type: ignore[arg-type]
    kernel((1,), 0, x, 1.0, x)
    assert fake.record.launches == 1


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", ["u8", "bf16", "f32", "f64"])
def test_the_launcher_in_c_makes_the_same_bytes(fake: FakeCuda, kind: str, written: bool) -> None:
    """Of tensors at the edges of the rules, or nothing where Python finds one broken."""
    if not fake.native:
        pytest.skip("of the native launcher")
    module = native.extension()
    assert module is not None
    size = DATA_TYPES[kind][1]
    unit = max(1, 16 // size)
    layouts = [
        MapLayout.of_block(kind, box, swizzle)
        for box, swizzle in (((16, 64 // size), "64B"), ((1, 256), "none"), ((1, 257), "none"))
    ]
    taken = 0
    for address, rows, columns, stride, inner, layout in itertools.product(
        (0x1000, 0x1008), (1, 40, 0, 2**31), (unit * 4, unit * 4 + 1, 1),
        (unit * 8, unit * 8 + 1, 0, -unit, 2**40 // size, 2**40 // size - unit), (1, 2), layouts,
    ):  # fmt: skip
        shape, strides = (rows, columns), (stride, inner)
        broken = tuple(violations(address, shape, strides, size, layout, written=written))
        numbers = (layout.swizzle, layout.data_type, layout.element_bytes)
        made = module.encode_slot(address, shape, strides, layout.box, numbers, written, False)
        in_box = [v for v in broken if v.rule in ("swizzle", "inner box")]
        if broken and broken != tuple(in_box):
            assert made is None, broken
        elif not broken:
            plain = Slot("k: x", f"tensordesc<{kind}[16,{64 // size}]>", layout, written)
            want = plain._make(address, shape, strides, False)
            assert made[128:] == want[128:]
            encoded = bytes(fake.encoded)
            assert module.encode_slot(
                address, shape, strides, layout.box, numbers, written, False
            ) == made  # fmt: skip
            assert bytes(fake.encoded)[4:] == encoded[4:]
            taken += 1
    assert taken > 5


def test_tensors_described_again_and_again(
    fake: FakeCuda, copies: dict[bool, Binary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor that lies where another of its layout lay has what launches made of that one's map;
    nothing but the map keeps it alive."""
    monkeypatch.setattr("triton_rt.tma.tensor_map._described", {})
    launch = launcher_of(copies[True])
    x = FakeTensor(0x77000, torch.float32, (40, 128))
    first: TensorMap = describe(x, (16, 64))  # type: ignore[arg-type]
    launch((1,), 0, first, 1.0, first)
    calls = fake.encoded.calls
    again = FakeTensor(0x77000, torch.float32, (40, 128))
    second: TensorMap = describe(again, (16, 64))  # type: ignore[arg-type]
    assert second.base is again and second.ready is first.ready and len(second.ready) == 2
    assert (second.shape, second.strides, second.kind) == ((40, 128), (128, 1), "f32")
    launch((1,), 0, second, 1.0, second)
    assert fake.encoded.calls == calls
    for other, block in (
        (FakeTensor(0x77000, torch.float32, (41, 128)), (16, 64)),
        (FakeTensor(0x77010, torch.float32, (40, 128)), (16, 64)),
        (FakeTensor(0x77000, torch.float16, (40, 128)), (16, 64)),
        (again, (8, 64)),
    ):
        assert not describe(other, block).ready  # type: ignore[arg-type]
    gone = weakref.ref(again)
    del again, second, other
    gc.collect()
    assert gone() is None
    on_cpu = torch.zeros(16, 64)
    assert describe(on_cpu, (16, 64)).base is on_cpu
    assert describe(on_cpu, (16, 64)).ready is not describe(on_cpu, (16, 64)).ready
    with pytest.raises(errors.WrongDescriptor):
        describe(on_cpu, (16,))


@pytest.fixture
def tensors_on_the_fake(fake: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plain tensors of the CPU, which the launcher in C takes for those of a GPU."""
    monkeypatch.setattr(torch, "Tensor", TENSOR)
    module = native.extension()
    if module is None:
        pytest.skip("for the launcher in C")

    def number(value: int) -> Any:
        def answer(handle: int, out: Any) -> int:
            out[0] = value
            return 0

        return ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32))(
            answer
        )

    kind, index = number(1), number(0)
    addresses = {n: torch_abi._address(f"aoti_torch_get_{n}") for n in torch_abi._FUNCTIONS}
    addresses |= {
        name: ctypes.cast(function, ctypes.c_void_p).value or 0
        for name, function in (("device_type", kind), ("device_index", index))
    }
    offset = torch_abi._handle_offset()
    module.use_torch(torch.Tensor, torch.nn.Parameter, offset, *addresses.values(), 0, 0)
    yield
    torch_abi.enable(module)


@pytest.mark.usefixtures("tensors_on_the_fake")
def test_tensors_in_place_of_descriptors(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    """The parameter has the block. What was made for a layout and an address serves what comes to
    lie there, whose tensor is not kept; another layout there has a map of its own."""
    launch = launcher_of(copies[True])
    memory = torch.zeros(1 << 16)
    base = (-memory.data_ptr() // 4) % 32
    fake.keep(14)

    def at(start: int, *shape: int, stride: tuple[int, ...] | None = None) -> torch.Tensor:
        stride = stride or (shape[1], 1)
        return memory.as_strided(shape, stride, base + start)

    x, y = at(0, 40, 128), at(8192, 30, 64)
    launch((3,), 7, x, 0.5, y)
    half = int.from_bytes(struct.pack("<f", 0.5), "little")
    expected = [7, x.data_ptr(), 40, 128, 128, 1, half, y.data_ptr(), 30, 64, 64, 1, 0, 0]
    assert fake.arguments(14) == expected
    assert fake.encoded.calls == 2
    for _ in range(3):
        launch((3,), 7, at(0, 40, 128), 0.5, at(8192, 30, 64))
        assert fake.arguments(14) == expected and fake.encoded.calls == 2
    calls = 2
    for other in (at(0, 41, 128), at(0, 40, 64, stride=(128, 1)), at(32, 40, 128), at(0, 80, 64)):
        launch((3,), 7, other, 0.5, y)
        calls += 1
        assert fake.arguments(6)[1:6] == [other.data_ptr(), *other.shape, *other.stride()]
        assert fake.encoded.calls == calls
    launch((3,), 7, TensorMap(FakeTensor(x.data_ptr(), torch.float32, (40, 128)), (16, 64)), 0.5, y)  # type: ignore[arg-type]
    assert fake.arguments(14) == expected
    launch.clear()
    launch((3,), 7, x, 0.5, y)
    assert fake.arguments(14) == expected
    gone = weakref.ref(x)
    del x, other
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("tensors_on_the_fake")
def test_more_tensors_than_are_kept(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    launch = launcher_of(copies[True])
    memory = torch.zeros(1 << 18)
    base = (-memory.data_ptr() // 4) % 32
    fake.keep(6)
    for _ in range(2):
        for i in range(600):
            x = memory.as_strided((16 + i % 7, 64), (64, 1), base + i * 256)
            launch((1,), i, x, 1.0, x)
            assert fake.arguments(4) == [i, x.data_ptr(), *x.shape]


@pytest.mark.usefixtures("tensors_on_the_fake")
def test_tensors_that_break_a_rule(fake: FakeCuda, copies: dict[bool, Binary]) -> None:
    launch = launcher_of(copies[True])
    x = torch.zeros(64, 64)
    shifted = torch.zeros(64 * 64 + 1)[1:].view(64, 64)
    for bad, error in (
        (shifted, errors.TensorMapRule),
        (x.t(), errors.TensorMapRule),
        (x[0], errors.WrongDescriptor),
        (x[None], errors.WrongDescriptor),
        (x.half(), errors.WrongDType),
    ):
        for _ in range(2):
            with pytest.raises(error):
                launch((1,), 0, x, 1.0, bad)
    assert fake.record.launches == 0
    launch((1,), 0, x, 1.0, x)
    assert fake.record.launches == 1
