"""Tuples of a kernel: parameters and constants are named `t.0`, `t.1.0`, and are otherwise flat."""

from collections.abc import Iterable, Mapping
from typing import Any


def flatten(args: Iterable[Any]) -> tuple[Any, ...]:
    """Launch arguments without tuples: `(x, (a, (b, 1)))` -> `(x, a, b, 1)`."""
    args = tuple(args)
    if not any(isinstance(a, tuple) for a in args):
        return args
    out: list[Any] = []
    for arg in args:
        out.extend(flatten(arg) if isinstance(arg, tuple) else (arg,))
    return tuple(out)


def path(name: str) -> tuple[str, tuple[int, ...]]:
    """`t.1.0` -> `("t", (1, 0))`. Raises `ValueError` for a part that is no number."""
    root, *rest = name.split(".")
    return root, tuple(map(int, rest))


def nest(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted name -> values by parameter, tuples put together.

    >>> nest({"x": 1, "t.0": 2, "t.1.0": 3, "t.1.1": 4})
    {'x': 1, 't': (2, (3, 4))}

    Raises `ValueError` where an index of a tuple is missing, or a name is a tuple and a value."""
    tree: dict[Any, Any] = {}
    for name, value in leaves.items():
        root, indices = path(name)
        steps: tuple[Any, ...] = (root, *indices)
        node = tree
        for step in steps[:-1]:
            node = node.setdefault(step, _Node())
            if not isinstance(node, _Node):
                raise ValueError(f"{name} is inside of a value")
        if steps[-1] in node:
            raise ValueError(f"{name} is given twice, or has elements of its own")
        node[steps[-1]] = value
    return {name: _freeze(name, value) for name, value in tree.items()}


class _Node(dict[Any, Any]):
    """A tuple under construction: index -> element."""


def _freeze(name: str, value: Any) -> Any:
    if not isinstance(value, _Node):
        return value
    missing = set(range(len(value))) - value.keys()
    if missing:
        raise ValueError(f"{name}.{min(missing)} is missing")
    return tuple(_freeze(f"{name}.{i}", value[i]) for i in range(len(value)))
