"""One error class per mistake."""


class SymexprError(Exception):
    """Base of every error that this library raises on purpose."""


class UnknownFunction(SymexprError):
    """A node that this library has no meaning for."""

    def __init__(self, name: str, where: str, hint: str = "") -> None:
        self.name = name
        message = f"{where}: unknown function or node `{name}`"
        super().__init__(f"{message}; {hint}" if hint else message)


class UnsupportedByTarget(SymexprError):
    """The target language cannot compute this node."""

    def __init__(self, node: str, target: str, reason: str) -> None:
        self.node, self.target = node, target
        super().__init__(f"{target} cannot compute `{node}`: {reason}")


class OverflowRisk(UnsupportedByTarget):
    """Within the given ranges a value may not fit in the widest integer of the target."""


class MissingValue(SymexprError, KeyError):
    """A symbol without a value, or without a range where one is needed."""

    def __init__(self, name: str, where: str, known: list[str]) -> None:
        self.name = name
        self.message = f"{where}: no value or range for symbol `{name}`; known: {sorted(known)}"
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message


class DivisionByZero(SymexprError, ZeroDivisionError):
    """A divisor is zero, or may be zero where that has to be excluded."""

    def __init__(self, dividend: object, divisor: object, where: str) -> None:
        super().__init__(
            f"{where}: `{dividend}` is divided by `{divisor}`, which is or may be zero; give a "
            f"range that leaves zero out"
        )


class NonInteger(SymexprError, TypeError):
    """An argument that has to be an integer is not known to be one."""

    def __init__(self, function: str, argument: object) -> None:
        super().__init__(
            f"{function}: `{argument}` is not known to be an integer; make symbols with "
            f"symexpr.symbol(name), and round quotients with FloorDiv or replace_floor first"
        )


class TooLarge(SymexprError, OverflowError):
    """A number beyond the limits that the README states: it would take all memory or time."""


class ParseError(SymexprError, ValueError):
    """Text that is no expression; `position` counts characters from 0."""

    def __init__(self, text: str, position: int, reason: str) -> None:
        self.text, self.position, self.reason = text, position, reason
        start = max(0, position - 80)
        shown = text[start : position + 80]
        super().__init__(
            f"{reason} at column {position + 1}\n  {shown}\n  {' ' * (position - start)}^"
        )


class BadName(SymexprError, ValueError):
    """A symbol whose name is no identifier, or taken: its text would be another expression."""

    def __init__(
        self, name: str, why: str = "a name has to be an identifier, and no Python keyword"
    ) -> None:
        self.name = name
        super().__init__(f"symbol {name!r}: {why}")


class BadRange(SymexprError, ValueError):
    """A range whose low end is above its high end, or whose ends refer to each other."""
