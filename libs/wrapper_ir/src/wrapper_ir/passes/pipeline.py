"""Runs passes one after the other, and finds the one that breaks a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from wrapper_ir.errors import PassError, VerifyError
from wrapper_ir.ops import Program
from wrapper_ir.verifier import verify as verify_program


class Pass(Protocol):
    """`run` takes a valid program and gives a valid one of the same meaning."""

    @property
    def name(self) -> str: ...

    def run(self, program: Program) -> Program: ...


def run_passes(
    program: Program,
    passes: Iterable[Pass],
    verify: bool = True,
    on_pass: Callable[[str, Program], None] | None = None,
) -> Program:
    """The program after all passes. `on_pass` sees the name of each pass and its result, also of
    an invalid one.

    Raises `VerifyError` if the program is invalid to begin with, `PassError` if a pass made it so
    (both only with `verify`).
    """
    if verify:
        verify_program(program)
    for step in passes:
        program = step.run(program)
        if on_pass is not None:
            on_pass(step.name, program)
        if verify:
            try:
                verify_program(program)
            except VerifyError as error:
                raise PassError(step.name, error) from error
    return program
