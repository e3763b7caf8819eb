"""The seam for backends that live elsewhere."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from fx_emit.emitter import emit
from wrapper_ir import DefineKernel, Program


class FxBackend:
    """Subclass it, override `compile_graph`: it gets the whole program, kernels included, as one
    graph, and gives the callable that runs instead."""

    launch = "hop"

    def load_kernel(self, kernel: DefineKernel) -> Any:
        """The `@triton.jit` function ("hop") or the launcher ("direct") of a kernel."""
        raise TypeError(f"{type(self).__name__} must define load_kernel to run {kernel.name}")

    def compile_graph(self, gm: GraphModule) -> Callable[..., Any]:
        """What runs in place of the graph; `gm` itself unless overridden."""
        return gm

    def compile(
        self, program: Program, constants: Mapping[str, torch.Tensor] | None = None
    ) -> Callable[..., Any]:
        """What runs in place of the program; `constants` are its tensors by key."""
        gm = emit(program, self.launch, load_kernel=self.load_kernel, constants=constants)
        return self.compile_graph(gm)
