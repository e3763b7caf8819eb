"""Kernels that differ in nothing but their name, their origins and what their buffers are called,
as those of the layers of a model do: what was made of one is made of another by renaming it."""

from collections.abc import Callable, Collection, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from loop_ir.ir.nodes import Buffer, Const, Kernel, Load, Phase, Stmt, Store

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


def form(kernel: Kernel) -> Form:
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


def _keep(kernel: Kernel, found: Form) -> Form:
    """Kept with the kernel, which does not change."""
    kernel.__dict__["_form"] = found
    return found


def _part(stmt: Stmt, names: dict[str, int]) -> Hashable:
    # 0, 0.0, -0.0 and False are equal, and are different constants.
    if isinstance(stmt, Const):
        return Const, stmt.out, repr(stmt.value), stmt.dtype
    if isinstance(stmt, Load):
        number = names.setdefault(stmt.buffer, len(names))
        return Load, stmt.out, number, stmt.index, stmt.dtype, stmt.mask, repr(stmt.other)
    if isinstance(stmt, Store):
        number = names.setdefault(stmt.buffer, len(names))
        return Store, number, stmt.index, stmt.value, stmt.mode, stmt.mask
    return stmt


class Alike:
    """What was made of kernels, for others that are alike."""

    def __init__(self) -> None:
        self._structures: dict[Structure, Structure] = {}
        self._made: dict[Hashable, tuple[tuple[str, ...], object]] = {}

    def form(self, kernel: Kernel) -> Form:
        """Of alike kernels, the very same structure."""
        found = form(kernel)
        structure = self._structures.setdefault(found.structure, found.structure)
        if structure is found.structure:
            return found
        return _keep(kernel, Form(structure, found.names))

    def once(
        self,
        what: Hashable,
        kernels: Sequence[Kernel],
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
        if isinstance(found, Kernel):
            return self._again(found, kernels, again)  # type: ignore[return-value]  # a kernel
        value: Made = found  # type: ignore[assignment]  # what `make` gave
        return value if renamed is None else renamed(value, again)

    def _again(self, made: Kernel, kernels: Sequence[Kernel], names: dict[str, str]) -> Kernel:
        origins = tuple(dict.fromkeys(o for k in kernels for o in k.origins))
        last = kernels[-1].name
        kernel = Kernel(
            last,
            tuple([Buffer(names[b.name], b.type, b.written) for b in made.buffers]),
            made.axes,
            tuple([Phase(p.axes, tuple([_moved(s, names) for s in p.body])) for p in made.phases]),
            made.symbols,
            origins,
        )
        known = self.form(made)
        _keep(kernel, Form(known.structure, tuple([names[n] for n in known.names])))
        return kernel


def _moved(stmt: Stmt, names: dict[str, str]) -> Stmt:
    if isinstance(stmt, Load | Store):
        # A copy keeps what was found of the statement, none of which hangs on the buffer.
        stmt = copy(stmt)
        object.__setattr__(stmt, "buffer", names[stmt.buffer])
    return stmt


def _source(made: object, kernels: Sequence[Kernel]) -> Any:
    """Which of the kernels was given back, or what was made."""
    return next((i for i, k in enumerate(kernels) if made is k), made)


def _follows(made: object, kernels: Sequence[Kernel], names: dict[str, int]) -> bool:
    """Whether the name, the origins and the buffers of what was made are as `once` says."""
    if not isinstance(made, Kernel) or any(made is k for k in kernels):
        return True
    origins = tuple(dict.fromkeys(o for k in kernels for o in k.origins))
    known = all(b.name in names for b in made.buffers)
    return made.name == kernels[-1].name and made.origins == origins and known
