"""Choices that outlive the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multikernel import (
    DamagedEntry,
    Decision,
    Measurement,
    MultiKernel,
    StoreUnavailable,
    TableStore,
)

NAMES = ("a", "b")


def make(path, times=None, context="", name="k", **limits):
    timed = []

    def variant(name):
        return lambda size: name

    def timer(call):
        timed.append(call())
        return (times or {"a": 1.0, "b": 2.0})[timed[-1]]

    kernel = MultiKernel(
        {n: variant(n) for n in NAMES},
        "measured",
        key=lambda size: size,
        name=name,
        measurement=Measurement(timer=timer, **limits),
        store=TableStore(path, context),
    )
    return kernel, timed


SWAPPED = {"a": 2.0, "b": 1.0}


def test_the_next_process_does_not_measure(tmp_path):
    kernel, _ = make(tmp_path)
    assert [kernel(s) for s in (1, 30, 900)] == ["a"] * 3
    again, timed = make(tmp_path, SWAPPED)
    assert [again(s) for s in (1, 30, 900)] == ["a"] * 3 and not timed
    assert again.table == kernel.table and again.chain() == kernel.chain()


def test_other_context_name_variants_or_resolution_are_apart(tmp_path):
    kernel, _ = make(tmp_path, context="H200")
    kernel(1)
    for other in (
        make(tmp_path, context="A100"),
        make(tmp_path, context="H200", name="k2"),
        make(tmp_path, context="H200", resolution=2),
    ):
        assert not other[0].table.cells
    assert make(tmp_path, context="H200")[0].table.cells
    assert len(list(tmp_path.iterdir())) == 1


def test_the_first_decision_stays(tmp_path):
    """Two processes that start empty: what one decided first, the other takes."""
    first, _ = make(tmp_path)
    second, timed = make(tmp_path, SWAPPED)
    assert first(5) == "a"
    assert second(5) == "a" and not timed
    shelf = TableStore(tmp_path).shelf("k", NAMES, 4)
    assert shelf.publish((40,), Decision("a", {}, (1024,))).variant == "a"
    assert shelf.publish((40,), Decision("b", {}, (1024,))).variant == "a"


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_damage_is_reported_and_rebuilt(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("store")
    make(path)[0](5)
    (file,) = path.rglob("*.json")
    whole = file.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damage = data.draw(
        st.sampled_from(
            [
                whole[:place],
                whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :],
                b"",
                b"\xff" * 8,
                whole + b"\n",
            ]
        )
    )
    file.write_bytes(damage)
    with pytest.warns(DamagedEntry, match="measured again"):
        kernel, timed = make(path, SWAPPED)
    assert kernel(5) == "b" and len(timed) == 2
    assert make(path)[0](5) == "b"


def test_an_entry_in_the_wrong_place_is_damaged(tmp_path):
    make(tmp_path)[0](5)
    (file,) = tmp_path.rglob("*.json")
    file.rename(file.with_name("17.json"))
    with pytest.warns(DamagedEntry):
        assert not make(tmp_path)[0].table.cells


def test_damage_after_the_start_is_noticed_when_it_is_in_the_way(tmp_path):
    kernel, _ = make(tmp_path)
    other, _ = make(tmp_path)
    kernel(5)
    (file,) = tmp_path.rglob("*.json")
    file.write_text("{}")
    with pytest.warns(DamagedEntry):
        assert other(5) == "a"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(tmp_path)[0].table.cells


def test_entries_are_readable(tmp_path):
    make(tmp_path, name="mm/bf16")[0](5)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("mm_bf16-")
    (file,) = folder.iterdir()
    entry = json.loads(file.read_text().split("\n", 1)[1])
    assert entry["variant"] == "a" and entry["seconds"] == {"a": 1.0, "b": 2.0}
    assert entry["sizes"] == [5] and entry["cell"] == [9]


def test_guesses_without_a_budget_are_not_kept(tmp_path):
    kernel, _ = make(tmp_path, seconds=0.0)
    assert kernel(5) == "a" and not list(tmp_path.rglob("*.json"))


def test_a_disk_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(StoreUnavailable, match="as long as this process"):
        kernel, _ = make(tmp_path / "file" / "store")
        assert kernel(5) == "a"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel(500) == "a"


def test_no_hard_links(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    make(tmp_path)[0](5)
    monkeypatch.undo()
    assert make(tmp_path, SWAPPED)[0](5) == "a"
    assert [f.suffix for f in tmp_path.rglob("*") if f.is_file()] == [".json"]


def test_files_left_by_a_crash_go(tmp_path):
    make(tmp_path)[0](5)
    (folder,) = tmp_path.iterdir()
    old, fresh = folder / ".new-old", folder / ".new-fresh"
    old.write_text("")
    fresh.write_text("")
    os.utime(old, (time.time() - 7200,) * 2)
    make(tmp_path)
    assert not old.exists() and fresh.exists()


PROCESS = """
import sys
from multikernel import Measurement, MultiKernel, TableStore
bias = int(sys.argv[2])
times = [{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 1.0}][bias]
kernel = MultiKernel(
    {n: (lambda size, n=n: n) for n in "ab"}, "measured", key=lambda size: size, name="k",
    measurement=Measurement(timer=lambda call: times[call()]), store=TableStore(sys.argv[1]),
)
print("".join(kernel(2**i) for i in range(30)))
"""


def test_processes_at_once_agree(tmp_path):
    """Processes that measure the opposite of each other, at the same time, on one store."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(tmp_path), str(i % 2)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    said = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(said) == 1 and len(said.pop().strip()) == 30
