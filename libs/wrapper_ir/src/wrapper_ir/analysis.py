"""Facts about ops that the verifier, the passes and the emitters share."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice, product, zip_longest

import sympy

from symexpr import DivisionByZero, LShift, PowByNatural, RShift, evaluate, symbol
from symexpr import free_symbols as symbols_of
from tensor_ir import Arg, Device, DType, Ref, TensorType
from wrapper_ir import ops as ir

Env = Mapping[str, int]
MAX_SAMPLES = 64


_DESCRIPTOR = re.compile(r"tensordesc<(\w+)\[(\d{1,9}(?:, ?\d{1,9})*)\]>", re.ASCII)
_ELEMENTS = frozenset(d.value for d in DType)


@lru_cache(1 << 10)
def descriptor_kind(kind: str) -> tuple[str, tuple[int, ...]] | None:
    """`tensordesc<f32[64,32]>` -> `("f32", (64, 32))`: element type and block; None for the kind
    of another parameter."""
    found = _DESCRIPTOR.fullmatch(kind)
    if found is None or found[1] not in _ELEMENTS:
        return None
    return found[1], tuple(int(n) for n in found[2].split(","))


def walk(ops: Sequence[ir.Op]) -> Iterator[ir.Op]:
    """Every op, those inside blocks after their `If`."""
    for op in ops:
        yield op
        if isinstance(op, ir.If):
            yield from walk(op.then)
            yield from walk(op.orelse)


def programs(program: ir.Program) -> Iterator[ir.Program]:
    """The program and its subgraphs, and theirs."""
    yield program
    for op in program.ops:
        if isinstance(op, ir.DefineSubgraph):
            yield from programs(op.program)


def kernels(program: ir.Program) -> dict[str, ir.DefineKernel]:
    """Defined kernels by name, in order; those of subgraphs, too."""
    every = (op for p in programs(program) for op in walk(p.ops))
    return {op.name: op for op in every if isinstance(op, ir.DefineKernel)}


SUBGRAPH = "subgraph."
"""What the targets of calls of subgraphs begin with."""


def subgraph_of(op: ir.Op) -> str | None:
    """The subgraph that an op calls, if any."""
    if isinstance(op, ir.ExternCall) and op.target.startswith(SUBGRAPH):
        return op.target.removeprefix(SUBGRAPH)
    return None


def first_device(program: ir.Program) -> Device | None:
    """The GPU that a program begins on: the first that one of its tensors is on."""
    devices = (type.device for type in types_of(program).values())
    return next((device for device in devices if device.kind == "cuda"), None)


def uses_cuda(program: ir.Program) -> bool:
    """Whether any tensor of the program, or of its subgraphs, is on a GPU."""
    return any(map(first_device, programs(program)))


def types_of(program: ir.Program) -> dict[str, TensorType]:
    """The types of all tensors of a program, in order, and of what descriptors describe."""
    found = {p.name: p.type for p in program.params if p.type is not None}
    for op in walk(program.ops):
        found.update(definitions(op))
        if isinstance(op, ir.Describe) and op.src in found:
            found[op.out] = found[op.src]
    return found


def arg_refs(args: Sequence[Arg]) -> Iterator[str]:
    """Names of the tensors in (nested) arguments, in order."""
    for arg in args:
        if isinstance(arg, Ref):
            yield arg.name
        elif isinstance(arg, tuple):
            yield from arg_refs(arg)


def arg_expressions(args: Sequence[Arg]) -> Iterator[sympy.Basic]:
    """The expressions in (nested) arguments, in order."""
    for arg in args:
        if isinstance(arg, sympy.Basic):
            yield arg
        elif isinstance(arg, tuple):
            yield from arg_expressions(arg)


def uses(op: ir.Op) -> tuple[str, ...]:
    """Names of the tensors and descriptors that an op reads, writes, views or frees; those in
    blocks too."""
    match op:
        case ir.SymbolDef():
            return (op.tensor,)
        case ir.Free() | ir.CommFree():
            return (op.name,)
        case ir.Reuse() | ir.View() | ir.Describe():
            return (op.src,)
        case ir.Launch():
            return tuple(arg_refs(op.args))
        case ir.ExternCall():
            alias = () if op.alias is None else (op.alias,)
            return (*arg_refs(op.args), *arg_refs([v for _, v in op.kwargs]), *op.mutates, *alias)
        case ir.CopyBack():
            return (op.src, op.dst)
        case ir.Return():
            return tuple(arg_refs(op.values))
        case ir.If():
            return tuple(name for inner in (*op.then, *op.orelse) for name in uses(inner))
    return ()


def accesses(
    op: ir.Op, kernels: Mapping[str, ir.DefineKernel]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the tensors and descriptors whose elements an op reads, and of those that it
    writes (and may read); not those in blocks. A view reads nothing, nor does a launch of no
    programs."""
    match op:
        case ir.Launch() if 0 in op.grid:
            return (), ()
        case ir.Launch() if op.kernel in kernels:
            pairs = list(zip(kernels[op.kernel].params, op.args, strict=False))
            read = arg_refs([a for p, a in pairs if not p.mutated])
            return tuple(read), tuple(arg_refs([a for p, a in pairs if p.mutated]))
        case ir.ExternCall():
            spared = {*op.mutates, op.alias}
            return tuple(n for n in uses(op) if n not in spared), op.mutates
        case ir.CopyBack():
            return (op.src,), (op.dst,)
        case ir.Return() | ir.SymbolDef(of="item"):
            return uses(op), ()
    return (), ()


def written(
    ops: Sequence[ir.Op], kernels: Mapping[str, ir.DefineKernel], roots: Mapping[str, str]
) -> set[str]:
    """The storages that ops write to, those in blocks too."""
    return {roots[name] for op in walk(ops) for name in accesses(op, kernels)[1]}


_NAMED = ir.Constant | ir.Allocate | ir.Workspace | ir.CommAllocate | ir.Reuse | ir.View


def definitions(op: ir.Op) -> tuple[tuple[str, TensorType], ...]:
    """Tensors that an op names (no descriptors), not those inside blocks."""
    if isinstance(op, ir.ExternCall):
        return tuple(out for out in op.outs if out is not None)
    return ((op.out, op.type),) if isinstance(op, _NAMED) else ()


def alias_source(op: ir.Op) -> str | None:
    """The tensor whose storage the definitions of an op share, if any."""
    if isinstance(op, ir.View):
        return op.src
    return op.alias if isinstance(op, ir.ExternCall) else None


def expressions(op: ir.Op) -> tuple[sympy.Basic, ...]:
    """Integer expressions and conditions that an op evaluates, not those inside blocks."""
    out: list[sympy.Basic] = []
    for _, type in definitions(op):
        out += type_expressions(type)
    match op:
        case ir.Assert() | ir.If():
            out.append(op.condition)
        case ir.Launch():
            out += [*op.grid, *arg_expressions(op.args)]
        case ir.ExternCall():
            out += [*arg_expressions(op.args), *arg_expressions([v for _, v in op.kwargs])]
        case ir.Return():
            out += arg_expressions(op.values)
    return tuple(out)


def type_expressions(type: TensorType) -> tuple[sympy.Expr, ...]:
    """The expressions of a layout: sizes, strides, offset."""
    return (*type.size, *type.stride, type.offset)


def free_symbols(expressions: Sequence[sympy.Basic]) -> set[str]:
    """Names of the symbols in the expressions."""
    return {s.name for e in expressions for s in symbols_of(e)}


def storages(ops: Sequence[ir.Op], roots: Mapping[str, str]) -> dict[str, str]:
    """Name of a tensor or descriptor -> name of the tensor whose definition made its storage.
    `roots` holds the names known before (parameters map to themselves). `Reuse` starts a storage
    of its own."""
    out = dict(roots)
    for op in walk(ops):
        source = alias_source(op)
        for name, _ in definitions(op):
            out[name] = name if source is None else out.get(source, source)
        if isinstance(op, ir.Describe):
            out[op.out] = out.get(op.src, op.src)
    return out


def param_roots(program: ir.Program) -> dict[str, str]:
    """Each tensor parameter as a storage of its own, for `storages`."""
    return {p.name: p.name for p in program.params if p.type is not None}


def evaluate_type(type: TensorType, env: Env) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Size, stride and offset as integers."""
    size = tuple(int(evaluate(e, env)) for e in type.size)
    stride = tuple(int(evaluate(e, env)) for e in type.stride)
    return size, stride, int(evaluate(type.offset, env))


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of storage that a layout spans: 0 where a size is 0."""
    if 0 in size:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def layout_bytes(layout: tuple[Sequence[int], Sequence[int], int], dtype: DType) -> int:
    """Bytes from the start of the storage to the end of a layout (size, stride and offset): 0 for
    an empty tensor."""
    size, stride, offset = layout
    span = extent(size, stride)
    return (offset + span) * dtype.itemsize if span else 0


def bound_symbols(program: ir.Program) -> dict[str, None]:
    """Symbols that the program binds or declares, in order."""
    names = [s.name for s in program.symbols]
    names += [p.name for p in program.params if p.type is None]
    names += [op.symbol for op in program.ops if isinstance(op, ir.SymbolDef)]
    names += [s for op in program.ops if isinstance(op, ir.ExternCall) for s in op.binds]
    return dict.fromkeys(names)


def sizes_of_params(program: ir.Program) -> list[ir.SymbolDef]:
    """What binds symbols before the first op runs."""
    return [op for op in program.ops if isinstance(op, ir.SymbolDef) and op.of != "item"]


def ranges(program: ir.Program) -> dict[sympy.Symbol, tuple[int | None, int | None]]:
    """Inclusive ranges of the symbols. One that is bound to a size is at least 0."""
    sizes = {op.symbol for op in sizes_of_params(program)}
    sizes |= {s for op in program.ops if isinstance(op, ir.ExternCall) for s in op.binds}
    out: dict[sympy.Symbol, tuple[int | None, int | None]] = {
        symbol(name): (0 if name in sizes else None, None) for name in bound_symbols(program)
    }
    for s in program.symbols:
        low = s.low if s.low is not None or s.name not in sizes else 0
        out[symbol(s.name)] = (low, s.high)
    return out


def sample_envs(program: ir.Program) -> list[dict[str, int]]:
    """Values of the symbols to try: the hints, then combinations of lower bound, hint and upper
    bound (or something large, but of exponents), `MAX_SAMPLES` at most. One empty environment if
    there are no symbols. What is given, and assertions, hold in each of them, unless none
    satisfies them all: the hints do, where the program was made for them."""
    hints = {s.name: s.hint for s in program.symbols}
    choices: list[list[int]] = []
    typical: list[int] = []
    names: list[str] = []
    exponents = _exponents(program)
    for name, (low, high) in ranges(program).items():
        first = low if low is not None else min(1, high if high is not None else 1)
        large = 60 if str(name) in exponents else 4096  # of powers in 64 bits
        last = high if high is not None else max(first + 1, large)
        middle = hints.get(str(name))
        names.append(str(name))
        typical.append(first if middle is None else middle)
        choices.append(sorted({first, last} if middle is None else {middle, first, last}))
    corners = zip_longest(*([*c, *[c[-1]] * (3 - len(c))] for c in choices))  # all at once first
    found = chain([tuple(typical)], corners, product(*choices))
    values = dict.fromkeys(islice(found, MAX_SAMPLES))
    envs = [dict(zip(names, v, strict=True)) for v in values] or [{}]
    hold = [*program.given, *(op.condition for op in program.ops if isinstance(op, ir.Assert))]
    hold = [c for c in hold if free_symbols([c]) <= set(names)]
    return [env for env in envs if _satisfies(env, hold)] or envs


def _exponents(program: ir.Program) -> set[str]:
    """Names of the symbols in exponents, and in counts of shifts."""
    found = {e for op in walk(program.ops) for e in expressions(op) if not e.is_Atom}
    powers = (p for e in found.union(program.given) for p in e.atoms(PowByNatural, LShift, RShift))
    return free_symbols([p.args[1] for p in powers])


def _satisfies(env: Env, conditions: Sequence[sympy.Basic]) -> bool:
    """Whether all hold; one that has no value does not."""
    try:
        return all(bool(evaluate(c, env)) for c in conditions)
    except DivisionByZero:
        return False
