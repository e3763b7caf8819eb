"""The walks of `docs/how-to`: each change is applied to a copy of the sources, and the program
behind it runs on that."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
WALKS = [page for page in PAGES if page.stem != "index"]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.stem)
def test_a_change_has_at_most_40_lines(page: Path) -> None:
    (change,) = _blocks(page, "diff")
    lines = [x for x in change.splitlines() if x[:1] in "+-" and x[:3] not in ("+++", "---")]
    assert 0 < len(lines) <= 40
    assert f"]({page.name})" in (page.parent / "index.md").read_text()


def _changed(page: Path, folder: Path) -> list[str]:
    """Copies what the change of a page touches into a folder, and applies it there: the folders of
    sources that it has then."""
    (change,) = _blocks(page, "diff")
    touched = sorted(set(re.findall(r"^\+\+\+ b/((?:libs|apps)/\w+/src)/", change, re.MULTILINE)))
    for source in touched:
        shutil.copytree(ROOT / source, folder / source)  # with the bytecode of what stays
    applied = subprocess.run(
        ["git", "apply", "-C1", "--whitespace=nowarn"],
        cwd=folder, input=change, capture_output=True, text=True, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
    )  # fmt: skip
    assert applied.returncode == 0, f"{page.name} no longer fits the sources: {applied.stderr}"
    return touched


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.stem)
def test_the_change_fits(page: Path, tmp_path: Path) -> None:
    _changed(page, tmp_path)


@pytest.mark.parametrize("page", WALKS, ids=lambda page: page.stem)
def test_the_change_works(page: Path, tmp_path: Path) -> None:
    (program,) = _blocks(page, "python")
    paths = os.pathsep.join(str(tmp_path / source) for source in _changed(page, tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
