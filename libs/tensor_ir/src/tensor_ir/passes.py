"""What a pass is, and how passes run: one way for every IR."""

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

from tensor_ir.errors import PassError, VerifyError

Program = TypeVar("Program")


class Decided(NamedTuple, Generic[Program]):
    """What a pass made, and what it decided on the way, for a report."""

    program: Program
    decisions: tuple[object, ...] = ()


class Pass(Protocol[Program]):
    """A rewrite: valid program in, valid program of the same meaning out. A frozen dataclass whose
    fields are its options."""

    @property
    def name(self) -> str:
        """The name that dumps and errors call the pass by."""
        ...

    def run(self, program: Program, /) -> Program | Decided[Program]:
        """The program rewritten (the very same object where there was nothing to do), with what was
        decided if somebody may want to know that."""
        ...


def run_passes(
    program: Program,
    passes: Iterable[Pass[Program]],
    verify: Callable[[Program], None] | None,
    on_pass: Callable[[str, Program], None] | None = None,
    what: str = "program",
) -> Decided[Program]:
    """The program after all passes, and what they decided, in order.

    `verify` raises `VerifyError` for an invalid program: it looks at the first one, and at what
    each pass made of it. `on_pass(name, program)` sees the result of each pass, an invalid one too.

    Raises `VerifyError` where the program was invalid to begin with, and `PassError`, which calls
    the program a `what`, where a pass made it so."""
    if verify is not None:
        verify(program)
    decisions: list[object] = []
    for step in passes:
        result = step.run(program)
        if isinstance(result, Decided):
            decisions += result.decisions
            result = result.program
        if on_pass is not None:
            on_pass(step.name, result)
        if verify is not None:
            try:
                verify(result)
            except VerifyError as error:
                raise PassError(step.name, error, what) from error
        program = result
    return Decided(program, tuple(decisions))
