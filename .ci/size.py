#!/usr/bin/env python3
"""The size of the house, room by room, held against `.ci/size.toml`.

    python .ci/size.py                 the table, and an error for each figure above its budget
    python .ci/size.py --list skips    where these stand (also: bare, wide, undocumented)
    python .ci/size.py --accept        today's figures become the budget

A room is a package under `libs/*/src` or `apps/*/src`. What is counted:

- `lines`: all lines.
- `code`: lines that are not blank, a comment or part of a docstring, in files on the compile path:
  all but those that the room's `off_path` names (files, and folders with all below them).
- `skips`: `# fmt: skip`, `# fmt: off` and `# fmt: on`.
- `bare`: `# type: ignore` and `# noqa` with no reason behind them in the line.
- `wide`: functions with more than 10 parameters; kernels (decorated with a `jit`) do not count.
- `undocumented`: functions, classes and methods of public classes without a leading underscore and
  without a docstring. A method has that of the method it overrides, where a class of the house that
  it inherits from has one; names that a protocol gives (`visit_Add`, sympy's `eval`,
  `create_load` of Triton's builder) say enough.
"""

from __future__ import annotations

import argparse
import ast
import functools
import gc
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

MOST_PARAMETERS = 10
FIGURES = ("lines", "code", "skips", "bare", "wide", "undocumented")
HINTS = {
    "lines": "make room: merge what is done twice, delete what nothing calls",
    "code": "make room: merge what is done twice, delete what nothing calls",
    "skips": "let ruff format the place",
    "bare": "write the reason behind the mark: `# type: ignore[code]  # reason`",
    "wide": "give the parameters that travel together a dataclass",
    "undocumented": "write the docstring",
}
SKIP = re.compile(r"#\s*fmt:\s*(skip|off|on)\b")
BARE = re.compile(r"#\s*(type:\s*ignore(\[[^\]]*\])?|noqa(:\s*[A-Z]+\d+(,\s*[A-Z]+\d+)*)?)\s*$")

NAMED_BY_PROTOCOL = re.compile(r"visit_\w+|create_\w+|eval")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Figures = Mapping[str, int]
# Of each class of the house: the classes it inherits from, and its methods that have a docstring.
Classes = Mapping[str, tuple[frozenset[str], frozenset[str]]]


@dataclass(frozen=True)
class Budget:
    """A room's row of the budget file: what is not on the compile path, and the figures allowed."""

    off_path: tuple[str, ...] = ()
    figures: Figures = field(default_factory=dict)


def main() -> int:
    """Prints the table. Returns 1 where a figure is above its budget or a room has none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--accept", action="store_true", help="today's figures become the budget")
    parser.add_argument("--list", metavar="FIGURE", choices=FIGURES[2:], help="where these stand")
    options = parser.parse_args()
    gc.disable()  # trees have no circles, and all are kept
    folders = rooms(options.root)
    classes = classes_of(folders.values())
    if options.list:
        for folder in folders.values():
            found = places(folder, options.list, classes)
            print("".join(f"{place}\n" for place in found), end="")
        return 0
    file = options.root / ".ci" / "size.toml"
    text = file.read_text()
    goals, budgets = read(text)
    now = {room: measure(at, budgets.get(room, Budget()), classes) for room, at in folders.items()}
    print(table(now, budgets, goals))
    if options.accept:
        file.write_text(accepted(text, now, budgets))
        return 0
    errors = [*over_budget(now, budgets)]
    print("".join(f"{error}\n" for error in errors), end="", file=sys.stderr)
    return 1 if errors else 0


def read(text: str) -> tuple[Figures, dict[str, Budget]]:
    """The goals of the house and the budget of each room, from the text of the budget file."""
    content = tomllib.loads(text)
    budgets = {
        room: Budget(tuple(row.pop("off_path", ())), row)
        for room, row in content.get("rooms", {}).items()
    }
    return content.get("goals", {}), budgets


def rooms(root: Path) -> dict[str, Path]:
    """The folder of each package of the workspace, by its name."""
    faces = [*root.glob("libs/*/src/*/__init__.py"), *root.glob("apps/*/src/*/__init__.py")]
    return dict(sorted((face.parent.name, face.parent) for face in faces))


def measure(room: Path, budget: Budget, classes: Classes) -> Counter[str]:
    """The figures of a room: the sums over its files."""
    total = Counter(dict.fromkeys(FIGURES, 0))
    for file in room.rglob("*.py"):
        found = find(file.read_text(), classes)
        counted = Counter({figure: len(lines) for figure, lines in found.items()})
        if not {*file.relative_to(room).parts}.isdisjoint(budget.off_path):
            counted["code"] = 0
        total.update(counted)
    return total


def places(room: Path, figure: str, classes: Classes) -> Iterator[str]:
    """`file:line: text` of each thing that `figure` counts in a room."""
    for file in sorted(room.rglob("*.py")):
        text = file.read_text()
        lines = text.splitlines()
        for number in find(text, classes)[figure]:
            yield f"{file}:{number}: {lines[number - 1].strip()}"


def classes_of(folders: Iterable[Path]) -> Classes:
    """The classes of some rooms, by name."""
    found = {}
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        for node in nodes_of(file.read_text()):
            if isinstance(node, ast.ClassDef):
                bases = frozenset(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                methods = [m for m in node.body if isinstance(m, Function)]
                documented = frozenset(m.name for m in methods if ast.get_docstring(m) is not None)
                found[node.name] = bases, documented
    return found


def inherits_docstring(owner: str, method: str, classes: Classes) -> bool:
    """Whether a class inherits a method of that name which has a docstring."""
    bases = classes.get(owner, (frozenset(), frozenset()))[0]
    return any(
        base in classes
        and (method in classes[base][1] or inherits_docstring(base, method, classes))
        for base in bases - {owner}
    )


def find(text: str, classes: Classes) -> dict[str, list[int]]:
    """The numbers of the lines of a file that each figure counts."""
    lines = text.splitlines()
    in_strings: set[int] = set()  # there, what looks like a comment is none
    docstrings: set[int] = set()
    wide = []
    for node in nodes_of(text):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            in_strings.update(range(node.lineno + 1, last_line(node) + 1))
        elif isinstance(node, ast.Expr) and is_text(node.value):
            docstrings.update(range(node.lineno, last_line(node) + 1))
        elif isinstance(node, Function) and is_wide(node):
            wide.append(node.lineno)
    numbered = [*enumerate(map(str.strip, lines), 1)]
    return {
        "lines": [number for number, _ in numbered],
        "code": [
            number
            for number, line in numbered
            if line and number not in docstrings and (line[0] != "#" or number in in_strings)
        ],
        "skips": [number for number, line in numbered if SKIP.search(line)],
        "bare": [number for number, line in numbered if BARE.search(line)],
        "wide": wide,
        "undocumented": [
            node.lineno
            for owner, node in public_definitions(nodes_of(text)[0])
            if ast.get_docstring(node) is None
            and not (owner and NAMED_BY_PROTOCOL.fullmatch(node.name))
            and not (owner and inherits_docstring(owner, node.name, classes))
        ],
    }


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a file, the module first."""
    return tuple(ast.walk(ast.parse(text)))


def last_line(node: ast.expr | ast.stmt) -> int:
    """The number of the last line of a node."""
    return node.end_lineno or node.lineno


def is_text(node: ast.expr) -> bool:
    """Whether a node is a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_wide(function: Function) -> bool:
    """Whether a function that is no kernel has more than 10 parameters, `self`, `*args` and
    `**kwargs` among them."""
    args = function.args
    named = len(args.posonlyargs) + len(args.args) + len(args.kwonlyargs)
    number = named + (args.vararg is not None) + (args.kwarg is not None)
    return number > MOST_PARAMETERS and not is_kernel(function)


def is_kernel(function: Function) -> bool:
    """Whether a decorator's name ends in `jit`: `@triton.jit`, `@gluon.jit`, `@jit(...)`."""
    return any(re.search(r"jit(\(|$)", ast.unparse(mark)) for mark in function.decorator_list)


def public_definitions(tree: ast.AST) -> Iterator[tuple[str, Definition]]:
    """Functions and classes without a leading underscore, and such methods of such classes, each
    with the name of the class that it is a method of (of others "").
    Overloads and setters are described where the function or the property itself is."""
    pending: list[ast.AST] = [tree]
    while pending:
        parent = pending.pop()
        owner = parent.name if isinstance(parent, ast.ClassDef) else ""
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, Definition):
                marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
                if node.name.startswith("_") or marks & {"overload", "setter"}:
                    continue
                yield owner, node
            if isinstance(node, ast.ClassDef | ast.If | ast.Try):
                pending.append(node)


def over_budget(now: Mapping[str, Figures], budgets: Mapping[str, Budget]) -> Iterator[str]:
    """A message for each figure above its budget, each room without one and each row
    without a room."""
    for room, figures in now.items():
        if room not in budgets:
            row = row_of(room, Budget((), figures))
            yield f"{room} has no budget; write into [rooms] of .ci/size.toml:\n{row}"
            continue
        for figure in FIGURES:
            allowed = budgets[room].figures.get(figure, 0)
            if figures[figure] > allowed:
                yield (
                    f"{room}: {figure} is {figures[figure]}, its budget {allowed}: {HINTS[figure]};"
                    f" or raise the budget in .ci/size.toml and say why in the commit"
                )
    for room in budgets.keys() - now.keys():
        yield f"{room} has a budget and no files under libs/*/src or apps/*/src: delete its row"


def row_of(room: str, budget: Budget) -> str:
    """A room's row of the budget file."""
    cells = [f"{figure} = {budget.figures[figure]}" for figure in FIGURES]
    if budget.off_path:
        cells.append(f"off_path = {[*budget.off_path]}".replace("'", '"'))
    return f"{room} = {{ {', '.join(cells)} }}"


def accepted(text: str, now: Mapping[str, Figures], budgets: Mapping[str, Budget]) -> str:
    """The budget file with today's figures. All above `[rooms]` stays as it is."""
    head, _, _ = text.partition("[rooms]\n")
    budget = {room: Budget(budgets.get(room, Budget()).off_path, now[room]) for room in now}
    rows = [row_of(room, budget[room]) for room in now]
    return f"{head}[rooms]\n" + "\n".join(rows) + "\n"


def table(now: Mapping[str, Figures], budgets: Mapping[str, Budget], goals: Figures) -> str:
    """A row a room, each figure before its budget; the sums before the goals of the house."""
    total = Counter[str]()
    for figures in now.values():
        total.update(figures)
    rows = [["room", *FIGURES]]
    for room, figures, allowed in [
        *((room, now[room], budgets.get(room, Budget()).figures) for room in now),
        ("all", total, goals),
    ]:
        rows.append([room, *(f"{figures[name]}/{allowed.get(name, '-')}" for name in FIGURES)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        f"{row[0]:{widths[0]}}  "
        + "  ".join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    )


if __name__ == "__main__":
    raise SystemExit(main())
