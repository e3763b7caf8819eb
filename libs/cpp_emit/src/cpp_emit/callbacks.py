"""What a loaded program calls in Python: kernels on CPU tensors, operators, a compiler.

C++ knows each launch and extern call by its number (`cpp_emit.sites`); here are the functions that
these numbers stand for."""

import importlib
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from cpp_emit.cubins import alignment_of, image
from cpp_emit.errors import CallbackFailed, MissingCallback
from cpp_emit.sites import call_split, launch_split, sites
from cpp_emit.torch_calls import call_torch
from wrapper_ir import DefineKernel, Descriptor, ExternCall, Launch, Program
from wrapper_ir.analysis import descriptor_kind, kernels


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
    address(kernel): where the C function `kernel_NAME` of a kernel in C++ is."""

    launch: Callable[[DefineKernel, tuple[int, int, int], Sequence[Any]], None] | None = None
    extern: Callable[[str, Sequence[Any], Mapping[str, Any]], Any] | None = None
    compile: Compile | None = None
    address: Callable[[DefineKernel], int] | None = None

    def address_of(self, kernel: DefineKernel) -> int:
        """Raises MissingCallback."""
        if self.address is None:
            raise MissingCallback(
                f"kernel {kernel.name} is C++: give load a Callbacks(address=...)"
            )
        return self.address(kernel)


class Sites:
    """The launches and extern calls of one loaded program, as Python functions by number."""

    def __init__(self, program: Program, callbacks: Callbacks) -> None:
        self._kernels = kernels(program)
        self._callbacks = callbacks
        numbered = sites(program)
        self._calls = [
            self._launch(op) if isinstance(op, Launch) else self._extern(op) for op in numbered
        ]
        self._counts = [
            0 if isinstance(op, Launch) else sum(out is not None for out in op.outs)
            for op in numbered
        ]
        self._errors = threading.local()

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
                    Descriptor.of(a, blocks[i]) if i in blocks else a for i, a in enumerate(args)
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
        """The tensors that a launch or extern call gives back; as many as C++ expects and one more
        where it raised, and `take_error` gives what."""
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
        """The code of a kernel, its symbol, and the numbers of its launch, as tensors for C++;
        nothing where compiling raised, and `take_error` gives what."""
        try:
            return self._compile(list(self._kernels.values())[kernel], aligned, grid, tensors, ints)
        except Exception as error:
            # Any error of user code: kept here, raised by __call__.
            self._errors.last = error
            return []

    def _compile(
        self,
        kernel: DefineKernel,
        aligned: int,
        grid: list[int],
        tensors: list[Any],
        ints: list[int],
    ) -> list[Any]:
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
                args.append(Descriptor.of(left.pop(0), described[1]))
            elif p.kind in ("f32", "f64"):
                args.append(struct.unpack("d", struct.pack("q", numbers.pop(0)))[0])
            else:
                args.append(numbers.pop(0))
        alignment = alignment_of(kernel, aligned)
        size = grid[0], grid[1], grid[2]
        one = image(kernel, self._callbacks.compile(kernel, alignment, size, tuple(args)))
        shape = one.shared, one.warps, one.required, one.scratch, one.ctas, one.overlap
        return [
            torch.frombuffer(bytearray(one.cubin), dtype=torch.uint8),
            torch.frombuffer(bytearray(one.symbol.encode()), dtype=torch.uint8),
            torch.tensor([*shape, *chain(*one.maps)], dtype=torch.int64),
        ]

    def take_error(self) -> Exception | None:
        """The error of the last callback of this thread, once."""
        error: Exception | None = getattr(self._errors, "last", None)
        self._errors.last = None
        return error
