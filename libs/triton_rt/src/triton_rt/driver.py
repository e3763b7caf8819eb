"""The CUDA driver through ctypes.

Imports torch where a GPU is used, and not before: descriptors and targets need none."""

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from triton_rt import errors

# Numbers of cuda.h (CUDA 13.0); they are part of the driver's ABI.
_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_MAX_THREADS, _MAX_REGISTERS, _MULTIPROCESSORS = 1, 12, 16
_FUNC_REGISTERS = 4  # CU_FUNC_ATTRIBUTE_NUM_REGS
_CAPTURE_RELAXED = 2

_ERROR_NO_DEVICE = 100
ERROR_OUT_OF_RESOURCES, ERROR_COOPERATIVE_TOO_LARGE = 701, 720
#: cuLaunchKernelEx, clusters and programmatic launches came with CUDA 11.8.
_OLDEST_DRIVER = 11080

LAUNCH_COOPERATIVE, LAUNCH_CLUSTER, LAUNCH_CLUSTER_POLICY, LAUNCH_PDL = 2, 4, 5, 6


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        *((f"grid{d}", ctypes.c_uint) for d in "xyz"),
        *((f"block{d}", ctypes.c_uint) for d in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True)
class Limits:
    """A device as loading needs it: `capability` is ten times the compute capability, `context` the
    handle of its primary context; shared memory in bytes and registers are those of a block."""

    capability: int
    shared: int
    registers: int
    threads: int
    multiprocessors: int
    context: int


class Driver:
    """An opened libcuda. Every method raises `CudaError` with the driver's own words."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._devices: dict[int, Limits] = {}

    def call(self, name: str, *args: object) -> None:
        """One driver call by name."""
        self.check(getattr(self.library, name)(*args), name)

    def check(self, code: int, name: str) -> None:
        """Raises `CudaError` for a code other than 0, which the driver function `name` gave."""
        if code == 0:
            return
        text, label = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(text))
        self.library.cuGetErrorName(code, ctypes.byref(label))
        words = f"{(label.value or b'?').decode()}: {(text.value or b'unknown error').decode()}"
        raise errors.CudaError(f"{name} failed with {code} ({words})")

    def address(self, name: str) -> int:
        """Where a driver function lies; 0 if this driver has none of that name."""
        try:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    def device_attribute(self, attribute: int, device: int) -> int:
        """The value of a `CUdevice_attribute`, by its number in cuda.h."""
        out = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(out), attribute, device)
        return out.value

    def device(self, device: int) -> Limits:
        """Limits of a device; its primary context, the one that torch uses, is kept alive."""
        found = self._devices.get(device)
        if found is None:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            number = functools.partial(self.device_attribute, device=device)
            found = self._devices[device] = Limits(
                10 * number(_CAPABILITY_MAJOR) + number(_CAPABILITY_MINOR),
                number(_SHARED_OPTIN),
                number(_MAX_REGISTERS),
                number(_MAX_THREADS),
                number(_MULTIPROCESSORS),
                context.value or 0,
            )
        return found

    def registers(self, function: int) -> int:
        """Registers of a thread of a loaded kernel."""
        with self.any_context():
            return self.function_attribute(_FUNC_REGISTERS, function)

    def resident_blocks(self, function: int, threads: int, shared: int, device: int) -> int:
        """How many blocks of a kernel a device holds at once."""
        blocks = ctypes.c_int()
        limits = self.device(device)
        kernel = (ctypes.c_void_p(function), threads, ctypes.c_size_t(shared))
        with self.in_context(limits.context):
            name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            self.call(name, ctypes.byref(blocks), *kernel)
        return blocks.value * limits.multiprocessors

    def function_attribute(self, attribute: int, function: int) -> int:
        """The value of a `CUfunction_attribute` of a loaded kernel, by its number in cuda.h."""
        out = ctypes.c_int()
        self.call("cuFuncGetAttribute", ctypes.byref(out), attribute, ctypes.c_void_p(function))
        return out.value

    def unload(self, module: int, context: int) -> None:
        """Unloads a module once the work queued in its context is done."""
        with self.in_context(context):
            self.call("cuCtxSynchronize")
            self.call("cuModuleUnload", ctypes.c_void_p(module))

    @contextmanager
    def any_context(self) -> Iterator[None]:
        """For calls that ask for a context, whichever it is: the thread's own, or, on a thread that
        has none yet, the primary one of a device in use."""
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value:
            yield
            return
        import torch

        used = list(self._devices) or [torch.cuda.current_device()]
        with self.in_context(self.device(used[0]).context):
            yield

    @contextmanager
    def in_context(self, context: int) -> Iterator[None]:
        """Inside, a context is this thread's current one."""
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self.call("cuCtxPopCurrent_v2", ctypes.byref(popped))

    @contextmanager
    def relaxed_capture(self) -> Iterator[None]:
        """A module may be loaded while a stream of this thread is captured into a CUDA graph."""
        mode = ctypes.c_int(_CAPTURE_RELAXED)
        self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            yield
        finally:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))

    def launch(
        self,
        function: int,
        context: int,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        stream: int,
        attributes: list[tuple[int, tuple[int, ...]]],
        values: list[bytes],
    ) -> int:
        """`cuLaunchKernelEx`, and its code; `values` are the arguments' bytes, in order."""
        buffers = [ctypes.create_string_buffer(v, max(8, len(v))) for v in values]
        params = (ctypes.c_void_p * len(buffers))(*(ctypes.addressof(b) for b in buffers))
        attrs = (_Attribute * max(1, len(attributes)))()
        for slot, (number, words) in zip(attrs, attributes, strict=False):
            slot.id = number
            for i, word in enumerate(words):
                slot.value[i] = word
        config = _Config(*grid, threads, 1, 1, shared, stream, attrs, len(attributes))
        current = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(current))
        inside = (current.value or 0) == context
        with contextlib.nullcontext() if inside else self.in_context(context):
            return int(
                self.library.cuLaunchKernelEx(
                    ctypes.byref(config), ctypes.c_void_p(function), params, None
                )
            )


def open_driver(path: str = "libcuda.so.1") -> Driver:
    """Opens and initialises a libcuda. Raises `DriverMissing`, `DriverTooOld`, `NoGPU`."""
    try:
        opened = Driver(ctypes.CDLL(path))
    except OSError as error:
        raise errors.DriverMissing(
            f"the CUDA driver cannot be opened ({error}): install NVIDIA's driver; without it, run "
            "on CPU tensors, through the interpreter, and name a target to compile for"
        ) from None
    version = ctypes.c_int()
    opened.call("cuDriverGetVersion", ctypes.byref(version))
    if version.value < _OLDEST_DRIVER:
        raise errors.DriverTooOld(
            f"the CUDA driver is of version {_version(version.value)}; launches need "
            f"{_version(_OLDEST_DRIVER)} or later: update NVIDIA's driver"
        )
    code = opened.library.cuInit(0)
    if code == _ERROR_NO_DEVICE:
        raise errors.NoGPU(
            "the CUDA driver finds no GPU (CUDA_ERROR_NO_DEVICE from cuInit): run on CPU tensors, "
            "through the interpreter, and name a target to compile for"
        )
    opened.check(code, "cuInit")
    return opened


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.lru_cache(maxsize=1)
def driver() -> Driver:
    """This process's CUDA driver, initialised. Raises `NoGPU` or one of its kinds where none is."""
    import torch

    opened = open_driver()
    if not torch.cuda.is_available():
        raise errors.NoGPU(
            "no CUDA GPU is available to torch (torch.cuda.is_available() is false): run on "
            "CPU tensors, through the interpreter, or compile for a named Target"
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own
    return opened
