"""What tells matmuls apart but for names: layers that are alike are decided once."""

from collections.abc import Hashable, Set
from dataclasses import fields
from typing import Any

from loop_ir import Kernel, Matmul, TensorRef


def likeness(node: Matmul, aligned: Set[str]) -> Hashable:
    """Equal for matmuls that differ in the names of their buffers and kernels alone, and of whose
    buffers the same are in `aligned`: what may run one of them may run the others, in the same
    time."""
    names: dict[str, tuple[int, bool]] = {}

    def name(buffer: str) -> tuple[int, bool]:
        return names.setdefault(buffer, (len(names), buffer in aligned))

    def part(value: Any) -> Hashable:
        if isinstance(value, TensorRef):
            return name(value.buffer), value.type, value.conj, value.neg
        if isinstance(value, Kernel):
            buffers = tuple((name(b.name), b.type, b.written) for b in value.buffers)
            body = tuple((p.axes, tuple(map(statement, p.body))) for p in value.phases)
            return buffers, value.symbols, value.axes, body
        if isinstance(value, tuple):
            return tuple(map(part, value))
        # 1, 1.0 and True are equal, as are the zeros
        return repr(value) if isinstance(value, int | float | complex) else value

    def statement(stmt: Any) -> Hashable:
        given = ((f.name, getattr(stmt, f.name)) for f in fields(stmt))
        return type(stmt), *(name(v) if f == "buffer" else part(v) for f, v in given)

    call, scales = node.extern, node.scales
    return (
        name(node.out),
        node.type,
        *((part(o.ref), part(o.prologue)) for o in node.operands),
        part(node.bias),
        part(node.groups),
        part(node.epilogue),
        part((node.alpha, node.beta)),
        None if scales is None else part((scales.a, scales.b, scales.fast, scales.blocks)),
        (call.target, part(call.args), part(call.kwargs)),
    )
