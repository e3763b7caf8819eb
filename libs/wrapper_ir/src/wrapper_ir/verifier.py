"""The rules of a valid program. See `wrapper_ir.errors` for the list: one class a rule."""

import keyword
import re
from collections.abc import Sequence
from itertools import islice

import sympy

from symexpr import SymexprError, evaluate, symbol
from tensor_ir import NAME, TARGET, Arg, DType, Ref, print_type
from wrapper_ir import analysis, errors
from wrapper_ir import ops as ir
from wrapper_ir.captures import callees, reached, stops
from wrapper_ir.verify_state import (
    At,
    State,
    Storage,
    check_alias,
    check_fits,
    check_idle,
    check_layout,
    check_name,
    check_order,
    check_use,
    define,
    end,
    new_storage,
    where_text,
)

INT_KINDS = frozenset(f"{sign}{bits}" for sign in "iu" for bits in (8, 16, 32, 64))
SCALAR_KINDS = INT_KINDS | {"f32", "f64", "bool"}
_KINDS = SCALAR_KINDS | {f"*{d.value}" for d in DType}


_DEFINES = ir.DefineKernel | ir.DefineSubgraph | ir.DefineControl | ir.SymbolDef | ir.Constant
_TOP = _DEFINES | ir.Workspace | ir.DeviceGuard | ir.StreamSwitch | ir.StreamWait


def verify(program: ir.Program) -> None:
    """Raises the `VerifyError` of the first rule that is broken.

    Whether a layout with symbolic sizes is in bounds is tried at the bounds and hints of the
    symbols: what passes is not proven for every size (`interpret` checks the real sizes). A program
    never changes: one that was found valid is not looked at again."""
    if "_valid" in program.__dict__:
        return
    try:
        samples = analysis.sample_envs(program)
    except SymexprError as error:
        raise errors.InvalidExpression(f"an assertion has no value: {error}") from error
    state = State(program, samples, list(range(len(samples))))
    state.device = analysis.first_device(program)
    _check_head(state)
    _check_block(state, program.ops, "", top=True)
    if not program.ops or not isinstance(program.ops[-1], ir.Return):
        raise errors.MisplacedReturn("the program ends without return")
    known = analysis.kernels(program)
    for op in (op for p in analysis.programs(program) for op in p.ops):
        if isinstance(op, ir.DefineKernel) and known[op.name] != op:
            raise errors.DuplicateDefinition(f"subgraphs differ in kernel {op.name}")
    program.__dict__["_valid"] = True


def _check_head(state: State) -> None:
    program = state.program
    check_name(program.name, At())
    for s in program.symbols:
        check_name(s.name, At())
    declared = [s.name for s in program.symbols]
    if len(set(declared)) != len(declared):
        raise errors.DuplicateDefinition(f"a symbol is declared twice among {', '.join(declared)}")
    bound = {op.symbol for op in analysis.sizes_of_params(program)}
    if unknown := analysis.free_symbols(program.given) - set(analysis.bound_symbols(program)):
        raise errors.UnboundSymbol(f"nothing binds {', '.join(sorted(unknown))}, of what is given")
    for param in program.params:
        check_name(param.name, At())
        if param.name in state.tensors or param.name in state.symbols:
            raise errors.DuplicateDefinition(f"parameter {param.name} is defined twice")
        if param.type is None:
            state.symbols.add(param.name)
        else:
            state.tensors[param.name] = param.type
    for param in program.params:
        if param.type is not None:
            unbound = (
                analysis.free_symbols(analysis.type_expressions(param.type)) - bound - state.symbols
            )
            if unbound:
                raise errors.UnboundSymbol(
                    f"nothing binds {', '.join(sorted(unbound))} of parameter {param.name}"
                )
            check_layout(state, param.name, param.type, At())
            new_storage(state, param.name, param.type, owned=False, block="", at=At())


def _check_block(state: State, ops: Sequence[ir.Op], prefix: str, top: bool = False) -> None:
    for i, op in enumerate(ops):
        at = At(op, f"{prefix}{i}")
        if isinstance(op, ir.Return) and not (top and i == len(ops) - 1):
            raise at.error(errors.MisplacedReturn, "return is not the last op")
        if isinstance(op, _TOP) and not top:
            raise at.error(errors.MisplacedOp, "defined inside a block")
        try:
            _check_op(state, op, at, prefix)
        except SymexprError as error:
            raise at.error(errors.InvalidExpression, str(error)) from error


def _check_op(state: State, op: ir.Op, at: At, prefix: str) -> None:
    if not isinstance(op, ir.If):
        for name in analysis.uses(op):
            check_use(state, name, at)
            if name in state.descriptors and not isinstance(op, ir.Launch):
                raise at.error(errors.InvalidDescriptor, f"{name} is a descriptor")
            if name in state.workspaces and not isinstance(op, ir.Launch):
                raise at.error(errors.NotOwned, f"{name} is a workspace, for launches alone")
    if isinstance(op, ir.ExternCall):
        _check_binds(state, op, at, prefix)
    unbound = analysis.free_symbols(analysis.expressions(op)) - state.symbols
    if unbound:
        raise at.error(errors.UnboundSymbol, f"{', '.join(sorted(unbound))} is not bound here")
    _check_written(state, op, at)
    match op:
        case ir.DefineKernel():
            _check_kernel(state, op, at)
        case ir.DefineSubgraph():
            _check_subgraph(state, op, at)
        case ir.DefineControl():
            _check_control(state, op, at)
        case ir.SymbolDef():
            _check_symbol_def(state, op, at)
        case ir.Constant() | ir.Allocate() | ir.Workspace() | ir.CommAllocate():
            _check_new(state, op, at, prefix)
        case ir.Free() | ir.CommFree():
            if (op.name in state.shared) != isinstance(op, ir.CommFree):
                raise at.error(errors.NotOwned, f"{op.name} was given by the other of two alloc")
            end(state, op.name, at, prefix)
            check_order(state.order.free(op.name), at)
        case ir.DeviceGuard():
            _check_device(state, op, at)
            check_order(state.order.move(), at)
        case ir.StreamSwitch():
            check_order(state.order.switch(op), at)
        case ir.StreamWait():
            check_order(state.order.wait(op), at)
        case ir.Return():
            check_order(state.order.end(), at)
        case ir.Reuse():
            _check_reuse(state, op, at, prefix)
        case ir.View():
            check_alias(state, op.out, op.type, op.src, at)
        case ir.Describe():
            _check_describe(state, op, at)
        case ir.Launch():
            _check_launch(state, op, at)
        case ir.ExternCall():
            _check_extern(state, op, at, prefix)
        case ir.CopyBack():
            _check_copy(state, op, at)
        case ir.If():
            _check_if(state, op, at)


def _check_written(state: State, op: ir.Op, at: At) -> None:
    """What an op reads was written before, for every sample that comes here, and no communication
    that is under way uses what it writes. Of what a kernel or an
    operator mutates nobody knows whether it reads it too: that may be uninitialised."""
    read, changed = analysis.accesses(op, state.kernels)
    for name in read:
        storage = state.storage[name]
        missing = [i for i in state.active if i not in storage.written and storage.bytes[i]]
        if missing:
            where = where_text(state.samples[missing[0]])
            raise at.error(errors.Uninitialised, f"nothing has written to {storage.owner}{where}")
    for name in changed:
        check_idle(state, state.storage[name], at)
        state.storage[name].written.update(state.active)
    if read or changed:
        used, made = ([state.storage[name].owner for name in names] for names in (read, changed))
        check_order(state.order.access(used, made), at)
    state.pending.run(op)


def _check_new(
    state: State,
    op: ir.Constant | ir.Allocate | ir.Workspace | ir.CommAllocate,
    at: At,
    prefix: str,
) -> None:
    define(state, op.out, op.type, at)
    if not isinstance(op, ir.Constant) and op.type.offset != 0:
        raise at.error(errors.InvalidLayout, f"it has offset {op.type.offset}")
    if isinstance(op, ir.Workspace | ir.CommAllocate) and not op.type.is_contiguous:
        raise at.error(errors.InvalidLayout, "it is not contiguous")
    owned, written = isinstance(op, ir.Allocate | ir.CommAllocate), not isinstance(op, ir.Allocate)
    new_storage(state, op.out, op.type, owned, prefix, at, written)
    if isinstance(op, ir.Workspace):
        state.workspaces.add(op.out)
        _check_place(state, op.out, at)
    if isinstance(op, ir.CommAllocate):
        state.shared.add(op.out)
        if not op.group:
            raise at.error(errors.InvalidLayout, "it is of no group")


def _check_reuse(state: State, op: ir.Reuse, at: At, prefix: str) -> None:
    define(state, op.out, op.type, at)
    if op.type.offset != 0:
        raise at.error(errors.InvalidLayout, f"reuse has offset {op.type.offset}")
    storage = end(state, op.src, at, prefix)
    check_order(state.order.reuse(op.src, op.out), at)
    check_fits(state, op.out, op.type, storage, at)
    # The storage keeps its size: a later reuse may grow back into all of it.
    state.storage[op.out] = Storage(op.out, True, prefix, storage.type, storage.bytes, set())


def _check_kernel(state: State, op: ir.DefineKernel, at: At) -> None:
    check_name(op.name, at)
    if op.name in state.kernels:
        raise at.error(errors.DuplicateDefinition, f"kernel {op.name} is defined before")
    names = [*(p.name for p in op.params), *(n for n, _ in op.constants)]
    if len(set(names)) != len(names):
        raise at.error(
            errors.InvalidKernel, f"two parameters share a name among {', '.join(names)}"
        )
    for name in names:
        if not all(NAME.fullmatch(part) or part.isdecimal() for part in name.split(".")):
            raise at.error(errors.InvalidKernel, f"{name!r} is no name of a parameter")
    for param in op.params:
        known = param.kind in _KINDS or analysis.descriptor_kind(param.kind)
        if not known:
            raise at.error(
                errors.InvalidKernel, f"parameter {param.name} has unknown kind {param.kind}"
            )
        if param.mutated and param.kind in SCALAR_KINDS:
            raise at.error(errors.InvalidKernel, f"scalar parameter {param.name} cannot be mutated")
    if op.language not in ("triton", "cpp"):
        raise at.error(errors.InvalidKernel, f"{op.language!r} is no language of kernels")
    defines = rf"^def {op.name}\b|^{op.name}\b.*="
    if op.language == "cpp":
        defines = rf'^extern "C" void kernel_{op.name}\('
    if not re.search(defines, op.source, re.MULTILINE):
        raise at.error(errors.InvalidKernel, f"the source defines no {op.name}")
    if op.num_ctas < 1:
        raise at.error(errors.InvalidKernel, f"{op.num_ctas} blocks of a program")
    state.kernels[op.name] = op


def _check_subgraph(state: State, op: ir.DefineSubgraph, at: At) -> None:
    program = op.program
    if program.name in state.subgraphs:
        raise at.error(errors.DuplicateDefinition, f"subgraph {program.name} is defined before")
    try:
        verify(program)
    except errors.VerifyError as error:
        error.add_note(f"in subgraph {program.name}")
        raise
    roots = analysis.storages(program.ops, analysis.param_roots(program))
    changed = analysis.written(program.ops, analysis.kernels(program), roots)
    params = {param.name for param in program.params}
    constants = {op.out for op in program.ops if isinstance(op, ir.Constant)}
    if changed & constants:
        raise at.error(errors.InvalidSubgraph, f"it writes to {min(changed & constants)}")
    if op.captured and any(map(stops, reached(program.ops, callees(program.ops)))):
        raise at.error(errors.InvalidSubgraph, "the host waits for data in what is captured")
    given = [roots[name] for name in analysis.uses(program.ops[-1])]
    if len(set(given)) != len(given) or (params | constants) & set(given):
        raise at.error(errors.InvalidSubgraph, "two results, or one and an argument, are one")
    state.subgraphs[program.name] = program
    state.written[program.name] = changed & params


def _check_control(state: State, op: ir.DefineControl, at: At) -> None:
    check_name(op.name, at)
    if op.name in state.subgraphs:
        raise at.error(errors.DuplicateDefinition, f"subgraph {op.name} is defined before")
    if len(op.subgraphs) != ir.FORMS.get(op.form):
        raise at.error(errors.InvalidSubgraph, f"{op.form} of {len(op.subgraphs)} subgraphs")
    for name in op.subgraphs:
        if not isinstance(state.subgraphs.get(name), ir.Program):
            raise at.error(errors.UndefinedName, f"no program {name} is defined here")
        if state.written[name]:
            raise at.error(errors.InvalidSubgraph, f"{name} writes to {min(state.written[name])}")
    state.subgraphs[op.name] = op


def _check_call(state: State, op: ir.ExternCall, at: At) -> None:
    """Of a subgraph: what it calls is defined, and what it gives fits the parameters of that."""
    called = state.subgraphs.get(analysis.subgraph_of(op) or "")
    if called is None:
        raise at.error(
            errors.UndefinedName, f"no subgraph {analysis.subgraph_of(op)} is defined here"
        )
    if op.kwargs or op.alias is not None or not op.tuple_result:
        raise at.error(errors.InvalidSubgraph, "a call gives a tuple, of its own")
    callee, skipped = called, 0
    if isinstance(called, ir.DefineControl):
        first = state.subgraphs[called.subgraphs[0]]
        callee, skipped = first, int(called.form == "if")
    assert isinstance(callee, ir.Program)
    args = op.args[skipped:]
    if len(args) != len(callee.params):
        raise at.error(
            errors.InvalidSubgraph, f"{callee.name} takes {len(callee.params)}, got {len(args)}"
        )
    pairs = list(zip(callee.params, args, strict=True))
    inside = state.written.get(called.name, set())
    changed = {a.name for p, a in pairs if isinstance(a, Ref) and p.name in inside}
    if changed != set(op.mutates):
        raise at.error(errors.InvalidSubgraph, f"it mutates ({', '.join(sorted(changed))})")
    for param, arg in pairs:
        type = state.tensors[arg.name] if isinstance(arg, Ref) else None
        given, wanted = type and type.dtype, param.type and param.type.dtype
        if given != wanted:
            raise at.error(errors.InvalidSubgraph, f"{param.name} is {wanted}, got {given}")


def _check_symbol_def(state: State, op: ir.SymbolDef, at: At) -> None:
    check_name(op.symbol, at)
    if op.symbol in state.symbols or op.symbol in state.tensors:
        raise at.error(errors.DuplicateDefinition, f"{op.symbol} is defined before")
    type = next((p.type for p in state.program.params if p.name == op.tensor), None)
    if op.of == "item":
        type = state.tensors[op.tensor]
        if type.dtype.is_float or type.dtype.is_complex or any(n != 1 for n in type.size):
            raise at.error(errors.InvalidSymbolDef, f"{op.tensor} is {print_type(type)}")
        state.symbols.add(op.symbol)
        return
    if type is None:
        raise at.error(errors.InvalidSymbolDef, f"{op.tensor} is no tensor parameter")
    if not 0 <= op.dim < len(type.size):
        raise at.error(errors.InvalidSymbolDef, f"{op.tensor} has rank {len(type.size)}")
    declared = (type.size if op.of == "size" else type.stride)[op.dim]
    if op.factor < 1 or declared != op.factor * symbol(op.symbol) + op.plus:
        raise at.error(
            errors.InvalidSymbolDef, f"{op.tensor}.{op.of}({op.dim}) is declared as {declared}"
        )
    state.symbols.add(op.symbol)


def _check_binds(state: State, op: ir.ExternCall, at: At, prefix: str) -> None:
    for name in op.binds:
        if name in state.symbols or name in state.tensors:
            raise at.error(errors.DuplicateDefinition, f"{name} is defined before")
        declared = any(s.name == name for s in state.program.symbols)
        if name not in op.places() or not declared or prefix:
            raise at.error(errors.InvalidSymbolDef, f"no size of a result binds {name} here")
        state.symbols.add(name)


def _check_describe(state: State, op: ir.Describe, at: At) -> None:
    type = state.tensors[op.src]
    define(state, op.out, type, at)
    if len(op.block) != len(type.size) or not 1 <= len(op.block) <= 5 or min(op.block) < 1:
        raise at.error(
            errors.InvalidDescriptor, f"blocks of {list(op.block)} of {op.src}: {print_type(type)}"
        )
    state.storage[op.out] = state.storage[op.src]
    state.descriptors[op.out] = op


def _check_launch(state: State, op: ir.Launch, at: At) -> None:
    kernel = state.kernels.get(op.kernel)
    if kernel is None:
        raise at.error(errors.UndefinedKernel, f"no kernel {op.kernel} is defined here")
    if len(kernel.params) != len(op.args):
        raise at.error(
            errors.LaunchArity,
            f"{op.kernel} takes {len(kernel.params)} arguments, got {len(op.args)}",
        )
    for param, arg in zip(kernel.params, op.args, strict=True):
        _check_argument(state, param, arg, at)


def _check_argument(state: State, param: ir.KernelParam, arg: Arg, at: At) -> None:
    if isinstance(arg, Ref):
        type = state.tensors[arg.name]
        _check_place(state, arg.name, at)
        if (wanted := analysis.descriptor_kind(param.kind)) is not None:
            _check_descriptor(state, param, wanted, arg, at)
            return
        if not param.kind.startswith("*") or arg.name in state.descriptors:
            raise at.error(
                errors.LaunchArgumentKind, f"{param.name} is {param.kind}, got tensor {arg.name}"
            )
        if param.kind != f"*{type.dtype.value}":
            raise at.error(
                errors.LaunchElementType,
                f"{param.name} is {param.kind}, got {arg.name}: {print_type(type)}",
            )
    elif not _scalar_fits(param.kind, arg):
        raise at.error(errors.LaunchArgumentKind, f"{param.name} is {param.kind}, got {arg!r}")


def _check_place(state: State, name: str, at: At) -> None:
    device = state.tensors[name].device
    if device.kind == "cuda" and device != state.device:
        raise at.error(errors.DeviceMismatch, f"{name} is not on {state.device}")


def _check_device(state: State, op: ir.DeviceGuard, at: At) -> None:
    if state.device is None:
        return
    for device in (state.device, op.device):
        if device.kind != "cuda" or device.index is None:
            raise at.error(errors.DeviceMismatch, f"{device} is not the number of a GPU")
    state.device = op.device


def _check_descriptor(
    state: State, param: ir.KernelParam, wanted: tuple[str, tuple[int, ...]], arg: Ref, at: At
) -> None:
    element, block = wanted
    found, type = state.descriptors.get(arg.name), state.tensors[arg.name]
    if found is None or found.block != block:
        got = f"blocks of {list(found.block)}" if found is not None else "a tensor"
        raise at.error(
            errors.LaunchArgumentKind, f"{param.name} is {param.kind}, {arg.name} is {got}"
        )
    if element != type.dtype.value:
        raise at.error(
            errors.LaunchElementType,
            f"{param.name} is {param.kind}, {arg.name} is of {print_type(type)}",
        )


def _scalar_fits(kind: str, arg: Arg) -> bool:
    boolean = isinstance(arg, bool | sympy.logic.boolalg.Boolean)
    boolean = boolean and not isinstance(arg, sympy.Symbol)  # sympy: a symbol is a Boolean too
    if kind == "bool":
        return boolean
    if kind in INT_KINDS:
        return not boolean and isinstance(arg, int | sympy.Expr)
    return kind in ("f32", "f64") and not boolean and isinstance(arg, int | float | sympy.Expr)


def _check_extern(state: State, op: ir.ExternCall, at: At, prefix: str) -> None:
    if not TARGET.fullmatch(op.target):
        raise at.error(errors.InvalidExtern, f"{op.target!r} is no operator name")
    if analysis.subgraph_of(op) is not None:
        _check_call(state, op, at)
    for name, _ in op.kwargs:
        if not NAME.fullmatch(name) or keyword.iskeyword(name):
            raise at.error(errors.InvalidExtern, f"{name!r} is no name of an argument")
    arguments = {*analysis.arg_refs(op.args), *analysis.arg_refs([v for _, v in op.kwargs])}
    stray = [n for n in (*op.mutates, *([op.alias] if op.alias else [])) if n not in arguments]
    if stray:
        raise at.error(errors.InvalidExtern, f"{', '.join(stray)} is no argument")
    if len(op.outs) > 1 and not op.tuple_result:
        raise at.error(errors.InvalidExtern, f"{len(op.outs)} results that are no tuple")
    state.active = [i for i in state.active if i == 0 or _has_results(state, op, i)]
    for name, type in analysis.definitions(op):
        if op.alias is not None:
            check_alias(state, name, type, op.alias, at)
        else:
            define(state, name, type, at)
            new_storage(state, name, type, owned=True, block=prefix, at=at)


def _has_results(state: State, op: ir.ExternCall, sample: int) -> bool:
    """Whether no result has a negative size in a sample, as none of a known layout has. An operator
    refuses what it would be for, as a convolution does a kernel larger than its input; nothing
    after it runs then."""
    new = (t for _, t in analysis.definitions(op) if sample not in state.layouts.get(t, ()))
    sizes = (analysis.evaluate_type(type, state.samples[sample])[0] for type in new)
    return all(n >= 0 for size in sizes for n in size)


def _check_copy(state: State, op: ir.CopyBack, at: At) -> None:
    src, dst = state.tensors[op.src], state.tensors[op.dst]
    for env in (state.samples[i] for i in state.active):
        a, b = analysis.evaluate_type(src, env)[0], analysis.evaluate_type(dst, env)[0]
        if a != b:
            raise at.error(
                errors.CopyMismatch, f"{op.src} is {a}, {op.dst} is {b}{where_text(env)}"
            )


def _check_if(state: State, op: ir.If, at: At) -> None:
    active = state.active
    holds = state.holds.setdefault(op.condition, {})
    for i in active:
        if i not in holds:
            holds[i] = bool(evaluate(op.condition, state.samples[i]))
    for label, block in (("then", op.then), ("else", op.orelse)):
        outer = len(state.tensors)
        state.active = [i for i in active if holds[i] == (label == "then")]
        _check_block(state, block, f"{at.index}.{label}.")
        state.active = active
        for name in list(islice(reversed(state.tensors), len(state.tensors) - outer)):
            del state.tensors[name]
            state.escaped[name] = at.index
