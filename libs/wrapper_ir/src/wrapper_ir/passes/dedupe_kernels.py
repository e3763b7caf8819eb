"""One definition for kernels that differ in nothing but their names and comments."""

import ast
import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

from wrapper_ir.ops import DefineKernel, If, Launch, Op, Program

_LONG = re.compile("\"{3}|'{3}")  # a string that may have lines like comments


@dataclass(frozen=True)
class DedupeKernels:
    """`kernel k0 ... kernel k1 ... launch k1` -> `kernel k0 ... launch k0`, when the sources are
    equal but for comments and the kernel's own name, and parameters, constants, warps, stages and
    all further fields are equal. The first definition stays."""

    name: ClassVar[str] = "dedupe_kernels"

    def run(self, program: Program) -> Program:
        """The program with each kernel defined once."""
        alike = Counter(map(_outside, (o for o in program.ops if isinstance(o, DefineKernel))))
        first: dict[tuple[Any, ...], str] = {}
        renamed: dict[str, str] = {}
        ops: list[Op] = []
        for op in program.ops:
            if isinstance(op, DefineKernel):
                outside = _outside(op)
                # What no other kernel could be need not be parsed.
                inside = _inside(op) if alike[outside] > 1 else op.name
                kept = first.setdefault((outside, inside), op.name)
                renamed[op.name] = kept
                if kept != op.name:
                    continue
            ops.append(op)
        return replace(program, ops=_rename(ops, renamed))


def _outside(op: DefineKernel) -> tuple[Any, ...]:
    """What says of a kernel how it is called."""
    # 1, 1.0 and True are equal and hash alike, but are different constants to Triton.
    constants = tuple((n, type(v), repr(v)) for n, v in op.constants)
    rest = replace(op, name="", source="", comment="", params=(), constants=())
    return op.params, constants, rest


def _inside(op: DefineKernel) -> str:
    """The source, without comments and the kernel's own name."""
    name, source = op.name, op.source
    if op.language == "cpp":
        lines = source.replace(f" kernel_{name}(", " kernel(").split("\n")
        return "\n".join(x for x in lines if not x.lstrip().startswith("//"))
    if source.count(name) == source.count(f"def {name}(") == 1 and not _LONG.search(source):
        # Nothing but its definition says the name: sources of one text are parsed once.
        lines = source.replace(f"def {name}(", "def _(").split("\n")
        name, source = "_", "\n".join(x for x in lines if not x.lstrip().startswith("#"))
    return _parsed(name, source)


@lru_cache(1 << 10)
def _parsed(name: str, source: str) -> str:
    with contextlib.suppress(SyntaxError, ValueError):
        return ast.dump(_Anonymous(name).visit(ast.parse(source)))
    return source


class _Anonymous(ast.NodeTransformer):
    """Takes a kernel's name out of its source: `def cos(x): tl.cos(x)` -> `def (x): tl.cos(x)`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name == self.name:
            node.name = ""
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == self.name:
            node.id = ""
        return node


def _rename(ops: Sequence[Op], names: dict[str, str]) -> tuple[Op, ...]:
    out: list[Op] = []
    for op in ops:
        if isinstance(op, Launch):
            op = replace(op, kernel=names.get(op.kernel, op.kernel))
        elif isinstance(op, If):
            op = replace(op, then=_rename(op.then, names), orelse=_rename(op.orelse, names))
        out.append(op)
    return tuple(out)
