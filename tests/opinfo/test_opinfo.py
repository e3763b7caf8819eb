"""A fixed spread of the sweep, and that the sweep sees what it is there to see."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent.parent))

from opinfo.cases import Case, Copies, subjects
from opinfo.compare import Outcome, compare, differs
from opinfo.known import KNOWN
from opinfo.work import FINE, Settings, eagerly, run, unit

SHARDS = 12
EVERY = 8
DTYPES = ("float32", "bfloat16", "int64")
MODES = ("static", "backward", "dynamic")


def spread(shard: int) -> list[tuple[str, str, str, str]]:
    """Name, variant, dtype and mode of one entry in `EVERY`, by hash of name and variant: the same
    on every machine, whatever torch adds."""
    found = []
    for (name, variant), subject in subjects("cpu").items():
        draw = zlib.crc32(f"{name}/{variant}".encode())
        if draw % EVERY or draw // EVERY % SHARDS != shard:
            continue
        mode = MODES[draw // EVERY // SHARDS % len(MODES)]
        allowed = subject.backward_dtypes if mode == "backward" else subject.dtypes
        if not allowed:
            mode, allowed = "static", subject.dtypes
        dtypes = [d for d in DTYPES if getattr(torch, d) in allowed]
        if dtypes:
            found.append((name, variant, dtypes[draw // 1024 % len(dtypes)], mode))
    return found


@pytest.mark.parametrize(
    "shard", [pytest.param(n, marks=pytest.mark.slow if n % 3 else ()) for n in range(SHARDS)]
)
def test_spread(shard: int, tmp_path: Path) -> None:
    chosen = spread(shard)
    assert chosen
    bad, mended = [], []
    for name, variant, dtype, mode in chosen:
        options = {"cache_dir": str(tmp_path)}
        settings = Settings("cpu", (mode,), 1, 64, None, options)
        records = list(unit(name, variant, dtype, settings, lambda _: None))
        failed = [r for r in records if r["verdict"] not in FINE]
        known = (name, variant, dtype, mode) in KNOWN
        if known and not failed:
            mended.append((name, variant, dtype, mode))
        if not known:
            bad += [f"{r['op']} {variant} {dtype} {mode}: {r['text']}" for r in failed]
    assert not bad, "\n".join(bad)
    assert not mended, f"right by now, so no longer known exceptions: {mended}"


def test_every_exception_is_in_the_spread() -> None:
    drawn = {entry for shard in range(SHARDS) for entry in spread(shard)}
    assert set(KNOWN) <= drawn


def outcome(*results: Any, inputs: tuple[Tensor, ...] = ()) -> Outcome:
    return Outcome(list(results), list(inputs), [], None)


def verdict(got: Any, expected: Any) -> str:
    return compare(outcome(got), outcome(expected), None).kind


def test_what_the_judge_sees() -> None:
    x = torch.randn(3, 4)
    assert verdict(x, x.clone()) == "ok"
    assert verdict(x + 1e-3, x) == "wrong"
    assert verdict(x[:2], x) == "wrong"
    assert verdict(x.double(), x) == "dtype"
    assert verdict(x.t().contiguous().t(), x) == "strides"
    assert verdict(x[:1].t().contiguous().t(), x[:1]) == "ok", "no step along one row"
    assert verdict(torch.tensor([1, 2]), torch.tensor([1, 3])) == "wrong"
    assert verdict(torch.tensor(float("nan")), torch.tensor(0.0)) == "wrong"
    assert verdict(True, 1) == "wrong"
    assert compare(outcome(x, x), outcome(x), None).kind == "wrong"


def test_the_judge_sees_storages() -> None:
    x = torch.randn(3, 4)
    view = outcome(x[1], inputs=(x,))
    assert compare(view, outcome(x[1], inputs=(x,)), None).kind == "ok"
    assert compare(outcome(x[1].clone(), inputs=(x,)), view, None).kind == "alias"
    assert compare(outcome(x, x), outcome(x, x.clone()), None).kind == "alias"
    assert compare(outcome(inputs=(x + 1,)), outcome(inputs=(x,)), None).kind == "wrong"


def test_float64_is_the_second_judge() -> None:
    """Of two roundings of one number, the nearer one is no fault, and the farther one is."""
    exact = torch.tensor([1000.0, 1.0], dtype=torch.float64)
    eager, good, worse = (exact.float() + torch.tensor([0.0, e]) for e in (1e-4, 0.0, 1e-2))
    assert differs(good, eager) is not None
    assert differs(good, eager, exact) is None
    assert differs(worse, eager, exact) is not None


def test_copies_keep_layouts_and_storages() -> None:
    x = torch.randn(4, 6)
    a, b = Copies().tree((x.t()[1:], x))
    assert a.stride() == x.t()[1:].stride() and torch.equal(a, x.t()[1:])
    b.zero_()
    assert not a.any() and x.any()


def test_a_wrong_backend_is_found() -> None:
    """The same path with a compiler that drops the last operator."""

    def call(x: Tensor) -> Tensor:
        return x.sin() + 1

    case = Case(call, (torch.randn(3),), {}, lambda out: out)
    expected = run(case, eagerly, grad=False)
    got = run(case, lambda fn: lambda x: fn(x) - 1, grad=False)
    assert compare(got, expected, run(case, eagerly, False, wide=True)).kind == "wrong"
