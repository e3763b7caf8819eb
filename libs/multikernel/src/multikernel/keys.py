"""From the arguments of a call to the sizes that count."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from multikernel.errors import InvalidOption

Key = Callable[..., Hashable]


def shape_of_first(*args: Any) -> Hashable:
    """The default key: the shape of the first argument that has one; None if none has."""
    try:
        first: Hashable = args[0].shape  # the usual case, at the price of one attribute
    except (AttributeError, IndexError):
        first = None
    if first is not None:
        return first
    for arg in args:
        shape: Hashable = getattr(arg, "shape", None)
        if shape is not None:
            return shape
    return None


def sizes_of(*places: tuple[int, int]) -> Key:
    """A key that reads some dimensions: `sizes_of((0, 0), (2, 1))` gives
    `(args[0].shape[0], args[2].shape[1])`. The shape of an argument is read once."""
    shown = [tuple(place) for place in places]
    if not shown or not all(
        len(place) == 2 and all(type(i) is int for i in place) and place[0] >= 0 for place in shown
    ):
        raise InvalidOption(
            f"key places {places!r}: expected (argument, dimension) pairs of integers, "
            "argument at least 0"
        )
    if len(shown) == 1:
        ((argument, dim),) = shown
        return lambda *args: args[argument].shape[dim]
    seen: set[int] = set()
    parts = []
    for argument, dim in shown:
        shape = f"s{argument}" if argument in seen else f"(s{argument} := args[{argument}].shape)"
        seen.add(argument)
        parts.append(f"{shape}[{dim}]")
    # Straight code of validated integers; a loop over places would cost several times as much.
    made: Key = eval(f"lambda *args: ({', '.join(parts)})", {"__builtins__": {}})
    return made


def as_key(key: Key | Sequence[tuple[int, int]] | None) -> Key:
    """A key as a function: the default for None, `sizes_of` for places. Raises InvalidOption."""
    if key is None:
        return shape_of_first
    return key if callable(key) else sizes_of(*key)
