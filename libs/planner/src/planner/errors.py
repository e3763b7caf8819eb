"""Every way in which planning refuses a graph: one class a mistake."""


class PlannerError(Exception):
    """Base of all errors of this library. The message says what, where and what to do."""


class UnboundSize(PlannerError):
    """A size of the program follows from no size or stride of an input."""


class UserKernelFailed(PlannerError):
    """A kernel of the user's cannot be part of the compiled program."""

    def __init__(self, kernel: str, source: str, why: str, hint: str) -> None:
        at = f" ({source})" if source else ""
        super().__init__(
            f"the Triton kernel {kernel}{at} cannot run here\n  why:   {why}\n  to do: {hint}"
        )


class UnsafeCache(PlannerError):
    """The folder of the cache holds code, and another user could put some there."""


class CacheNotWritten(UserWarning):
    """The cache folder cannot be written to: what is compiled is not kept."""


class NotOnCPU(PlannerError):
    """A kernel that was compiled for the CPU was given a tensor of another device, or one that has
    no memory (a fake tensor)."""

    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"kernel {kernel} was compiled for tensors on the CPU, and was given another, or a "
            "fake one\n  to do: pass tensors of the device that the program was compiled for"
        )


class LoopsNotBuilt(PlannerError):
    """The C++ compiler of this machine does not build a kernel, or its library does not load."""


class NotTriton(PlannerError):
    """A kernel in C++ where only Triton's can be launched."""

    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"kernel {kernel} is C++, and the host program launches Triton kernels\n"
            "  to do: compile with cpu_kernels=interpreter"
        )
