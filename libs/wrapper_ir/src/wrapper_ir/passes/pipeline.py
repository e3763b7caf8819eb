"""Runs passes one after the other, and finds the one that breaks a program."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import tensor_ir
from wrapper_ir.ops import Program
from wrapper_ir.verifier import verify as verify_program

Pass: TypeAlias = tensor_ir.Pass[Program]


def run_passes(
    program: Program,
    passes: Iterable[Pass],
    verify: bool = True,
    on_pass: Callable[[str, Program], None] | None = None,
) -> Program:
    """The program after all passes: `tensor_ir.run_passes`, with the rules of this IR checked
    after each pass unless `verify` is off."""
    check = verify_program if verify else None
    return tensor_ir.run_passes(program, passes, check, on_pass).program
