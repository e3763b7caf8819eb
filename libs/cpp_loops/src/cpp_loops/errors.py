"""Errors of the emitter: one class a mistake."""


class CppLoopsError(Exception):
    """Base of every error that this library raises."""


class UnsupportedKernel(CppLoopsError):
    """A kernel whose meaning this library cannot say in C++."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(f"kernel {kernel}: {reason}; run it in another way")
        self.reason = reason
