"""Kernels that differ in nothing but their name, their origins and what their buffers are called,
as those of the layers of a model do: what was made of one is made of another by renaming it."""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from loop_ir.ir import nodes as ir

Made = TypeVar("Made")


class Structure:
    """A kernel with numbers for its buffers. Hashed once: it is looked up again and again."""

    __slots__ = ("hash", "parts")

    def __init__(self, parts: tuple[Hashable, ...]) -> None:
        self.parts = parts
        self.hash = hash(parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Structure):
            return NotImplemented
        return self is other or (self.hash == other.hash and self.parts == other.parts)


@dataclass(frozen=True)
class Form:
    """What a kernel does, and its buffers by number."""

    structure: Structure
    names: tuple[str, ...]


def form(kernel: ir.Kernel) -> Form:
    """The same structure for kernels that do the same with buffers of the same types."""
    found: Form | None = kernel.__dict__.get("_form")
    if found is None:
        names: dict[str, int] = {}
        buffers = tuple(
            (names.setdefault(b.name, len(names)), b.type, b.written) for b in kernel.buffers
        )
        phases = tuple((p.axes, tuple(_part(s, names) for s in p.body)) for p in kernel.phases)
        structure = Structure((kernel.axes, kernel.symbols, buffers, phases))
        found = _keep(kernel, Form(structure, tuple(names)))
    return found


def _keep(kernel: ir.Kernel, found: Form) -> Form:
    """Kept with the kernel, which does not change."""
    kernel.__dict__["_form"] = found
    return found


def _part(stmt: ir.Stmt, names: dict[str, int]) -> Hashable:
    # 0, 0.0, -0.0 and False are equal, and are different constants.
    if isinstance(stmt, ir.Const):
        return ir.Const, stmt.out, repr(stmt.value), stmt.dtype
    if isinstance(stmt, ir.Load):
        number = names.setdefault(stmt.buffer, len(names))
        return ir.Load, stmt.out, number, stmt.index, stmt.dtype, stmt.mask, repr(stmt.other)
    if isinstance(stmt, ir.Store):
        number = names.setdefault(stmt.buffer, len(names))
        return ir.Store, number, stmt.index, stmt.value, stmt.mode, stmt.mask
    return stmt


def node_form(node: ir.Node) -> Form:
    """`form` of any node: the same structure for nodes that do the same with buffers of the same
    types."""
    if isinstance(node, ir.Kernel):
        return form(node)
    names: dict[str, int] = {}

    def number(name: str) -> int:
        return names.setdefault(name, len(names))

    def part(value: Any) -> Hashable:
        match value:
            case ir.TensorRef():
                return number(value.buffer), value.type, value.conj, value.neg, value.again
            case ir.Kernel():
                found = form(value)
                return found.structure, tuple(map(number, found.names))
            case ir.Extern():
                outs = tuple(out and (number(out[0]), out[1]) for out in value.outs)
                more = value.tuple_result, tuple(map(number, value.mutates)), value.binds
                return value.target, part(value.args), part(value.kwargs), outs, *more
            case ir.Operand() | ir.Scales():
                return tuple(part(getattr(value, f.name)) for f in fields(value))
            case tuple():
                return tuple(map(part, value))
            case int() | float() | complex():
                return repr(value)  # 1, 1.0 and True are equal, as are the zeros
        kept: Hashable = value
        return kept

    parts: tuple[Hashable, ...]
    match node:
        case ir.Matmul():
            own = number(node.out), node.type, part(node.extern)
            given = node.operands, node.bias, node.epilogue, node.alpha, node.beta
            parts = *own, part((*given, node.scales, node.groups))
        case ir.UserKernel():
            outs = tuple((number(name), type) for name, type in node.outs)
            how = node.kernel, node.grids, part(node.constants), node.descriptors
            parts = *how, part(node.args), outs, tuple(map(number, node.mutates))
        case ir.CopyBack():
            parts = part(node.src), part(node.dst)
        case ir.Extern():
            parts = (part(node),)
    return Form(Structure((type(node).__name__, parts)), tuple(names))


def renamed_node(node: ir.Node, names: Mapping[str, str], name: str = "") -> ir.Node:
    """The node with buffers called otherwise, those that `names` has; a kernel is called `name`."""

    def called(buffer: str) -> str:
        return names.get(buffer, buffer)

    def named(value: Any) -> Any:
        return called(value) if isinstance(value, str) else value and (called(value[0]), value[1])

    def part(value: Any) -> Any:
        match value:
            case ir.TensorRef():
                return replace(value, buffer=called(value.buffer))
            case ir.Kernel():
                again = {n: called(n) for n in form(value).names}
                return _renamed(value, again, value.name, value.origins)
            case (
                ir.Extern()
                | ir.Operand()
                | ir.Scales()
                | ir.Matmul()
                | ir.CopyBack()
                | ir.UserKernel()
            ):
                found: dict[str, Any] = {f.name: getattr(value, f.name) for f in fields(value)}
                more = {n: part(found[n]) for n in _PARTS.split() & found.keys()}
                more |= {n: called(found[n]) for n in ("out",) if n in found}
                for n in {"outs", "mutates"} & found.keys():
                    more[n] = tuple(map(named, found[n]))
                return replace(value, **more)
            case tuple():
                return tuple(map(part, value))
        return value

    made: ir.Node = part(node)
    return (
        replace(made, name=name) if name and isinstance(made, ir.Kernel | ir.UserKernel) else made
    )


# Fields of nodes that mention buffers, but for those that are names of buffers.
_PARTS = """
args kwargs operands ref prologue bias extern epilogue scales groups a b src dst
"""


def _renamed(
    made: ir.Kernel, names: Mapping[str, str], name: str, origins: tuple[ir.Origin, ...]
) -> ir.Kernel:
    """A kernel with other names, all of them different, of which it has all."""
    kernel = ir.Kernel(
        name,
        tuple([ir.Buffer(names[b.name], b.type, b.written) for b in made.buffers]),
        made.axes,
        tuple([ir.Phase(p.axes, tuple([_moved(s, names) for s in p.body])) for p in made.phases]),
        made.symbols,
        origins,
    )
    known = form(made)
    _keep(kernel, Form(known.structure, tuple([names[n] for n in known.names])))
    return kernel


class Alike:
    """What was made of kernels, for others that are alike."""

    def __init__(self) -> None:
        self._structures: dict[Structure, Structure] = {}
        self._made: dict[Hashable, tuple[tuple[str, ...], object]] = {}

    def form(self, kernel: ir.Kernel) -> Form:
        """Of alike kernels, the very same structure."""
        found = form(kernel)
        structure = self._structures.setdefault(found.structure, found.structure)
        if structure is found.structure:
            return found
        return _keep(kernel, Form(structure, found.names))

    def once(
        self,
        what: Hashable,
        kernels: Sequence[ir.Kernel],
        make: Callable[[], Made],
        buffers: Collection[str] = (),
        renamed: Callable[[Made, dict[str, str]], Made] | None = None,
    ) -> Made:
        """What `make` gives for these kernels, which hangs on `what`, their structures, which of
        their buffers are the same, and which of them are among `buffers`; not on any name. If that
        is a kernel, its name is the last one's and its origins are those of all.

        renamed: what is made, with the buffers called otherwise; else kernels are renamed, and all
        else is as it is."""
        forms = [self.form(k) for k in kernels]
        numbers: dict[str, int] = {}
        shared = tuple(tuple([numbers.setdefault(n, len(numbers)) for n in f.names]) for f in forms)
        chosen = frozenset(numbers[n] for n in buffers if n in numbers)
        key = (what, tuple([id(f.structure) for f in forms]), shared, chosen)
        names = tuple(numbers)
        if key not in self._made:
            made = make()
            if _follows(made, kernels, numbers):
                self._made[key] = names, _source(made, kernels)
            return made
        before, found = self._made[key]
        if isinstance(found, int):
            return kernels[found]  # type: ignore[return-value]  # it was given back as it is
        again = dict(zip(before, names, strict=True))
        if isinstance(found, ir.Kernel):
            return self._again(found, kernels, again)  # type: ignore[return-value]  # a kernel
        value: Made = found  # type: ignore[assignment]  # what `make` gave
        return value if renamed is None else renamed(value, again)

    def _again(
        self, made: ir.Kernel, kernels: Sequence[ir.Kernel], names: dict[str, str]
    ) -> ir.Kernel:
        origins = tuple(dict.fromkeys(o for k in kernels for o in k.origins))
        self.form(made)
        return _renamed(made, names, kernels[-1].name, origins)


def _moved(stmt: ir.Stmt, names: Mapping[str, str]) -> ir.Stmt:
    if isinstance(stmt, ir.Load | ir.Store):
        # A copy keeps what was found of the statement, none of which hangs on the buffer.
        stmt = copy(stmt)
        object.__setattr__(stmt, "buffer", names[stmt.buffer])
    return stmt


def _source(made: object, kernels: Sequence[ir.Kernel]) -> Any:
    """Which of the kernels was given back, or what was made."""
    return next((i for i, k in enumerate(kernels) if made is k), made)


def _follows(made: object, kernels: Sequence[ir.Kernel], names: dict[str, int]) -> bool:
    """Whether the name, the origins and the buffers of what was made are as `once` says."""
    if not isinstance(made, ir.Kernel) or any(made is k for k in kernels):
        return True
    origins = tuple(dict.fromkeys(o for k in kernels for o in k.origins))
    known = all(b.name in names for b in made.buffers)
    return made.name == kernels[-1].name and made.origins == origins and known
