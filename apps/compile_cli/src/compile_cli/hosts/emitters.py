"""The host program as something to call: one entry an emitter, chosen by `Options.emit`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.fx import GraphModule

import fx_emit
import triton_rt
from compile_cli.hosts.outside import Outside
from planner import Kernels, kernel_source
from wrapper_ir import DefineKernel, Program
from wrapper_ir.analysis import uses_cuda

Host = tuple[Any, Callable[..., Any]]


def emit_fx(program: Program, kernels: Kernels, outside: Outside, check_inputs: bool) -> Host:
    """A GraphModule that launches kernels through triton_rt."""
    graph = fx_emit.emit(
        program,
        launch="direct",
        load_kernel=kernels.launcher,
        describe=None,
        constants=outside.constants,
        operators=outside.operators,
        check_inputs=check_inputs and triton_rt.same_tensors,
        values=False,
    )
    return graph, fx_emit.Run(graph)


def emit_for(
    backend: fx_emit.FxBackend,
    program: Program,
    kernels: Kernels,
    outside: Outside,
    check_inputs: bool,
) -> Host:
    """A GraphModule, and what a backend makes of it."""
    on_cpu = not uses_cuda(program)

    def load(define: DefineKernel) -> Any:
        if type(backend).load_kernel is not fx_emit.FxBackend.load_kernel:
            return backend.load_kernel(define)
        if backend.launch == "direct":
            return kernels.launcher(define)
        return triton_rt.load_jit(kernel_source(define), interpret=on_cpu)

    graph = fx_emit.emit(
        program,
        backend.launch,
        load_kernel=load,
        constants=outside.constants,
        operators=outside.operators,
        check_inputs=check_inputs,
    )
    from compile_cli.torch_compat import unset_fake_temporarily  # which loading does without

    with unset_fake_temporarily():  # AOTAutograd compiles inside of its fake mode
        return graph, backend.compile_graph(graph)


class _Hop(fx_emit.FxBackend):
    """Kernels are launched through `triton_kernel_wrapper_mutation`."""

    def compile_graph(self, gm: GraphModule) -> Callable[..., Any]:
        return fx_emit.Run(gm)


def emit_cpp(program: Program, kernels: Kernels, outside: Outside, check_inputs: bool) -> Host:
    """A C++ library."""
    from compile_cli.hosts import cpp  # what most programs do without

    return cpp.emit_cpp(program, kernels, outside, check_inputs)


# `check_inputs`: the caller has not compared the inputs with the program's.
EMITTERS: dict[str, Callable[[Program, Kernels, Outside, bool], Host]] = {
    "fx": emit_fx,
    "hop": partial(emit_for, _Hop()),
    "cpp": emit_cpp,
}
