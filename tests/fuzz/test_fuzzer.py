"""The fuzzer itself: the same programs everywhere, wrong answers seen, small failures."""

from __future__ import annotations

import functools
import math
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzer import check as checking
from fuzzer import wider
from fuzzer.check import check
from fuzzer.generate import DERIVED, Maker, generate
from fuzzer.group import Group
from fuzzer.lead import lead
from fuzzer.minimise import minimise
from fuzzer.observe import eager
from fuzzer.program import Input, Loaded, Program, Step, alike, completed, merged
from fuzzer.settings import Setting, draw_setting

from compile_cli.cli.loading import load_target


def _program(text: str, result: str, *inputs: str) -> Program:
    given = tuple(Input(f"a{i}", t) for i, t in enumerate(inputs))
    steps = tuple(
        Step(line.partition(" = ")[2], line.partition(" = ")[0]) if " = " in line else Step(line)
        for line in text.splitlines()
    )
    return Program(given, steps, result)


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=pytest.mark.slow if n % 8 else ()) for n in range(0, 40, 4)]
)
def test_a_seed_is_one_program_that_eager_runs(seed: int, tmp_path: Path) -> None:
    setting = draw_setting(random.Random(seed))
    program = generate(seed, setting)
    source = program.source(setting, "a note")
    assert source == generate(seed, setting).source(setting, "a note")
    file = tmp_path / "program.py"
    file.write_text(source)
    target = load_target(f"{file}:Graph", [], torch.device("cpu"))
    loaded = Loaded(source)
    assert loaded.setting == setting
    for given, other in zip(target.args, loaded.inputs(loaded.calls[0]), strict=True):
        assert torch.equal(given.isnan(), other.isnan()) and given.stride() == other.stride()
    target.model(*target.args)


def test_a_program_writes_or_takes_gradients_itself() -> None:
    """torch.export makes no functional graph of one that does both."""
    texts = []
    for seed in range(60):
        g = Maker(random.Random(seed), Setting())
        x = g.input(torch.float32, [3, 3])
        if seed % 2:
            assert g.write(f"{x}.zero_()")
        wider.transformed(g)
        texts.append(g.steps[-1].text)
        derives = DERIVED in texts[-1]
        assert not (derives and seed % 2) and g.write(f"{x}.zero_()") == (not derives)
    assert any(DERIVED in text for text in texts)


def test_programs_compiled_as_one_keep_their_tensors_apart() -> None:
    first = _program("v0 = a0 + 1\na0.zero_()", "(v0, a0)", "make(torch.float32, (2,), 1)")
    both = Loaded(merged([first, first]).source())
    one, two = both.module()(*both.inputs({}))
    assert torch.equal(one[0], two[0]) and one[1].data_ptr() != two[1].data_ptr()


_WRONG: dict[str, tuple[Program, Callable[[Any], Callable[..., Any]]]] = {
    "numbers": (
        _program("v0 = a0.exp()", "(v0,)", "make(torch.float32, (3,), 1, 'wide')"),
        lambda m: lambda x: (m(x)[0] * (1 + 2e-6),),
    ),
    "argument": (
        _program("a0.add_(1)", "()", "make(torch.int8, (3,), 1, 'wide')"),
        lambda m: lambda x: m(x.clone()),
    ),
    "alias": (
        _program("v0 = a0.t()", "(v0,)", "make(torch.float32, (3, 2), 1)"),
        lambda m: lambda x: (m(x)[0].t().clone().t(),),
    ),
    "stride": (
        _program("v0 = a0.t() + 1", "(v0,)", "make(torch.float32, (3, 2), 1)"),
        lambda m: lambda x: (m(x)[0].contiguous(),),
    ),
    "dtype": (
        _program("v0 = a0 + 1", "(v0,)", "make(torch.int32, (3, 2), 1)"),
        lambda m: lambda x: (m(x)[0].long(),),
    ),
    "sign of zero": (
        _program("v0 = -a0", "(v0,)", "make(torch.float32, (2,), 1) * 0"),
        lambda m: lambda x: (m(x)[0].abs(),),
    ),
    "structure": (
        _program("v0 = a0 + 1", "[v0]", "make(torch.float32, (2,), 1)"),
        lambda m: lambda x: tuple(m(x)),
    ),
    "call": (
        _program("v0 = a0 + 1", "[v0]", "make(torch.float32, (2,), 1)"),
        lambda m: lambda x: m(x, x),
    ),
}


@pytest.mark.parametrize("kind", _WRONG)
def test_a_wrong_compiler_is_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, wrong = _WRONG[kind]
    monkeypatch.setattr(checking, "_ours", lambda loaded, module, cache: module)
    assert check(Loaded(program.source()), "").failure is None
    monkeypatch.setattr(checking, "_ours", lambda loaded, module, cache: wrong(module))
    failure = check(Loaded(program.source()), "").failure
    assert failure is not None and failure.kind == kind


_ARTEFACTS: dict[str, tuple[Program, int, float]] = {
    # a program, an element of its result, another value for it
    "a variance that overflows": (
        _program("v0 = F.layer_norm(a0 * 1e38, (4,))", "(v0,)",
                 "make(torch.float32, (2, 4), 3, 'wide')"), 0, math.nan,
    ),
    "an integer of NaN": (
        _program("v0 = a0.std().long()", "(v0,)", "make(torch.float32, (0, 4), 3)"), 0, 0,
    ),
    "a bias of 0": (
        _program("v0 = F.layer_norm(a0 * 0, (4,))", "(v0,)",
                 "make(torch.float32, (2, 4), 3, 'wide')"), 0, -0.0,
    ),
    "a mean of an infinity": (
        _program("v0 = torch.std_mean(a0.abs().log().cumsum(0), 0, keepdim=False)[1]", "(v0,)",
                 "make(torch.float32, (4,), 3) * 0"), 0, -math.inf,
    ),
    "small factors of an infinity": (
        _program("v0 = (a0 + torch.tensor([1e-38, 1e-38, math.inf])).prod(0, keepdim=True)",
                 "(v0,)", "make(torch.float32, (3,), 3) * 0"), 0, math.inf,
    ),
    "a maximum of two zeros": (
        _program("v0 = torch.maximum(a0 * 0, -(a0.abs() * 0))", "(v0,)",
                 "make(torch.float32, (9,), 3).abs()"), 8, -0.0,
    ),
    "an extreme of zeros": (
        _program("v0 = (a0 * torch.tensor([0.0, -0.0, 0.0])).amax(0)", "(v0,)",
                 "make(torch.float32, (3,), 3).abs()"), 0, -0.0,
    ),
    "an extreme of zeros at a place": (
        _program("v0 = (a0 * 0).index_reduce(0, torch.tensor([1]), -(a0[:1] * 0), 'amin')",
                 "(v0,)", "make(torch.float32, (2, 9), 3).abs()"), 9, -0.0,
    ),
    "a running product past both ends": (
        _program("v0 = (a0 * 0 + torch.tensor([3e38, 3e38, 1e-30, 1e-30])).cumprod(0)", "(v0,)",
                 "make(torch.float32, (4,), 3)"), 3, math.nan,
    ),
    "a pole": (
        _program("v0 = torch.digamma(a0 * 0 - 1.5e-16)", "(v0,)",
                 "make(torch.float64, (2,), 3)"), 0, -math.inf,
    ),
    "an integer that is written": (
        _program("v0 = a0.long() * 0\nv0.__setitem__(slice(1, 3), a0[1:3] + 1e30)", "(v0,)",
                 "make(torch.float32, (4,), 3)"), 2, 0,
    ),
    "a gelu of an infinity": (
        _program("v0 = F.gelu(a0.abs() + math.inf)", "(v0,)",
                 "make(torch.float32, (16,), 3)"), 3, math.inf,
    ),
    "a limit that f16 does not hold": (
        _program("v0 = F.normalize(a0 * 0, 1.0, -1)", "(v0,)",
                 "make(torch.float16, (2,), 3)"), 0, 0.0,
    ),
    "an exponent of f32": (
        _program("v0 = torch.pow(a0, 7.3)", "(v0,)",
                 "make(torch.int64, (2,), 3) * 0 + 13"), 1, 135452400.0,
    ),
    "the middle between two ends": (
        _program("v0 = torch.linspace(-1, 1, 11)", "(v0,)", "make(torch.float32, (1,), 3)"), 5, 0,
    ),
    "bits of a maximum's NaN": (
        _program("v0 = torch.maximum(a0, a0).view(torch.int32)", "(v0,)",
                 "make(torch.float32, (2,), 3) * math.nan"), 0, -1,
    ),
    "a mean beside a variance": (
        _program("v0 = torch.var_mean(a0, 0, keepdim=True)[1]", "(v0,)",
                 "torch.tensor([-math.inf, 3e38, -math.inf])"), 0, -math.inf,
    ),
    "bits of NaN": (
        _program("v0 = (a0.log() * 1).view(torch.int32)", "(v0,)",
                 "make(torch.float32, (2,), 3) * 0 - 1"), 0, -0x400000,
    ),
}  # fmt: skip
_NO_ARTEFACTS: dict[str, tuple[Program, int, float]] = {
    "a variance": (
        _program("v0 = F.layer_norm(a0, (4,))", "(v0,)",
                 "make(torch.float32, (2, 4), 3, 'wide')"), 0, math.nan,
    ),
    "a maximum": (
        _program("v0 = (a0 * 1e38).amax(1)", "(v0,)",
                 "make(torch.float32, (2, 4), 3, 'wide')"), 0, math.nan,
    ),
    "a maximum of equal zeros": (
        _program("v0 = torch.maximum(a0 * 0, a0 * 0)", "(v0,)",
                 "make(torch.float32, (9,), 3).abs()"), 8, -0.0,
    ),
    "an extreme of equal zeros": (
        _program("v0 = (a0 * 0).amax(0)", "(v0,)", "make(torch.float32, (3,), 3).abs()"), 0, -0.0,
    ),
    "a running product": (
        _program("v0 = (a0 * 0 + torch.tensor([3e38, 3e38, 1e-30, 1e-30])).cumprod(0)", "(v0,)",
                 "make(torch.float32, (4,), 3)"), 2, math.nan,
    ),
    "beside no pole": (
        _program("v0 = torch.digamma(a0 * 0 - 1.5e-5)", "(v0,)",
                 "make(torch.float64, (2,), 3)"), 0, -math.inf,
    ),
    "a mean of numbers": (
        _program("v0 = torch.std_mean(a0, 0, keepdim=True)[1]", "(v0,)",
                 "make(torch.float32, (4,), 3)"), 0, -math.inf,
    ),
    "bits of a number": (
        _program("v0 = (a0 + 1).view(torch.int32)", "(v0,)",
                 "make(torch.float32, (2,), 3) * 0"), 0, 0x7FC00000,
    ),
    "a product": (
        _program("v0 = a0.prod(0, keepdim=True)", "(v0,)",
                 "make(torch.float32, (3,), 3) * 0 + 2"), 0, math.nan,
    ),
    "a power": (
        _program("v0 = torch.pow(a0, 7.3)", "(v0,)",
                 "make(torch.int64, (2,), 3) * 0 + 13"), 1, 135453500.0,
    ),
    "a limit that f32 holds": (
        _program("v0 = F.normalize(a0 * 0 + 1, 1.0, -1)", "(v0,)",
                 "make(torch.float32, (2,), 3)"), 0, 0.0,
    ),
    "a gelu of a number": (
        _program("v0 = F.gelu(a0.abs())", "(v0,)", "make(torch.float32, (16,), 3)"), 3, math.inf,
    ),
    "a zero at a place": (
        _program("v0 = (a0 * 0).index_reduce(0, torch.tensor([1]), a0[:1] * 0, 'amin')",
                 "(v0,)", "make(torch.float32, (2, 9), 3).abs()"), 9, -0.0,
    ),
    "an addition of 0": (
        _program("v0 = a0 * 0 + 0.0", "(v0,)", "make(torch.float32, (2, 4), 3, 'wide')"), 0, -0.0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", [*_ARTEFACTS, *_NO_ARTEFACTS])
def test_what_hangs_on_eagers_own_order_may_differ(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, at, value = {**_ARTEFACTS, **_NO_ARTEFACTS}[case]

    def another(module: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            (result,) = module(*args)
            result.view(-1)[at] = value
            return (result,)

        return run

    monkeypatch.setattr(checking, "_ours", lambda loaded, module, cache: another(module))
    failure = check(Loaded(program.source()), "").failure
    assert (failure is None) == (case in _ARTEFACTS)


def test_gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program("v0 = a0.exp()", "(v0,)", "make(torch.float32, (3,), 1)")
    source = program.source(Setting(grad=True))
    monkeypatch.setattr(
        checking, "_ours", lambda loaded, module, cache: lambda x: (module(x.detach() + 0 * x)[0],)
    )
    failure = check(Loaded(source), "").failure
    assert failure is not None and failure.kind == "gradient"


def test_what_no_loss_reads_may_have_a_gradient_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    program = _program("v0 = a0.exp()", "(v0,)", "make(torch.float32, (3,), 1)",
                       "make(torch.float32, (3,), 2)")  # fmt: skip
    loaded = Loaded(program.source(Setting(grad=True)))
    for by, right in ((0, True), (1, False)):
        monkeypatch.setattr(
            checking, "_ours",
            lambda loaded, module, cache, by=by: lambda x, y: (
                module(x, y)[0] + by * (y - y.detach()),),
        )  # fmt: skip
        failure = check(loaded, "").failure
        assert (failure is None) == right


def test_a_failure_is_made_small() -> None:
    program = generate(11, Setting(), (20, 25))
    first = program.inputs[0].name
    program = Program(
        program.inputs, (*program.steps, Step(f"torch.tanh({first}.float())", "v90")),
        f"[{program.result}, v90]",
    )  # fmt: skip

    def fails(smaller: Program, simpler: Setting) -> bool:
        loaded = Loaded(smaller.source(simpler))
        try:
            loaded.module()(*loaded.inputs({}))
        except (RuntimeError, TypeError, IndexError, NameError, ValueError):
            return False
        return "torch.tanh(" in loaded.source

    small, setting = minimise(program, Setting(fuse=False), fails)
    assert [s.line for s in small.steps] == [f"v90 = torch.tanh({small.inputs[0].name}.float())"]
    assert len(small.inputs) == 1 and setting.fuse


def _options(tmp_path: Path, **given: Any) -> Namespace:
    options = {
        "seed": 0, "count": 8, "device": "cpu", "processes": 2, "minutes": 0.1, "group": 4,
        "length": "5,7", "elements": 160, "emit": None, "entry": "backend", "dynamic": False,
        "grad": False, "minimise": 0.3, "timeout": 0.7, "out": tmp_path,
    }  # fmt: skip
    return Namespace(**options, **given)


_FAKE = """
import json, sys, time
for line in sys.stdin:
    job = json.loads(line)
    if 5 in job["seeds"]:
        time.sleep(100)
    if 2 in job["seeds"] and len(job["seeds"]) > 1:
        sys.exit(3)
    failure = {"seeds": job["seeds"], "key": "numbers exp", "text": "text", "torch": False,
               "source": "short" if job.get("small") else "source", "short": "class Graph"}
    print(json.dumps({"calls": len(job["seeds"]), "rss": 0,
                      "failures": [failure] if 1 in job["seeds"] else []}), flush=True)
"""


def test_a_run_ends_in_time_and_says_what_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seed 5 sleeps, seed 2 ends the process with its group, seed 1 fails."""
    start = time.monotonic()
    assert lead(_options(tmp_path), [sys.executable, "-ISc", _FAKE]) == 1
    assert time.monotonic() - start < 60  # what hangs would take 100 seconds
    said = capsys.readouterr().out
    assert "8 programs, 7 calls compared" in said
    assert "    1  numbers exp   (seeds 1)" in said and "    1  hangs   (seeds 5)" in said
    assert "class Graph" in said and (tmp_path / "numbers_exp.py").read_text() == "short"


@pytest.mark.parametrize("peer", [1.0, 1.01, 1.02])
def test_a_failure_is_found_in_its_group_and_named(
    peer: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is torch's where torch's own capture gives the same wrong numbers."""
    program = _program("v0 = a0.exp()\nv1 = v0.sum()", "(v1,)", "make(torch.float32, (3,), 1)")
    right = _program("v0 = a0 + 1", "(v0,)", "make(torch.float32, (3,), 1)")

    def wrong(by: float, loaded: Loaded, module: Any, cache: str) -> Callable[..., Any]:
        by = by if "exp" in loaded.source else 1.0
        return lambda *a: torch.utils._pytree.tree_map(lambda t: t * by, module(*a))

    monkeypatch.setattr(checking, "_ours", functools.partial(wrong, 1.01))
    monkeypatch.setattr(checking, "_peer", functools.partial(wrong, peer))
    group = Group([0, 1], _options(tmp_path), str(tmp_path))
    group.programs = [right, program]
    (failure,) = group.run()["failures"]
    assert failure["seeds"] == [1] and failure["torch"] == (peer == 1.01)
    assert failure["torch"] or failure["key"] == "numbers .exp"
    assert Loaded(completed(failure["short"])).setting == group.setting


def test_programs_that_do_the_same_have_values_of_their_own() -> None:
    program = generate(14, Setting(), (5, 6))
    first, second = alike(program, 2)
    assert first == program
    assert first.steps == second.steps and first.result == second.result
    assert all(a.text != b.text for a, b in zip(first.inputs, second.inputs, strict=True))
    eager(Loaded(merged([first, second]).source(Setting())), {})


def test_large_tensors_are_asked_for() -> None:
    """From some ten thousands of elements on, kernels have other schedules."""
    setting = Setting(elements=30_000)
    made = Loaded(generate(5, setting, (3, 4)).source(setting)).inputs({})
    sizes = [t.numel() for t in made if isinstance(t, torch.Tensor)]
    assert 2_000 < max(sizes) <= 300_000


def test_an_input_that_would_be_too_large_is_left_out() -> None:
    program = generate(1401088, Setting(elements=40_000, dynamic="mk"), (5, 40))
    assert len(program.steps) >= 5
