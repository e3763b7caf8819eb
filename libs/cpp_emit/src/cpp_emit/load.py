"""A built library as a Python callable.

The library registers itself as operators of torch (`create`, `run`, `drop`) in a namespace of its
own, so tensors cross the border as torch passes them to any custom operator, and callbacks into
Python are two operators of the same namespace that this module implements.
"""

from __future__ import annotations

import ctypes
import importlib
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from cpp_emit.cubins import image
from cpp_emit.errors import (
    CallbackFailed,
    InputError,
    LoadError,
    MissingCallback,
    MissingConstant,
)
from cpp_emit.sites import Split, call_split, fingerprint, kernels, launch_split, sites, split, walk
from wrapper_ir import Descriptor
from wrapper_ir.analysis import descriptor_kind
from wrapper_ir.ops import (
    Constant,
    DefineKernel,
    ExternCall,
    Launch,
    Program,
    Return,
    TorchEnum,
)
from wrapper_ir.types import Device, DType


class Compile(Protocol):
    """Finds the code of a kernel at its first launch with arguments so aligned. For a descriptor
    the arguments have a `wrapper_ir.Descriptor`."""

    def __call__(
        self,
        kernel: DefineKernel,
        alignment: int,
        grid: tuple[int, int, int],
        args: tuple[Any, ...],
    ) -> Any:
        """A binary as in `cpp_emit.cubins`. Bit i of `alignment`: argument i of this launch is a
        multiple of 16, or a descriptor that keeps the rules of TMA; the code may take no others to
        be so. Where a descriptor has no bit, the code must do without TMA."""


@dataclass(frozen=True)
class Callbacks:
    """What a program asks of Python, as far as it does.

    launch(kernel, grid, args): runs a kernel on CPU tensors; `args` has a `wrapper_ir.Descriptor`
    for each tensor descriptor.
    extern(target, args, kwargs): calls an operator; by default torch's own.
    compile: see `Compile`; in mode "lazy", for kernels on a GPU.
    """

    launch: Callable[[DefineKernel, tuple[int, int, int], Sequence[Any]], None] | None = None
    extern: Callable[[str, Sequence[Any], Mapping[str, Any]], Any] | None = None
    compile: Compile | None = None


def load(
    path: str | Path,
    program: Program,
    callbacks: Callbacks | None = None,
    constants: Mapping[str, Any] | None = None,
) -> LoadedProgram:
    """Loads a library that `build` made of `emit(program)`.

    Raises LoadError (not a library, or of another program), MissingConstant, MissingCallback.
    """
    return LoadedProgram(_library(Path(path)), program, callbacks or Callbacks(), constants or {})


class LoadedProgram:
    """Call it with the program's arguments, in order; it returns a tuple of its results.

    Runs under no_grad: results do not require gradients. A call with tensors that differ from the
    declared parameters raises RuntimeError with the parameter's name, what it expects and got.
    """

    def __init__(
        self,
        library: _Library,
        program: Program,
        callbacks: Callbacks,
        constants: Mapping[str, Any],
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
        self._site = _Sites(program, callbacks)
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


# ---------------------------------------------------------------- the side that C++ calls


class _Sites:
    """The launches and extern calls of one loaded program, as Python functions by number."""

    def __init__(self, program: Program, callbacks: Callbacks) -> None:
        self._kernels = kernels(program)
        self._callbacks = callbacks
        self._calls = [self._prepare(op) for op in sites(program)]
        self._counts = [_kept(op) for op in sites(program)]
        self._errors = threading.local()

    def _prepare(self, op: Launch | ExternCall) -> Callable[[list[Any], list[int]], list[Any]]:
        if isinstance(op, Launch):
            return self._launch(op)
        return self._extern(op)

    def _launch(self, op: Launch) -> Callable[[list[Any], list[int]], list[Any]]:
        parts, kernel = launch_split(op), self._kernels[op.kernel]
        blocks = {
            i: found[1]
            for i, p in enumerate(kernel.params)
            if (found := descriptor_kind(p.kind)) is not None
        }

        def call(tensors: list[Any], ints: list[int]) -> list[Any]:
            if self._callbacks.launch is None:
                raise MissingCallback(
                    f"kernel {kernel.name} runs on CPU tensors: give load a Callbacks(launch=...)"
                )
            grid, args = parts.fill(tensors, ints)
            if blocks:
                args = tuple(
                    _descriptor(a, blocks[i]) if i in blocks else a for i, a in enumerate(args)
                )
            self._callbacks.launch(kernel, grid, args)
            return []

        return call

    def _extern(self, op: ExternCall) -> Callable[[list[Any], list[int]], list[Any]]:
        parts = call_split(op)
        function = self._callbacks.extern or call_torch

        def call(tensors: list[Any], ints: list[int]) -> list[Any]:
            args, kwargs = parts.fill(tensors, ints)
            result = function(op.target, args, dict(kwargs))
            results = tuple(result) if op.tuple_result else (result,) * min(1, len(op.outs))
            if len(results) != len(op.outs):
                raise CallbackFailed(
                    f"{op.target} gave {len(results)} results, the program takes {len(op.outs)}"
                )
            return [r for r, out in zip(results, op.outs, strict=True) if out is not None]

        return call

    def call(self, site: int, tensors: list[Any], ints: list[int]) -> list[Any]:
        try:
            return self._calls[site](tensors, ints)
        except Exception as error:
            # Any error of user code: kept here, raised by __call__.
            self._errors.last = error
            # C++ takes another number of tensors than it expects as a sign of an error.
            return [importlib.import_module("torch").empty(0)] * (self._counts[site] + 1)

    def compile(
        self, kernel: int, aligned: int, grid: list[int], tensors: list[Any], ints: list[int]
    ) -> list[Any]:
        try:
            return self._compile(list(self._kernels.values())[kernel], aligned, grid, tensors, ints)
        except Exception as error:
            # Any error of user code: kept here, raised by __call__.
            self._errors.last = error
            return []

    def _compile(
        self, kernel: DefineKernel, aligned: int, grid: list[int], tensors: list[Any],
        ints: list[int],
    ) -> list[Any]:  # fmt: skip
        if self._callbacks.compile is None:
            raise MissingCallback(
                f"kernel {kernel.name} has no code yet: give load a Callbacks(compile=...), or "
                'emit with mode "aot"'
            )
        torch = importlib.import_module("torch")
        left, numbers = list(tensors), list(ints)
        args: list[Any] = []
        for p in kernel.params:
            if p.kind.startswith("*"):
                args.append(left.pop(0))
            elif (described := descriptor_kind(p.kind)) is not None:
                args.append(_descriptor(left.pop(0), described[1]))
            elif p.kind in ("f32", "f64"):
                args.append(struct.unpack("d", struct.pack("q", numbers.pop(0)))[0])
            else:
                args.append(numbers.pop(0))
        mask = sum(1 << i for i, p in enumerate(kernel.params) if p.kind[0] in "*iut")
        binary = self._callbacks.compile(
            kernel, aligned & mask, (grid[0], grid[1], grid[2]), tuple(args)
        )
        one = image(kernel, binary)
        return [
            torch.frombuffer(bytearray(one.cubin), dtype=torch.uint8),
            torch.frombuffer(bytearray(one.symbol.encode()), dtype=torch.uint8),
            torch.tensor(
                [
                    one.shared,
                    one.warps,
                    one.required,
                    one.scratch,
                    one.ctas,
                    one.overlap,
                    *chain(*one.maps),
                ],
                dtype=torch.int64,
            ),
        ]

    def take_error(self) -> Exception | None:
        """The error of the last callback of this thread, once."""
        error: Exception | None = getattr(self._errors, "last", None)
        self._errors.last = None
        return error


def _descriptor(tensor: Any, block: tuple[int, ...]) -> Descriptor:
    return Descriptor(tensor, tuple(tensor.shape), tuple(tensor.stride()), block)


def _kept(op: Launch | ExternCall) -> int:
    """How many tensors the callback gives back."""
    return 0 if isinstance(op, Launch) else sum(out is not None for out in op.outs)


# ---------------------------------------------------------------- torch


class _Library:
    """An opened library. There is one object for each file in a process, as there is one handle."""

    def __init__(self, path: Path, namespace: str) -> None:
        torch = importlib.import_module("torch")
        self.path = path
        self.sites: dict[int, _Sites] = {}
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
        text: bytes = self._handle.cpp_emit_fingerprint()
        return text.decode()

    def operator(self, name: str) -> Any:
        return getattr(self._operators, name).default

    def drop(self, instance: int) -> None:
        self.sites.pop(instance, None)
        self.operator("drop")(instance)

    def _callback(self, instance: int, site: int, tensors: list[Any], ints: list[int]) -> list[Any]:
        return self.sites[instance].call(site, tensors, ints)

    def _compile(
        self, instance: int, kernel: int, aligned: int, grid: list[int], tensors: list[Any],
        ints: list[int],
    ) -> list[Any]:  # fmt: skip
        return self.sites[instance].compile(kernel, aligned, grid, tensors, ints)


# A process opens a library once, and torch's operator registry is the process's as well.
_opened: dict[tuple[str, int, int], _Library] = {}
_opening = threading.Lock()


def _library(path: Path) -> _Library:
    try:
        status = path.stat()
    except OSError as problem:
        raise LoadError(f"cannot load {path}: {problem}") from problem
    key = (str(path.resolve()), status.st_ino, status.st_mtime_ns)
    with _opening:
        if key not in _opened:
            _opened[key] = _Library(path.resolve(), f"cpp_emit_{len(_opened)}")
        return _opened[key]


def torch_schema(target: str) -> str | None:
    """The schema of an operator of torch, None if there is no such operator.

    >>> torch_schema("aten.relu.default")
    'aten::relu(Tensor self) -> Tensor'
    """
    torch = importlib.import_module("torch")
    parts = target.split(".")
    found: Any = torch.ops
    try:
        for part in parts if len(parts) > 2 else [*parts, "default"]:
            found = getattr(found, part)
    except AttributeError:
        return None
    return str(found._schema)


def call_torch(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls an operator of torch with arguments of the IR."""
    torch = importlib.import_module("torch")
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    return found(
        *(_torch_value(torch, a) for a in args),
        **{key: _torch_value(torch, value) for key, value in kwargs.items()},
    )


_TORCH_DTYPES = {
    DType.bool_: "bool", DType.u8: "uint8", DType.u16: "uint16", DType.u32: "uint32",
    DType.u64: "uint64", DType.i8: "int8", DType.i16: "int16", DType.i32: "int32",
    DType.i64: "int64", DType.f16: "float16", DType.bf16: "bfloat16", DType.f32: "float32",
    DType.f64: "float64", DType.f8e4m3: "float8_e4m3fn", DType.f8e5m2: "float8_e5m2",
    DType.c32: "complex32", DType.c64: "complex64", DType.c128: "complex128",
}  # fmt: skip


def _torch_value(torch: Any, value: Any) -> Any:
    if isinstance(value, tuple):
        return [_torch_value(torch, v) for v in value]
    if isinstance(value, DType):
        return getattr(torch, _TORCH_DTYPES[value])
    if isinstance(value, Device):
        return torch.device(str(value))
    if isinstance(value, TorchEnum):
        return getattr(torch, value.name)
    return value
