"""The host program as a C++ library: emitted, built, loaded, with triton_rt behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cpp_emit
import triton_rt
from compile_cli.errors import CacheUnusable
from compile_cli.hosts.outside import Outside
from planner import Kernels
from wrapper_ir import DefineKernel, Program


def emit_cpp(
    program: Program, kernels: Kernels, outside: Outside, check_inputs: bool
) -> tuple[str, Callable[..., Any]]:
    """The C++ text, and the loaded library. It compares its inputs always: that costs little.

    On a GPU cubins are asked of triton_rt at a kernel's first launch, and launched straight from
    C++ from then on; on CPU C++ kernels are called, and launches of others called back and
    interpreted."""
    text = cpp_emit.emit(program, mode="lazy", schemas=cpp_emit.torch_schema)
    try:
        library = kernels.in_cpp_folder(lambda at: cpp_emit.build(text, at, program.name))
    except OSError as error:
        raise CacheUnusable(kernels.folder("cpp"), error) from error

    def launch(kernel: DefineKernel, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        kernels.launcher(kernel)(grid, *args)

    def compile(
        kernel: DefineKernel, alignment: int, grid: tuple[int, int, int], args: tuple[Any, ...]
    ) -> triton_rt.Binary:
        # A descriptor has a bit where its tensor keeps the rules of TMA.
        described = sum(1 << i for i, p in enumerate(kernel.params) if p.kind[0] == "t")
        variant = kernels.load if alignment & described == described else kernels.without_tma
        return variant(kernel).binary(alignment=alignment & ~described)

    def extern(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        own = outside.operators.get(target)
        return cpp_emit.call_torch(target, args, kwargs) if own is None else own(*args)

    callbacks = cpp_emit.Callbacks(launch, extern, compile, kernels.loops.address)
    return text, cpp_emit.load(library, program, callbacks, outside.constants)
