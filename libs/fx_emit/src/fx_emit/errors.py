"""What can go wrong between a program and its graph module."""


class FxEmitError(Exception):
    """Base class of the errors of this library. Errors about a program's inputs and results are
    those of `wrapper_ir.errors`."""


class UnknownOperator(FxEmitError):
    """An extern call names an operator that torch does not have."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"no operator torch.ops.{target}; import the library that registers it, or pass it "
            "in `operators`"
        )


class UnknownTorchEnum(FxEmitError):
    """A `TorchEnum` names a value that torch does not have."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"torch.{name} is no {kind.replace('_', ' ')} of this torch")


class UndeclaredAlias(FxEmitError):
    """Passes take an extern result without `alias` for a storage of its own, and may free or
    overwrite the storage that it really lies in."""

    def __init__(self, target: str, name: str) -> None:
        super().__init__(
            f"{target} may return {name} as a view of an argument, which the program does not "
            "declare; give it `alias`, or call an operator that copies"
        )


class UnknownLaunch(FxEmitError):
    """`launch` is neither of the two ways to launch kernels."""

    def __init__(self, launch: str) -> None:
        super().__init__(f"launch is 'hop' or 'direct', got {launch!r}")


class GluonDescriptor(FxEmitError):
    """A Gluon kernel takes descriptors, which torch's operator for kernels cannot make."""

    def __init__(self, name: str, params: tuple[str, ...]) -> None:
        super().__init__(
            f"{name} is a @gluon.jit kernel, and torch's operator for kernels makes tensor "
            f"descriptors of @triton.jit kernels only (here: {', '.join(params)}); launch directly"
        )


class MisalignedStorage(FxEmitError):
    """A view of another element type that starts between two of its elements."""

    def __init__(self, start: int, itemsize: int) -> None:
        super().__init__(
            f"a tensor that starts at byte {start} of its storage cannot be viewed as elements "
            f"of {itemsize} bytes; pass a copy of it"
        )
