"""The seam for backends that live elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import GraphModule

from fx_emit.emitter import emit
from fx_emit.torch_compat import lookup_backend
from wrapper_ir import DefineKernel, Program


class FxBackend:
    """Subclass it, override `compile_graph`: it gets the whole program, kernels included, as one
    graph, and gives the callable that runs instead. `torch.compile` reaches it as
    `backend=Mine.as_torch_backend()`, or by the option `fx_backend` of compile_cli.

    launch: kernels are calls of torch's higher-order operator ("hop"), or of launchers
    ("direct")."""

    launch = "hop"

    def load_kernel(self, kernel: DefineKernel) -> Any:
        """The `@triton.jit` function ("hop") or the launcher ("direct") of a kernel. compile_cli
        loads those that a subclass does not."""
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

    @classmethod
    def as_torch_backend(cls, **options: Any) -> Callable[..., Any]:
        """A backend for `torch.compile`: compile_cli, which hands each host program to this class.
        options: of compile_cli. Raises torch's `InvalidBackend` where that is not installed."""
        settings = {**options, "fx_backend": cls}
        return functools.partial(lookup_backend("compile_cli"), options=settings)
