"""What can be wrong with a graph, its text, or its inputs: one class a mistake."""

import tensor_ir
from tensor_ir import IRError
from tensor_ir import ParseError as ParseError
from tensor_ir import PassError as PassError

LoopIRError = IRError
"""Base class of every error of this library."""


class Unprintable(LoopIRError):
    """A value that the text form has no notation for."""

    def __init__(self, what: str, value: object) -> None:
        super().__init__(f"{what} {value!r} has no text form; use an identifier without spaces")


class VerifyError(tensor_ir.VerifyError):
    """A node that breaks a rule. `node` is its name, `statement` the printed statement (empty
    where the node as a whole is at fault)."""

    rule = "the graph is well formed"

    def __init__(self, detail: str, node: str, statement: str = "") -> None:
        super().__init__(detail, f"{node}: `{statement}`" if statement else node)
        self.node = node
        self.statement = statement


class InvalidName(VerifyError):
    """Names are identifiers and no words of the text form."""


class DuplicateDefinition(VerifyError):
    """Every value, symbol, buffer and node of a scope is defined once."""


class UndefinedValue(VerifyError):
    """A value is defined before its first use."""


class UndefinedSymbol(VerifyError):
    """An index uses axes of its phase, declared size symbols and defined indirect symbols."""


class UndefinedBuffer(VerifyError):
    """A kernel declares every buffer that it loads or stores, a graph defines it before."""


class UnknownOp(VerifyError):
    """Operations, reductions and scans are those of the grammar."""


class Arity(VerifyError):
    """An operation has the number of arguments and results of the grammar."""


class ElementType(VerifyError):
    """Element types of arguments, results and buffers agree."""


class PhaseMismatch(VerifyError):
    """A value of a phase with inner axes is used only where the inner axes are the same."""


class BackwardPlaces(VerifyError):
    """Running places of extremes go forward."""


class ReduceTooEarly(VerifyError):
    """The result of a reduction is known only after its phase."""


class MisplacedReduce(VerifyError):
    """A reduction or scan stands in a phase with inner axes."""


class MisplacedSum(VerifyError):
    """A sum over rows is stored at inner points, to elements that each row has in common."""


class OutOfBounds(VerifyError):
    """An index without a mask stays inside the storage."""


class NotWritten(VerifyError):
    """A buffer that a kernel stores to is declared as written, and only such a buffer."""


class WriterConflict(VerifyError):
    """A buffer has one writer: one plain store a kernel, and no writer of a constant."""


class ReadOfOwnWrite(VerifyError):
    """A kernel loads a buffer that it stores to only at the index that it stores to."""


class LayoutMismatch(VerifyError):
    """All nodes agree on the layout of a buffer, and a view lies inside it."""


class InvalidEpilogue(VerifyError):
    """An epilogue is pointwise over the sizes of the matmul's result."""


class InvalidPrologue(VerifyError):
    """A prologue is pointwise and makes one operand's buffer, which nothing else reads."""


class UnknownNode(LoopIRError):
    """No node of the graph has the name that was asked for."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no node {name!r} in the graph; nodes are {', '.join(known)}")


class InputMismatch(LoopIRError):
    """A tensor or symbol given to the interpreter differs from its declaration."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"{name}: expected {expected}, got {got}")


class IndexOutOfRange(LoopIRError):
    """The interpreter met an index outside of a buffer at a point that no mask excludes."""

    def __init__(self, node: str, what: str, low: int, high: int, extent: int) -> None:
        super().__init__(
            f"{node}: `{what}` takes values in [{low}, {high}], the extent is {extent}"
        )


class UserKernelNeeded(LoopIRError):
    """The interpreter met a launch of the user's kernel, and was given nothing to run it with."""

    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"the graph launches the user's kernel {kernel}: pass "
            "`user_kernel=callable(kernel, grids, args, constants)` that runs it"
        )


class ExternNeeded(LoopIRError):
    """The interpreter met a call of an operator, and was given nothing to run it with."""

    def __init__(self, target: str) -> None:
        super().__init__(
            f"the graph calls {target}: pass `extern=callable(target, args, kwargs)` that runs it"
        )


class Irregular(LoopIRError):
    """What was made of a graph with fewer layers is not the same for each of them."""
