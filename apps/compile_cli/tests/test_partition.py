"""What training keeps between forward and backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from compile_cli import graph_compiler
from compile_cli.errors import UnknownOption
from compile_cli.options import Options
from compile_cli.torch_compat import partitioners

N = 64  # elements of a row


@pytest.fixture
def saved(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The fake tensors that are kept: inputs of the graph among them."""
    found: list[Tensor] = []
    original = graph_compiler.partition

    def partition(*args: Any, **more: Any) -> Any:
        forward, backward = original(*args, **more)
        results = forward.graph.output_node().args[0][more["num_fwd_outputs"] :]
        values = [r.meta["val"] for r in results if isinstance(r, fx.Node)]
        found.extend(v for v in values if isinstance(v, Tensor))
        return forward, backward

    monkeypatch.setattr(graph_compiler, "partition", partition)
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def rows(count: int = 8) -> Tensor:
    return torch.randn(count, N, requires_grad=True)


def gradients(f: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    leaves = [a for a in args if a.requires_grad]
    out = f(*args)
    return list(torch.autograd.grad(out, leaves, torch.ones_like(out)))


def check(f: Callable[..., Tensor], *args: Tensor, kept: str = "exact") -> None:
    """Gradients of the compiled function are eager's."""
    got = gradients(torch.compile(f, backend="compile_cli", options={"saved": kept}), *args)
    torch.testing.assert_close(got, gradients(f, *args), rtol=1e-4, atol=1e-5)


def some(cases: dict[str, Any], *others: str) -> list[Any]:
    """All cases, of which these others show with other operators what the rest does."""
    return [pytest.param(c, marks=pytest.mark.slow if c in others else ()) for c in cases]


def kept(saved: list[Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    """Of more than a number a row: types and sizes."""
    large = [(str(t.dtype)[6:], tuple(t.shape)) for t in saved if t.numel() > 2 * N]
    return sorted(large)


INPUT = ("float32", (8, N))


def test_torchs_compiler_is_not_imported(
    saved: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torch's own merging of equal values would; they are merged."""
    monkeypatch.setattr(partitioners, "fx_graph_cse", None)
    check(lambda x: (x.exp() * 2).tanh() + (x.exp() * 2).tanh().sin(), rows())
    assert kept(saved) == [INPUT]


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "five of points": lambda x: x.sin().exp().tanh().cos().sqrt().nan_to_num(),
    "enlarged": lambda x: F.interpolate(x.tanh()[None], scale_factor=2.0).sin(),
    "padded": lambda x: F.pad(x.tanh(), (2, 3)).sin(),
    "turned and moved": lambda x: x.tanh().flip(0).roll(3, -1).sin(),
    "repeated": lambda x: x.tanh().repeat(2, 3).sin(),
    "reflected": lambda x: F.pad(x.tanh(), (2, 3), mode="reflect").sin(),
    "softmax": lambda x: x.tanh().softmax(-1).sin(),
    "parts": lambda x: (lambda a, b: a.sigmoid() * b.tanh())(*x.sin().split(N // 2, -1)),
    "least of rows": lambda x: x.tanh().amin(-1).sin(),
}


def test_what_elements_of_a_row_are_put_into_is_not_kept(saved: list[Tensor]) -> None:
    """Smoothed labels are computed again from the labels."""
    labels = torch.randint(0, N, (8, 1))

    def smoothed(x: Tensor) -> Tensor:
        wanted = torch.full_like(x, 0.1 / (N - 1)).scatter(1, labels, 0.9)
        return -(wanted * x.log_softmax(-1)).sum()

    check(smoothed, rows())
    assert kept(saved) == [INPUT]


def test_places_that_are_no_data_are_not_kept(saved: list[Tensor]) -> None:
    """A row of each of a batch: which batch is known, and nothing of the values is needed."""
    index = torch.randint(0, N, (300, 2))

    def picked(x: Tensor) -> Tensor:
        return x.view(300, N)[torch.arange(300)[:, None], index].sin()

    check(picked, rows(300))
    assert kept(saved) == [("float32", (300, 2)), ("int64", (300, 2))]


@pytest.mark.parametrize("name", some(CHAINS, "five of points", "parts", "reflected", "enlarged"))
def test_what_one_kernel_computes_is_not_kept(name: str, saved: list[Tensor]) -> None:
    """Only the input is, and numbers of rows."""
    torch.manual_seed(0)
    check(CHAINS[name], rows())
    assert kept(saved) == [INPUT]


def test_a_softmax_of_16_bits_is_computed_again(saved: list[Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, N).bfloat16().requires_grad_()

    def f(x: Tensor) -> Tensor:
        return x.tanh().softmax(-1).sin()

    (got,) = gradients(torch.compile(f, backend="compile_cli"), x)
    torch.testing.assert_close(got, gradients(f, x.float())[0].bfloat16(), rtol=0.02, atol=1e-3)
    assert kept(saved) == [("bfloat16", (8, N))]


COMPARED: dict[str, Callable[[Tensor], Tensor]] = {
    "a row's deviation and itself": lambda x: x.std(-1, keepdim=True) + x,
    "two steps": lambda x: x.tanh().sin(),
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_is_compared_for_equality_is_kept(name: str, saved: list[Tensor]) -> None:
    """Of 16 bits: computed again, what rounds at other steps was nowhere its own maximum, and the
    gradient, shared between such places, NaN."""
    torch.manual_seed(0)
    x = torch.randn(8, N).half().requires_grad_()

    def f(x: Tensor) -> Tensor:
        y = COMPARED[name](x)
        return y - y.amax(0, keepdim=True)

    (got,) = gradients(torch.compile(f, backend="compile_cli"), x)
    torch.testing.assert_close(got, gradients(f, x)[0], rtol=0.02, atol=0.02)
    assert kept(saved) == [("bool", (8, N)), ("float16", (8, N))]  # where they are equal, and x


@pytest.mark.parametrize("factor", [1, 1.3])
def test_sums_of_few_that_are_compared(factor: float, saved: list[Tensor]) -> None:
    """They are computed again, alike in all kernels, which round products before they add."""
    x = torch.randn(40, 3, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        others = x[:7] if factor == 1 else (x[:7] * factor)[None]
        return (x[:, None] - others).square().sum(-1).amin(1)

    (got,) = gradients(torch.compile(f, backend="compile_cli"), x)
    torch.testing.assert_close(got, gradients(f, x)[0])
    assert not any(size == (40, 7) for _, size in kept(saved))


def test_what_is_joined_and_compared(saved: list[Tensor]) -> None:
    """Elements of what is kept, moved: the inputs are all that is kept."""
    x = torch.randn(4, N, requires_grad=True)

    def f(x: Tensor) -> Tensor:
        y = torch.cat((x[:2], x[:2] + x[2:].abs()))
        return torch.minimum(y[:2], y[2:] - 1) * 2

    (got,) = gradients(torch.compile(f, backend="compile_cli"), x)
    torch.testing.assert_close(got, gradients(f, x)[0])
    assert kept(saved) == [("float32", (4, N))]


NORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "batch norm": lambda x, w, b: F.silu(F.batch_norm(x, None, None, w, b, True)),
    "group norm": lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
    "instance norm": lambda x, w, b: F.silu(F.instance_norm(x, None, None, w, b)),
    "batch norm whose result is cast": lambda x, w, b: F.silu(
        F.batch_norm(x, None, None, w, b, True).double()
    ),
}


@pytest.mark.parametrize("name", some(NORMS, "group norm", "batch norm whose result is cast"))
def test_an_activation_of_a_norm_keeps_what_the_norm_read(name: str, saved: list[Tensor]) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 8, 8, requires_grad=True)
    check(NORMS[name], x, *(torch.randn(4, requires_grad=True) for _ in range(2)))
    assert kept(saved) == [("float32", (4, 4, 8, 8))]


def test_groups_of_16_bits_have_wide_statistics(saved: list[Tensor]) -> None:
    """Eager's are rounded to 16 bits, but what it normalises with them is not."""
    torch.manual_seed(0)
    x = (torch.randn(4, 4, 8, 8) + 100).bfloat16().requires_grad_()
    weight, bias = (torch.randn(4).bfloat16().requires_grad_() for _ in range(2))
    f = NORMS["group norm"]
    out = torch.compile(f, backend="compile_cli")(x, weight, bias)
    torch.testing.assert_close(out, f(x.double(), weight.double(), bias.double()).bfloat16())
    assert kept(saved) == [("bfloat16", (4, 4, 8, 8))]


def test_statistics_that_are_results_are_eagers() -> None:
    """Those that forward reads are rounded to 16 bits, whatever a gradient reads."""
    x = torch.tensor([[2.0, 2.02, 3.3, 0.7]]).bfloat16().requires_grad_()

    def f(x: Tensor) -> list[Tensor]:
        y, *statistics = torch.native_group_norm(x, None, None, 1, 4, 1, 1, 1e-5)
        return [y, *statistics, *(s.float() * 3 for s in statistics)]

    for got, want in zip(torch.compile(f, backend="compile_cli")(x), f(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0 if want.dtype is torch.float32 else None,
                                   atol=0 if want.dtype is torch.float32 else None)  # fmt: skip


def test_rows_whose_norm_is_read_directly(saved: list[Tensor]) -> None:
    torch.manual_seed(0)
    weights = (torch.randn(N, requires_grad=True) for _ in range(2))
    check(lambda x, w, b: F.gelu(F.layer_norm(x, (N,), w, b)), rows(), *weights)
    assert kept(saved) == [INPUT]


@pytest.mark.parametrize("how", ["fast", "checkpoint", "eager"])
def test_a_dropped_tensor_is_made_of_its_mask(how: str, saved: list[Tensor]) -> None:
    """The mask is drawn again from its seed, and is the same; it is kept where torch draws it."""
    torch.manual_seed(0)

    def inside(x: Tensor) -> Tensor:
        return F.dropout(x.tanh(), 0.25).sin()

    def f(x: Tensor) -> Any:
        again = how == "checkpoint"
        return checkpoint(inside, x, use_reentrant=False) if again else inside(x)

    x = rows()
    options = {"random": "eager" if how == "eager" else "fast"}
    out = torch.compile(f, backend="compile_cli", options=options)(x)
    (got,) = torch.autograd.grad(out.sum(), [x])
    mask = [t for t in kept(saved) if t[0] == "bool"]
    assert mask == ([("bool", (8, N))] if how == "eager" else [])
    seeds = [t.shape for t in saved if t.dtype is torch.int64]
    assert seeds == ([] if how == "eager" else [(2,)])
    assert [t for t in kept(saved) if t[0] == "float32"] == [INPUT]
    scaled = torch.where(out != 0, x.tanh() / 0.75, 0.0)
    torch.testing.assert_close(out, scaled.sin())
    slope = torch.where(out != 0, (1 - x.tanh() ** 2) / 0.75, 0.0)
    torch.testing.assert_close(got, scaled.cos() * slope)


def quantiles(x: Tensor, y: Tensor) -> Tensor:
    error, share = x - y[:1], torch.linspace(0.1, 0.9, 8)[:, None]
    return torch.maximum(share * error, (share - 1) * error).mean()


PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "quantiles": quantiles,
    "extremes": lambda x, y: (x.masked_fill(y[:1] < 0, 9).amin(1) - x.amax(1)).sigmoid(),
    "a softmax": lambda x, y: (x.softmax(-1) * y[:1]).sum(),
}


@pytest.mark.parametrize("name", PAIRS)
def test_inputs_are_read_again_where_that_is_less(name: str, saved: list[Tensor]) -> None:
    """A tensor that was kept in their place, or some masks, would be written and read."""
    torch.manual_seed(0)
    check(PAIRS[name], rows(), torch.randn(8, N))
    assert all(t in [INPUT, ("float32", (1, N))] for t in kept(saved))


def test_a_mask_of_what_is_in_no_memory_is_kept(saved: list[Tensor]) -> None:
    """And not the product that it is of, of twice its size, which no one reads."""
    right = torch.randn(N, N, dtype=torch.bfloat16, requires_grad=True)
    left = torch.randn(8, N, dtype=torch.bfloat16)
    torch.compile(lambda x, w: F.relu6(x @ w), backend="compile_cli")(left, right)
    assert [t.dtype for t in saved if t.shape == (8, N)] == [torch.bool]


MASKED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[str]]] = {
    "relu": (lambda x, w: x.relu().sum(-1), ["bool"]),
    "relu6 of 16 bits": (lambda x, w: F.relu6(x.bfloat16()).float().sum(-1), ["bool"]),
    "relu before a product": (lambda x, w: x.relu() @ w, ["float32"]),
}


@pytest.mark.parametrize("name", MASKED)
def test_where_a_gradient_needs_a_mask_alone(name: str, saved: list[Tensor]) -> None:
    """It is a byte an element; none where the result is kept anyway. x is, too."""
    torch.manual_seed(0)
    f, want = MASKED[name]
    check(lambda x, w: f(x @ w, w), rows(), torch.randn(N, N, requires_grad=True))
    assert sorted(str(t.dtype)[6:] for t in saved if t.numel() == 8 * N) == [*want, "float32"]


def test_a_row_of_a_transformer(saved: list[Tensor]) -> None:
    """The operands of its matmuls, what the activation and the norm read, and nothing else."""
    torch.manual_seed(0)

    def mlp(x: Tensor, w: Tensor, b: Tensor, up: Tensor, down: Tensor) -> Tensor:
        hidden = F.gelu(F.linear(F.layer_norm(x, (N,), w, b), up), approximate="tanh")
        return x + F.linear(hidden, down)

    given = (rows(), *(torch.randn(N, requires_grad=True) for _ in range(2)))
    weights = (
        (torch.randn(4 * N, N) / 8).requires_grad_(),
        (torch.randn(N, 4 * N) / 16).requires_grad_(),
    )
    check(mlp, *given, *weights)
    wide = ("float32", (8, 4 * N))
    parameters = [("float32", (4 * N, N)), ("float32", (N, 4 * N))]
    both = [t for t in kept(saved) if t not in parameters]
    assert both == sorted([INPUT, INPUT, wide, wide])


def test_checkpoints_are_respected(saved: list[Tensor]) -> None:
    """What is inside is computed again, matmuls among it."""
    torch.manual_seed(0)
    weight = torch.randn(N, N, requires_grad=True)

    def inside(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin() @ w

    def f(x: Tensor, w: Tensor) -> Tensor:
        out: Tensor = checkpoint(inside, x, w, use_reentrant=False)
        return out.cos()

    x = rows()
    check(f, x, weight)
    assert kept(saved) == [INPUT, ("float32", (N, N))]


def test_what_a_policy_of_checkpoints_keeps(saved: list[Tensor]) -> None:
    """The products and the input, and not what lies between."""
    torch.manual_seed(0)
    weight = torch.randn(N, N, requires_grad=True)
    keep = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])

    def inside(x: Tensor, w: Tensor) -> Tensor:
        return (x @ w).sin() @ w

    def f(x: Tensor, w: Tensor) -> Tensor:
        out: Tensor = checkpoint(inside, x, w, use_reentrant=False, context_fn=keep)
        return out.cos()

    check(f, rows(), weight)
    assert kept(saved) == [INPUT, INPUT, ("float32", (N, 8)), ("float32", (N, N))]


@pytest.mark.parametrize(("budget", "large"), [(1.0, True), (0.0, False)])
def test_a_budget_of_memory_is_honoured(budget: float, large: bool, saved: list[Tensor]) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(N, N) / 8).requires_grad_()

    def f(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(4):
            x = (x @ w).sin()
        return x

    config = torch._functorch.config  # type: ignore[attr-defined]  # torch does not name it
    with config.patch(activation_memory_budget=budget) if budget < 1 else nullcontext():
        check(f, rows(), weight)
    assert (len(kept(saved)) > 4) == large


def test_results_that_backward_does_not_read_take_nothing_of_a_budget(saved: list[Tensor]) -> None:
    """The largest product is a result alone: of the other two, a half of the memory is one's."""
    torch.manual_seed(0)
    leaves = [torch.randn(N, 4 * N), torch.randn(N, N), *torch.randn(2, N, N), torch.ones(4 * N, N)]

    def f(x: Tensor, y: Tensor, a: Tensor, b: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return ((y @ a).sin() @ (y @ b).sin()).sum(), x @ w

    config = torch._functorch.config  # type: ignore[attr-defined]  # torch does not name it
    with config.patch(activation_memory_budget=0.5):
        made = [leaf.clone().requires_grad_() for leaf in leaves]
        torch.compile(f, backend="compile_cli")(*made)
    assert len(kept(saved)) == len(leaves) + 2


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.25),
    "bernoulli": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "noise": lambda x: x * torch.rand_like(x),
    "slopes": lambda x: F.rrelu(x, 0.1, 0.9, training=True),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("how", ["checkpoint", 0.0, 0.3])
@pytest.mark.parametrize(
    "name", [n if n == "bernoulli" else pytest.param(n, marks=pytest.mark.slow) for n in DRAWS]
)
def test_what_was_drawn_is_not_drawn_anew(name: str, how: str | float, saved: list[Tensor]) -> None:
    """The function is linear in x but for where it is positive, so it is the sum of x times its
    gradient: in a checkpoint, and with a budget of memory."""
    torch.manual_seed(0)
    weight = (torch.randn(N, N) / 8).requires_grad_()

    def inside(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(2):
            x = DRAWS[name](x @ w)
        return x

    def f(x: Tensor, w: Tensor) -> Any:
        again = how == "checkpoint"
        return checkpoint(inside, x, w, use_reentrant=False) if again else inside(x, w)

    x = rows()
    config = torch._functorch.config  # type: ignore[attr-defined]  # torch does not name it
    budget = 1.0 if isinstance(how, str) else how
    with config.patch(activation_memory_budget=budget):
        out = torch.compile(f, backend="compile_cli")(x, weight).sum()
        (got,) = torch.autograd.grad(out, [x])
    torch.testing.assert_close((got * x).sum(), out)
    if name in ("dropout", "bernoulli"):  # of which seeds are kept
        assert [t.shape for t in saved if t.dtype is torch.int64] == [(2,), (2,)]


@pytest.mark.parametrize(
    ("dtype", "near"),
    [("float8_e5m2", 0.2), pytest.param("float8_e4m3fn", 0.1, marks=pytest.mark.slow)],
)
def test_tensors_kept_in_8_bits(dtype: str, near: float, saved: list[Tensor]) -> None:
    """Not parameters, inputs nor results, which is exact; gradients are as near as the type."""
    torch.manual_seed(0)
    x = torch.randn(64, N).requires_grad_()
    up, down = torch.randn(4 * N, N) / 8, torch.randn(N, 4 * N) / 16
    leaves = (x, up.requires_grad_(), down.requires_grad_())

    def f(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, up)), down)

    out = torch.compile(f, backend="compile_cli", options={"saved": dtype, "saved_from": 1 << 14})(
        *leaves
    )
    torch.testing.assert_close(out, f(*leaves))
    want = gradients(f, *leaves)
    for got, exact in zip(torch.autograd.grad(out.sum(), leaves), want, strict=True):
        assert (got - exact).norm() < near * exact.norm()
    narrow = (dtype, (64, 4 * N))
    assert kept(saved) == sorted([narrow, narrow, *(("float32", tuple(t.shape)) for t in leaves)])


SCALED = ("scaled_float8_e4m3fn", "scaled_float8_e5m2")


@pytest.mark.spread(2)
@pytest.mark.parametrize("dtype", [SCALED[0], pytest.param(SCALED[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("size", "groups"), [((32, 2, N), (32, 2, 1)), ((32, 10, 7), (32, 1, 1))], ids=str
)
def test_tensors_kept_in_8_bits_by_factors(
    dtype: str, size: tuple[int, ...], groups: tuple[int, ...], saved: list[Tensor]
) -> None:
    """Of rows that are out of the type's range by far, or zeros."""
    torch.manual_seed(0)
    x = torch.randn(size) * torch.logspace(-12, 12, 32)[:, None, None]
    x[3] = 0
    x.requires_grad_()
    turn = torch.linalg.qr(torch.randn(size[-1], size[-1]))[0]

    def f(x: Tensor, turn: Tensor) -> Tensor:
        return torch.bmm(x, turn.expand(32, -1, -1)).square()

    options = {"saved": dtype, "saved_from": 64}
    (got,) = gradients(torch.compile(f, backend="compile_cli", options=options), x, turn)
    (want,) = gradients(f, x, turn)
    off = (got - want).flatten(1).norm(dim=1) / want.flatten(1).norm(dim=1).clamp(min=1e-30)
    assert 1e-3 < off.max() < (0.05 if "e4m3" in dtype else 0.1)
    assert got[3].count_nonzero() == 0
    assert groups in [t.shape for t in saved if t.dtype is torch.float32]


SMALL: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "none": ((0, 64), (64, 8)),
    "no columns": ((8, 64), (64, 0)),
    "one column": ((1 << 13, 8), (8, 1)),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_would_not_be_less_in_8_bits_is_kept_as_it_is(name: str, saved: list[Tensor]) -> None:
    """Factors of four bytes come to what is kept in one."""
    left, right = (torch.randn(size, requires_grad=True) for size in SMALL[name])
    options = {"saved": SCALED[0], "saved_from": 0}
    f = torch.compile(lambda x, w: (x @ w).square(), backend="compile_cli", options=options)
    got = gradients(f, left, right)
    torch.testing.assert_close(got, gradients(lambda x, w: (x @ w).square(), left, right))
    assert all(t.dtype is torch.float32 for t in saved)


@pytest.mark.parametrize("odd", [math.inf, math.nan], ids=str)
def test_an_odd_number_does_not_spoil_its_row_in_8_bits(odd: float) -> None:
    """It would have been the largest, by which the others were divided."""
    torch.manual_seed(0)
    weight, extra = torch.randn(N, N), torch.zeros(8, N)
    extra[3, 5] = odd
    options = {"saved": SCALED[0], "saved_from": 64}
    compiled = torch.compile(
        lambda x, e: (x @ weight + e).square(), backend="compile_cli", options=options
    )
    x, extra = rows(), extra.requires_grad_()
    (got,), (want,) = (
        torch.autograd.grad(f(x, extra).sum(), [extra])
        for f in (compiled, lambda x, e: (x @ weight + e).square())
    )
    near = want.isfinite()
    assert near.sum() == want.numel() - 1
    assert (got - want)[near].abs().max() < 0.1 * want[near].abs().max()


def test_what_is_kept_as_it_is_by_option(saved: list[Tensor]) -> None:
    options = {"saved": "float8_e5m2", "saved_from": 64, "saved_of": ["bfloat16"]}
    weight = torch.randn(N, N)
    f = torch.compile(lambda x: (x @ weight).square(), backend="compile_cli", options=options)
    f(rows())
    assert ("float32", (8, N)) in kept(saved)
    with pytest.raises(UnknownOption, match="saved_of"):
        Options(saved_of=("int8",))


def test_statistics_are_kept_as_they_are(saved: list[Tensor]) -> None:
    """Of so many rows that they are as large as what is narrowed."""
    torch.manual_seed(0)
    weights = [torch.randn(8, requires_grad=True) for _ in range(2)]
    leaves = (torch.randn(1 << 7, 8, requires_grad=True), *weights)

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.gelu(F.layer_norm(x.sin(), (8,), w, b)).softmax(-1).sum(-1)

    options = {"saved": "float8_e5m2", "saved_from": 1 << 9}
    compiled = torch.compile(f, backend="compile_cli", options=options)
    torch.testing.assert_close(compiled(*leaves), f(*leaves))
    assert any(t.shape[-1] == 1 for t in saved)
    assert not any(t.dtype is torch.float8_e5m2 for t in saved if t.shape[-1] == 1)


def of_heads(x: Tensor, w: Tensor) -> Tensor:
    heads = F.linear(x, w).view(1, len(x), 2, -1).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads.cos(), x.expand(1, 2, -1, -1))


EXPONENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "attention": of_heads,
    "softmax": lambda x, w: F.linear(x, w).softmax(-1).square(),
    "cross entropy": lambda x, w: F.cross_entropy(
        F.linear(x, w), torch.arange(len(x)) % len(w), reduction="none"
    ),
}


@pytest.mark.parametrize("name", some(EXPONENTS, "attention", "cross entropy"))
def test_what_is_an_exponent_again_is_kept_as_it_is(name: str, saved: list[Tensor]) -> None:
    """With statistics that are exact, exponentials of the rest in 8 bits were powers of ten off."""
    torch.manual_seed(0)
    leaves = torch.randn(64, N), torch.randn(2 * N, N) / 2
    for leaf in leaves:
        leaf.requires_grad_()
    f = EXPONENTS[name]
    options = {"saved": "float8_e5m2", "saved_from": 1 << 14}
    out = torch.compile(f, backend="compile_cli", options=options)(*leaves)
    want = gradients(f, *leaves)
    for got, exact in zip(torch.autograd.grad(out.sum(), leaves), want, strict=True):
        assert (got - exact).norm() < 0.3 * exact.norm()
    assert saved and not [t for t in saved if t.dtype is torch.float8_e5m2]


def test_no_diagonal_matrix_is_kept(saved: list[Tensor]) -> None:
    """Neither is one made."""
    torch.manual_seed(0)
    check(lambda x, w: torch.diag(x) @ w, rows(1)[0], torch.randn(N, N).requires_grad_())
    assert kept(saved) == [("float32", (N, N))]


def test_a_mask_that_is_the_same_in_every_call_is_not_kept(saved: list[Tensor]) -> None:
    """Attention is told that no query sees later keys, and its gradient too."""

    def f(x: Tensor) -> Tensor:
        places = torch.arange(x.shape[-2])
        return F.scaled_dot_product_attention(x, x, x, places[:, None] >= places).cos()

    check(f, torch.randn(1, 2, 16, N, requires_grad=True))
    assert saved and (16, 16) not in [t.shape[-2:] for t in saved]
