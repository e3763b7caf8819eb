"""A built library as a Python callable."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpp_emit.callbacks import Callbacks, Sites
from cpp_emit.errors import InputError, LoadError, MissingConstant
from cpp_emit.library import Library, open_library
from cpp_emit.sites import Split, fingerprint, split
from wrapper_ir import Constant, Program, Return
from wrapper_ir.analysis import walk


def load(
    path: str | Path,
    program: Program,
    callbacks: Callbacks | None = None,
    constants: Mapping[str, Any] | None = None,
) -> LoadedProgram:
    """Loads a library that `build` made of `emit(program)`.

    Raises LoadError (not a library, or of another program), MissingConstant, MissingCallback."""
    library = open_library(Path(path))
    return LoadedProgram(library, program, callbacks or Callbacks(), constants or {})


class LoadedProgram:
    """Call it with the program's arguments, in order; it returns a tuple of its results.

    Runs under no_grad: results do not require gradients. A call with tensors that differ from the
    declared parameters raises RuntimeError with the parameter's name, what it expects and got."""

    def __init__(
        self, library: Library, program: Program, callbacks: Callbacks, constants: Mapping[str, Any]
    ) -> None:
        made_of = library.fingerprint()
        if made_of != fingerprint(program):
            raise LoadError(
                f"{library.path} was made of another program than {program.name} "
                f"(fingerprint {made_of}, expected {fingerprint(program)}): emit and build again"
            )
        self.program = program
        self._params = len(program.params)
        self._ints = tuple(i for i, p in enumerate(program.params) if p.type is None)
        self._results = _results(program)
        self._run = library.operator("run")
        self._site = Sites(program, callbacks)
        self._id: int = library.operator("create")(_constants(program, constants))
        library.sites[self._id] = self._site
        weakref.finalize(self, library.drop, self._id)

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        if len(args) != self._params:
            raise InputError(f"{self.program.name} takes {self._params} arguments, got {len(args)}")
        tensors, ints = args, ()
        if self._ints:
            ints = tuple(args[i] for i in self._ints)
            tensors = tuple(a for i, a in enumerate(args) if i not in self._ints)
        try:
            out, numbers = self._run(self._id, tensors, ints)
        except RuntimeError:
            cause = self._site.take_error()
            if cause is not None:
                raise cause from None
            raise
        if self._results is None:
            return tuple(out)
        filled: tuple[Any, ...] = self._results.fill(out, numbers)
        return filled


def _results(program: Program) -> Split | None:
    """How results are put together; None: they are just the tensors."""
    op = program.ops[-1] if program.ops else None
    if not isinstance(op, Return):
        raise LoadError(f"program {program.name} has no return at its end")
    parts = split(op.values)
    return None if len(parts.tensors) == len(op.values) else parts


def _constants(program: Program, constants: Mapping[str, Any]) -> list[Any]:
    out = []
    for op in walk(program.ops):
        if isinstance(op, Constant):
            if op.key not in constants:
                raise MissingConstant(
                    f"program {program.name}: no constant {op.key!r} was given for {op.out}"
                )
            out.append(constants[op.key])
    return out
