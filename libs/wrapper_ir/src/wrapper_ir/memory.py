"""How much memory a program holds while it runs."""

from collections.abc import Mapping, Sequence

from tensor_ir import TYPICAL_SIZE
from wrapper_ir.analysis import Env, alias_source, bound_symbols, definitions
from wrapper_ir.ops import Allocate, ExternCall, Free, If, Op, Program, Reuse


def hint_env(program: Program, hints: Mapping[str, int] | None = None) -> dict[str, int]:
    """A value for each symbol: from `hints`, else its typical one."""
    typical = {s.name: s.typical for s in program.symbols} | dict(hints or {})
    return {name: typical.get(name, TYPICAL_SIZE) for name in bound_symbols(program)}


def peak_bytes(program: Program, hints: Mapping[str, int] | None = None) -> int:
    """The most bytes of program-owned storages that are alive at one time, for these sizes.

    A storage lives from the op that makes it to its `free`, or to the end of its block (of the
    program) if there is none; parameters and constants do not count, nor does what an operator
    uses inside. A plain sum: the rounding and the caching of a real allocator are not in it."""
    return _peak(program.ops, hint_env(program, hints))


def _peak(ops: Sequence[Op], env: Env) -> int:
    live: dict[str, int] = {}
    total = peak = 0
    for op in ops:
        if isinstance(op, If):
            peak = max(peak, total + _peak(op.then, env), total + _peak(op.orelse, env))
        elif isinstance(op, Free) and op.name in live:
            total -= live.pop(op.name)
        elif isinstance(op, Reuse) and op.src in live:
            live[op.out] = live.pop(op.src)
        elif isinstance(op, Allocate | ExternCall) and alias_source(op) is None:
            for name, type in definitions(op):
                live[name] = type.storage_bytes(env)
                total += live[name]
            peak = max(peak, total)
    return peak
