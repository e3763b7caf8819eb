"""A built library as a Python callable.

It registers itself as operators of torch (`create`, `run`) in a namespace of its own, so tensors
cross the border as torch passes them to any custom operator, and callbacks into Python are two
operators of the same namespace that this module implements."""

from __future__ import annotations

import ctypes
import importlib
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cpp_emit.callbacks import Callbacks, Sites
from cpp_emit.errors import InputError, LoadError, MissingConstant
from cpp_emit.sites import Split, fingerprint, split
from wrapper_ir import Constant, Program, Return
from wrapper_ir.analysis import kernels, programs, walk


class Library:
    """An opened library. There is one object for each file in a process, as there is one handle."""

    def __init__(self, path: Path, namespace: str) -> None:
        torch = importlib.import_module("torch")
        self.path = path
        self.sites: dict[int, Sites] = {}
        try:
            self._handle = ctypes.CDLL(str(path))
            self._handle.cpp_emit_fingerprint.restype = ctypes.c_char_p
            self._handle.cpp_emit_register.restype = ctypes.c_char_p
        except (OSError, AttributeError) as problem:
            raise LoadError(f"cannot load {path}: {problem}") from problem
        # Defined first: a program may only be made once its callbacks exist.
        self._library = torch.library.Library(namespace, "FRAGMENT")
        self._library.define(
            "callback(int instance, int site, Tensor(a!)[] tensors, int[] ints) -> Tensor[]"
        )
        self._library.define(
            "compile(int instance, int kernel, int aligned, int[] grid, Tensor[] tensors, "
            "int[] ints) -> Tensor[]"
        )
        kind = "CompositeImplicitAutograd"
        self._library.impl("callback", lambda at, *given: self.sites[at].call(*given), kind)
        self._library.impl("compile", lambda at, *given: self.sites[at].compile(*given), kind)
        error = self._handle.cpp_emit_register(namespace.encode())
        if error is not None:
            raise LoadError(f"{path} cannot register its operators: {error.decode()}")
        self._operators = getattr(torch.ops, namespace)

    def fingerprint(self) -> str:
        """The fingerprint of the program that the library was made of (`cpp_emit.sites`)."""
        text: bytes = self._handle.cpp_emit_fingerprint()
        return text.decode()

    def set_loops(self, addresses: Sequence[int]) -> None:
        """Has the library call C++ kernels, by their numbers, at these addresses."""
        given = (ctypes.c_void_p * len(addresses))(*addresses)
        self._handle.cpp_emit_set_loops(given, ctypes.c_int64(len(addresses)))

    def operator(self, name: str) -> Any:
        """One of the operators that the library registered: `create` or `run`."""
        return getattr(self._operators, name).default

    def drop(self, instance: int) -> None:
        """Ends an instance of the program, and what it holds. No operator of torch: an instance may
        be collected while some graph is traced, which would have the call in it."""
        self.sites.pop(instance, None)
        self._handle.cpp_emit_drop(ctypes.c_int64(instance))


# A process opens a library once, and torch's operator registry is the process's as well.
_opened: dict[tuple[str, int, int], Library] = {}
_opening = threading.Lock()


def open_library(path: Path) -> Library:
    """The library of a file, opened once in a process. Raises LoadError."""
    try:
        status = path.stat()
    except OSError as problem:
        raise LoadError(f"cannot load {path}: {problem}") from problem
    key = (str(path.resolve()), status.st_ino, status.st_mtime_ns)
    with _opening:
        if key not in _opened:
            _opened[key] = Library(path.resolve(), f"cpp_emit_{len(_opened)}")
        return _opened[key]


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
        every = kernels(program).values()
        if any(kernel.language == "cpp" for kernel in every):
            in_cpp = (k.language == "cpp" and callbacks.address_of(k) for k in every)
            library.set_loops([address or 0 for address in in_cpp])
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
    for op in (op for each in programs(program) for op in walk(each.ops)):
        if isinstance(op, Constant):
            if op.key not in constants:
                raise MissingConstant(
                    f"program {program.name}: no constant {op.key!r} was given for {op.out}"
                )
            out.append(constants[op.key])
    return out
