"""`docs/coverage.md` is what the lowerings do: its operators are those of torch's database, nothing
that has a lowering is listed as without one, and a fixed spread is traced again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent))

from aten_lowering.lowerings import TABLE
from opinfo import coverage
from opinfo.cases import subjects

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
TO_DO = "generate it: uv run python tests/opinfo --coverage docs/coverage.md"
SPREAD = ("cumsum", "nn.functional.max_pool2d", "nn.functional.dropout", "sort", "nonzero")
MORE = ("acosh", "index_fill", "scatter_reduce.amax", "polygamma.polygamma_n_2")


def test_every_operator_is_on_the_page() -> None:
    native = re.findall(r"^Native: (.*)\.$", PAGE.read_text(), re.MULTILINE)
    listed = [name for names in native for name in re.findall(r"`([^`]+)`", names)]
    listed += re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    names = {name for name, variant in subjects("cpu") if variant == "function"}
    assert set(listed) == names and len(listed) == len(names), TO_DO


def test_nothing_with_a_lowering_is_said_to_have_none() -> None:
    without = set(re.findall(r"`([\w.]+)`: no lowering", PAGE.read_text()))
    ruled = {str(op) for op, _ in TABLE}
    assert without and not without & ruled, TO_DO


@pytest.mark.parametrize(
    "name", [*SPREAD, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)]
)
def test_what_is_said(name: str) -> None:
    row = coverage.row(subjects("cpu")[name, "function"])
    text = PAGE.read_text()
    if row.native:
        assert re.search(rf"^Native: .*`{re.escape(name)}`", text, re.MULTILINE), TO_DO
    else:
        assert coverage.line(row) in text.split("\n"), TO_DO
