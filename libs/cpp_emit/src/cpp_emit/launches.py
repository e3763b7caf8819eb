"""Lines of a kernel launch: a call of the CUDA driver, or of Python for tensors on the CPU."""

from typing import Any

import sympy
from sympy.logic.boolalg import Boolean

from cpp_emit.errors import UnsupportedArgument
from cpp_emit.extern import float_literal, is_int, is_number, string_literal
from cpp_emit.sites import launch_split
from cpp_emit.writer import Writer
from wrapper_ir import DefineKernel, Device, KernelParam, Launch, Ref, TensorType
from wrapper_ir.analysis import descriptor_kind

_WIDTHS = (8, 16, 32, 64)
_INTS = {f"i{n}": f"int{n}_t" for n in _WIDTHS} | {f"u{n}": f"uint{n}_t" for n in _WIDTHS}
_INTS["bool"] = "int8_t"
_FLOATS = {"f32": "float", "f64": "double"}


def is_on_gpu(op: Launch, types: dict[str, TensorType]) -> bool:
    """Whether the first tensor argument lives there, which is where the kernel runs."""
    args: tuple[Any, ...] = op.args
    for value in args:
        if isinstance(value, Ref) and value.name in types:
            return types[value.name].device.kind != "cpu"
    raise UnsupportedArgument(
        f"launch {op.kernel}: no tensor argument, so nothing says on which device it runs"
    )


def cuda_index(device: Device) -> int:
    """-1 is the current device."""
    return -1 if device.index is None else device.index


def write_launch(
    w: Writer, op: Launch, kernel: DefineKernel, number: int, site: int, on_gpu: bool
) -> None:
    """`number`: of the kernel; `site`: of the launch."""
    if len(kernel.params) != len(op.args):
        raise UnsupportedArgument(
            f"launch {op.kernel}: {len(kernel.params)} parameters, {len(op.args)} arguments"
        )
    where = string_literal(f"launch {op.kernel}")
    if kernel.language == "cpp":
        kinds = ", ".join("void*" if p.kind[0] == "*" else "int64_t" for p in kernel.params)
        called = f"reinterpret_cast<void (*)({kinds})>(loops_at({number}, {where}))"
        values: tuple[Any, ...] = op.args
        pointers = (f"{w.tensor(v.name)}.data()" if isinstance(v, Ref) else None for v in values)
        args = [p or w.int64(v) for p, v in zip(pointers, values, strict=True)]
        w.call(called, args, op.comment)
        return
    if not on_gpu:
        parts = launch_split(op)
        tensors = w.pointers([w.bare(name) for name in parts.tensors])
        sizes = [g for g in op.grid if not isinstance(g, sympy.Integer)]
        guard = " && ".join(f"({w.integer(g)}) != 0" for g in sizes)
        if 0 in op.grid:
            guard = "false"
        w.call(
            f"{f'if ({guard}) ' if guard else ''}call_python",
            ["self", str(site), where, "0", tensors, w.int64s(parts.ints)],
            op.comment,
        )
        return
    args = [_argument(w, op, p, a) for p, a in zip(kernel.params, op.args, strict=True)]
    w.call("launch", ["self", "stream", str(number), w.ints(op.grid), where, *args], op.comment)


def _argument(w: Writer, op: Launch, param: KernelParam, value: Any) -> str:
    """One argument, of exactly the C type that the kernel reads."""
    where = f"launch {op.kernel}: argument {param.name}: {param.kind}"
    if param.kind.startswith("*"):
        if not isinstance(value, Ref):
            raise UnsupportedArgument(f"{where} takes a tensor, got {value!r}")
        return f"pointer({w.tensor(value.name)})"
    if descriptor_kind(param.kind) is not None:
        if not isinstance(value, Ref) or w.bare(value.name) == value.name:
            raise UnsupportedArgument(f"{where} takes a descriptor, got {value!r}")
        return f"{'writes' if param.mutated else 'reads'}({w.tensor(value.name)})"
    if param.kind in _INTS:
        if not is_int(value) and not isinstance(value, (bool, Boolean)):
            raise UnsupportedArgument(f"{where} takes an integer, got {value!r}")
        kind, text = _INTS[param.kind], w.integer(value)
        if kind == "int64_t":
            return f"int64_t({text})"
        return f"narrow<{kind}>({text}, {string_literal(f'{op.kernel}.{param.name}')})"
    if param.kind in _FLOATS:
        if not is_number(value):
            raise UnsupportedArgument(f"{where} takes a number, got {value!r}")
        known = isinstance(value, (int, float, sympy.Number))
        return (
            f"{_FLOATS[param.kind]}({float_literal(float(value)) if known else w.integer(value)})"
        )
    raise UnsupportedArgument(f"{where}: kernels take pointers, descriptors, integers, f32 and f64")
