"""The Python of the root README and of the app's, and the walks of `docs/how-to`: each change is
applied to a copy of the sources, and the program behind it runs on that. They run in processes that
have torch already and none of our sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
WALKS = [page for page in PAGES if page.stem != "index"]

# A process that forks: of each line that it reads, the program runs in a child.
_FORKS = """
import json, os, signal, sys, traceback
import torch, torch._dynamo, torch._functorch.aot_autograd, triton
for line in sys.stdin:
    folder, paths, program = json.loads(line)
    if not (child := os.fork()):
        signal.alarm(300)
        with open(os.path.join(folder, "problems"), "w") as problems:
            os.dup2(problems.fileno(), 1)
            os.dup2(problems.fileno(), 2)
        os.chdir(folder)
        sys.path[:0] = [folder, *paths]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        code = 0
        try:
            exec(compile(program, "<walk>", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[[str, Path, list[str]], tuple[int, str]]]:
    """`run(program, folder, paths)`: the exit status of a program that runs in a folder and finds
    these sources first, and what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forks:
        assert forks.stdin is not None and forks.stdout is not None
        given, codes = forks.stdin, forks.stdout

        def run(program: str, folder: Path, paths: list[str]) -> tuple[int, str]:
            print(json.dumps([str(folder), paths, program]), file=given, flush=True)
            return int(codes.readline()), (folder / "problems").read_text()

        yield run
        given.close()


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
def test_the_change_works(
    page: Path, tmp_path: Path, run: Callable[[str, Path, list[str]], tuple[int, str]]
) -> None:
    (program,) = _blocks(page, "python")
    paths = [str(tmp_path / source) for source in _changed(page, tmp_path)]
    code, problems = run(program, tmp_path, paths)
    assert code == 0, problems


_BY_NAME = """import torch, sys
assert "compile_cli" not in sys.modules
f = torch.compile(lambda x: x.relu() + 1, backend="compile_cli")
assert f(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 3.0]
"""
# Custom operators take as long to import as all the others.
_LATE = "import sys\nassert 'gemm_templates.ops' not in sys.modules\n"


def test_a_fresh_process_finds_the_backend_and_runs_the_examples(
    tmp_path: Path, run: Callable[[str, Path, list[str]], tuple[int, str]]
) -> None:
    pages = [ROOT / folder / "README.md" for folder in (".", "apps/compile_cli")]
    examples = [_blocks(page, "python")[0] for page in pages]
    code, printed = run("\n".join([_BY_NAME, *examples, _LATE]), tmp_path, [])
    assert code == 0 and "False" not in printed, printed
