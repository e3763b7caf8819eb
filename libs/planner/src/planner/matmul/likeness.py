"""What tells matmuls apart but for names: layers that are alike are decided once."""

from collections.abc import Hashable, Set

from loop_ir import Matmul
from loop_ir.ir import node_form


def likeness(node: Matmul, aligned: Set[str]) -> Hashable:
    """Equal for matmuls that differ in the names of their buffers and kernels alone, and of whose
    buffers the same are in `aligned`: what may run one of them may run the others, in the same
    time."""
    found = node_form(node)
    return found.structure, tuple(name in aligned for name in found.names)
