"""295 random programs against eager, ten to a compilation; `run.py` makes as many as one likes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fuzzer.check import check
from fuzzer.generate import generate
from fuzzer.program import Loaded, merged
from fuzzer.settings import Setting

_SIZE = 10
_BACKEND, _COMPILE = Setting(), Setting(entry="compile")
Groups = tuple[tuple[Setting, tuple[int, ...]], ...]
# Settings, and the first seeds of tens of programs that torch traces: of two to six steps, and of
# five. Those of five are `slow`.
SHORT: Groups = (
    (_BACKEND, (0, 10, 20, 30, 40, 50, 60, 70, 80, 90)),
    (_COMPILE, (100, 110, 130, 140, 150, 160, 170, 180, 190)),
    (replace(_COMPILE, emit="hop"), (200, 210, 220)),
    (replace(_BACKEND, fuse=False, plan_memory=False), (230,)),
    (replace(_BACKEND, emit="cpp"), (240,)),
    (replace(_COMPILE, dynamic="n"), (270, 280)),
    (replace(_COMPILE, dynamic="m", emit="hop"), (330,)),
    (replace(_COMPILE, dynamic="mk", fuse=False), (340,)),
    (replace(_BACKEND, grad=True), (350, 360)),
)
LONG: Groups = (
    (_BACKEND, (0, 10, 20, 30, 40, 50, 60, 70, 180, 470)),
    (_COMPILE, (90, 100, 110, 130, 380, 420, 430, 440, 520)),
    (replace(_COMPILE, emit="hop"), (140, 150, 570)),
    (replace(_BACKEND, fuse=False, plan_memory=False), (170,)),
    (replace(_BACKEND, emit="cpp"), (190,)),
    (replace(_COMPILE, dynamic="n"), (330, 610)),
    (replace(_COMPILE, dynamic="m", emit="hop"), (550,)),
    (replace(_COMPILE, dynamic="mk", fuse=False), (410,)),
    (replace(_BACKEND, grad=True), (260, 270)),
)
_SLOW = pytest.mark.slow
_CASES = [
    pytest.param(
        setting,
        first,
        length,
        marks=marks,
        id=f"{first}-{length[0]}-{length[1]}",
    )
    for groups, length, marks in ((SHORT, (2, 6), ()), (LONG, (5, 5), _SLOW))
    for setting, seeds in groups
    for first in seeds
]


@pytest.mark.parametrize("setting, first, length", _CASES)
def test_ten_programs(
    setting: Setting, first: int, length: tuple[int, int], own_cache: Path
) -> None:
    count = _SIZE // 2 if setting.emit == "cpp" else _SIZE  # g++ is slow
    program = merged([generate(s, setting, length) for s in range(first, first + count)])
    source = replace(program, calls=program.calls[:1]).source(setting)
    outcome = check(Loaded(source), str(own_cache))
    assert outcome.failure is None, f"{outcome.failure}\n{source}"
    assert outcome.calls == 1 + bool(setting.dynamic), outcome.refused
