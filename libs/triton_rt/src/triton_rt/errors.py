"""Errors of this library: one class per mistake; every message says what to do."""


class TritonRTError(Exception):
    """Base of all errors raised here."""


class BadSource(TritonRTError):
    """The kernel source does not define what its record says (function, parameters, constants)."""


class CompileFailed(TritonRTError):
    """Triton's compiler, or ptxas, refused the kernel."""


class WorkerFailed(TritonRTError):
    """A compile worker died or ran out of time, twice, on the same job."""


class BadBinary(TritonRTError):
    """Bytes that are not a `Binary` of this format version; names the missing or wrong field."""


class UnsafeFolder(TritonRTError):
    """A folder from which code would be loaded, and into which another user may put it."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(
            f"no code is loaded from {what}\n  to do: {remedy}, or choose a folder of your own"
        )


class CorruptCacheEntry(UserWarning):
    """A cache entry whose checksum or record is wrong: dropped, and built again."""


class LauncherFallback(UserWarning):
    """The native launcher could not be built: the slower one through ctypes is used."""


class LaunchError(TritonRTError):
    """Base of errors of one launch."""


class WrongArgumentCount(LaunchError):
    """Fewer or more arguments than the kernel has parameters."""


class WrongArgumentType(LaunchError):
    """A tensor for a scalar parameter, a scalar for a pointer, or an object that is neither."""


class WrongDType(LaunchError):
    """A tensor whose element type is not the parameter's."""


class WrongDevice(LaunchError):
    """Tensors of several devices, or of one where the kernel cannot run."""


class BadScalar(LaunchError):
    """An integer that does not fit the parameter's width."""


class BadGrid(LaunchError):
    """A grid that is not one to three sizes, is negative, or exceeds CUDA's limits."""


class WrongTarget(LaunchError):
    """A binary compiled for an architecture that this GPU cannot run."""


class OutOfSharedMemory(LaunchError):
    """The kernel wants more shared memory than a block of this GPU may have."""


class MisalignedArgument(LaunchError):
    """An argument that is not divisible by 16, given to a binary that assumes it."""


class CudaError(LaunchError):
    """A call of the CUDA driver failed; names the call and the driver's message."""


class NoGPU(TritonRTError):
    """Something that needs a CUDA GPU was asked for on a machine without one."""


class InterpreterError(TritonRTError):
    """The kernel failed while it was interpreted."""


class OutOfBounds(InterpreterError):
    """An interpreted load or store touched memory outside of the storages of its arguments."""


class NotInterpretable(InterpreterError):
    """The kernel uses a feature that only a GPU has (inline assembly, and the like)."""


class OutOfRegisters(LaunchError):
    """The kernel's threads want more registers than a block of this GPU may have."""


class CooperativeGridTooLarge(LaunchError):
    """A cooperative launch of more blocks than the GPU can hold at once."""


class DriverMissing(NoGPU):
    """There is no CUDA driver library on this machine."""


class DriverTooOld(NoGPU):
    """The CUDA driver lacks what launches need; names its version and the one needed."""


class WrongDescriptor(LaunchError):
    """A descriptor of another block, element type or rank than the kernel's parameter; or none."""


class TensorMapRule(LaunchError):
    """A tensor that the TMA unit cannot address; `rule` names what it breaks, `number` is what was
    found."""

    def __init__(self, message: str, *, rule: str = "", number: int = 0) -> None:
        super().__init__(message)
        self.rule = rule
        self.number = number


class WorkspaceTooSmall(LaunchError):
    """A workspace, or an allocator's memory, that is smaller than a launch needs, or misaligned."""


class NoTmaGather(CompileFailed):
    """Descriptor gathers and scatters (tile::gather4, tile::scatter4) on a chip before sm_100."""


class UnknownTarget(TritonRTError):
    """An architecture that Triton has no code generator for."""
