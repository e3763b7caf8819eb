"""A compiled graph as data: what a later process needs to run it without compiling it.

Nothing here imports Dynamo, AOTAutograd or the lowering: to load is not to compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from torch import Tensor

from compile_cli.errors import NoArtifact
from compile_cli.hosts import LazyInput, Outside, Runner, build_program, finished_run
from compile_cli.options import Options
from compile_cli.record import Record
from planner import Kernels
from triton_rt import Binary
from wrapper_ir import ExternCall, analysis, parse_program, print_program
from wrapper_ir.analysis import walk

if TYPE_CHECKING:
    from compile_cli.result import CompiledGraph


@dataclass(frozen=True)
class Artifact:
    """The host program of a compiled graph as text, and what it does not hold.

    constants: tensors, by the names that the program has for them. aligned, lazy, taken: what is
    done to inputs first (`CompiledGraph`). options: those that it was compiled with. binaries: its
    kernels, compiled. awaits: the record that says when a later process should compile the graph
    again (`undecided`); empty if none should. shared: what tells the graph
    apart among ranks (`Ranks`); empty if others have none of it."""

    text: str
    constants: Mapping[str, Tensor]
    aligned: tuple[int, ...]
    lazy: tuple[LazyInput, ...]
    options: Options
    binaries: tuple[Binary, ...] = ()
    awaits: str = ""
    taken: tuple[int, ...] = ()
    shared: str = ""

    @classmethod
    def of(cls, compiled: CompiledGraph, options: Options) -> Artifact:
        """Raises `NoArtifact` where a later process would lack something. What was guessed for want
        of time stays a guess."""
        if options.fx_backend is not None:
            raise NoArtifact(f"{options.fx_backend.__name__} makes what runs the program")
        every = analysis.programs(compiled.program)
        for op in (op for program in every for op in walk(program.ops)):
            if isinstance(op, ExternCall) and op.target.startswith("eager."):
                raise NoArtifact(f"torch runs {op.target}, a part of the model itself")
        text = print_program(compiled.program)
        inputs, binaries = (compiled.aligned, compiled.lazy), compiled.binaries()
        return cls(text, compiled.constants, *inputs, options, binaries, taken=compiled.taken)

    def load(self) -> Runner:
        """What runs the graph. Kernels of which there is no binary come from the store, or are
        compiled."""
        program = parse_program(self.text)
        if "aten_lowering." in self.text:
            import_module("aten_lowering.passes.order")  # which describes its operators
        kernels = Kernels(self.options)
        defines = {n: d for p in analysis.programs(program) for n, d in analysis.kernels(p).items()}
        for binary in self.binaries:
            kernels.load(defines[binary.name]).provide(binary)
        outside = Outside(self.constants)
        with kernels.compiling():
            _, run, _ = build_program(program, kernels, outside, self.options, Record())
        inputs = self.aligned, self.lazy
        return finished_run(run, program, *inputs, self.options, taken=self.taken)[0]
