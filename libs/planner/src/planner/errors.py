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
