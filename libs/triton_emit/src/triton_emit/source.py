"""What the emitter hands back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

from loop_ir import Kernel, Origin, TensorType
from symexpr import one_line
from triton_emit.body import INDENT
from triton_emit.helpers import called, helper_text
from triton_emit.schedule import Schedule


@dataclass(frozen=True)
class Zeroed:
    """Memory of this type, or more of it, which a kernel finds all zero and leaves all zero; `name`
    is the parameter, the last but for constants. Schedules of a kernel may want different sizes."""

    name: str
    type: TensorType = field(compare=False)


@dataclass(frozen=True)
class TritonKernel:
    """A Triton kernel as text, and how to launch it.

    source: a Python module; its last function is `name`, decorated with `@triton.jit`.
    params: (name, kind, mutated) of each run-time parameter; kind is `*f32` (a pointer to elements
    of a loop IR type) or `i32`, `i64`, `f64`.
    args: what to pass for each of them: the name of a buffer, an expression of sizes, a number.
    grid: numbers of programs as expressions of sizes.
    constants: `tl.constexpr` parameters, which follow the run-time ones.
    zeroed: memory to pass after `args`, if the kernel wants any."""

    name: str
    source: str
    params: tuple[tuple[str, str, bool], ...]
    args: tuple[str | sympy.Expr | float, ...]
    grid: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    constants: tuple[tuple[str, int], ...]
    num_warps: int
    num_stages: int
    schedule: Schedule
    zeroed: Zeroed | None = None


@dataclass(frozen=True)
class DeviceFunction:
    """A kernel as a function that a template calls.

    text: a Python module that defines `name` with `@triton.jit`.
    operands: (name, kind) of what goes into the tuple `operands`, in order: buffers (`*f32`),
    then sizes (`i32`, `i64`).
    args: the same as the caller knows them: the name of a buffer, or a size symbol."""

    name: str
    text: str
    operands: tuple[tuple[str, str], ...]
    args: tuple[str | sympy.Expr, ...]


@dataclass(frozen=True)
class PrologueSource(DeviceFunction):
    """What makes an operand of a matmul from the tensor that is loaded for it, as a device function
    `name(tile, r_outer, rk, first_k, mask, operands)`.

    `tile`: the loaded elements, [BM, BK] of `a` or [BK, BN] of `b`; `r_outer`: their rows of `a` or
    columns of `b`, `rk`: their places along K from `first_k` on, a multiple of BK, both shaped to
    broadcast; `mask`: which are inside. It returns the operand's elements, of the type `dtype`.
    Names of operands start with "a_" or "b_". bits: of the index arithmetic. batched: the kernel
    runs over (batch, row, column), and the tuple `operands` starts with the batch number."""

    dtype: str
    bits: int
    batched: bool = False


@dataclass(frozen=True)
class EpilogueSource(DeviceFunction):
    """A matmul's epilogue as a device function `name(acc, rm, rn, mask, operands)`.

    `acc`: f32 [BM, BN]; `rm` [BM, 1] and `rn` [1, BN]: row and column numbers; `mask` [BM, BN]:
    which are inside. It returns the values to be stored, of the element type `out_dtype`.
    out: the buffer that the template stores to; out_stride: its strides along (m, n).
    batched: the kernel runs over (batch, m, n), `out_stride` is along these, and the tuple
    `operands` starts with the batch number. bits: of the index arithmetic; with 64, `rm` and `rn`
    must be 64-bit integers."""

    out: str
    out_dtype: str
    out_stride: tuple[sympy.Expr, ...]
    batched: bool = False
    bits: int = 32


@dataclass(frozen=True)
class ScoreSource(DeviceFunction):
    """What is computed of attention scores as a device function
    `name(<tiles>, batch, head, rm, rn, mask, operands)`.

    The tiles: f32, [queries, keys], or [keys, queries] if it was emitted so; `batch`, `head`:
    numbers; `rm`, `rn`: the queries and keys, shaped to broadcast; `mask`: which are inside. It
    returns f32, of the shape of a tile."""


def module(functions: Sequence[tuple[str, Sequence[str]]], kernel: Kernel, own: str = "") -> str:
    """A Python module that defines `@triton.jit` functions, signature and lines of each, with the
    helpers that they call, those in `own`, and the origins of `kernel` above the last."""
    bodies = ["\n".join(INDENT + line for line in lines) for _, lines in functions]
    texts = [
        f"{_DEFINES}{signature}:\n{body}"
        for (signature, _), body in zip(functions, bodies, strict=True)
    ]
    blocks = [
        "import triton\nimport triton.language as tl",
        helper_text(called("\n".join(bodies))),
        own,
        *texts[:-1],
        f"{_head(kernel)}{texts[-1]}\n",
    ]
    return _BETWEEN.join(b for b in blocks if b)


_DEFINES, _BETWEEN = "@triton.jit\ndef ", "\n\n\n"


def _head(kernel: Kernel) -> str:
    return "".join(f"# {line}\n" for line in _origin_lines(kernel.origins))


def as_of(made: TritonKernel, kernel: Kernel) -> TritonKernel:
    """What was emitted of a kernel that is alike, with the name and the origins of this one."""
    if made.name == kernel.name:
        return made
    before, _, rest = made.source.rpartition(f"{_DEFINES}{made.name}(")
    text = f"{before[: before.rindex(_BETWEEN)]}{_BETWEEN}{_head(kernel)}"
    return replace(made, name=kernel.name, source=f"{text}{_DEFINES}{kernel.name}({rest}")


def with_buffers(made: TritonKernel, names: Mapping[str, str]) -> TritonKernel:
    """Launched with other buffers, by the names of those that it was emitted for."""
    args = tuple(names.get(arg, arg) if isinstance(arg, str) else arg for arg in made.args)
    return replace(made, args=args)


def _origin_lines(origins: tuple[Origin, ...]) -> list[str]:
    """`aten.add, aten.native_layer_norm   encoder.py:41`: comments, a source line each."""
    by_line: dict[str, list[str]] = {}
    for origin in origins:
        ops = by_line.setdefault(origin.source, [])
        if origin.op not in ops:
            ops.append(origin.op)
    return [one_line(f"{', '.join(ops)}   {line}".rstrip()) for line, ops in by_line.items()]
