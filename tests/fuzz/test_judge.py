"""What hangs on rounding, or overflows on the way, may differ from eager, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from fuzzer.judge import difference, perturbed_runs, zero_signs
from torch import Tensor


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


def test_parts_of_infinite_complex_products_may_be_nan_or_not() -> None:
    x = torch.tensor([complex(math.inf, 1.0), 2 + 3j])
    runs = [r[0] for r in perturbed_runs(lambda: [x * x], range(12))]
    found = torch.stack([torch.tensor(complex(math.nan, math.inf)), (x * x)[1]])
    assert difference(found, x * x, runs) is None
    assert difference(found * 2, x * x, runs) is not None


def test_what_a_norm_of_an_infinite_variance_is_may_be_its_bias() -> None:
    x, bias = torch.tensor([[3e38, 1.0, 2.0], [1.0, 2.0, 4.0]]), torch.tensor([1.0, 5.0, 2.0])

    def run() -> list[Tensor]:
        y = torch.nn.functional.layer_norm(x, (3,), None, bias)
        return [y, y.argmax(1), torch.i0(torch.tensor([False, True]))]

    runs, (y, place, ones) = perturbed_runs(run, range(40)), run()
    found = torch.stack([bias, y[1]])
    assert difference(found, y, [r[0] for r in runs]) is None
    assert difference(found * 2, y, [r[0] for r in runs]) is not None
    assert difference(torch.stack([bias.argmax(), place[1]]), place, [r[1] for r in runs]) is None
    assert difference(ones.double().exp().float(), ones, [r[2] for r in runs]) is not None


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


def test_running_statistics_hang_on_the_order_of_additions() -> None:
    def run() -> list[Tensor]:
        x, mean = torch.tensor([[300.1], [-300.2], [0.3]]), torch.zeros(1)
        torch.nn.functional.batch_norm(x, mean, torch.ones(1), training=True)
        return [mean]

    (found,) = run()
    runs = [r[0] for r in perturbed_runs(run, range(12))]
    assert difference(found + 1e-5, found, []) is not None
    assert difference(found + 1e-5, found, runs) is None
    assert difference(found + 1e-2, found, runs) is not None


FOUND: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    # a function, another value for its first element, and one that is wrong
    "a rest of a quotient that overflows a vector": (
        lambda: torch.full((64,), torch.finfo(torch.float32).max) % 0.001, 0.000803688308224082,
        0.9),
    "terms of a cosine that cancel": (
        lambda: torch.nn.functional.cosine_similarity(
            torch.ones(1, 2), torch.tensor([[-2.75, 2.75]])), 1.2688e-8, 1e-5),
    "a jump of a rest between roundings": (
        lambda: 0.1 % (torch.tensor([-1.25]).bfloat16().exp() - 0.25), 0.035, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_another_road_gives_as_well(name: str) -> None:
    run, other, wrong = FOUND[name]
    found, runs = run(), [r[0] for r in perturbed_runs(lambda: [run()], range(40))]
    for value, right in ((other, True), (wrong, False)):
        changed = found.clone()
        changed[0] = value
        assert difference(changed, found, []) is not None
        assert (difference(changed, found, runs) is None) == right


def test_sums_of_products_of_zeros_may_begin_at_zero() -> None:
    def run() -> list[Tensor]:
        return [torch.tensordot(x, torch.ones(1, 1), dims=([-1], [-1])), x + 0]

    x = torch.tensor([[-0.0]])
    for i, (found, right) in enumerate(zip((run()[0], -x), (True, False), strict=True)):
        runs = [r[i] for r in perturbed_runs(run, range(40))]
        assert (zero_signs(-found, found, runs) is None) == right


def test_what_no_number_gives_by_a_weight_of_zero_may_be_nothing() -> None:
    def run() -> list[Tensor]:
        x = torch.ones(1, 1, 3, requires_grad=True)
        y = torch.nn.functional.interpolate(x, scale_factor=2, mode="linear")
        return list(torch.autograd.grad(y, x, torch.tensor([[[math.inf, 1, 1, 1, 1, 1]]])))

    (found,), runs = run(), [r[0] for r in perturbed_runs(run, range(40))]
    assert found.isnan().tolist() == [[[False, True, False]]]
    assert difference(torch.tensor([[[math.inf, 2.0, 2.0]]]), found, runs) is None
    assert difference(torch.tensor([[[math.inf, 9.0, 2.0]]]), found, runs) is not None


def test_infinities_added_in_places_may_be_multiplied_by_one_before() -> None:
    x, at = torch.tensor([1 + 1j, 2 + 2j]), torch.tensor([0])
    source = torch.tensor([complex(2, math.inf)])
    runs = [r[0] for r in perturbed_runs(lambda: [x.index_add(0, at, source)], range(12))]
    for value, right in ((3.0, True), (math.nan, True), (4.0, False)):
        found = torch.tensor([complex(value, math.inf), 2 + 2j])
        assert (difference(found, x.index_add(0, at, source), runs) is None) == right


def test_parts_of_complex_numbers_are_rounded_as_their_operator_rounds_them() -> None:
    """That of a power as the number; that of a sum by itself."""
    x = torch.tensor([0.9 + 0.1j, 1e4 + 1.1j], dtype=torch.complex64)
    for fn, free in ((lambda: x**3, True), (lambda: x + 0.1, False)):
        found = fn()
        runs = [r[0] for r in perturbed_runs(lambda fn=fn: [fn()], range(12))]
        off = torch.tensor([0, 3e-7j]) * found.real.abs()
        assert (difference(found + off, found, runs) is None) is free
        assert difference(found * (1 + 1e-4), found, runs) is not None


def test_zeros_of_a_sum_are_free_where_all_its_products_are_negative_zeros() -> None:
    a, b = torch.tensor([[-0.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0], [-1.0]])
    found = a @ b  # of (-0) + (-0), of 0 + (-0)
    runs = [r[0] for r in perturbed_runs(lambda: [a @ b], range(12))]
    assert zero_signs(torch.tensor([[-0.0], [0.0]]), found, runs) is None
    assert zero_signs(torch.tensor([[0.0], [0.0]]), found, runs) is None
    assert zero_signs(torch.tensor([[0.0], [-0.0]]), found, runs) is not None


def test_transforms_of_functions_are_moved_beside() -> None:
    """A graph that calls them is run under perturbations like others."""

    def run() -> list[Tensor]:
        x = torch.tensor([0.1, 0.7], requires_grad=True)
        made = torch.func.jvp(torch.exp, (x,), (torch.ones_like(x),))[1]
        return [made.detach(), (x * 3).exp().detach()]

    assert len(perturbed_runs(run, range(8))) == 8
