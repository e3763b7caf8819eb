"""The one place that knows torch's higher-order operator for Triton kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from fx_emit.errors import GluonDescriptor
from fx_emit.torch_compat import (
    create_tma_stable_metadata,
    kernel_side_table,
    triton_kernel_wrapper_mutation,
)
from wrapper_ir import DefineKernel

LAUNCH = triton_kernel_wrapper_mutation


def register(kernel: DefineKernel, function: Any) -> tuple[int, int]:
    """Puts a `@triton.jit` function and its constants into the tables that a launch refers to:
    `kernel_idx` and `constant_args_idx`. The tables live as long as the process. Raises
    GluonDescriptor: the process would die as Triton compiles such a kernel."""
    described = tuple(p.name for p in kernel.params if p.kind.startswith("tensordesc"))
    if described and getattr(function, "is_gluon", bool)():
        raise GluonDescriptor(kernel.name, described)
    options: dict[str, Any] = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    options["enable_fp_fusion"] = kernel.contract
    if kernel.num_ctas != 1:
        options["num_ctas"] = kernel.num_ctas
    if kernel.max_registers is not None:
        options["maxnreg"] = kernel.max_registers
    if kernel.overlap:
        options["launch_pdl"] = True
    constants = dict(kernel.constants) | options
    return kernel_side_table.add_kernel(function), kernel_side_table.add_constant_args(constants)


def descriptor(block: tuple[int, ...]) -> tuple[str, Any]:
    """What `tma_descriptor_metadata` says of a `TensorDescriptor.from_tensor(tensor, block)`."""
    return create_tma_stable_metadata(list(block))


def is_impure(node: Node) -> bool:
    """Whether dead code elimination must keep a node: what torch keeps, and kernel launches, which
    torch would remove, since their operator returns None and is not known to have effects."""
    return node.is_impure() or node.target is LAUNCH


class ProgramGraph(torch.fx.Graph):
    """A graph whose launches survive the elimination of dead code, and so do those of a copy."""

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Removes what nobody uses, as torch does, but keeps launches."""
        return super().eliminate_dead_code(is_impure_node or is_impure)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> ProgramGraph:
        made = super().__deepcopy__(memo)
        made.__class__ = type(self)
        return made  # type: ignore[return-value]  # it is, since the line before
