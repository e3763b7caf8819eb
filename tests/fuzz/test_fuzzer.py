"""The fuzzer itself: the same programs everywhere, wrong answers seen, small failures."""

from __future__ import annotations

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
from fuzzer.check import check
from fuzzer.generate import generate
from fuzzer.group import Group
from fuzzer.judge import difference, perturbed_runs
from fuzzer.lead import lead
from fuzzer.minimise import minimise
from fuzzer.observe import eager
from fuzzer.program import Input, Loaded, Program, Step, alike, completed, merged
from fuzzer.settings import Setting, draw_setting
from torch import Tensor

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


def test_what_hangs_on_rounding_may_differ_and_nothing_else() -> None:
    x = torch.tensor([0.1, 0.2, 0.7, 3.0])

    def run() -> list[Tensor]:
        return [(x * 3 / 3 == x), (x * 10).exp()]

    equal, large = run()
    runs = perturbed_runs(run, range(12))
    assert difference(~equal & (x < 1) | equal & (x >= 1), equal, [r[0] for r in runs]) is None
    assert difference(torch.zeros(4).bool(), equal, [r[0] for r in runs]) is not None
    moved = large * torch.tensor([1 + 1e-6, 1, 1, 1])
    assert difference(moved, large, [r[1] for r in runs]) is None
    assert difference(large * (1 + 1e-4), large, [r[1] for r in runs]) is not None


def test_gradients_hang_on_rounded_statistics() -> None:
    x = torch.tensor([[2.78125, 2.790039]])

    def run() -> list[Tensor]:
        weight = torch.ones(2, requires_grad=True)
        y = torch.nn.functional.layer_norm(x.clone().requires_grad_(), (2,), weight)
        return list(torch.autograd.grad((y * y.new_tensor([1.0, 3.0])).sum(), weight))

    (found,) = run()
    runs = [r[0] for r in perturbed_runs(run, range(12))]
    assert difference(found * (1 + 1.5e-5), found, runs) is None
    assert difference(found * (1 + 1e-3), found, runs) is not None


@pytest.mark.parametrize(
    ("name", "given", "other"),
    [("celu", [math.nan] * 15 + [1.0], 1.0), ("hardsigmoid", [0.0], 1 / 6)],
)
def test_gradients_that_hang_on_eagers_own_constants_and_vectors(
    name: str, given: list[float], other: float
) -> None:
    def run() -> list[Tensor]:
        x = torch.tensor(given, dtype=torch.float64, requires_grad=True)
        return list(torch.autograd.grad(getattr(torch.nn.functional, name)(x).sum(), x))

    (found,) = run()
    runs = [r[0] for r in perturbed_runs(run, range(12))]
    assert difference(torch.full_like(found, other), found, []) is not None
    assert difference(torch.full_like(found, other), found, runs) is None
    wrong = torch.full_like(found, other)
    wrong[-1] += 0.01
    assert difference(wrong, found, runs) is not None


def test_polygamma_below_0_hangs_on_the_order_of_its_terms() -> None:
    def run() -> list[Tensor]:
        x = torch.tensor([-2.5, 2.25], dtype=torch.float64, requires_grad=True)
        value = torch.polygamma(4, x)
        return [value.detach(), *torch.autograd.grad(torch.polygamma(3, x).sum(), x)]

    found, runs = run(), perturbed_runs(run, range(12))
    for i, value in enumerate(found):
        for off, may_differ in (([2.5e-14, 0.0], True), ([0.0, 1e-12], False), ([1e-11, 0], False)):
            other = value + value.new_tensor(off)
            assert (difference(other, value, [r[i] for r in runs]) is None) == may_differ
        assert difference(value + value.new_tensor([2.5e-14, 0.0]), value, []) is not None


@pytest.mark.parametrize(("first", "may_differ"), [(3e38, True), (math.inf, False)])
def test_gradients_hang_on_squares_that_overflow(first: float, may_differ: bool) -> None:
    """They are zero, or NaN; in those by the weight the row counts for nothing, or all is NaN."""
    rest, weight = torch.tensor([[1.0, 2.0, 4.0, -3.0]]), torch.ones(4, requires_grad=True)

    def run() -> list[Tensor]:
        x = torch.tensor([[first, 1.0, -2.0, 3.0]], requires_grad=True)
        y = torch.nn.functional.layer_norm(torch.cat([x, rest]), (4,), weight)
        return list(torch.autograd.grad(y.sum(), (x, weight)))

    others = torch.zeros(1, 4), torch.nn.functional.layer_norm(rest, (4,))[0]
    runs = perturbed_runs(run, range(12))
    for i, (found, other) in enumerate(zip(run(), others, strict=True)):
        assert bool(found.isnan().all())
        assert (difference(other, found, [r[i] for r in runs]) is None) == may_differ
        assert difference(other + 9, found, [r[i] for r in runs]) is not None


GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...], float, float]] = {
    # a function, its arguments, another value for the first element of the first one's gradient,
    # and one that is wrong
    "the third norm of what 16 bits hold no square of": (
        lambda x: x.norm(3, 0), (torch.tensor([65504.0, 1.0]).half(),), 1.0, 3.0),
    "a sum of what 16 bits do not hold": (
        lambda b, x: torch.cosh(torch.nn.functional.linear(x, torch.ones_like(x), b)),
        (torch.zeros(1).half(), torch.tensor([[12.0], [-13.0]]).half()), -math.inf, -1e3),
    "a variance of infinities and large numbers": (
        lambda x: torch.var_mean(x, 0)[0], (torch.tensor([3e38, 3e38, -math.inf]),), math.inf, 1.0),
    "infinite weights of a norm": (
        lambda x: torch.nn.functional.layer_norm(
            x, (2,), torch.tensor([math.inf, 1.0])) * torch.tensor([1.0, 2.0]),
        (torch.tensor([1.0, 3.0]),), math.inf, 3.0),
    "a quotient of infinite exponentials": (
        lambda x: torch.nn.functional.soft_margin_loss(x, -torch.ones(2), reduction="sum"),
        (torch.tensor([1e3, 1.0]),), 1.0, 0.5),
    "differences of samples that are too large": (
        lambda x: torch.nn.functional.grid_sample(
            torch.tensor([[[[1.7e308, 1.6e308], [-1.7e308, 1.7e308]]]], dtype=x.dtype),
            x.view(1, 1, 1, 2), "bicubic", "border", True),
        (torch.tensor([0.1, 0.2], dtype=torch.float64),), 1.14479625e308, 1e308),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_what_overflows_on_the_way(name: str) -> None:
    """(A number is as good only beside those that eager gives where it keeps within its type.)"""
    f, given, other, wrong = GRADIENTS[name]

    def run() -> list[Tensor]:
        x = given[0].clone().requires_grad_()
        return list(torch.autograd.grad(f(x, *given[1:]).sum(), x))

    (found,) = run()
    runs = [r[0] for r in perturbed_runs(run, range(40))]
    changed = found.clone()
    changed[0] = other
    assert difference(changed, found, []) is not None
    assert difference(changed, found, runs) is None
    changed[0] = wrong
    assert difference(changed, found, runs) is not None


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


def test_gradients_of_normalize_are_differences_of_rounded_terms() -> None:
    given = torch.tensor([[1.0, 3.0]], dtype=torch.bfloat16)

    def run() -> list[Tensor]:
        x = given.clone().requires_grad_()
        part = torch.nn.functional.normalize(x, dim=0)  # of single elements: their signs
        return list(torch.autograd.grad(part.sum(), x))

    runs = [r[0] for r in perturbed_runs(run, range(12))]
    third = torch.tensor([[0.0, 1 / 3 - 0.333984375]], dtype=torch.bfloat16)
    assert difference(third, run()[0], runs) is None
    assert difference(third + 1, run()[0], runs) is not None


def test_gradients_of_ldexp_hang_on_powers_of_16_bits() -> None:
    n = torch.tensor([0.3], dtype=torch.bfloat16)

    def run() -> list[Tensor]:
        x = torch.ones(1, requires_grad=True)
        return list(torch.autograd.grad(torch.ldexp(x, n).sum(), x))

    runs = [r[0] for r in perturbed_runs(run, range(12))]
    assert difference(2 ** n.float(), run()[0], runs) is None
    assert difference(2 ** n.float() + 0.1, run()[0], runs) is not None


def test_the_standard_deviation_of_what_no_square_holds_may_be_infinite() -> None:
    x = torch.tensor([[3e38, -1.0, 1.0], [3.0, -1.0, 1.0]])
    runs = [r[0] for r in perturbed_runs(lambda: [x.std(1)], range(12))]
    found = torch.tensor([float("inf"), x[1].std()])
    assert difference(found, x.std(1), runs) is None
    assert difference(found * 2, x.std(1), runs) is not None


def test_what_overflows_16_bits_may_stay_a_number() -> None:
    x = torch.tensor([300.0, 2.0], dtype=torch.float16)
    runs = perturbed_runs(lambda: [x * x / x], range(12))
    assert difference(x, x * x / x, [r[0] for r in runs]) is None
    assert difference(x * 2, x * x / x, [r[0] for r in runs]) is not None


def test_casts_and_shifts_without_a_defined_value_may_give_any() -> None:
    x = torch.tensor([float("nan"), 1e30, -7.5])

    def run() -> list[Tensor]:
        return [x.long(), x.to(torch.int8), torch.tensor([1, 1, 1]) << torch.tensor([64, -1, 2])]

    values = run()
    runs = perturbed_runs(run, range(12))
    for i, value in enumerate(values):
        wrong = value.clone()
        wrong[:2] += 17
        assert difference(wrong, value, [r[i] for r in runs]) is None
        wrong[2] += 17
        assert difference(wrong, value, [r[i] for r in runs]) is not None


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
        "grad": False, "minimise": 2.0, "timeout": 1.0, "out": tmp_path,
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
    assert lead(_options(tmp_path), [sys.executable, "-c", _FAKE]) == 1
    assert time.monotonic() - start < 60  # what hangs would take 100 seconds
    said = capsys.readouterr().out
    assert "8 programs, 7 calls compared" in said
    assert "    1  numbers exp   (seeds 1)" in said and "    1  hangs   (seeds 5)" in said
    assert "class Graph" in said and (tmp_path / "numbers_exp.py").read_text() == "short"


def test_a_failure_is_found_in_its_group_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program("v0 = a0.exp()\nv1 = v0.sum()", "(v1,)", "make(torch.float32, (3,), 1)")
    right = _program("v0 = a0 + 1", "(v0,)", "make(torch.float32, (3,), 1)")
    monkeypatch.setattr(
        checking, "_ours",
        lambda loaded, module, cache: lambda *a: torch.utils._pytree.tree_map(
            lambda t: t * 1.01 if "exp" in loaded.source else t, module(*a)),
    )  # fmt: skip
    group = Group([0, 1], _options(tmp_path), str(tmp_path))
    group.programs = [right, program]
    (failure,) = group.run()["failures"]
    assert failure["seeds"] == [1] and failure["key"] == "numbers .exp"
    assert Loaded(completed(failure["short"])).setting == group.setting


def test_programs_that_do_the_same_have_values_of_their_own() -> None:
    program = generate(11, Setting(), (5, 6))
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
