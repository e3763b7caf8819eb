"""One config of a user's kernel: what is compiled, and the arguments of the launch.

Parameters are typed as Triton types the arguments, integers by value: a size that is not proven to
fit in i32 is checked before the launch. An integer 1, None and the `tl.constexpr` parameters are
constants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy

import triton_rt
from aten_lowering import KernelObject
from loop_ir import GraphArg, TensorRef, UserKernel
from planner.kernels import kernel_source
from planner.plan import Blocks, LaunchArg
from planner.user_kernels.sources import Unsaid, definition
from symexpr import Ranges, bounds, evaluate
from wrapper_ir import Assert, DefineKernel, KernelParam

# How parameters may be annotated (`n: tl.int64`, as Triton spells it in a signature).
_ANNOTATED = {name: name for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")}
_ANNOTATED |= {"i1": "bool", "u1": "bool", "fp32": "f32", "fp64": "f64"}
# Options of a config, as Triton names them and as a `DefineKernel` does.
_OPTIONS = {
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "num_ctas": "num_ctas",
    "maxnreg": "max_registers",
}


@dataclass(frozen=True)
class Call:
    """One config of a launch: the kernel's definition and its arguments."""

    define: DefineKernel
    args: tuple[LaunchArg, ...]
    checks: tuple[Assert, ...]

    @property
    def source(self) -> triton_rt.KernelSource:
        """What is compiled."""
        return kernel_source(self.define)


def call_of(
    node: UserKernel, kernel: KernelObject, index: int, hints: Mapping[str, int], ranges: Ranges
) -> Call:
    """A launch with one of the kernel's configs. Raises `Unsaid` where no program can say it."""
    config = kernel.configs[index] if kernel.configs else None
    for option in ("ir_override", "pre_hook"):
        if config is not None and getattr(config, option, None) is not None:
            raise Unsaid(f"its config has {option}={getattr(config, option)!r}")
    blocks = dict(node.descriptors)
    values: dict[str, GraphArg] = dict(node.args) | dict(node.constants)
    tuned: dict[str, Any] = dict(config.kwargs) if config is not None else {}
    names = set(kernel.function.arg_names)
    extra = [n for n in (*values, *tuned) if n not in names]
    if extra:
        raise Unsaid(f"{extra[0]} is a launch option that this host program does not have")
    params: list[KernelParam] = []
    args: list[Any] = []
    constants: dict[str, Any] = {}
    kinds = _Kinds(kernel.name, hints, ranges)
    written = {name for name, _ in node.outs} | set(node.mutates)
    for param in kernel.function.params:
        value = tuned.get(param.name, values.get(param.name))
        if param.name not in tuned and param.name not in values:
            if not param.has_default:
                raise Unsaid(f"its parameter {param.name} has no value")
            continue
        arg: Any = value
        if param.name in blocks and isinstance(value, TensorRef):
            arg = _blocks(param.name, value, blocks[param.name])
            kind: str | None = _descriptor_kind(arg)
        elif param.is_constexpr:
            kind = None
        else:
            kind = kinds.of(param, value)
        if kind is None:
            constants[param.name] = value
            continue
        mutated = isinstance(value, TensorRef) and value.buffer in written
        params.append(KernelParam(param.name, kind, mutated))
        args.append(arg)
    asked = {ours: getattr(config, theirs, None) for theirs, ours in _OPTIONS.items()}
    options = {k: v for k, v in asked.items() if v is not None}
    name = node.name if len(node.grids) == 1 else f"{node.name}_config{index}"
    define = definition(name, kernel, tuple(params), constants, options)
    return Call(define, tuple(args), tuple(kinds.checks))


@dataclass
class _Kinds:
    """How parameters are typed, and the checks at run time that this asks for."""

    kernel: str
    hints: Mapping[str, int]
    ranges: Ranges
    checks: list[Assert] = field(default_factory=list)

    def of(self, param: Any, value: GraphArg) -> str | None:
        """The parameter's kind as Triton types this argument; None if it makes it a constant."""
        if isinstance(value, TensorRef):
            return f"*{value.type.dtype.value}"
        if value is None:
            return None
        annotated = _ANNOTATED.get(getattr(param, "annotation_type", None) or "")
        if isinstance(value, bool):
            return annotated or "bool"
        if isinstance(value, float):
            return annotated or "f32"
        if isinstance(value, int):
            if value == 1 and not param.do_not_specialize and annotated is None:
                return None
            if annotated is not None:
                return annotated
            small = -(2**31) <= value < 2**31
            return "i32" if small else "i64" if value < 2**63 else "u64"
        if isinstance(value, sympy.Expr):
            return annotated or self._size(param.name, value)
        raise Unsaid(f"its argument {param.name} is a {type(value).__name__}")

    def _size(self, name: str, value: sympy.Expr) -> str:
        """i32 where the hint fits, with a check at run time unless it is proven to fit."""
        limit = 2**31
        low, high = bounds(value, self.ranges)
        if low is not None and high is not None and -limit <= low and high < limit:
            return "i32"
        if not -limit <= int(evaluate(value, self.hints)) < limit:
            return "i64"
        message = f"{self.kernel} was compiled for {name} as a 32-bit integer"
        self.checks.append(Assert(sympy.And(value < limit, value >= -limit), message))
        return "i32"


def _blocks(name: str, value: TensorRef, block: tuple[sympy.Expr, ...]) -> Blocks:
    if not all(n.is_Integer for n in block):
        raise Unsaid(f"the block of its descriptor {name} is a size of the model")
    return Blocks(value, tuple(map(int, block)))


def _descriptor_kind(value: Blocks) -> str:
    block = ",".join(map(str, value.block))
    return f"tensordesc<{value.tensor.type.dtype.value}[{block}]>"
