"""One class per mistake, with a common base."""

from __future__ import annotations


class MultiKernelError(Exception):
    """Base of every error of this library."""


class InvalidHint(MultiKernelError):
    """A size hint that is not a positive integer (or a tuple of them), or hints of mixed rank."""


class InvalidSizes(MultiKernelError):
    """The key function returned something that does not match the hints."""


class UnknownVariant(MultiKernelError):
    """A variant was named that this kernel does not have."""


class AllVariantsFailed(MultiKernelError):
    """With `on_error="next"`: every variant raised; the last error is the cause."""


class InvalidChoices(MultiKernelError):
    """The text of a choice table could not be read."""


class VariantFailed(UserWarning):
    """With `on_error="next"`: a variant raised, and the next best runs in its place."""
