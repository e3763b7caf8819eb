"""Errors of this library. `CannotLower` never leaves it: it turns a node into an extern call."""


class AtenLoweringError(Exception):
    """Base of all errors of this library."""


class UnsupportedGraph(AtenLoweringError):
    """The graph cannot be a loop IR graph at all, not even with an extern call.

    node: the FX node's text. reason: what stands in the way. hint: what to do."""

    def __init__(self, node: str, reason: str, hint: str, source: str = "") -> None:
        at = f" ({source})" if source else ""
        super().__init__(f"{node}{at}: {reason}; {hint}")
        self.node = node
        self.reason = reason
        self.hint = hint
        self.source = source


class DependsOnData(UnsupportedGraph):
    """A result of the graph has a size, or is a number, that is only known once it has run."""


class CannotLower(AtenLoweringError):
    """A lowering met a case that it does not handle: the node becomes an extern call. The
    message is the reason that the report gives."""


class SizeOfData(CannotLower):
    """A size or a number that depends on what tensors hold."""


class NotPlain(CannotLower):
    """A lowering loads from a view at elements of another width, which no index can say: the view
    is copied first, and the lowering runs again."""


def require(condition: bool, reason: str) -> None:
    """Raises `CannotLower(reason)` unless the condition holds."""
    if not condition:
        raise CannotLower(reason)
