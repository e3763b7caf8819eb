"""The size budget: what is counted, and that a figure above its budget fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

_SOURCE = '''"""A module.

Its docstring has three lines."""

import triton  # noqa: F401
import torch  # type: ignore[import]  # it has no stubs

TEXT = """
# not a comment
"""


def wide(a, b, c, d, e, f, g, h, i, j, k):  # comment
    # a comment
    return 1  # fmt: skip


@triton.jit
def kernel(a, b, c, d, e, f, g, h, i, j, k):
    """A kernel may have them."""


class Public:
    def method(self):
        def inner(): ...

    def _private(self): ...


def _private(): ...
'''


def _house(folder: Path, budget: str) -> Path:
    room = folder / "libs" / "room" / "src" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text(_SOURCE)
    (room / "oracle.py").write_text("x = 1\n\n")
    (folder / ".ci").mkdir()
    (folder / ".ci" / "size.toml").write_text(budget)
    return folder


def _size(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / "size.py"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_accepted_figures_are_the_budget(tmp_path: Path) -> None:
    head = "[goals]\nlines = 30\n\n[rooms]\n"
    house = _house(tmp_path, f'{head}room = {{ off_path = ["oracle.py"] }}\n')
    assert _size(house, "--accept").returncode == 0
    assert (house / ".ci" / "size.toml").read_text() == (
        f"{head}room = {{ lines = 32, code = 14, skips = 1, bare = 1, wide = 1, undocumented = 3, "
        f'off_path = ["oracle.py"] }}\n'
    )
    done = _size(house)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].split() == [
        "all",
        "32/30",
        "14/-",
        "1/-",
        "1/-",
        "1/-",
        "3/-",
    ]


def test_a_figure_above_its_budget_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    figures = "lines = 31, code = 15, skips = 1, bare = 0, wide = 1, undocumented = 3"
    done = _size(_house(tmp_path, f"[rooms]\nroom = {{ {figures} }}\n"))
    assert done.returncode == 1
    lines, bare = done.stderr.splitlines()
    assert lines.startswith("room: lines is 32, its budget 31: make room")
    assert bare.startswith("room: bare is 1, its budget 0: write the reason")


def test_a_room_without_a_budget_is_told_its_row_and_a_row_needs_a_room(tmp_path: Path) -> None:
    house = _house(tmp_path, "[rooms]\ngone = { lines = 1 }\n")
    done = _size(house)
    assert done.returncode == 1
    assert (
        "room = { lines = 32, code = 15, skips = 1, bare = 1, wide = 1, undocumented = 3 }"
        in done.stderr
    )
    assert "gone has a budget and no files" in done.stderr


def test_places_are_listed(tmp_path: Path) -> None:
    done = _size(_house(tmp_path, "[rooms]\n"), "--list", "undocumented")
    assert [line.split(": ", 1)[1] for line in done.stdout.splitlines()] == [
        "def wide(a, b, c, d, e, f, g, h, i, j, k):  # comment",
        "class Public:",
        "def method(self):",
    ]


def test_an_overriding_method_has_the_docstring_of_the_overridden(tmp_path: Path) -> None:
    house = _house(tmp_path, "[rooms]\n")
    (house / "libs/room/src/room/oracle.py").write_text('''
class Base:
    """A class."""

    def told(self):
        """What it does."""

    def untold(self): ...


class Middle(Base):
    """Another."""


class Derived(Middle):
    """A third."""

    def told(self): ...

    def untold(self): ...

    def visit_Add(self): ...
''')
    listed = _size(house, "--list", "undocumented").stdout.splitlines()
    assert sum("untold" in line for line in listed) == 2
    assert not any("def told" in line or "visit_Add" in line for line in listed)
