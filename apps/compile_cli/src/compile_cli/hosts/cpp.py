"""The host program as a C++ library: emitted, built, loaded, with triton_rt behind it."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cpp_emit
import fx_emit
import triton_rt
from compile_cli.errors import CacheNotWritten, CacheUnusable
from compile_cli.hosts.outside import Outside
from planner import Kernels
from wrapper_ir import DefineControl, DefineKernel, DefineSubgraph, Op, Program
from wrapper_ir.analysis import SUBGRAPH
from wrapper_ir.control import Function, run_control


def emit_cpp(
    program: Program, kernels: Kernels, outside: Outside, check_inputs: bool
) -> tuple[str, Callable[..., Any]]:
    """The C++ text, and the loaded library. It compares its inputs always: that costs little.

    On a GPU cubins are asked of triton_rt at a kernel's first launch, and launched straight from
    C++ from then on; on CPU every launch is called back and interpreted."""
    program, operators = _subgraphs(program, kernels, outside, check_inputs)
    outside = replace(outside, operators={**outside.operators, **operators})
    text = cpp_emit.emit(program, mode="lazy", schemas=cpp_emit.torch_schema)
    library = _built(text, kernels.folder("cpp"), program.name)

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

    callbacks = cpp_emit.Callbacks(launch=launch, extern=extern, compile=compile)
    return text, cpp_emit.load(library, program, callbacks, outside.constants)


def _subgraphs(
    program: Program, kernels: Kernels, outside: Outside, check_inputs: bool
) -> tuple[Program, dict[str, Callable[..., Any]]]:
    """The program without its subgraphs, each of which is a library of its own, and what calls of
    them call: through Python, which C++ goes back to for control, too."""
    called: dict[str, Callable[..., Any]] = {}
    rest: list[Op] = []
    for op in program.ops:
        if isinstance(op, DefineSubgraph):
            called[SUBGRAPH + op.program.name] = emit_cpp(
                op.program, kernels, outside, check_inputs
            )[1]
        elif isinstance(op, DefineControl):
            bodies = tuple(called[SUBGRAPH + name] for name in op.subgraphs)
            called[SUBGRAPH + op.name] = functools.partial(_control, op, bodies)
        else:
            rest.append(op)
    return replace(program, ops=tuple(rest)), called


def _control(op: DefineControl, bodies: Sequence[Function], *args: Any) -> tuple[Any, ...]:
    return run_control(op, bodies, args, fx_emit.STEPS)


def _built(text: str, folder: Path, name: str) -> Path:
    """The library, in a folder of this process where the cache cannot be written to."""
    try:
        return cpp_emit.build(text, folder, name)
    except OSError as error:
        why = f"{folder} cannot be written to ({error}): compiled host programs are not kept"
        warnings.warn(why, CacheNotWritten, stacklevel=2)
        try:
            return cpp_emit.build(text, _folder_of_process(), name)
        except OSError as also:
            raise CacheUnusable(folder, also) from also


@functools.cache
def _folder_of_process() -> str:
    folder = tempfile.mkdtemp(prefix="compile_cli_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
