"""What can be wrong with a program, its text, or its inputs: one class a mistake."""

import tensor_ir
from tensor_ir import IRError
from tensor_ir import ParseError as ParseError
from tensor_ir import PassError as PassError

WrapperIRError = IRError
"""Base class of every error of this library."""


class VerifyError(tensor_ir.VerifyError):
    """A program that breaks a rule. `op` is the printed op (its first line), `index` its position
    in `Program.ops`, followed by positions inside `If` blocks (`"3.then.0"`); both are empty
    where the head of the program is at fault."""

    def __init__(self, detail: str, op: str = "", index: str = "") -> None:
        super().__init__(detail, f"op {index} `{op}`" if index else "program head")
        self.op = op
        self.index = index


class InvalidName(VerifyError):
    """Names are identifiers and no words of the program text."""


class DuplicateDefinition(VerifyError):
    """Every tensor, symbol and kernel is defined once; tensors and symbols share names."""


class UndefinedName(VerifyError):
    """A tensor is defined before its first use."""


class UseAfterFree(VerifyError):
    """A tensor and its views are not used after free or reuse of their storage."""


class BlockEscape(VerifyError):
    """A name defined in a block of `if` is not used outside of that block."""


class NotOwned(VerifyError):
    """Free and reuse take the name of a storage that the program (the same block) made."""


class Uninitialised(VerifyError):
    """A storage is written before it is read: by a launch, a call, a copy."""


class BusyStorage(VerifyError):
    """What a communication was given is not written, freed or reused before the wait for it."""


class InvalidExpression(VerifyError):
    """Sizes and conditions have a value at the bounds and hints of the symbols."""


class LayoutOutOfBounds(VerifyError):
    """A layout lies inside its storage."""


class InvalidLayout(VerifyError):
    """Sizes, strides and offsets are not negative, and storages start at offset 0."""


class DeviceMismatch(VerifyError):
    """View, reuse, copy and alias stay on the device of the storage, and launches run there."""


class UnboundSymbol(VerifyError):
    """A symbol is bound, by an integer parameter or a `symbol` line, before its first use."""


class InvalidSymbolDef(VerifyError):
    """`symbol` reads the size of a tensor parameter that is declared as just that symbol."""


class UndefinedKernel(VerifyError):
    """A kernel is defined before its first launch."""


class InvalidKernel(VerifyError):
    """A kernel's parameters have known kinds and different names, and its source defines it."""


class LaunchArity(VerifyError):
    """Launch arguments match the kernel's parameters one to one."""


class LaunchArgumentKind(VerifyError):
    """A pointer parameter takes a tensor, a descriptor parameter a descriptor of such blocks, a
    scalar parameter a number."""


class LaunchElementType(VerifyError):
    """A pointer or descriptor parameter takes a tensor of its element type."""


class InvalidDescriptor(VerifyError):
    """A descriptor has the rank of its tensor, 1 to 5, and is an argument of launches only."""


class InvalidExtern(VerifyError):
    """Mutated and aliased tensors are arguments, and one result needs no tuple."""


class InvalidSubgraph(VerifyError):
    """A subgraph gives tensors of its own, and its calls say what it writes to, which is nothing in
    control; the host waits for nothing in one that is captured; control has a known form and
    as many subgraphs as that calls; a call fits what it calls."""


class CopyMismatch(VerifyError):
    """Copy takes two tensors of the same sizes."""


class MisplacedReturn(VerifyError):
    """Return is the last op of the program and nowhere else."""


class MisplacedOp(VerifyError):
    """Kernel, symbol and constant stand at the top level."""


class UnorderedStreams(VerifyError):
    """What one stream uses, another has done with, and waits order the two."""


class InputMismatch(WrapperIRError):
    """An argument of a call differs from the declared parameter `name`."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"input {name}: expected {expected}, got {got}")
        self.name = name
        self.expected = expected
        self.got = got


class InputCountMismatch(WrapperIRError):
    """The program was called with too few or too many arguments."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(f"program takes {expected} inputs, got {got}")


class MissingConstant(WrapperIRError):
    """Nothing was given for a constant of the program."""

    def __init__(self, name: str, key: str) -> None:
        super().__init__(f"constant {name}: no tensor under key {key!r}; pass it in `constants`")


class ResultMismatch(WrapperIRError):
    """An extern call returned something else than the program declares."""

    def __init__(self, target: str, name: str, expected: str, got: str) -> None:
        super().__init__(f"{target} returned {name} as {got}, the program declares {expected}")


class StorageTooSmall(WrapperIRError):
    """A view or reuse that leaves its storage for the sizes of this call."""

    def __init__(self, name: str, expected: int, got: int) -> None:
        super().__init__(
            f"{name} needs {expected} bytes of a storage of {got} bytes; "
            "its layout is wrong for these sizes"
        )


class AssertionFailed(WrapperIRError):
    """An `assert` of the program does not hold; the message ends with the symbols' values."""
