"""Kernels on CPU tensors as C++: planned where their loops can be said in it, built side by side,
called by their addresses."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import LoopsNotBuilt, NotOnCPU
from planner.settings import Settings
from wrapper_ir import DefineKernel, KernelParam

if TYPE_CHECKING:  # the types alone: what runs a planned program needs no loop IR
    from loop_ir import Kernel

# Kernels of one translation unit at most: each takes a compiler about 40 ms.
_UNIT = 8


@cache
def has_compiler() -> bool:
    """Whether this machine has a C++ compiler. Warns, once, where it has none."""
    import cpp_emit  # what a program on a GPU does without

    try:
        return bool(cpp_emit.find_compiler())
    except cpp_emit.CompilerNotFound as error:
        why = f"kernels on the CPU are interpreted, which takes a thousand times as long: {error}"
        warnings.warn(why, stacklevel=2)
        return False


def wants_loops(settings: Settings) -> bool:
    """Whether kernels on the CPU are to be C++."""
    return settings.cpu_kernels == "cpp" or (settings.cpu_kernels == "auto" and has_compiler())


def on_cpu(kernel: Kernel) -> bool:
    """Whether all that a kernel touches is on the CPU."""
    return all(buffer.type.device.kind == "cpu" for buffer in kernel.buffers)


def define_loops(kernel: Kernel) -> tuple[DefineKernel, tuple[Any, ...]]:
    """The definition of a kernel as C++, and the arguments of its launch. Raises
    `cpp_loops.UnsupportedKernel`."""
    import cpp_loops  # what a program on a GPU does without

    made = cpp_loops.emit(kernel)
    params = tuple(KernelParam(*p) for p in made.params)
    return DefineKernel(made.name, made.source, params, language="cpp"), made.args


@dataclass
class LoopLibraries:
    """Libraries of C++ kernels, by definition. in_folder: calls what makes a library with the
    folder where they are kept. jobs: compilers that run at once."""

    in_folder: Callable[[Callable[[Path], Path]], Path]
    jobs: int
    built: dict[DefineKernel, Future[ctypes.CDLL]] = field(default_factory=dict)

    def start(self, defines: Iterable[DefineKernel]) -> Callable[[], None]:
        """Begins to build what was not built; what it returns waits for that."""
        new = [d for d in dict.fromkeys(defines) if d not in self.built]
        units = [new[i : i + _UNIT] for i in range(0, len(new), _UNIT)]
        pool = ThreadPoolExecutor(max(1, min(self.jobs, len(units))))
        for unit in units:
            future = pool.submit(self._library, unit)
            self.built.update(dict.fromkeys(unit, future))
        pool.shutdown(wait=False)

        def finish() -> None:
            """Raises LoopsNotBuilt."""
            for define in new:
                self.built[define].result()

        return finish

    def launcher(self, define: DefineKernel) -> Callable[..., None]:
        """`launch(grid, *args)` of a kernel. Raises NotOnCPU and LoopsNotBuilt there."""
        pointers = [p.kind.startswith("*") for p in define.params]
        function: Any = None

        def launch(_grid: Any, *args: Any) -> None:
            nonlocal function
            if function is None:
                function = self._function(define)
                function.argtypes = [ctypes.c_void_p if p else ctypes.c_int64 for p in pointers]
                function.restype = None
            pairs = zip(args, pointers, strict=True)
            given = [(a.data_ptr() if a.is_cpu else 0) if p else a for a, p in pairs]
            if not all(given):  # sizes may be 0, and tensors of no elements lie nowhere
                tensors = (a for a, p in zip(args, pointers, strict=True) if p)
                if any(not a.is_cpu or (a.numel() and not a.data_ptr()) for a in tensors):
                    raise NotOnCPU(define.name)
            function(*given)

        return launch

    def address(self, define: DefineKernel) -> int:
        """Of the kernel's function. Raises as `launcher` does."""
        return ctypes.cast(self._function(define), ctypes.c_void_p).value or 0

    def _function(self, define: DefineKernel) -> Any:
        self.start((define,))
        return getattr(self.built[define].result(), f"kernel_{define.name}")

    def _library(self, defines: list[DefineKernel]) -> ctypes.CDLL:
        import cpp_emit
        import cpp_loops

        text = cpp_loops.translation_unit(d.source for d in defines)
        given = "loops", cpp_loops.headers(), cpp_loops.WAYS
        try:
            built = self.in_folder(lambda folder: cpp_emit.build_plain(text, folder, *given))
            return ctypes.CDLL(str(built))
        except (cpp_emit.CppEmitError, OSError) as error:
            raise LoopsNotBuilt(str(error)) from error
