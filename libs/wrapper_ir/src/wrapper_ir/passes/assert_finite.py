"""Compares every tensor that a program takes or makes with NaN and infinity, as it comes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tensor_ir import Ref, TensorType
from wrapper_ir import ops as ir
from wrapper_ir.analysis import accesses, alias_source, definitions, kernels, types_of, walk


@dataclass(frozen=True)
class AssertFinite:
    """`launch k ... (x, b0)` -> the same, then `extern <operator>(b0, "b0", "kernel k", comment)`:
    an operator of the host that stops unless all elements of its first argument are finite. The
    others are the name of the tensor, who wrote it (`input`, `constant`, `kernel k`, `operator f`),
    and where that comes from.

    Inputs and constants are checked before all else, and what a launch or an operator writes right
    after it: at the first check that fails, what its kernel read was finite. So that this holds of
    memory that several kernels fill, new memory is zeroed first, and so are results of operators
    whose names begin with one of `unfilled`. Only elements that may be NaN: floats, complex."""

    operator: str
    unfilled: tuple[str, ...] = ()
    name: ClassVar[str] = "assert_finite"

    def run(self, program: ir.Program) -> ir.Program:
        """The program with the checks in it."""
        described = {op.out: op.src for op in walk(program.ops) if isinstance(op, ir.Describe)}
        work = _Checks(self, types_of(program), described, kernels(program))
        head = next(
            (i for i, op in enumerate(program.ops) if not isinstance(op, _HEAD)), len(program.ops)
        )
        inputs = [check for p in program.params for check in work.checks([p.name], "input", "")]
        ops = (*program.ops[:head], *inputs, *work.block(program.ops[head:], ""))
        return replace(program, ops=ops)


_HEAD = (ir.SymbolDef, ir.DefineKernel, ir.Assert, ir.Comment)


@dataclass(frozen=True)
class _Checks:
    options: AssertFinite
    types: dict[str, TensorType]
    described: dict[str, str]
    kernels: dict[str, ir.DefineKernel]

    def block(self, ops: Sequence[ir.Op], comment: str) -> Iterator[ir.Op]:
        """comment: of the `if` around it."""
        for op in ops:
            if isinstance(op, ir.If):
                about = op.comment or comment
                then, orelse = self.block(op.then, about), self.block(op.orelse, about)
                op = replace(op, then=tuple(then), orelse=tuple(orelse))
            yield op
            yield from self.after(op, comment)

    def after(self, op: ir.Op, comment: str) -> Iterator[ir.Op]:
        made = [name for name, _ in definitions(op)] if alias_source(op) is None else []
        match op:
            case ir.Allocate() | ir.Reuse():
                yield from self.zeroed(made)
            case ir.ExternCall() if op.target.startswith(self.options.unfilled):
                yield from self.zeroed(made)
            case ir.Constant():
                yield from self.checks(made, "constant", op.comment)
            case ir.ExternCall():
                who = f"operator {op.target}"
                yield from self.checks([*made, *op.mutates], who, op.comment or comment)
            case ir.Launch():
                about = op.comment or comment or self.kernels[op.kernel].comment
                written = accesses(op, self.kernels)[1]
                yield from self.checks(written, f"kernel {op.kernel}", about)

    def checks(self, names: Sequence[str], who: str, comment: str) -> Iterator[ir.ExternCall]:
        for name in dict.fromkeys(self.described.get(n, n) for n in names):
            if self.may_differ(name):
                yield ir.ExternCall(self.options.operator, (Ref(name), name, who, comment))

    def zeroed(self, names: Sequence[str]) -> Iterator[ir.ExternCall]:
        for name in filter(self.may_differ, names):
            yield ir.ExternCall("aten.zero_.default", (Ref(name),), mutates=(name,))

    def may_differ(self, name: str) -> bool:
        type = self.types.get(name)  # None: an integer parameter
        return type is not None and (type.dtype.is_float or type.dtype.is_complex)
