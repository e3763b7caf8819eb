"""The decompositions that run before lowering, for `torch.export` and AOTAutograd alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch._ops import OperatorBase, OpOverload
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram
from torch.export.exported_program import (
    _decompose_exported_program,
    _split_decomp_table_to_cia_and_python_decomp,
)

from aten_lowering.extern import by_design
from aten_lowering.lowerings import TABLE

aten = torch.ops.aten

# Not in torch's core table, but gathers and arithmetic that make one kernel.
_MORE: list[Any] = [
    aten.upsample_nearest1d, aten.upsample_nearest2d, aten.upsample_nearest3d,
    aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d,
    aten.upsample_bicubic2d,
]  # fmt: skip

Decompositions = dict[OpOverload, Callable[..., Any]]
Rules = dict[OperatorBase, Callable[..., Any]]


def decompositions() -> Decompositions:
    """ATen op -> decomposition: torch's core table and all composite ops, less those that have a
    lowering here and those that stay whole by design (attention, matmuls, convolutions).

    With `torch.export`, `scaled_dot_product_attention` then stays the very op that eager runs.
    AOTAutograd, which traces below composite ops, gives the kernel that this op picks for the
    fake tensors' device (`_scaled_dot_product_*`).

    The table is the caller's own. It is made anew where operators were registered meanwhile.
    """
    return dict(_of_registered(tuple(torch._C._dispatch_get_all_op_names())))


@functools.lru_cache(maxsize=1)
def _of_registered(names: tuple[str, ...]) -> Decompositions:
    """Of the operators of these names: collecting torch's composite ones takes a tenth of a
    second."""
    table: dict[Any, Callable[..., Any]] = dict(torch.export.default_decompositions())
    table.update(get_decompositions(_MORE))
    return {
        op: decomposition
        for op, decomposition in table.items()
        if isinstance(op, OpOverload) and op not in TABLE and not by_design(op)
    }


def decompose(program: ExportedProgram) -> ExportedProgram:
    """`program.run_decompositions(decompositions())`, in a fifth of its time.

    That replaces the kernels of all 600 composite operators of torch while it runs, which takes
    0.2 s, though most are to decompose as they do by themselves; this replaces those of the others.
    """
    composite, table = _split(tuple(torch._C._dispatch_get_all_op_names()))
    with unset_fake_temporarily():
        decomposed: ExportedProgram = _decompose_exported_program(
            program, cia_to_decomp=composite, python_decomp_table=dict(table),
            joint_loss_index=None, decompose_custom_triton_ops=False,
        )  # fmt: skip
    return decomposed


@functools.lru_cache(maxsize=1)
def _split(names: tuple[str, ...]) -> tuple[Rules, Rules]:
    """The composite operators that do not decompose as they do by themselves, those that stay
    whole among them, and the decompositions of the operators that are not composite."""
    rules: Rules = dict(decompositions().items())
    composite, table = _split_decomp_table_to_cia_and_python_decomp(rules)
    own = torch._C.DispatchKey.CompositeImplicitAutograd
    kept = {
        op: rule
        for op, rule in composite.items()
        # torch's table has a `partial` for a rule in C++, and the function itself in Python.
        if not isinstance(rule, functools.partial) and rule is not op.py_kernels.get(own)
    }
    return kept, table
