"""What was found of a node that never changes is kept with it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")


def once(find: Callable[[Item], Found]) -> Callable[[Item], Found]:
    """`find`, which depends on nothing but a node or statement: what it found is kept with that,
    since none of them changes. The passes ask for the same again and again."""
    name = f"{find.__module__}.{find.__name__}"

    @wraps(find)
    def found(item: Item) -> Found:
        kept: dict[str, Any] = item.__dict__
        if name not in kept:
            kept[name] = find(item)
        result: Found = kept[name]
        return result

    return found
