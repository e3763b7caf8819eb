"""Aligned accesses for tensors that are off from 16 bytes by the same number of elements.

A view such as `x[1:]` makes every access of a kernel as narrow as one element. Where all pointers
of an elementwise kernel are off by the same number of elements, all but the first few elements can
be read and written 16 bytes at a time: the kernel is rewritten so that its tiles start at the first
aligned element, and its first program does the few elements before and after them as well.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from triton_rt.element_types import torch_dtype
from triton_rt.errors import NotPeelable
from triton_rt.source.kernel_source import KernelSource

_PID, _END = "pid_of_tile", "end_of_tiles"
#: Tiles start at a cache line of the first pointer: at a mere 16 bytes, each access of a warp would
#: touch one line more than it fills.
_LINE = 128

#: Functions of `tl` that give element j of their result from elements j of their arguments. Others
#: (reductions, scans, reshapes, random numbers, atomics) could see where a tile starts.
_ELEMENTWISE = """
    abs add arange cast ceil clamp constexpr cos div_rn erf exp exp2 fdiv floor fma full load log
    log2 max_contiguous maximum minimum mul multiple_of program_id range rsqrt sigmoid sin sqrt
    sqrt_rn static_assert static_range store sub umulhi where
"""
_LAUNCH_CONTROL = ("gdc_wait", "gdc_launch_dependents")
_BUILTINS = frozenset(("float", "int", "bool", "min", "max", "range"))


@dataclass(frozen=True)
class Peeled:
    """`source` takes the same arguments and grid as the kernel it was made of, and needs no
    alignment; `shifts` are, by parameter, the bytes of an element of a shifted pointer, else 0."""

    source: KernelSource
    shifts: tuple[int, ...]


def peel(source: KernelSource) -> Peeled:
    """Rewrites an elementwise kernel over a grid of one dimension.

        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(x + i, f(tl.load(x + i, i < n), ...), i < n)
    ->  the same over x + head, of which n - head rounded down to 16 elements are left, for every
        program; and over the elements before and after those, for the first program

    when the index `i` is used in nothing but `pointer + i` and `i < size`, with one size (the whole
    grid where there is none), so that what is computed cannot depend on where the tiles start.
    Pointers that are not indexed by `i` stay as they are. Raises `NotPeelable`, saying what is in
    the way.
    """
    return _Peeler(source).run()


class _Peeler:
    def __init__(self, source: KernelSource) -> None:
        self.source = source
        self.python = source.python
        tree = ast.parse(textwrap.dedent(inspect.getsource(self.python)))
        function = tree.body[0]
        assert isinstance(function, ast.FunctionDef)
        self.function = function
        self.pointers = {p.name: p for p in source.params if p.is_pointer}
        self.parents = {
            child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)
        }
        self.assigned = self._assignments()

    def run(self) -> Peeled:
        index, block = self._index()
        size, unmasked = self._uses(index)
        shifted = self._shifted(index)
        inner = self._inner(index, size, unmasked)
        outer = self._outer(size, block, shifted)
        lines = [self.source.text, *self._imports(), inner, outer]
        name = f"{self.source.name}_peeled"
        params = tuple(replace(p, aligned=False) for p in self.source.params)
        made = replace(self.source, name=name, text="\n\n".join(lines), params=params)
        sizes = {n: torch_dtype(self.pointers[n].kind[1:]).itemsize for n in shifted}
        return Peeled(made, tuple(sizes.get(p.name, 0) for p in self.source.params))

    def _refuse(self, why: str, node: ast.AST | None = None) -> NotPeelable:
        at = f": {ast.unparse(node)!r}" if node is not None else ""
        return NotPeelable(f"{self.source.name} cannot be shifted to aligned accesses: {why}{at}")

    # -- what the kernel is ----------------------------------------------------------------------

    def _assignments(self) -> dict[str, ast.expr]:
        """Names that are assigned once, at the top of the function, and what they are."""
        out: dict[str, ast.expr] = {}
        stored = [
            n.id
            for n in ast.walk(self.function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        ]
        for node in self.function.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                if stored.count(name) == 1 and len(node.targets) == 1:
                    out[name] = node.value
        return out

    def _index(self) -> tuple[str, str]:
        """The index, and the constant or number that is the size of a tile."""
        calls = [n for n in ast.walk(self.function) if _is_tl(n, "program_id")]
        if len(calls) != 1:
            raise self._refuse(f"it asks for its program {len(calls)} times, expected once")
        self._check_calls(self.function, self.python)
        found = []
        for name, value in self.assigned.items():
            if any(_is_tl(n, "arange") for n in ast.walk(value)):
                found.append((name, ast.unparse(self._expand(value))))
        if len(found) != 1:
            raise self._refuse(f"{len(found)} of its values are made of tl.arange, expected one")
        name, text = found[0]
        for block in [n for n, _ in self.source.constants] + _numbers(text):
            for pid in ("tl.program_id(0)", "tl.program_id(0).to(tl.int64)"):
                tail = f"+ tl.arange(0, {block})"
                if text in (f"{pid} * {block} {tail}", f"{block} * {pid} {tail}"):
                    return name, block
        raise self._refuse(f"its index is not tl.program_id(0) * B + tl.arange(0, B) but {text}")

    def _check_calls(self, function: ast.AST, python: Any, depth: int = 0) -> None:
        """Refuses calls that are not elementwise, in the kernel and in the functions it calls."""
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            path = ast.unparse(node.func)
            module, _, name = path.rpartition(".")
            inside = depth and name in ("load", "store", "program_id", "arange")
            if module in ("tl", "triton.language") and name in _ELEMENTWISE.split() and not inside:
                continue
            if module in ("tl.math", "libdevice") or module.endswith(".libdevice"):
                continue
            if name in ("to", *_LAUNCH_CONTROL) or path in _BUILTINS:
                continue
            helper = getattr(_resolve(python, path), "fn", None)
            if not inspect.isfunction(helper) or depth > 8:
                raise self._refuse("it calls what may not be elementwise", node)
            text = textwrap.dedent(inspect.getsource(helper))
            self._check_calls(ast.parse(text), helper, depth + 1)

    def _expand(self, node: ast.expr, stop: str = "") -> ast.expr:
        """The expression with names assigned once, but for `stop`, replaced by what they are."""
        assigned = {n: v for n, v in self.assigned.items() if n != stop}

        class Expand(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                value = assigned.get(node.id)
                return (
                    self.visit(ast.parse(ast.unparse(value), mode="eval").body) if value else node
                )

            def visit_Call(self, node: ast.Call) -> ast.AST:
                if _is_tl(node, "program_id"):  # the axis by position
                    node.args += [k.value for k in node.keywords]
                    node.keywords = []
                return self.generic_visit(node)

        made: ast.expr = Expand().visit(ast.parse(ast.unparse(node), mode="eval").body)
        return made

    def _uses(self, index: str) -> tuple[str | None, bool]:
        """The size that the index is compared with, None if it never is; and whether some accesses
        have no mask."""
        derived = self._derivation(index)
        sizes: dict[str, None] = {}
        for node in ast.walk(self.function):
            if not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                continue
            if node.id in derived:
                if not self._within(node, index, derived):
                    raise self._refuse(f"{node.id} is used beside the index", self.parents[node])
            elif node.id == index:
                parent = self.parents[node]
                if _is_less_than(parent, node):
                    assert isinstance(parent, ast.Compare)
                    sizes[ast.unparse(parent.comparators[0])] = None
                elif self._pointer_of(parent, node) is None:
                    raise self._refuse(f"the index {index} is a value of it", parent)
        if len(sizes) > 1:
            raise self._refuse(f"the index is compared with several sizes ({', '.join(sizes)})")
        for size in sizes:
            names = {n.id for n in ast.walk(ast.parse(size)) if isinstance(n, ast.Name)}
            known = {p.name for p in self.source.params} | {n for n, _ in self.source.constants}
            if not names <= known - self.pointers.keys():
                raise self._refuse(f"the size {size} is not made of scalar parameters and numbers")
        bound = next(iter(sizes), None)
        return bound, self._check_masks(index, bound)

    def _check_masks(self, index: str, size: str | None) -> bool:
        """Whether some accesses have no mask; refuses masks that let elements past the size in."""
        missing = False
        for node in ast.walk(self.function):
            if not (isinstance(node, ast.Call) and (_is_tl(node, "load") or _is_tl(node, "store"))):
                continue
            address = self._expand(node.args[0], index)
            if not any(isinstance(n, ast.Name) and n.id == index for n in ast.walk(address)):
                if _is_tl(node, "store"):
                    raise self._refuse("it stores what every program stores", node)
                continue
            mask = _mask_of(node)
            if mask is None:
                missing = True
                if _is_tl(node, "store") and size is not None:
                    raise self._refuse(f"it compares with {size}, and stores without a mask", node)
            elif f"{index} < {size}" not in _conjuncts(self._expand(mask, index)):
                raise self._refuse(f"a mask does not keep the index under {size}", node)
        return missing

    def _derivation(self, index: str) -> set[str]:
        """Names that the index is made of, such as `pid = tl.program_id(0)`."""
        out: set[str] = set()
        stack = [self.assigned[index]]
        while stack:
            for node in ast.walk(stack.pop()):
                if isinstance(node, ast.Name) and node.id in self.assigned and node.id not in out:
                    out.add(node.id)
                    stack.append(self.assigned[node.id])
        return out

    def _within(self, node: ast.AST, index: str, derived: set[str]) -> bool:
        values = [self.assigned[n] for n in (index, *derived)]
        at: ast.AST | None = node
        while at is not None:
            if any(at is v for v in values):
                return True
            at = self.parents.get(at)
        return False

    def _pointer_of(self, node: ast.AST, index: ast.AST | None) -> str | None:
        """The pointer of `pointer + index`."""
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
            return None
        sides = (node.left, node.right)
        for side, other in (sides, sides[::-1]):
            named = isinstance(side, ast.Name) and side.id in self.pointers
            if named and (index is None or other is index):
                return ast.unparse(side)
        return None

    def _names_index(self, node: ast.BinOp, index: str) -> bool:
        return any(isinstance(s, ast.Name) and s.id == index for s in (node.left, node.right))

    def _shifted(self, index: str) -> list[str]:
        """Pointers that are indexed, all of whose uses are `pointer + index`."""
        indexed: dict[str, bool] = {}
        for node in ast.walk(self.function):
            if not (isinstance(node, ast.Name) and node.id in self.pointers):
                continue
            if isinstance(node.ctx, ast.Store):
                raise self._refuse(f"{node.id} is assigned")
            if isinstance(self.parents[node], ast.arguments):
                continue
            parent = self.parents[node]
            whole = isinstance(parent, ast.BinOp) and self._names_index(parent, index)
            if indexed.setdefault(node.id, whole) != whole:
                raise self._refuse(f"{node.id} is used with the index and without it", parent)
        out = [name for name in self.pointers if indexed.get(name)]
        if not out:
            raise self._refuse("no pointer is indexed")
        return out

    # -- what becomes of it ----------------------------------------------------------------------

    def _inner(self, index: str, size: str | None, unmasked: bool) -> str:
        """The kernel's function with its program and its size as parameters."""
        if unmasked and any(
            self._names_index(n, index) and not _is_access(self.parents[n], n)
            for n in ast.walk(self.function)
            if isinstance(n, ast.BinOp) and self._pointer_of(n, None) is not None
        ):
            raise self._refuse("an address is kept in a name, and accesses have no mask")
        peeler = self

        class Rewrite(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                if _is_tl(node, "program_id"):
                    return ast.Name(_PID, ast.Load())
                whole = node.args and isinstance(node.args[0], ast.BinOp)
                missing = (
                    whole
                    and peeler._names_index(node.args[0], index)  # type: ignore[arg-type]  # `whole`
                    and _is_access(node, node.args[0])
                    and _mask_of(node) is None
                )
                self.generic_visit(node)
                if missing:
                    mask = ast.parse(f"{index} < {_END}", mode="eval").body
                    node.keywords.append(ast.keyword("mask", mask))
                return node

            def visit_Compare(self, node: ast.Compare) -> ast.AST:
                if isinstance(node.left, ast.Name) and node.left.id == index:
                    node.comparators = [ast.Name(_END, ast.Load())]
                return node

        copy = ast.parse(ast.unparse(self.function)).body[0]
        assert isinstance(copy, ast.FunctionDef)
        made = Rewrite().visit(copy)
        made.name = f"{self.source.name}_tile"
        made.decorator_list = [ast.parse("triton.jit", mode="eval").body]
        made.args.args = [ast.arg(_PID), ast.arg(_END), *made.args.args]
        # Defaults are those of the kernel's own function; they are passed on by name.
        made.args.defaults = []
        return ast.unparse(ast.fix_missing_locations(made))

    def _outer(self, size: str | None, block: str, shifted: list[str]) -> str:
        name = self.source.name
        names = [a.arg for a in self.function.args.args]
        kinds = {p.name: p.kind for p in self.source.params}
        narrow = min(shifted, key=lambda n: torch_dtype(kinds[n][1:]).itemsize)
        width = torch_dtype(kinds[narrow][1:]).itemsize
        head = f"@triton.jit\ndef {name}_peeled({ast.unparse(self.function.args)}):\n"
        block_is_free = block in names and _count(self.function, block) == 2
        # The elements before the first line, and the fewer than 16 after the last tile.
        edge = {block: str(max(_LINE // width, 16))} if block_is_free else {}

        def call(pid: str, end: str, shift: str | None, hint: bool, **values: str) -> str:
            given = [f"{_PID}={pid}", f"{_END}={end}"]
            for n in names:
                value = values.get(n, n)
                if n in shifted and shift is not None:
                    value = f"{n} + {shift}"
                    value = f"tl.multiple_of({value}, 16)" if hint else value
                given.append(f"{n}={value}")
            return f"{name}_tile({', '.join(given)})"

        body = [
            f"total = {size or f'tl.num_programs(0) * {block}'}",
            f"gap = ((0 - {narrow}.to(tl.uint64, bitcast=True)) % {_LINE} // {width}).to(tl.int32)",
            "head = tl.minimum(gap, total)",
            "aligned = (total - head) // 16 * 16",
            "rest = head + aligned",
            call("tl.program_id(0)", "aligned", "head", True),
            "if tl.program_id(0) == 0:",
            "    " + call("tl.program_id(0)", "head", None, False, **edge),
            "    " + call("tl.program_id(0)", "total - rest", "rest", False, **edge),
        ]
        return head + textwrap.indent("\n".join(body), "    ") + "\n"

    def _imports(self) -> list[str]:
        """Globals of a function that the text imports instead of defining."""
        if any(
            isinstance(n, ast.FunctionDef) and n.name == self.source.name
            for n in ast.parse(self.source.text).body
        ):
            return []
        known = vars(inspect.getmodule(self.python))
        names = [n for n in dict.fromkeys(self.python.__code__.co_names) if n in known]
        wanted = ", ".join(dict.fromkeys(["tl", *names]))
        head = "import triton\nimport triton.language as tl"
        return [head, f"from {self.python.__module__} import {wanted}"]


def _is_tl(node: ast.AST, name: str) -> bool:
    """Whether a node is the call `tl.name(...)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return node.func.attr == name and ast.unparse(node.func.value) in ("tl", "triton.language")


def _is_less_than(node: ast.AST, left: ast.AST) -> bool:
    return (
        isinstance(node, ast.Compare)
        and node.left is left
        and len(node.ops) == 1
        and isinstance(node.ops[0], ast.Lt)
    )


def _is_access(call: ast.AST, address: ast.AST) -> bool:
    known = _is_tl(call, "load") or _is_tl(call, "store")
    return known and isinstance(call, ast.Call) and bool(call.args) and call.args[0] is address


def _mask_of(call: ast.Call) -> ast.expr | None:
    position = 1 if _is_tl(call, "load") else 2
    if len(call.args) > position:
        return call.args[position]
    return next((k.value for k in call.keywords if k.arg == "mask"), None)


def _conjuncts(mask: ast.expr) -> list[str]:
    """`(a < b) & c` -> ["a < b", "c"]."""
    if isinstance(mask, ast.BinOp) and isinstance(mask.op, ast.BitAnd):
        return _conjuncts(mask.left) + _conjuncts(mask.right)
    return [ast.unparse(mask)]


def _resolve(python: Any, path: str) -> Any:
    """What a dotted name is to a function; None if it is nothing."""
    first, *rest = path.split(".")
    value = python.__globals__.get(first)
    for part in rest:
        value = getattr(value, part, None)
    return value


def _count(function: ast.FunctionDef, name: str) -> int:
    return sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(function))


def _numbers(text: str) -> list[str]:
    tree = ast.walk(ast.parse(text))
    return [str(n.value) for n in tree if isinstance(n, ast.Constant) and n.value != 0]
