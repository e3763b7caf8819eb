"""The launcher's checks, packing and choice of variants, against a stand-in for libcuda."""

from __future__ import annotations

import ctypes
import shutil
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_rt import (
    Binary,
    Kernel,
    KernelParam,
    KernelSource,
    LaunchRecord,
    LazyKernel,
    Target,
    compile,
    driver,
    errors,
    launch_hook,
    same_tensors,
)
from triton_rt.config import Config
from triton_rt.launch import Entry, dispatch, native, torch_abi
from triton_rt.launch.args import pack

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

ENTRY = Entry(0xF00D, 0xC0, 128, 1000, 1, False, False, 0, 0)


class Record(ctypes.Structure):
    _fields_ = (
        ("launches", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32),
        ("shared", ctypes.c_uint32),
        ("attribute_count", ctypes.c_uint32),
        ("attributes", (ctypes.c_uint32 * 4) * 4),
        ("function", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("args", ctypes.c_uint64 * 160),
    )


class FakeTensor:
    """What the launcher asks of a CUDA tensor."""

    def __init__(self, address: int, dtype: torch.dtype = torch.float32, device: int = 0) -> None:
        self.address, self.dtype, self.index = address, dtype, device

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.index

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index) if self.index >= 0 else torch.device("cpu")

    @property
    def shape(self) -> tuple[int, ...]:
        return (4,)


class FakeCuda:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    @property
    def record(self) -> Record:
        return Record.in_dll(self.library, "record")

    def set(self, name: str, value: int) -> None:
        ctypes.c_uint32.in_dll(self.library, name).value = value

    def get(self, name: str) -> int:
        return ctypes.c_uint32.in_dll(self.library, name).value


@pytest.fixture(params=["native", "python"])
def fake(
    request: pytest.FixtureRequest,
    library: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[FakeCuda]:
    """Both launchers over a fresh copy of the fake driver; `FakeTensor`s count as tensors."""
    module = native._extension(Config(tmp_path.parent / "launcher-cache"))
    assert module is not None, "the native launcher did not build"
    mine = tmp_path / "libfakecuda.so"
    shutil.copy(library, mine)
    opened = driver.Driver(ctypes.CDLL(str(mine)))
    monkeypatch.setattr(driver, "driver", lambda: opened)
    monkeypatch.setattr(dispatch, "_raw_stream", lambda: lambda device: 0x57 + device)
    monkeypatch.setattr(dispatch, "_current_device", lambda: 0)
    monkeypatch.setattr("triton_rt.launch.args.torch.Tensor", (torch.Tensor, FakeTensor))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    module.set_symbols_from(opened.address)
    monkeypatch.setattr(native, "extension", lambda: module if request.param == "native" else None)
    yield FakeCuda(opened.library)


Dispatch = Callable[..., Any]


def make(kinds: str, entry: Entry = ENTRY, seen: list[Any] | None = None) -> Dispatch:
    params = tuple(KernelParam(f"p{i}", k) for i, k in enumerate(kinds.split()))

    def resolve(alignment: int, device: int) -> Entry:
        if seen is not None:
            seen.append((alignment, device))
        return entry

    return dispatch.make_dispatcher("kern", params, resolve, lambda *a: seen.append(a))  # type: ignore[union-attr]


VALUES: list[tuple[str, Any, bytes]] = [
    ("bool", True, b"\1"),
    ("i8", -3, struct.pack("<b", -3)),
    ("i16", -300, struct.pack("<h", -300)),
    ("i32", -70000, struct.pack("<i", -70000)),
    ("i64", -(2**40), struct.pack("<q", -(2**40))),
    ("u8", 200, struct.pack("<B", 200)),
    ("u16", 60000, struct.pack("<H", 60000)),
    ("u32", 2**32 - 1, struct.pack("<I", 2**32 - 1)),
    ("u64", 2**64 - 1, struct.pack("<Q", 2**64 - 1)),
    ("f16", 1.5, struct.pack("<e", 1.5)),
    ("f16", 1e6, b"\x00\x7c"),
    ("bf16", 1.00390625, b"\x80\x3f"),
    ("bf16", float("nan"), b"\xc0\x7f"),
    ("f32", 0.1, struct.pack("<f", 0.1)),
    ("f32", 3, struct.pack("<f", 3)),
    ("f64", 0.1, struct.pack("<d", 0.1)),
    ("i32", torch.tensor([5]).numpy()[0], struct.pack("<i", 5)),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_scalars_are_packed(fake: FakeCuda, kind: str, value: Any, expected: bytes) -> None:
    fake.set("arg_count", 1)
    make(kind)(1, value)
    got = bytes(fake.record.args)[: len(expected)]
    if value != value:
        assert (int.from_bytes(got, "little") & 0x7FFF) > 0x7F80, "a bfloat16 NaN"
    else:
        assert got == expected


def test_a_launch_as_the_driver_sees_it(fake: FakeCuda) -> None:
    fake.set("arg_count", 5)
    make("*f32 i32 *f32")((7, 3), FakeTensor(0x1000), 9, FakeTensor(0x2004))
    record = fake.record
    assert list(record.grid) == [7, 3, 1]
    assert (record.threads, record.shared, record.function) == (128, 1000, 0xF00D)
    assert record.stream == 0x57
    assert [record.args[0], record.args[1] & 0xFFFFFFFF, *record.args[2:5]] == [
        0x1000, 9, 0x2004, 0, 0,
    ]  # fmt: skip


def test_more_arguments_than_the_stack_holds(fake: FakeCuda) -> None:
    fake.set("arg_count", 102)
    seen: list[Any] = []
    make("i64 " * 100, seen=seen)(1, *range(100))
    assert list(fake.record.args)[:102] == [*range(100), 0, 0]
    assert seen == [(sum(1 << i for i in range(0, 62, 16)), 0)], "the rest are not all aligned"


def test_arguments_past_the_62nd_are_aligned_together(fake: FakeCuda) -> None:
    """A list of kernels takes hundreds of pointers: one variant for all that allocators give, one
    for a misaligned one among them. Numbers that are never specialised on have no part in it."""
    fake.set("arg_count", 102)
    seen: list[Any] = []
    run = make("*f32 " * 70 + "f64 " * 30, seen=seen)
    aligned: list[Any] = [*[FakeTensor(0x1000)] * 70, *[1.0] * 30]
    for odd in (None, 69, 62, 3):
        args = list(aligned)
        if odd is not None:
            args[odd] = FakeTensor(0x1004)
        for _ in range(2):
            run(1, *args)
    own, every = (1 << 62) - 1, (1 << 70) - 1
    assert seen == [(every, 0), (own, 0), (every - (1 << 3), 0)], "asked for once each"


def test_variants_by_actual_alignment(fake: FakeCuda) -> None:
    seen: list[Any] = []
    run = make("*f32 i32 f32 *f32 bool", seen=seen)
    for _ in range(2):
        run(1, FakeTensor(0x1000), 32, 16.0, FakeTensor(0x1004), False)
        run(1, FakeTensor(0x1008), 33, 16.0, FakeTensor(0x1010), False)
        run(1, FakeTensor(0x1000, device=1), 32, 16.0, FakeTensor(0x1004, device=1), False)
    assert seen == [(0b00011, 0), (0b01000, 0), (0b00011, 1)], "each pair is asked for once"


def test_zero_grid_launches_nothing(fake: FakeCuda) -> None:
    seen: list[Any] = []
    for grid in [(0,), (3, 0), (1, 1, 0), 0]:
        make("i32", seen=seen)(grid, 1)
    assert fake.record.launches == 0 and not seen


def test_cluster_cooperative_and_pdl(fake: FakeCuda) -> None:
    make("i32", Entry(1, 0xC0, 32, 0, 2, True, True, 0, 0))((4, 2), 1)
    record = fake.record
    assert list(record.grid) == [8, 2, 1]
    rows = [list(record.attributes[i]) for i in range(record.attribute_count)]
    assert sorted(rows) == [[2, 1, 0, 0], [4, 2, 1, 1], [5, 1, 0, 0], [6, 1, 0, 0]]


def test_context_is_switched_and_restored(fake: FakeCuda) -> None:
    make("i32", Entry(1, 0xC1, 32, 0, 1, False, False, 0, 0))(1, 1)
    assert fake.get("pushes") == 1 and fake.get("current_context") == 0xC0
    make("i32")(1, 1)
    assert fake.get("pushes") == 1


def test_scratch_memory_follows_the_arguments(
    fake: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def scratch(size: int, device: int) -> FakeTensor:
        asked.append((size, device))
        return FakeTensor(0xA000 + size)

    monkeypatch.setattr(dispatch, "_scratch", scratch)
    fake.set("arg_count", 3)
    make("i64", Entry(1, 0xC0, 32, 0, 2, False, False, 128, 16))((3, 2), 5)
    assert asked == [(3 * 2 * 2 * 128, 0), (3 * 2 * 2 * 16, 0)]
    assert list(fake.record.args)[:3] == [5, 0xA000 + 1536, 0xA000 + 192]


def test_cpu_tensors_go_to_the_interpreter(fake: FakeCuda) -> None:
    seen: list[Any] = []
    tensor = FakeTensor(0x1000, device=-1)
    make("*f32 i32", seen=seen)((2,), tensor, 3)
    assert seen == [((2,), tensor, 3)] and fake.record.launches == 0


WRONG: list[tuple[str, Any, tuple[Any, ...], type[Exception], str]] = [
    ("*f32 i32", 1, (FakeTensor(16),), errors.WrongArgumentCount, "takes 2 arguments.*got 1"),
    ("i32", 1, (1, 2), errors.WrongArgumentCount, "p0: i32"),
    ("*f32", 1, (3,), errors.WrongArgumentType, r"p0 is a pointer.*int 3"),
    ("*f32", 1, (None,), errors.WrongArgumentType, "NoneType"),
    ("*f32", 1, (FakeTensor(16, torch.float64),), errors.WrongDType, "torch.float32.*float64"),
    ("*f32 *f32", 1, (FakeTensor(16), FakeTensor(16, device=1)), errors.WrongDevice, "p1 is on"),
    ("*f32 *f32", 1, (FakeTensor(16), torch.zeros(1)), errors.WrongDevice, "p1 is on cpu"),
    ("i32", 1, (1.5,), errors.WrongArgumentType, "expected an integer"),
    ("i32", 1, (torch.tensor(3),), errors.WrongArgumentType, r"\.item\(\)"),
    ("f32", 1, (torch.tensor(3.0),), errors.WrongArgumentType, r"\.item\(\)"),
    ("f32", 1, ("3",), errors.WrongArgumentType, "expected a number"),
    ("i32", 1, (2**31,), errors.BadScalar, "2147483648 does not fit i32"),
    ("u8", 1, (-1,), errors.BadScalar, "-1 does not fit u8"),
    ("u64", 1, (2**64,), errors.BadScalar, "does not fit u64"),
    ("i64", 1, (2**63,), errors.BadScalar, "does not fit i64"),
    ("i32", (1, 2, 3, 4), (1,), errors.BadGrid, "1 to 3"),
    ("i32", (-1,), (1,), errors.BadGrid, "-1 in x"),
    ("i32", (1, 65536), (1,), errors.BadGrid, "65536 in y"),
    ("i32", "1", (1,), errors.BadGrid, "'1'"),
    ("i32", (1.0,), (1,), errors.BadGrid, "1.0"),
]


@pytest.mark.parametrize(("kinds", "grid", "args", "error", "message"), WRONG)
def test_a_wrong_call_says_what_is_wrong(
    fake: FakeCuda, kinds: str, grid: Any, args: tuple[Any, ...], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        make(kinds)(grid, *args)
    assert fake.record.launches == 0


def test_a_failed_launch_has_the_drivers_words(fake: FakeCuda) -> None:
    fake.set("fail_with", 719)
    with pytest.raises(errors.CudaError, match=r"719.*CUDA_ERROR_FAKE: an illegal fake"):
        make("i32")(1, 1)


def test_lazy_kernel_compiles_what_a_call_needs(fake: FakeCuda, add_one: KernelSource) -> None:
    kernel = LazyKernel(add_one, target=Target(90))
    aligned, off = FakeTensor(0x1000), FakeTensor(0x1004)
    kernel(1, aligned, aligned, 128)
    kernel(1, aligned, aligned, 160)
    kernel(1, aligned, off, 128)
    assert {mask for _, mask in kernel._binaries} == {0b111, 0b101}
    assert fake.get("loads") == 2
    assert kernel.binary(Target(90), 0b101).alignment == 0b101


def test_lazy_kernel_bounds_its_variants(fake: FakeCuda, add_one: KernelSource) -> None:
    """Past `max_variants` no new assumption is made, and none is made that does not hold."""
    kernel = LazyKernel(add_one, target=Target(90), max_variants=2)
    aligned, off = FakeTensor(0x1000), FakeTensor(0x1004)
    kernel(1, aligned, aligned, 1)
    kernel(1, off, aligned, 1)
    kernel(1, aligned, aligned, 16)  # 0b111: served by 0b011
    kernel(1, aligned, off, 1)  # 0b001: neither holds
    assert {mask for _, mask in kernel._binaries} == {0b011, 0b010, 0}


def test_kernel_refuses_what_it_was_not_compiled_for(fake: FakeCuda, add_one: KernelSource) -> None:
    binary = compile(add_one, Target(90), alignment=0b011)
    kernel = Kernel(binary)
    kernel(1, FakeTensor(0x1000), FakeTensor(0x1010), 3)
    with pytest.raises(errors.MisalignedArgument, match="y divisible by 16"):
        kernel(1, FakeTensor(0x1000), FakeTensor(0x1014), 3)
    with pytest.raises(errors.WrongDevice, match="LazyKernel"):
        kernel(1, FakeTensor(0, device=-1), FakeTensor(0, device=-1), 3)


def test_loading_checks_the_device(fake: FakeCuda, add_one: KernelSource) -> None:
    binary = compile(add_one, Target(80))
    with pytest.raises(errors.WrongTarget, match=r"compiled for sm_80; cuda:0 is sm_90"):
        Kernel(binary)(1, FakeTensor(16), FakeTensor(16), 3)
    fields = {**vars(compile(add_one, Target(90)))}
    with pytest.raises(errors.OutOfSharedMemory, match=r"300000 bytes.*232448"):
        Kernel(Binary(**{**fields, "shared_bytes": 300_000}))(1, FakeTensor(16), FakeTensor(16), 3)
    Kernel(Binary(**{**fields, "shared_bytes": 100_000}))(1, FakeTensor(16), FakeTensor(16), 3)
    assert fake.get("max_dynamic_shared") == 232448 - 64 and fake.record.shared == 100_000
    fake.set("fail_load", 209)
    with pytest.raises(errors.CudaError, match="cuModuleLoadData failed with 209"):
        Kernel(Binary(**fields))(1, FakeTensor(16), FakeTensor(16), 3)


def test_registers_threads_and_cooperative_grids(fake: FakeCuda, add_one: KernelSource) -> None:
    """Refused at loading where the numbers are known, at the launch where only the driver knows."""
    binary = compile(add_one, Target(90))
    fake.set("max_threads", 64)
    with pytest.raises(errors.OutOfRegisters, match=r"kernel has 128 threads of 200 .* allows 64"):
        Kernel(binary)(1, FakeTensor(16), FakeTensor(16), 3)
    fake.set("max_threads", 1024)
    assert fake.get("unloads") == 1, "what could not be used is unloaded"
    run = Kernel(binary)
    fake.set("fail_with", 701)
    with pytest.raises(errors.OutOfRegisters, match=r"128 threads x 200 registers .* 65536"):
        run(1, FakeTensor(16), FakeTensor(16), 3)
    fake.set("fail_with", 720)
    with pytest.raises(
        errors.CooperativeGridTooLarge, match=r"grid \(20, 20, 1\).* 400 blocks .* holds 264"
    ):
        run((20, 20), FakeTensor(16), FakeTensor(16), 3)
    fake.set("fail_with", 0)
    run(1, FakeTensor(16), FakeTensor(16), 3)


def test_a_damaged_cubin_names_its_kernel(fake: FakeCuda, add_one: KernelSource) -> None:
    fake.set("fail_load", 200)
    with pytest.raises(errors.CudaError, match=r"loading kernel \(sm_90\): cuModuleLoadData.*200"):
        Kernel(compile(add_one, Target(90)))(1, FakeTensor(16), FakeTensor(16), 3)


def test_unloading(fake: FakeCuda, add_one: KernelSource) -> None:
    kernel = Kernel(compile(add_one, Target(90)))
    args = (FakeTensor(16), FakeTensor(16), 3)
    for _ in range(3):
        kernel(1, *args)
    assert (fake.get("loads"), fake.get("unloads")) == (1, 0)
    kernel.unload()
    kernel.unload()
    assert (fake.get("loads"), fake.get("unloads")) == (1, 1)
    kernel(1, *args)
    assert fake.get("loads") == 2 and fake.record.launches == 4


def test_hooks(fake: FakeCuda) -> None:
    run = make("*f32 i32")
    before: list[LaunchRecord] = []
    after: list[LaunchRecord] = []
    with launch_hook(before.append, after.append), launch_hook(before.append):
        run((7, 3), FakeTensor(0x1000), 9)
        run(0, FakeTensor(0x1000), 9)
    run(1, FakeTensor(0x1000), 9)
    expected = LaunchRecord("kern", (7, 3, 1), 0, 0x57, 128, 1000, 0b01, 0xF00D)
    assert before == [expected] * 2 and after == [expected]

    def stop(record: LaunchRecord) -> None:
        raise RuntimeError(f"not {record.name}")

    launches = fake.record.launches
    with launch_hook(stop), pytest.raises(RuntimeError, match="not kern"):
        run(1, FakeTensor(0x1000), 9)
    assert fake.record.launches == launches


def test_drivers_that_are_missing_old_or_without_a_gpu(fake: FakeCuda, tmp_path: Path) -> None:
    path = str(tmp_path / "libfakecuda.so")
    assert driver.open_driver(path)
    with pytest.raises(errors.DriverMissing, match=r"cannot be opened \(/no/such/libcuda.so"):
        driver.open_driver("/no/such/libcuda.so")
    fake.set("version", 11040)
    with pytest.raises(errors.DriverTooOld, match=r"version 11\.4; launches need 11\.8"):
        driver.open_driver(path)
    fake.set("version", 13000)
    fake.set("fail_init", 100)
    with pytest.raises(errors.NoGPU, match="finds no GPU"):
        driver.open_driver(path)
    fake.set("fail_init", 999)
    with pytest.raises(errors.CudaError, match="cuInit failed with 999"):
        driver.open_driver(path)


def test_tensors_are_read_through_torchs_c_abi(tmp_path: Path) -> None:
    """And through their methods where that is off; Python subclasses always are."""
    module = native._extension(Config(tmp_path))
    assert module is not None and torch_abi.enable(module)
    tensor = torch.arange(10, dtype=torch.int16)[3:]
    address, device, number, *layout = module.view(tensor)
    assert (address, device, layout) == (tensor.data_ptr(), -1, [(7,), (1,)])
    assert number == torch_abi.dtype_number(module, torch.int16)
    assert number != torch_abi.dtype_number(module, torch.float16)
    with pytest.raises(ValueError, match="refused"):
        module.view(torch.empty(3, device="meta"))
    with pytest.raises(TypeError, match="not a plain tensor"):
        module.view(tensor.as_subclass(type("Mine", (torch.Tensor,), {})))
    module.forget_torch()
    assert torch_abi.dtype_number(module, torch.int16) == -1
    with pytest.raises(TypeError):
        module.view(tensor)


def test_pack_agrees_with_a_target_without_tensors() -> None:
    packed = pack("k", (KernelParam("n", "i32"),), (2, 3), (16,))
    assert (packed.grid, packed.alignment, packed.device) == ((2, 3, 1), 1, None)


def test_no_compiler_means_a_warning_and_ctypes(tmp_path: Path) -> None:
    with pytest.warns(errors.LauncherFallback, match="ctypes"):
        assert native._extension(Config(tmp_path, compiler="/no/such/cc")) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert native._extension(Config(tmp_path, native_launcher=False)) is None


def test_the_launcher_is_built_once(tmp_path: Path) -> None:
    config = Config(tmp_path)
    built = native.build(config)
    stamp = built.stat().st_mtime_ns
    assert native.build(config) == built and built.stat().st_mtime_ns == stamp
    digest = built.with_suffix(".sha256").name
    assert sorted(p.name for p in built.parent.iterdir()) == sorted([built.name, digest])


@pytest.mark.parametrize("native_launcher", [True, False])
def test_same_tensors(native_launcher: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native_launcher:
        monkeypatch.setattr(native, "extension", lambda: None)
    x, w = torch.zeros(2, 3), torch.nn.Parameter(torch.zeros(3, 2).t())
    same, placed = same_tensors([x, w]), same_tensors([x, w], [1])
    assert same([x, w]) and placed([x, w]) and not same([w, x])
    assert type(same).__name__ == ("Same" if native_launcher else "function")
    assert same((torch.ones(2, 3), w.detach())) and placed((torch.ones(2, 3), w.detach()))
    assert same((x, w.clone().t().contiguous().t())) and not placed((x, w.clone()))
    others = (x.double(), x.int(), torch.zeros(3, 2).t(), x[:1], x[None], x.reshape(-1), 3, None,
              torch.empty(2, 3, device="meta"), x.to_sparse(), torch.zeros(2, 0))  # fmt: skip
    for other in others:
        assert not same((other, w)) and not placed((other, w))
    assert not same((x,)) and not same((x, w, x)) and not same(())
    w.data = torch.zeros(2, 3)
    assert not same((x, w)), "the same object"
    empty = same_tensors([torch.zeros(()), torch.zeros(0)])
    assert empty((torch.ones(()), torch.ones(0))) and not empty((torch.ones(1), torch.ones(0)))
    with pytest.raises(IndexError):
        same_tensors([x], [1])


def test_same_tensors_of_a_class_of_their_own() -> None:
    class Own(torch.Tensor):
        pass

    x = torch.zeros(2).as_subclass(Own)
    same = same_tensors([x])
    assert same((x,)) and same((torch.ones(2),)) and not same((torch.ones(3),))
    assert not same_tensors([torch.ones(2)])((x,)), "they are looked at one by one"
