"""One class per mistake, with a common base."""

from collections.abc import Mapping


class MultiKernelError(Exception):
    """Base of every error of this library."""


class InvalidHint(MultiKernelError):
    """A size hint that is not a positive integer (or a tuple of them), or hints of mixed rank."""


class InvalidSizes(MultiKernelError):
    """The key function returned something that does not match the hints."""


class InvalidOption(MultiKernelError, ValueError):
    """An option outside its range, or options that do not go together."""


class InvalidBox(MultiKernelError, ValueError):
    """A box of sizes that is empty, upside down or below 1, or a count below 1."""


class InvalidTime(MultiKernelError):
    """The timer returned something other than a positive, finite number of seconds."""


class UnknownVariant(MultiKernelError):
    """A variant was named that this kernel does not have."""


class NoChain(MultiKernelError):
    """The choice cannot be written as comparisons: it is made by a function."""


class AllVariantsFailed(MultiKernelError):
    """Every variant raised on one call. The error of the one tried first is the cause.

    errors: name of the variant -> what it raised, in the order tried."""

    def __init__(self, message: str, errors: Mapping[str, Exception] | None = None) -> None:
        super().__init__(message)
        self.errors = dict(errors or {})


class InvalidChoices(MultiKernelError):
    """The text of a choice table could not be read."""


class VariantFailed(UserWarning):
    """A variant raised and is dropped; the next best runs in its place."""


class DamagedEntry(UserWarning):
    """A file of measured choices could not be read; it is removed, and measured again."""


class StoreUnavailable(UserWarning):
    """Measured choices cannot be written to disk; they last as long as this process."""
