"""A binary on a device: its code loaded, and what a launch of it needs."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields

from triton_rt import driver as cuda
from triton_rt.compiler import Binary
from triton_rt.errors import CudaError, OutOfRegisters, OutOfSharedMemory, WrongTarget
from triton_rt.launch.slots import Slot, slots_of

# Numbers of cuda.h (CUDA 13.0).
_FUNC_MAX_THREADS = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
_FUNC_SHARED_STATIC = 1  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_FUNC_MAX_DYNAMIC_SHARED = 8
_FUNC_NON_PORTABLE_CLUSTER = 14
_DEFAULT_SHARED_LIMIT = 48 * 1024


@dataclass(frozen=True)
class Entry:
    """A loaded variant, with all that a launch of it needs."""

    function: int
    context: int
    threads: int
    shared_bytes: int
    num_ctas: int
    cooperative: bool
    pdl: bool
    global_scratch_bytes: int
    profile_scratch_bytes: int
    module: int = 0
    slots: tuple[Slot, ...] = ()  # of its descriptor parameters, in order

    @classmethod
    def load(cls, binary: Binary, device: int) -> Entry:
        """Loads a cubin into the primary context of a device, the one that torch uses.

        Raises `WrongTarget`, `OutOfSharedMemory`, `OutOfRegisters`, `CudaError`."""
        driver = cuda.driver()
        limits = driver.device(device)
        _check_target(binary, device, limits)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with driver.in_context(limits.context), driver.relaxed_capture():
            try:
                driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(binary.cubin))
                name = binary.name.encode()
                driver.call("cuModuleGetFunction", ctypes.byref(function), module, name)
            except CudaError as error:
                raise CudaError(f"loading {binary.name} ({binary.target}): {error}") from None
            handle = function.value or 0
            try:
                _prepare(driver, binary, device, limits, handle)
            except BaseException:
                driver.library.cuModuleUnload(module)
                raise
        return cls(
            handle,
            limits.context,
            32 * binary.num_warps,
            binary.shared_bytes,
            binary.num_ctas,
            binary.cooperative,
            binary.pdl,
            binary.global_scratch_bytes,
            binary.profile_scratch_bytes,
            module.value or 0,
            slots_of(binary),
        )

    def unload(self) -> None:
        """Frees the code, after waiting for the work queued on its device."""
        cuda.driver().unload(self.module, self.context)

    @property
    def head(self) -> int:
        """Bytes of the first kernel parameter that a descriptor becomes."""
        return self.slots[0].head if self.slots else 0

    def as_tuple(self) -> tuple[object, ...]:
        """As the native launcher reads it (`resolve_variant` in launcher.c)."""
        plain = (getattr(self, f.name) for f in fields(self) if f.name not in ("module", "slots"))
        return (*plain, self.head, self.slots)

    def attributes(self) -> list[tuple[int, tuple[int, ...]]]:
        """Launch attributes as (number, words), as `cuLaunchKernelEx` takes them."""
        out: list[tuple[int, tuple[int, ...]]] = []
        if self.pdl:
            out.append((cuda.LAUNCH_PDL, (1,)))
        if self.cooperative:
            out.append((cuda.LAUNCH_COOPERATIVE, (1,)))
        if self.num_ctas > 1:
            out.append((cuda.LAUNCH_CLUSTER, (self.num_ctas, 1, 1)))
            out.append((cuda.LAUNCH_CLUSTER_POLICY, (1,)))
        return out


def _prepare(
    driver: cuda.Driver, binary: Binary, device: int, limits: cuda.Limits, function: int
) -> None:
    threads = 32 * binary.num_warps
    allowed = driver.function_attribute(_FUNC_MAX_THREADS, function)
    if threads > allowed:
        raise OutOfRegisters(
            f"{binary.name} has {threads} threads of {driver.registers(function)} registers in a "
            f"block, cuda:{device} allows {allowed} of them ({limits.registers} registers, "
            f"{limits.threads} threads): use fewer warps or smaller tiles"
        )

    def set_attribute(attribute: int, value: int) -> None:
        driver.call("cuFuncSetAttribute", ctypes.c_void_p(function), attribute, value)

    if binary.shared_bytes > _DEFAULT_SHARED_LIMIT:
        static = driver.function_attribute(_FUNC_SHARED_STATIC, function)
        set_attribute(_FUNC_MAX_DYNAMIC_SHARED, limits.shared - static)
    if binary.num_ctas > 8:
        set_attribute(_FUNC_NON_PORTABLE_CLUSTER, 1)
    if driver.address("cuFuncLoad"):  # CUDA 12.4: not at the first launch, which may be captured
        driver.call("cuFuncLoad", ctypes.c_void_p(function))


def _check_target(binary: Binary, device: int, limits: cuda.Limits) -> None:
    if not binary.target.runs_on(limits.capability):
        raise WrongTarget(
            f"{binary.name} was compiled for {binary.target}; cuda:{device} is "
            f"sm_{limits.capability}: compile it with Target({limits.capability})"
        )
    if binary.shared_bytes > limits.shared:
        raise OutOfSharedMemory(
            f"{binary.name} needs {binary.shared_bytes} bytes of shared memory in a block, "
            f"cuda:{device} has {limits.shared}: use smaller tiles or fewer stages"
        )
