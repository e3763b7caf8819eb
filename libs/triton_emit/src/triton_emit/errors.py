"""Errors of the emitter: one class a mistake."""


class TritonEmitError(Exception):
    """Base of every error that this library raises."""


class UnsupportedDType(TritonEmitError):
    """An element type, or an operation on it, that Triton cannot compute."""

    def __init__(self, kernel: str, dtype: str, where: str) -> None:
        super().__init__(
            f"kernel {kernel}: element type {dtype} of {where} has no Triton counterpart; "
            "lower this node to an extern call"
        )


class UnsupportedKernel(TritonEmitError):
    """A kernel whose meaning cannot be kept in one Triton program, under any schedule."""

    def __init__(self, kernel: str, reason: str, hint: str) -> None:
        super().__init__(f"kernel {kernel}: {reason}; {hint}")


class BadSchedule(TritonEmitError):
    """A schedule that does not fit the kernel that it was given with."""

    def __init__(self, kernel: str, field: str, got: object, expected: str) -> None:
        super().__init__(f"kernel {kernel}: schedule.{field} is {got!r}, expected {expected}")


class BadEpilogue(TritonEmitError):
    """A kernel that is no pointwise epilogue over (m, n) with one result."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(
            f"epilogue {kernel}: {reason}; expected a pointwise kernel over two axes (m, n) that "
            "reads the matmul's result and writes one buffer: launch it as a kernel of its own"
        )


class BadPrologue(TritonEmitError):
    """A kernel that is no pointwise prologue over the elements of a matmul's operand."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(
            f"prologue {kernel}: {reason}; expected a pointwise kernel over the two axes of an "
            "operand that writes one element at each: launch it as a kernel of its own"
        )
