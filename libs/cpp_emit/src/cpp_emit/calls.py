"""Lines of an operator call: see `cpp_emit.extern` for its three routes."""

from collections.abc import Sequence

from cpp_emit import extern
from cpp_emit.errors import SchemaError, UnsupportedArgument
from cpp_emit.schema import Schemas, lookup
from cpp_emit.sites import call_split
from cpp_emit.writer import Writer
from wrapper_ir import ExternCall, TensorType


def write_call(
    w: Writer, op: ExternCall, site: int, schemas: Schemas | None, python_fallback: bool
) -> None:
    """Raises UnsupportedArgument when only Python could make the call and that is not allowed."""
    reasons = []
    schema = lookup(schemas, op.target)
    if schema is None:
        reasons.append("no schema is known of it")
    else:
        try:
            return _dispatch(w, op, extern.dispatcher_call(op, schema, w))
        except extern.NotExpressible as reason:
            reasons.append(f"torch's dispatcher ABI cannot take {reason}")
    try:
        return _shim(w, op)
    except extern.NotExpressible as reason:
        reasons.append(str(reason))
    if not python_fallback:
        raise UnsupportedArgument(
            f"extern {op.target} needs Python: {'; '.join(reasons)}. Give its schema, write the "
            "call with tensors only, or allow python_fallback"
        )
    return _callback(w, op, site, reasons)


def where(op: ExternCall) -> str:
    """A call as errors name it."""
    outs = ", ".join("_" if o is None else o[0] for o in op.outs)
    return f"{outs} = extern {op.target}" if outs else f"extern {op.target}"


def first_name(op: ExternCall) -> str:
    """What variables of a call are named after."""
    names = [o[0] for o in op.outs if o is not None]
    return names[0] if names else op.target.split(".")[-2 if "." in op.target else 0]


Outs = list[tuple[tuple[str, TensorType], str]]


def write_results(w: Writer, op: ExternCall, outs: Outs) -> None:
    """`Tensor b1 = value;` for each, which then become what the program declares: a check that
    fails must find every result owned by a variable."""
    for (name, type), value in outs:
        w.line(f"Tensor {w.define(name, type, op.alias)} = {value};")
    for symbol, (number, dim) in op.places().items():
        name, _ = op.outs[number] or ("", None)
        w.symbols.add(symbol)
        w.line(f"const int64_t {w.names[symbol]} = {w.tensor(name)}.sizes()[{dim}];")
    for (name, _), _ in outs:
        what = f"{op.target}: result {name}"
        if op.alias is None:
            w.conform(name, what)
        else:
            w.check_kind(name, what)
            w.check_layout(name, what)
            w.line(f"{w.names[name]}.set_origin({w.tensor(op.alias)}.origin());")


def _dispatch(w: Writer, op: ExternCall, call: extern.DispatcherCall) -> None:
    is_list = len(call.returns) == 1 and call.returns[0].is_list
    if not is_list and op.outs and len(op.outs) != len(call.returns):
        raise SchemaError(
            f"extern {op.target}: the program takes {len(op.outs)} results, the operator returns "
            f"{len(call.returns)}"
        )
    slots = max(len(call.arguments), len(call.returns), 1)
    at = extern.string_literal(where(op))
    result = w.names.fresh(f"{first_name(op)}_results") if call.returns else ""
    assign = f"auto {result} = " if result else ""
    stack = list(call.arguments) or [""]
    stack[0] = "{{" + stack[0]
    stack[-1] += "}}"
    operator = [extern.string_literal(call.op), extern.string_literal(call.overload), at]
    w.call(f"{assign}call<{slots}>", [*operator, *stack], op.comment)
    if is_list:
        items = w.names.fresh(f"{first_name(op)}_list")
        w.line(f"auto {items} = take_tensors({result}[0]);")
        w.line(f"check_count({items}, {len(op.outs)}, {at});")
        moved = [(out, f"std::move({items}[{n}])") for n, out in enumerate(op.outs) if out]
        return write_results(w, op, moved)
    taken: Outs = []
    for number, type in enumerate(call.returns):
        out = op.outs[number] if op.outs else None
        if out is not None:
            if str(type) != "Tensor":
                raise SchemaError(f"extern {op.target}: result {number} is {type}, no tensor")
            taken.append((out, f"take_tensor({result}[{number}])"))
        elif type.is_list:
            w.line(f"take_tensors({result}[{number}]);  // not used")
        elif type.base == "Tensor":
            w.line(f"take_tensor({result}[{number}]);  // not used")
    return write_results(w, op, taken)


def _shim(w: Writer, op: ExternCall) -> None:
    function, arguments, target = extern.shim_call(op, w)
    if op.tuple_result or len(op.outs) > 1:
        raise extern.NotExpressible(f"the C function {function} has one result")
    out = op.outs[0] if op.outs else None
    if target is not None:
        device = w.type(target).device
        var = w.tensor(target)
        w.line("", op.comment)
    elif out is not None:
        device = out[1].device
        var = w.define(out[0], out[1])
        w.call(f"Tensor {var} = empty", [*w.layout(out[1]), extern.device_code(device)], op.comment)
    else:
        raise extern.NotExpressible(f"the C function {function} needs the type of its result")
    callee = f"aoti_torch_{device.kind}_{function}"
    if device.kind == "cuda":
        callee = f"TORCH_CUDA({callee})"
    w.call(
        f"shim({extern.string_literal(where(op))}, {callee}",
        [f"{var}.get()", *arguments[:-1], f"{arguments[-1]})"],
    )
    if target is not None and out is not None:
        again = w.define(out[0], out[1], target)
        w.line(f"Tensor {again}({var}.share());")
        w.line(f"{again}.set_origin({var}.origin());")


def _callback(w: Writer, op: ExternCall, site: int, reasons: Sequence[str]) -> None:
    parts = call_split(op)
    # The callback gives back only the tensors that the program keeps.
    kept = [out for out in op.outs if out is not None]
    items = w.names.fresh(f"{first_name(op)}_list") if kept else ""
    note = f"{op.target} through Python: {'; '.join(reasons)}"
    w.call(
        f"{f'auto {items} = ' if kept else ''}call_python",
        [
            "self",
            str(site),
            extern.string_literal(where(op)),
            str(len(kept)),
            w.pointers(parts.tensors),
            w.int64s(parts.ints),
        ],
        f"{op.comment}\n{note}".strip(),
    )
    write_results(w, op, [(out, f"std::move({items}[{n}])") for n, out in enumerate(kept)])
