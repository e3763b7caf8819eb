"""Operators of torch that launch a user's kernel, for host programs that call operators only."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from loop_ir import GraphArg, TensorRef

# Operators live as long as the process, as torch's tables of kernels do.
_LIBRARY: Any = torch.library.Library("compile_cli", "FRAGMENT")  # type: ignore[no-untyped-call]  # of torch
_NAMES: list[str] = []

Launcher = Callable[[Sequence[Any], Sequence[tuple[int, ...]]], None]


def launching_operator(
    kernel: str, args: Sequence[tuple[str, GraphArg]], written: set[str], run: Launcher
) -> str:
    """Registers an operator that takes the launch's arguments and its grids; gives its name."""
    arguments: list[str] = []
    for i, (name, value) in enumerate(args):
        if isinstance(value, TensorRef):
            mark = f"(a{i}!)" if value.buffer in written else ""
            arguments.append(f"Tensor{mark} {name}_")
        else:
            kind = "bool" if isinstance(value, bool) else "SymInt"
            kind = "float" if isinstance(value, float) else kind
            arguments.append(f"{kind} {name}_")
    op = f"launch_{kernel}_{len(_NAMES)}"
    _NAMES.append(op)
    _LIBRARY.define(f"{op}({', '.join(arguments)}, SymInt[] grids) -> ()")

    def call(*values: Any) -> None:
        *given, flat = values
        run(given, [tuple(flat[i : i + 3]) for i in range(0, len(flat), 3)])

    _LIBRARY.impl(op, call, "CompositeExplicitAutograd")
    return f"compile_cli.{op}.default"
