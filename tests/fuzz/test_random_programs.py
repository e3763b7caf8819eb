"""Random programs against eager, ten to a compilation; `run.py` makes as many as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzzer.check import check
from fuzzer.generate import generate
from fuzzer.program import Loaded, merged
from fuzzer.settings import draw_setting

# First seeds of tens of programs that torch traces; one in ten has gradients, one named sizes.
GROUPS = (
    0, 4, 5, 6, 8, 10, 15, 16, 17, 20, 22, 24, 25, 26, 28, 31, 32, 33, 34, 36, 40, 41, 42, 44,
    45, 46, 47, 48,
)  # fmt: skip
_SIZE = 10


@pytest.mark.parametrize("group", GROUPS)
def test_ten_programs(group: int, tmp_path: Path) -> None:
    first = group * _SIZE
    setting = draw_setting(
        random.Random(first), cpp=0, dynamic=group % 10 == 9, grad=group % 10 == 8
    )
    programs = [generate(seed, setting, (5, 7)) for seed in range(first, first + _SIZE)]
    source = merged(programs).source(setting)
    outcome = check(Loaded(source), str(tmp_path))
    assert outcome.calls, outcome.refused
    assert outcome.failure is None, f"{outcome.failure}\n{source}"
