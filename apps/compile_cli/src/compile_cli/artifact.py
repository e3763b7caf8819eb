"""A compiled graph as data, and in torch's cache of compiled graphs.

A second process that compiles a graph which a first one compiled, with the same options, sources,
versions and GPU, captures it with Dynamo, and finds the rest in AOTAutograd's cache: nothing is
traced, lowered, fused, measured or planned again. The kernels' binaries are in the store on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from aten_lowering import Lowered
from compile_cli.options import Options
from compile_cli.pipeline import build_program, finished_run
from compile_cli.record import Record
from compile_cli.result import CompiledGraph, LazyInput, Runner
from compile_cli.torch_compat import (
    BypassAOTAutogradCache,
    OutputCode,
    compiler_config,
    functorch_config,
)
from loop_ir import Graph
from planner import Kernels, source_digest
from wrapper_ir import ExternCall, parse_program, print_program
from wrapper_ir.analysis import walk

PACKAGES = (
    "aten_lowering",
    "compile_cli",
    "cpp_emit",
    "cuda_graphs",
    "fx_emit",
    "gemm_templates",
    "loop_ir",
    "multikernel",
    "planner",
    "symexpr",
    "tensor_ir",
    "triton_emit",
    "triton_rt",
    "tuning",
    "wrapper_ir",
)


class NoArtifact(BypassAOTAutogradCache):  # type: ignore[misc]  # torch has no types there
    """A compiled graph is not to be kept; torch says so where it logs its caches."""


@dataclass(frozen=True)
class Artifact:
    """The host program of a compiled graph as text, and what it does not hold.

    constants: tensors, by the names that the program has for them. aligned, lazy: what is done to
    inputs first (`CompiledGraph`). options: those that it was compiled with.
    """

    text: str
    constants: Mapping[str, Tensor]
    aligned: tuple[int, ...]
    lazy: tuple[LazyInput, ...]
    options: Options

    @classmethod
    def of(cls, compiled: CompiledGraph, options: Options) -> Artifact:
        """Raises `NoArtifact` where a later process would lack something, or should measure what
        this one had no time for."""
        for op in walk(compiled.program.ops):
            if isinstance(op, ExternCall) and op.target.startswith("eager."):
                raise NoArtifact(f"torch runs {op.target}, a part of the model itself")
        for (name, _), chosen in compiled.schedules.items():
            if not chosen.final:
                raise NoArtifact(f"the schedule of {name} is a guess: {chosen.why}")
        text = print_program(compiled.program)
        return cls(text, compiled.constants, compiled.aligned, compiled.lazy, options)

    def load(self) -> Runner:
        """What runs the graph: its kernels come from the store, or are compiled."""
        program = parse_program(self.text)
        kernels = Kernels(self.options)
        lowered = Lowered(Graph(program.name, (), (), ()), dict(self.constants), ())
        with kernels.compiling():
            _, run = build_program(program, kernels, lowered, self.options, Record())
        return finished_run(run, program, self.aligned, self.lazy, self.options)[0]


class GraphCode(OutputCode):  # type: ignore[misc]  # torch has no types there
    """A compiled graph as AOTAutograd calls it, and keeps it in its cache."""

    def __init__(self, run: Runner | None, artifact: Callable[[], Artifact]) -> None:
        self._run = run
        self._artifact = artifact
        # AOTAutograd's mark, which wrappers copy: the list of arguments is emptied by the call.
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._run is not None, "post_compile comes first"
        args = tuple(inputs)
        if isinstance(inputs, list):
            inputs.clear()
        return self._run(*args)

    def __getstate__(self) -> dict[str, Any]:
        return {"artifact": self._artifact()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(None, lambda: state["artifact"])  # type: ignore[misc]  # as if made anew

    def prepare_for_serialization(self) -> None:
        """Of a copy, which holds nothing but the artifact."""

    def post_compile(self, *_: Any) -> None:
        """What was read from the cache is loaded."""
        if self._run is None:
            self._run = self._artifact().load()

    @property
    def _fx_graph_cache_key(self) -> str:
        """There is none. A backward pass that is compiled later, when this backend has returned, is
        not kept: torch asks for this attribute to find out."""
        raise AttributeError("_fx_graph_cache_key")


@cache
def _makers() -> str:
    """What makes an artifact: our sources, and the versions of what they stand on."""
    versions = (f"{name} {version(name)}" for name in ("torch", "triton", "sympy"))
    return ", ".join((*versions, source_digest(*PACKAGES)))


def cached(options: Options) -> ExitStack:
    """Inside, AOTAutograd's cache (where the user has it on) looks graphs up, and keeps them whole,
    under what this backend makes them with besides what torch's own key has."""
    cudnn = torch.backends.cudnn
    settings = (
        *(getattr(cudnn, part).fp32_precision for part in ("conv", "rnn")),
        cudnn.deterministic,
    )
    stack = ExitStack()
    tag = f"{compiler_config.cache_key_tag} {options} {settings} {_makers()}"
    stack.enter_context(compiler_config.patch(cache_key_tag=tag))
    stack.enter_context(functorch_config.patch(bundled_autograd_cache=True))
    return stack
