"""Several kernels that do the same to different buffers, as one: `a.add_(1), b.add_(1), ...`.

    program = tl.program_id(0)
    if program < 4:                     # the programs of the first kernel
        inout0 = inout0_0
        first = 0
        size = 4000
    else:
        inout0 = inout0_1
        first = 4
        size = 900
    xindex = (program - first) * XBLOCK + tl.arange(0, XBLOCK)

What they do is written, and compiled, once; a program finds its buffers and sizes in a tree of
comparisons."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import gcd

import sympy

from loop_ir import Compute, Const, Index, Indirect, Kernel, Load, Reduce, Store
from loop_ir.ir import statements
from triton_emit.forms.kernel import KernelWriter, indented
from triton_emit.schedule import Schedule, default_schedule
from triton_emit.vectors import vector

_LISTED = (Load, Store, Const, Index, Compute, Indirect, Reduce)
_VECTOR = 16  # elements: sizes that are multiples of it need no narrower accesses


def likeness(kernel: Kernel) -> Hashable | None:
    """A key that is equal for kernels that `emit_list` can make one kernel of: they do the same to
    different buffers, or to different parts of one buffer, and kernels of a single axis may differ
    in its extent. None for a kernel that no list takes: one that scans or draws random numbers,
    or one of dynamic sizes."""
    if kernel.symbols or not all(isinstance(s, _LISTED) for s in statements(kernel)):
        return None
    roles, starts = _roles(kernel), _starts(kernel)
    body = tuple(
        (
            phase.axes,
            replace(s, buffer=roles[s.buffer], index=s.index - starts[s.buffer])
            if isinstance(s, Load | Store)
            else s,
        )
        for phase in kernel.phases
        for s in phase.body
    )
    axes: Hashable = kernel.axes
    if _of_any_extent(kernel):
        axes = (kernel.axes[0].symbol, int(kernel.axes[0].extent) % _VECTOR == 0)
    types = frozenset((roles[b.name], b.type.dtype, b.type.device) for b in kernel.buffers)
    return axes, str(body), types  # as text: 1, 1.0 and True differ


def _of_any_extent(kernel: Kernel) -> bool:
    """Whether others of a list may have other extents of its one axis."""
    return len(kernel.axes) == 1 and not any(p.axes for p in kernel.phases)


def _roles(kernel: Kernel) -> dict[str, str]:
    """Buffers by the order in which the kernel uses them."""
    used = [s.buffer for s in statements(kernel) if isinstance(s, Load | Store)]
    return {name: f"b{n}" for n, name in enumerate(dict.fromkeys(used))}


def _starts(kernel: Kernel) -> dict[str, int]:
    """The least number that an index of each buffer begins with, in the order of `_roles`."""
    found: dict[str, int] = {}
    for s in statements(kernel):
        if isinstance(s, Load | Store):
            start = int(sympy.expand(s.index).as_coeff_Add()[0])
            found[s.buffer] = min(start, found.get(s.buffer, start))
    return found


def list_schedule(kernels: Sequence[Kernel], hints: Mapping[str, int]) -> Schedule:
    """The schedule of a kernel with the points of all of them, each for itself: in a list some
    sizes may be odd, and what it moves is small."""
    (first, *_) = kernels
    step = _VECTOR
    if _of_any_extent(first):
        extents = [int(k.axes[0].extent) for k in kernels]
        first = replace(first, axes=(replace(first.axes[0], extent=sympy.Integer(sum(extents))),))
        step = gcd(*extents, _VECTOR)
    schedule = default_schedule(first, hints)
    if schedule.pairs:
        schedule = replace(schedule, pairs=False, vector=vector(first))
    return schedule if step == _VECTOR else replace(schedule, vector=step)


def list_form(form: type[KernelWriter]) -> type[ListWriter]:
    """The form of a list of kernels, each of which has `form`."""
    return type(f"List{form.__name__}", (ListWriter, form), {})


class ListWriter(KernelWriter):
    """Writes the first of some kernels for the buffers and sizes of all (`list_form`)."""

    def __init__(self, first: Kernel, kernels: Sequence[Kernel], schedule: Schedule) -> None:
        super().__init__(first, schedule)
        self.kernels = kernels
        self.extents = [int(sympy.Mul(*(a.extent for a in k.axes))) for k in kernels]

    def define_tiles(self) -> None:
        super().define_tiles()
        if _of_any_extent(self.kernel):  # else all have the same
            self.masks.pop("x", None)
            if any(n % self.schedule.xblock for n in self.extents):
                self.masks["x"] = ("xmask", "xindex < size")

    def program(self) -> str:
        return "(program - first)"

    @property
    def starts(self) -> list[int]:
        """The first program of each kernel, and the number of all."""
        found = [0]
        alike = 0 if _of_any_extent(self.kernel) else int(super().programs())
        for extent in self.extents:
            found.append(found[-1] + (alike or -(-extent // self.schedule.xblock)))
        return found

    def programs(self) -> sympy.Expr:
        return sympy.Integer(self.starts[-1])

    @cached_property
    def own(self) -> list[list[tuple[str, str, str, int]]]:
        """For each kernel: what the body calls a buffer, the parameter, the buffer, and by how much
        later than the first kernel's this one's part of it begins. What kernels share is one
        parameter; what all of them share as it is needs no other name."""
        roles = _roles(self.kernels[0])
        names = {roles[buffer]: name for buffer, name in self.params.buffers.items()}
        begins = [_starts(k) for k in self.kernels]
        buffers = [{role: b for b, role in _roles(k).items()} for k in self.kernels]
        params: dict[tuple[str, str], str] = {}
        found: list[list[tuple[str, str, str, int]]] = [[] for _ in self.kernels]
        for role, name in names.items():
            each = [own[role] for own in buffers]
            starts = [begin[buffer] for begin, buffer in zip(begins, each, strict=True)]
            if len({*zip(each, starts, strict=True)}) == 1:
                params[name, each[0]] = name
            for n, (buffer, start) in enumerate(zip(each, starts, strict=True)):
                param = params.setdefault((name, buffer), f"{name}_{n}")
                found[n].append((name, param, buffer, start - starts[0]))
        return found

    def parameters(self) -> tuple[list[tuple[str, str, bool]], list[str | sympy.Expr]]:
        kinds = {name: (kind, written) for name, kind, written in super().parameters()[0]}
        every = {p: (name, buffer) for items in self.own for name, p, buffer, _ in items}
        params = [(param, *kinds[name]) for param, (name, _) in every.items()]
        return params, [buffer for _, buffer in every.values()]

    def prelude(self) -> list[str]:
        choices: list[list[str]] = []
        for own, first, size in zip(self.own, self.starts, self.extents, strict=False):
            lines = [
                f"{name} = {param}" + (f" {'-' if n < 0 else '+'} {abs(n)}" if n else "")
                for name, param, _, n in own
                if name != param
            ]
            if self.kernel.axes:
                lines.append(f"first = {first}")
            if "size" in self.masks.get("x", ("", ""))[1]:
                lines.append(f"size = {size}")
            choices.append(lines)
        wide = ".to(tl.int64)" if self.bits == 64 else ""
        return [f"program = tl.program_id(0){wide}", *_tree(choices, self.starts, 0)]


def _tree(choices: Sequence[list[str]], starts: Sequence[int], first: int) -> Iterator[str]:
    """Lines that run the choice whose programs `program` is one of."""
    if len(choices) == 1:
        yield from choices[0]
        return
    middle = len(choices) // 2
    yield f"if program < {starts[first + middle]}:"
    yield from indented(list(_tree(choices[:middle], starts, first)))
    yield "else:"
    yield from indented(list(_tree(choices[middle:], starts, first + middle)))
