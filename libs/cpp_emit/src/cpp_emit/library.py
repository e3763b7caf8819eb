"""Opened libraries, whose operators are registered with torch.

A library registers itself as operators of torch (`create`, `run`, `drop`) in a namespace of its
own, so tensors cross the border as torch passes them to any custom operator, and callbacks into
Python are two operators of the same namespace that this module implements."""

import ctypes
import importlib
import threading
from pathlib import Path
from typing import Any

from cpp_emit.callbacks import Sites
from cpp_emit.errors import LoadError


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
        self._library.impl("callback", self._callback, kind)
        self._library.impl("compile", self._compile, kind)
        error = self._handle.cpp_emit_register(namespace.encode())
        if error is not None:
            raise LoadError(f"{path} cannot register its operators: {error.decode()}")
        self._operators = getattr(torch.ops, namespace)

    def fingerprint(self) -> str:
        """Of the program that the library was made of (`cpp_emit.sites.fingerprint`)."""
        text: bytes = self._handle.cpp_emit_fingerprint()
        return text.decode()

    def operator(self, name: str) -> Any:
        """One of the operators that the library registered: `create`, `run` or `drop`."""
        return getattr(self._operators, name).default

    def drop(self, instance: int) -> None:
        """Ends an instance of the program, and what it holds."""
        self.sites.pop(instance, None)
        self.operator("drop")(instance)

    def _callback(self, instance: int, site: int, tensors: list[Any], ints: list[int]) -> list[Any]:
        return self.sites[instance].call(site, tensors, ints)

    def _compile(
        self,
        instance: int,
        kernel: int,
        aligned: int,
        grid: list[int],
        tensors: list[Any],
        ints: list[int],
    ) -> list[Any]:
        return self.sites[instance].compile(kernel, aligned, grid, tensors, ints)


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
