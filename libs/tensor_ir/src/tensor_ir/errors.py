"""What can be wrong with an IR or its text, whichever IR it is."""

from typing import ClassVar


class IRError(Exception):
    """Base class of every error of the IRs."""


class ParseError(IRError):
    """The text is nothing of the language. `line` and `column` count from 1."""

    def __init__(self, line: int, column: int, expected: str, got: str) -> None:
        super().__init__(f"line {line}, column {column}: expected {expected}, got {got}")
        self.line = line
        self.column = column
        self.expected = expected
        self.got = got


class VerifyError(IRError):
    """A program that breaks a rule, which is the docstring of the subclass. `detail` says what is
    wrong, and `where` which part of the program it is."""

    rule: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """The docstring as a part of a sentence."""
        text = " ".join((cls.__doc__ or "").split()).removesuffix(".")
        cls.rule = text[:1].lower() + text[1:]

    def __init__(self, detail: str, where: str) -> None:
        super().__init__(f"{where}: {detail} (rule: {self.rule})")
        self.detail = detail


class PassError(IRError):
    """The pass `name` turned a valid program into an invalid one, a bug of the pass; `cause` says
    what is wrong with it. `what` is the word for programs of that IR."""

    def __init__(self, name: str, cause: VerifyError, what: str = "program") -> None:
        super().__init__(f"pass {name} made an invalid {what}: {cause}")
        self.name = name
        self.cause = cause
