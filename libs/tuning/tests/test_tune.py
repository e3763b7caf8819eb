"""Tuning without a GPU: the race, what is restored, stored results."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from triton_rt import KernelParam, KernelSource, LazyKernel, errors
from tuning import TuningStore, autotune
from tuning import race as racing
from tuning.errors import CandidateHung, CorruptTuningRecord
from tuning.race import Outcome, race, rounds, winner
from tuning.saved import Saved, extent, spans
from tuning.store import Query, Record

# -- the race ------------------------------------------------------------------------------------


class FakeBench:
    """Candidates of known speed, with noise; counts the launches that each got."""

    def __init__(self, speeds: Sequence[float | errors.TritonRTError], noise: float = 0.0) -> None:
        self.speeds, self.noise = speeds, noise
        self.launches = [0] * len(speeds)
        self.rng = random.Random(0)

    def measure(self, indices: Sequence[int], runs: int) -> Iterator[tuple[int, Outcome]]:
        for i in indices:
            speed = self.speeds[i]
            if isinstance(speed, errors.TritonRTError):
                yield i, speed
            else:
                self.launches[i] += runs
                yield i, [speed * (1 + self.noise * self.rng.random()) for _ in range(runs)]


def test_hopeless_candidates_leave_early() -> None:
    bench = FakeBench([1.0, 1.1, 1.3, 2.0, 10.0, CandidateHung("x")], noise=0.02)
    result = race(bench, range(6), 20)
    assert bench.launches == [20, 20, 7, 3, 1, 0]
    assert winner([result.time(i) for i in range(6)]) == 0
    assert isinstance(result.failures[5], CandidateHung) and result.time(5) == math.inf
    assert [sum(r for r, _ in rounds(n)) for n in (1, 2, 7, 20)] == [1, 2, 7, 20]


def test_ties_go_to_the_first() -> None:
    assert winner([1.004, 1.0, 1.2]) == 0 and winner([1.2, 1.01, 1.0]) == 2


# -- what candidates mutate ----------------------------------------------------------------------


def test_only_what_mutated_arguments_hold_is_saved() -> None:
    whole = torch.arange(1000.0)
    a, b, c = whole[100:110], whole[105:120], whole[500:600:10]
    assert extent(c) == (2000, 2000 + 4 * 91)
    found = spans([a, b, c, whole[7:7]])
    assert [(s.start, s.end) for s in found] == [(400, 480), (2000, 2364)]
    kept = Saved(found)
    whole.fill_(-1)
    kept.restore()
    expected = torch.full((1000,), -1.0)
    expected[100:120] = torch.arange(100.0, 120.0)
    expected[500:591] = torch.arange(500.0, 591.0)
    assert torch.equal(whole, expected)


# -- stored results ------------------------------------------------------------------------------

PARAMS = (KernelParam("x", "*f32"), KernelParam("n", "i32"), KernelParam("eps", "f32"))


def query(rows: int, kernel: str = "k", device: str = "H200") -> Query:
    return Query.of(kernel, device, PARAMS, (torch.empty(rows, 64), rows, 0.5))


def record(rows: int, **times: float) -> Record:
    best = min(times, key=times.__getitem__)
    return Record(query(rows), best, times, {}, tuple(times))


def test_the_nearest_shape_is_found(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    assert store.nearest(query(64)) is None and store.get(query(64)) is None
    for rows in (16, 128, 4096):
        store.put(record(rows, a=rows, b=1.0))
    assert store.get(query(128)) == record(128, a=128, b=1.0)
    near = store.nearest(query(100))
    assert near is not None and near.query.sizes[0] == 128
    assert query(64).distance(query(128)) == pytest.approx(2.0, rel=0.02), "shape, and n"
    assert store.nearest(query(100), limit=0.1) is None
    assert store.nearest(query(64, device="A100")) is None
    other = Query.of("k", "H200", PARAMS, (torch.empty(64, 64)[1:, 1:], 63, 0.5))
    assert query(64).distance(other) == math.inf, "another alignment"


@pytest.mark.parametrize("damage", ["flip", "truncate", "binary", "foreign"])
def test_a_damaged_record_is_dropped(tmp_path: Path, damage: str) -> None:
    store = TuningStore(tmp_path)
    store.put(record(16, a=1.0))
    file = store.file(query(16))
    text = file.read_text()
    bad = {
        "flip": text.replace('"winner": "a"', '"winner": "b"'),
        "truncate": text[:-20],
        "binary": "\udcff",
        "foreign": json.dumps({"hello": 1}),
    }[damage]
    file.write_bytes(bad.encode(errors="surrogateescape"))
    with pytest.warns(CorruptTuningRecord, match="measured again"):
        assert store.get(query(16)) is None
    assert not file.exists()


def test_the_store_is_bounded_and_shared(tmp_path: Path) -> None:
    store = TuningStore(tmp_path, max_bytes=4000)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda rows: store.put(record(rows, a=1.0)), range(1, 40)))
    assert 0 < sum(f.stat().st_size for f in tmp_path.glob("*/*")) <= 4000
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.warns(UserWarning, match="not written"):
        TuningStore(blocked / "x").put(record(1, a=1.0))


def test_results_of_an_earlier_version_are_found(tmp_path: Path) -> None:
    """A file as triton_rt wrote it, where it wrote it."""
    wanted = query(64)
    body = {
        "version": 1,
        "query": {
            "kernel": "k",
            "device": "H200",
            "structure": "*f32/2 i32 f32",
            "sizes": [64, 64, 64, 1, 64],
        },
        "winner": "a",
        "times": {"a": 1.5, "b": 2.0},
        "bad": {},
        "candidates": ["a", "b"],
    }
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:40]
    folder = tmp_path / "4ce08841cc727c9cfab66e6042f141c65f3d5c3e"
    folder.mkdir()
    file = folder / "c8cdb67886f37ba4f061f44c23a0c4fac08c94d8.json"
    file.write_text(json.dumps({"sha256": checksum, "record": body}))
    store = TuningStore(tmp_path)
    assert store.get(wanted) == Record(wanted, "a", {"a": 1.5, "b": 2.0}, {}, ("a", "b"))
    near = store.nearest(query(100))
    assert near is not None and near.winner == "a"


def test_cpu_arguments_are_not_measured(add_one: KernelSource) -> None:
    x = torch.zeros(64)
    with pytest.raises(errors.NoGPU):
        autotune([(LazyKernel(add_one), 1)], (x, x, 64))
    assert racing.rounds(3) == [(1, 3.0), (2, 1.0)]
