"""Schedules chosen by measuring on a real GPU."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import tuning
from planner.schedules import tuning as schedule_tuning

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

Model = Callable[..., Any]


def randn(*size: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=dtype)


def ids(high: int, *size: int) -> torch.Tensor:
    return torch.randint(high, size, device="cuda")


CASES: dict[str, tuple[Model, Callable[[], tuple[torch.Tensor, ...]]]] = {
    "softmax": (lambda x: x.softmax(-1), lambda: (randn(4096, 4096),)),
    "softmax of long rows": (lambda x: x.softmax(-1), lambda: (randn(256, 65536),)),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        lambda: (randn(16384, 768), randn(768), randn(768)),
    ),
    "columns": (lambda x: x.float().sum(0), lambda: (randn(16384, 2048),)),
    "all": (lambda x: x.float().square().mean(), lambda: (randn(8192, 4096),)),
    "short rows": (lambda x: x.float().sum(-1), lambda: (randn(1 << 18, 64),)),
    "argmax": (lambda x: x.argmax(-1), lambda: (randn(512, 32768, dtype=torch.float32),)),
    "cumsum": (lambda x: x.cumsum(-1), lambda: (randn(4096, 4096, dtype=torch.float32),)),
    "columns of scans": (lambda x: x.cumsum(0), lambda: (randn(4096, 2048, dtype=torch.float32),)),
    "transpose": (lambda x, y: x.t() + y, lambda: (randn(2048, 4096), randn(4096, 2048))),
    "windows": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (randn(32, 64, 56, 56),)),
    "odd": (lambda x: x * 2, lambda: (randn(4097, 4097),)),
    "pointwise": (lambda x: F.gelu(x), lambda: (randn(4096, 4096),)),
    "embedding": (lambda w, i: F.embedding(i, w), lambda: (randn(5000, 1024), ids(5000, 8192))),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x.float(), t),
        lambda: (randn(2048, 32000), ids(32000, 2048)),
    ),
}


def compiled(model: Model, args: tuple[torch.Tensor, ...], folder: Path, **options: Any) -> Any:
    return compile_cli.compile(model, args, options={"cache_dir": str(folder), **options})


@pytest.mark.parametrize("name", CASES)
def test_all_candidates_agree_and_the_fastest_runs(name: str, tmp_path: Path) -> None:
    model, make = CASES[name]
    args = make()
    ours = compiled(model, args, tmp_path, tune="max")
    schedules = ours.graph.schedules
    assert any(chosen.how == "measured" for chosen in schedules.values())
    for chosen in schedules.values():
        assert not chosen.failures, chosen
        seconds = dict(chosen.times)
        assert seconds[chosen.schedule] <= seconds[chosen.guess]
        assert 1e-6 < seconds[chosen.schedule] < 1e-2
    got, want = ours(*args), model(*args)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-2)


def test_a_second_process_measures_nothing(tmp_path: Path) -> None:
    script = tmp_path / "model.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            import torch
            import compile_cli, tuning
            if sys.argv[2] == "again":
                tuning.autotune = None
            x = torch.randn(4096, 4096, device="cuda")
            options = {"cache_dir": sys.argv[1], "tune": "max"}
            model = compile_cli.compile(lambda t: t.softmax(-1), (x,), options=options)
            torch.testing.assert_close(model(x), x.softmax(-1))
            (chosen,) = model.graph.schedules.values()
            print(chosen.how, chosen.schedule)
            """
        )
    )
    first, second = (
        subprocess.run(
            [sys.executable, script, tmp_path / "cache", which],
            check=True, capture_output=True, text=True,
        ).stdout.split(maxsplit=1)
        for which in ("once", "again")
    )  # fmt: skip
    assert (first[0], second[0]) == ("measured", "stored") and first[1] == second[1]


def test_what_is_measured_leaves_all_else_as_it_was(tmp_path: Path) -> None:
    """The inputs, and the state of the random numbers."""
    x = randn(4096, 4096, dtype=torch.float32)
    before, state = x.clone(), torch.cuda.get_rng_state()
    model = compiled(lambda t: t.sub_(t.amax(-1, True)), (x,), tmp_path, tune="max")
    assert torch.equal(x, before) and torch.equal(torch.cuda.get_rng_state(), state)
    (chosen,) = model.graph.schedules.values()
    assert chosen.how == "measured" and not chosen.failures
    model(x)
    torch.testing.assert_close(x, before - before.amax(-1, True))


def test_the_default_measures_what_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few runs of a few candidates where those are in the cache; a pointwise kernel never. The
    share of the time is made long: other programs on the machine would use it up."""
    measured: list[tuning.Tuned] = []
    measure = tuning.autotune

    def recorded(*args: Any, **more: Any) -> tuning.Tuned:
        measured.append(measure(*args, **more))
        return measured[-1]

    monkeypatch.setattr(tuning, "autotune", recorded)
    monkeypatch.setattr(schedule_tuning, "_SHARE", 1000.0)
    x = randn(4096, 8192)
    compiled(lambda t: t.softmax(-1), (x,), tmp_path, tune="max")  # all are compiled now
    for record in (tmp_path / "schedules").rglob("*.json"):
        record.unlink()
    measured.clear()
    model = compiled(lambda t: t.softmax(-1), (x,), tmp_path, jobs=8)  # which half are asked of
    (chosen,) = model.graph.schedules.values()
    assert chosen.how == "measured" and len(chosen.times) == 4, chosen.why
    assert len(measured) == 1 and max(measured[0].runs) <= 7
    plain = compiled(lambda t: t * 2 + 1, (x,), tmp_path)
    (chosen,) = plain.graph.schedules.values()
    assert chosen.how == "guess" and len(measured) == 1


def test_a_first_call_takes_no_tenth_longer(tmp_path: Path) -> None:
    """Of one kernel, nothing in any cache, each in a process of its own; the best of up to three,
    and a twentieth of a second for the noise of starting processes."""
    script = tmp_path / "first.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys, time
            import torch
            import compile_cli
            x = torch.randn(4096, 8192, device="cuda", dtype=torch.bfloat16)
            options = {"cache_dir": sys.argv[1], "tune": sys.argv[2]}
            f = torch.compile(lambda t: t.softmax(-1), backend="compile_cli", options=options)
            torch.cuda.synchronize()
            began = time.perf_counter()
            f(x)
            torch.cuda.synchronize()
            print(time.perf_counter() - began)
            """
        )
    )
    seconds: dict[str, list[float]] = {"off": [], "auto": []}

    def as_soon() -> bool:
        return min(seconds["auto"]) < 1.1 * min(seconds["off"]) + 0.05

    for number in range(3):
        if number and as_soon():
            break
        for tune, times in seconds.items():
            command = [sys.executable, script, tmp_path / f"{tune}{number}", tune]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            times.append(float(done.stdout))
    assert as_soon(), seconds


def test_dynamic_sizes_at_several(tmp_path: Path) -> None:
    x = randn(512, 4096, dtype=torch.float32)
    model = compile_cli.compile(
        lambda t: t.softmax(-1), (x,), dynamic={0: {0, 1}},
        options={"cache_dir": str(tmp_path), "tune": "max"},
    )  # fmt: skip
    assert len(model.graph.schedules) > 1
    for rows, columns in ((512, 4096), (3, 7), (70, 40000), (4096, 128)):
        y = randn(rows, columns, dtype=torch.float32)
        torch.testing.assert_close(model(y), y.softmax(-1))
