"""One class per mistake, with a common base."""


class GemmError(Exception):
    """Base of every error of this library."""


class InvalidProblem(GemmError):
    """Sizes, strides or element types that describe no matmul."""


class UnsupportedProblem(GemmError):
    """A valid matmul that the templates do not compute; the vendor call does."""


class InvalidConfig(GemmError):
    """Block sizes, warps or stages that the template or the device cannot run."""


class InvalidArguments(GemmError):
    """Tensors whose shape, element type or device do not fit the operation."""
