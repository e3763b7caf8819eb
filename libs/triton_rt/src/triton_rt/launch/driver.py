"""The CUDA driver through ctypes: loading modules, and launches where there is no compiler."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from triton_rt.binary import Binary
from triton_rt.errors import CudaError, NoGPU, OutOfSharedMemory, WrongTarget

# Numbers of cuda.h (CUDA 13.0); they are part of the driver's ABI.
_SHARED_OPTIN = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_FUNC_SHARED_STATIC = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_FUNC_MAX_DYNAMIC_SHARED = 8
_FUNC_NON_PORTABLE_CLUSTER = 14
_CAPTURE_RELAXED = 2
_DEFAULT_SHARED_LIMIT = 48 * 1024

LAUNCH_COOPERATIVE, LAUNCH_CLUSTER, LAUNCH_CLUSTER_POLICY, LAUNCH_PDL = 2, 4, 5, 6


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("value", ctypes.c_uint32 * 16),
    )


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
class Loaded:
    """A kernel on one device: driver handles as integers."""

    function: int
    context: int
    module: int


class Driver:
    """An opened libcuda. Every method raises `CudaError` with the driver's own words."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def call(self, name: str, *args: object) -> None:
        """One driver call by name."""
        self.check(getattr(self.library, name)(*args), name)

    def check(self, code: int, name: str) -> None:
        if code == 0:
            return
        text, label = ctypes.c_char_p(), ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(text))
        self.library.cuGetErrorName(code, ctypes.byref(label))
        words = f"{(label.value or b'?').decode()}: {(text.value or b'unknown error').decode()}"
        raise CudaError(f"{name} failed with {code} ({words})")

    def address(self, name: str) -> int:
        """Where a driver function lies; 0 if this driver has none of that name."""
        try:
            return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    def device_attribute(self, attribute: int, device: int) -> int:
        out = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(out), attribute, device)
        return out.value

    def load(self, binary: Binary, device: int) -> Loaded:
        """Loads a cubin into the primary context of a device, the one that torch uses."""
        capability = 10 * self.device_attribute(_CAPABILITY_MAJOR, device)
        capability += self.device_attribute(_CAPABILITY_MINOR, device)
        if not binary.target.runs_on(capability):
            raise WrongTarget(
                f"{binary.name} was compiled for {binary.target}; cuda:{device} is sm_{capability}:"
                f" compile it with Target({capability})"
            )
        limit = self.device_attribute(_SHARED_OPTIN, device)
        if binary.shared_bytes > limit:
            raise OutOfSharedMemory(
                f"{binary.name} needs {binary.shared_bytes} bytes of shared memory in a block, "
                f"cuda:{device} has {limit}: use smaller tiles or fewer stages"
            )
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with self._in_context(context), self._relaxed_capture():
            image = ctypes.create_string_buffer(binary.cubin, len(binary.cubin))
            self.call("cuModuleLoadData", ctypes.byref(module), image)
            self.call("cuModuleGetFunction", ctypes.byref(function), module, binary.name.encode())
            if binary.shared_bytes > _DEFAULT_SHARED_LIMIT:
                static = ctypes.c_int()
                self.call("cuFuncGetAttribute", ctypes.byref(static), _FUNC_SHARED_STATIC, function)
                self.call(
                    "cuFuncSetAttribute", function, _FUNC_MAX_DYNAMIC_SHARED, limit - static.value
                )
            if self.address(
                "cuFuncLoad"
            ):  # CUDA 12.4: not at the first launch, which may be captured
                self.call("cuFuncLoad", function)
            if binary.num_ctas > 8:
                self.call("cuFuncSetAttribute", function, _FUNC_NON_PORTABLE_CLUSTER, 1)
        return Loaded(function.value or 0, context.value or 0, module.value or 0)

    @contextmanager
    def _in_context(self, context: ctypes.c_void_p) -> Iterator[None]:
        self.call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self.call("cuCtxPopCurrent_v2", ctypes.byref(popped))

    @contextmanager
    def _relaxed_capture(self) -> Iterator[None]:
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
    ) -> None:
        """`cuLaunchKernelEx`; `values` are the arguments' bytes, in order."""
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
        enter = self._in_context(ctypes.c_void_p(context))
        if (current.value or 0) == context:
            code = self.library.cuLaunchKernelEx(
                ctypes.byref(config), ctypes.c_void_p(function), params, None
            )
        else:
            with enter:
                code = self.library.cuLaunchKernelEx(
                    ctypes.byref(config), ctypes.c_void_p(function), params, None
                )
        self.check(code, "cuLaunchKernelEx")


@functools.lru_cache(maxsize=1)
def driver() -> Driver:
    """This process's CUDA driver, initialised. Raises `NoGPU` where there is none."""
    if not torch.cuda.is_available():
        raise NoGPU(
            "no CUDA GPU is available to this process (torch.cuda.is_available() is false): run on "
            "CPU tensors, through the interpreter, or compile for a named Target"
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    opened = Driver(ctypes.CDLL("libcuda.so.1"))
    opened.call("cuInit", 0)
    return opened
