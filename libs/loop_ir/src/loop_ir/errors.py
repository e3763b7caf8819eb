"""What can be wrong with a graph, its text, or its inputs: one class a mistake."""

from __future__ import annotations


class LoopIRError(Exception):
    """Base class of every error of this library."""


class ParseError(LoopIRError):
    """The text is no kernel or graph. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, expected: str, got: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, got {got}")
        self.line = line
        self.column = column
        self.expected = expected
        self.got = got


class Unprintable(LoopIRError):
    """A value that the text form has no notation for."""

    def __init__(self, what: str, value: object) -> None:
        super().__init__(f"{what} {value!r} has no text form; use an identifier without spaces")


class VerifyError(LoopIRError):
    """A node that breaks a rule. `node` is its name, `statement` the printed statement (empty
    where the node as a whole is at fault)."""

    rule = "the graph is well formed"

    def __init__(self, detail: str, node: str, statement: str = "") -> None:
        where = f"{node}: `{statement}`" if statement else node
        super().__init__(f"{where}: {detail} (rule: {self.rule})")
        self.detail = detail
        self.node = node
        self.statement = statement


class InvalidName(VerifyError):
    rule = "names are identifiers and no words of the text form"


class DuplicateDefinition(VerifyError):
    rule = "every value, symbol, buffer and node of a scope is defined once"


class UndefinedValue(VerifyError):
    rule = "a value is defined before its first use"


class UndefinedSymbol(VerifyError):
    rule = "an index uses axes of its phase, declared size symbols and defined indirect symbols"


class UndefinedBuffer(VerifyError):
    rule = "a kernel declares every buffer that it loads or stores, a graph defines it before"


class UnknownOp(VerifyError):
    rule = "operations, reductions and scans are those of the grammar"


class Arity(VerifyError):
    rule = "an operation has the number of arguments and results of the grammar"


class ElementType(VerifyError):
    rule = "element types of arguments, results and buffers agree"


class PhaseMismatch(VerifyError):
    rule = "a value of a phase with inner axes is used only where the inner axes are the same"


class MixedDirections(VerifyError):
    rule = "scans of a kernel go the same way; reductions and places of extremes go forward"


class ReduceTooEarly(VerifyError):
    rule = "the result of a reduction is known only after its phase"


class MisplacedReduce(VerifyError):
    rule = "a reduction or scan stands in a phase with inner axes"


class MisplacedSum(VerifyError):
    rule = "a sum over rows is stored at inner points, to elements that each row has in common"


class OutOfBounds(VerifyError):
    rule = "an index without a mask stays inside the storage"


class NotWritten(VerifyError):
    rule = "a buffer that a kernel stores to is declared as written, and only such a buffer"


class WriterConflict(VerifyError):
    rule = "a buffer has one writer: one plain store a kernel, and no writer of a constant"


class ReadOfOwnWrite(VerifyError):
    rule = "a kernel loads a buffer that it stores to only at the index that it stores to"


class LayoutMismatch(VerifyError):
    rule = "all nodes agree on the layout of a buffer, and a view lies inside it"


class InvalidEpilogue(VerifyError):
    rule = "an epilogue is pointwise over the sizes of the matmul's result"


class InvalidPrologue(VerifyError):
    rule = "a prologue is pointwise and makes one operand's buffer, which nothing else reads"


class PassError(LoopIRError):
    """A pass turned a valid graph into an invalid one: a bug of the pass."""

    def __init__(self, name: str, cause: VerifyError) -> None:
        super().__init__(f"pass {name} made an invalid graph: {cause}")
        self.name = name
        self.cause = cause


class UnknownNode(LoopIRError):
    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no node {name!r} in the graph; nodes are {', '.join(known)}")


class InputMismatch(LoopIRError):
    """A tensor or symbol given to the interpreter differs from its declaration."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"{name}: expected {expected}, got {got}")
        self.name = name
        self.expected = expected
        self.got = got


class IndexOutOfRange(LoopIRError):
    """The interpreter met an index outside of a buffer at a point that no mask excludes."""

    def __init__(self, node: str, what: str, low: int, high: int, extent: int) -> None:
        super().__init__(
            f"{node}: `{what}` takes values in [{low}, {high}], the extent is {extent}"
        )


class UserKernelNeeded(LoopIRError):
    def __init__(self, kernel: str) -> None:
        super().__init__(
            f"the graph launches the user's kernel {kernel}: pass "
            "`user_kernel=callable(kernel, grids, args, constants)` that runs it"
        )


class ExternNeeded(LoopIRError):
    def __init__(self, target: str) -> None:
        super().__init__(
            f"the graph calls {target}: pass `extern=callable(target, args, kwargs)` that runs it"
        )
