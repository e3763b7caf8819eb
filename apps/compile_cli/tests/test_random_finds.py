"""Small programs that random ones were cut down to (`tests/fuzz`), against eager."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import compile_cli
from aten_lowering import storage_key
from compile_cli.capture import FunctionModule, capture, export


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


ENTRIES = ["torch.compile", "compile"]


def _compiled(f: Any, args: tuple[Tensor, ...], entry: str, dynamic: bool = False) -> Any:
    """dynamic: the first dimension of every argument."""
    if entry == "torch.compile":
        return torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=dynamic or None)
    dims: dict[int | str, set[int]] = {i: {0} for i in range(len(args))}
    return compile_cli.compile(f, args, dynamic=dims if dynamic else None)


def _same(compiled: Any, f: Callable[..., Any], *args: Tensor) -> None:
    given = [a.clone() for a in args]
    expected = f(*args)
    torch.testing.assert_close(compiled(*given), expected)
    torch.testing.assert_close(given, list(args))


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_norms_of_one_element_counted_from_the_last_dimension(entry: str) -> None:
    """torch's fake tensors keep the dimension, so what follows had another shape."""

    def norms(x: Tensor) -> tuple[Tensor, ...]:
        norm = torch.linalg.vector_norm
        return norm(x, 1, -1), norm(x, 3, -1) / x, x.norm(2, -2) * x

    for shape in [(3, 1), (1, 3), (1, 1)]:
        x = torch.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
        _same(_compiled(norms, (x,), entry), norms, x)


class Filled(nn.Module):
    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones(2, 3))

    def forward(self, x: Tensor) -> Tensor:
        self.kept.copy_(0.1)  # type: ignore[arg-type]  # a number, which torch takes
        return x + 1


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_number_is_copied_into_a_buffer(entry: str) -> None:
    ours, eager, x = Filled(), Filled(), torch.ones(3)
    _same(_compiled(ours, (x,), entry), eager, x)
    assert torch.equal(ours.kept, eager.kept)


@pytest.mark.parametrize("entry", ENTRIES)
def test_as_strided_of_a_dynamic_size_holds_for_sizes_that_it_fits(entry: str) -> None:
    """Of five elements it takes three: of two, eager refuses."""

    def f(x: Tensor) -> Tensor:
        return (x + 1).as_strided((2, 2), (1, 1)) * 2

    compiled = _compiled(f, (torch.arange(5.0),), entry, dynamic=True)
    for n in (5, 8, 3):
        _same(compiled, f, torch.arange(float(n)))
    with pytest.raises((compile_cli.CompileCliError, RuntimeError)):
        compiled(torch.arange(2.0))


def test_an_input_of_dynamic_sizes_is_written_and_returned() -> None:
    def f(x: Tensor) -> Tensor:
        return x.index_add_(0, torch.arange(3) % x.shape[0], torch.ones(3, 3))

    compiled = _compiled(f, (torch.zeros(5, 3),), "compile", dynamic=True)
    for n in (5, 2, 8):
        _same(compiled, f, torch.zeros(n, 3))


def test_kernels_named_after_the_functions_that_they_call() -> None:
    """An operator between them keeps `cos` and `log` apart: `log` was a launch of `cos`."""

    def f(x: Tensor) -> Tensor:
        return torch.sort(torch.cos(x)).values.add(2).log()

    x = torch.arange(4.0)
    _same(_compiled(f, (x,), "compile"), f, x)


def test_unfused_kernels_named_after_the_functions_that_they_call() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.log(torch.cos(x))

    x = torch.arange(4.0) / 4
    _same(compile_cli.compile(f, (x,), options={"fuse": False}), f, x)


def test_a_part_of_a_part_of_dynamic_sizes() -> None:
    """Rows 1 to 3 of at least 4, then column 1 of at least 2, which were taken for at least 1."""

    def f(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        part = torch.addmm(c, a, b).narrow(0, 1, 3).narrow(1, 1, 1)
        return part @ part.mT

    args = torch.rand(6, 3), torch.rand(3, 3), torch.rand(3)
    _same(torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True), f, *args)


def test_operands_of_different_order_and_dynamic_sizes() -> None:
    """The strides of the result are products of sizes that are not known."""

    def added(x: Tensor, y: Tensor) -> Tensor:
        return torch.logaddexp(x.permute(1, 2, 0), y)

    x, y = torch.randn(11, 2, 2), torch.randn(1, 1, 11)
    _same(_compiled(added, (x, y), "torch.compile", dynamic=True), added, x, y)


@pytest.mark.parametrize("entry", ENTRIES)
def test_writes_to_views_that_show_all(entry: str) -> None:
    """torch takes one window that is longer than a step for windows that overlap, and subtracts
    what an expanded tensor was before."""

    def f(x: Tensor, flags: Tensor) -> tuple[Tensor, Tensor]:
        x.unfold(1, 3, 2).add_(1)
        flags.expand(-1)[1] = -1
        y = 1 / x
        y.expand(-1, -1).mul_(3)
        return y, flags

    given = (torch.arange(-1.0, 5.0).reshape(2, 3), torch.zeros(3, dtype=torch.bool))
    _same(_compiled(f, given, entry), f, *given)


def test_gradients_of_nan_are_nan() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.smooth_l1_loss(x, -x, beta=0.5)

    given = torch.tensor([0.1, -3.0, float("nan"), float("inf")])
    run = _compiled(f, (given,), "torch.compile")
    mine, eager = (given.clone().requires_grad_() for _ in range(2))
    run(mine).backward()
    f(eager).backward()
    torch.testing.assert_close(mine.grad, eager.grad, equal_nan=True)


@pytest.mark.spread(2)
@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3)])
def test_a_loss_of_classes_hands_nan_to_the_target_alone(shape: tuple[int, ...]) -> None:
    target = (
        (torch.arange(3) + torch.arange(2)[:, None])[:, :3] % 4 if shape[2:] else torch.arange(3)
    )

    def f(x: Tensor, y: Tensor) -> Tensor:
        loss = torch.nn.functional.nll_loss(x, target, torch.arange(1.0, 5.0), ignore_index=1)
        return loss * y

    run = _compiled(f, (), "torch.compile")
    mine, eager = (torch.ones(shape, requires_grad=True) for _ in range(2))
    for x, call in ((mine, run), (eager, f)):
        call(x, torch.tensor(float("nan"))).backward()
    torch.testing.assert_close(mine.grad, eager.grad, equal_nan=True)


FINDS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "one window of a dimension counted from the last": (
        lambda x: x.unfold(-3, 2, 1), (torch.arange(3.0).reshape(3, 1, 1),)),
    "a norm of one element whose square overflows": (
        lambda x: x.norm(2, -1, keepdim=True) / x, (torch.tensor([[3e38], [-1e-30]]),)),
    "a half times powers of two that it does not hold": (
        torch.ldexp, (torch.tensor([1e-5, 3.0]).half(), torch.tensor([17, 2]))),
    "floats times powers of two that they do not hold": (
        lambda x, y, n: (torch.ldexp(x, n), torch.ldexp(y, n)),
        (torch.tensor([0.0, 2.0**-100, 2.0**100, 3.0, 1.0]), torch.full((5,), 2.0**-600).double(),
         torch.tensor([200, 150, -200, -150, 1200]))),
    "a double times powers of two of numbers of 32 and 16 bits": (
        lambda x, n: [torch.ldexp(x, m) - x * 2.0 ** m.double() for m in (n, n.half())],
        (torch.tensor([1.0, 1.3]).double(), torch.tensor(0.3))),
    "small numbers beside sums of 16 bits": (
        lambda x, i, y: (x * 0.5).index_add(-1, i, y),
        (torch.tensor([[0.001, 1.0, 2.0]]).bfloat16(), torch.tensor([0, 0, 2]),
         torch.tensor([[1.5, -1.5, 0.5]]).bfloat16())),
    "which of two zeros a CPU takes": (
        lambda x, y: [1 / f(a, b).float() for f in (torch.fmin, torch.fmax)
                      for a, b in ((x, y), (y, x), (x.bfloat16(), y.bfloat16()))],
        (torch.tensor([0.0]), torch.tensor([-0.0]))),
    "folds of a number along its dimension": (
        lambda x: [f(x, 0) for f in (torch.sum, torch.prod, torch.mean, torch.all, torch.any)],
        (torch.tensor(2.0),)),
    "an extreme of places": (
        lambda x: x + torch.arange(3, device=x.device).max(), (torch.zeros(2),)),
    "a power of a 0-d boolean": (
        lambda x, n: x**n, (torch.tensor(True), torch.tensor([2, 0, 5]))),
    "windows of zeros below 0, put back": (
        lambda x: 1 / torch.nn.functional.fold(
            torch.nn.functional.unfold(x, 2), (4, 4), 2).to(torch.float64),
        (torch.full((1, 1, 4, 4), -0.0),),
    ),
    "a softshrink of zeros": (
        lambda x: 1 / torch.nn.functional.softshrink(x).to(torch.float64),
        (torch.tensor([-0.0] * 16),)),
}  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("name", FINDS)
def test_finds(name: str, entry: str) -> None:
    f, args = FINDS[name]
    _same(_compiled(f, args, entry), f, *args)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_shuffle_that_moves_nothing_is_new_memory(entry: str) -> None:
    x = torch.arange(2.0).reshape(1, 2, 1)

    def f(x: Tensor) -> tuple[Tensor, ...]:
        return torch.channel_shuffle(x, 2), torch.channel_shuffle(x, 2)[0]

    new = _compiled(f, (x,), entry)(x)
    assert torch.equal(x, new[0]) and all(x.data_ptr() != y.data_ptr() for y in new)


def test_sizes_that_a_matmul_makes_equal() -> None:
    """By a guard: the graph keeps an expression for one and a symbol for the other."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.pad(x.chunk(3, -1)[0], [2, 2], value=-1.0) @ y

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (11, 13):
        _same(compiled, f, torch.rand(2, n), torch.rand((n + 2) // 3 + 4, 2))


def test_a_condition_that_has_no_value_at_size_zero() -> None:
    """The scale of attention is asserted: by what, if rows had no elements?"""

    def f(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).tril()
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).double()

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    _same(compiled, f, torch.rand(2, 4, 8))


def test_what_is_added_to_rows_has_as_many() -> None:
    """Both numbers of rows are dynamic, and equal by a guard: otherwise rows of 16 bits were added
    by a call that rounds each sum."""

    def f(x: Tensor, at: Tensor, y: Tensor) -> Tensor:
        return (x * 0.5).index_add(-1, at, y)

    def args(n: int) -> tuple[Tensor, ...]:
        at = torch.tensor([0, 0, 2])
        row = torch.tensor([[1.5, -1.5, 0.5]]).bfloat16()
        return torch.tensor([[0.001, 1.0, 2.0]] * n).bfloat16(), at, row.repeat(n, 1)

    compiled = compile_cli.compile(f, args(3), dynamic={0: {0}, 2: {0}})
    for n in (3, 5, 1):
        _same(compiled, f, *args(n))
    assert not compiled.graph.fallbacks


def test_a_view_of_a_dynamic_size_that_begins_in_front_of_its_base() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        return y[:, -1].as_strided((2, 3), (1, 2), 1), y

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (5, 8):
        view, y = compiled(torch.arange(2.0 * n).reshape(2, n))
        assert torch.equal(view, y.as_strided((2, 3), (1, 2), 1))
        assert view.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()


def test_what_torch_cannot_trace_of_dynamic_sizes() -> None:
    """Its own kernels of upsampling nothing, and of a gradient that has no decomposition."""

    def f(x: Tensor, nothing: Tensor) -> tuple[Tensor, Tensor]:
        part = torch.nn.functional.softshrink(x)
        return part, torch.nn.functional.interpolate(nothing, scale_factor=0.5)

    x, nothing = torch.linspace(-2, 2, 10).reshape(2, 5), torch.ones(0, 1, 4)
    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    gradients = []
    for run in (compiled, f):
        given = x.clone().requires_grad_()
        part, none = run(given, nothing)
        assert none.shape == (0, 1, 2)
        gradients += torch.autograd.grad(part.square().sum(), given)
    torch.testing.assert_close(*gradients)


def test_a_scaled_sum_of_broadcast_operands_is_contiguous() -> None:
    x, y = torch.rand(1, 2, 1), torch.rand(3).flatten().unfold(0, 3, 1)
    added = torch.compile(lambda x, y: torch.add(x, y, alpha=-1), backend="compile_cli")(x, y)
    assert added.is_contiguous() and torch.equal(added, x - y)


@pytest.mark.parametrize("entry", ENTRIES)
def test_labels_after_the_last_count_for_nothing(entry: str) -> None:
    """torch's decomposition compares each of their places with the first class."""

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return torch.nn.functional.multilabel_margin_loss(x, labels)

    x, labels = torch.randn(2, 4), torch.tensor([[1, -1, 2, 0], [3, 0, -1, -1]])
    _same(_compiled(loss, (x, labels), entry), loss, x, labels)


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_writes_to_windows_that_leave_something_out(entry: str) -> None:
    """torch's functional form of such a write makes the rest 0."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x.unfold(-1, 2, 2).add_(1)
        z = y + 1
        z.unfold(0, 2, 3).mul_(2)
        z[:, :1].unfold(0, 3, 5).mul_(-1)
        return z, z.unfold(1, 1, 2)

    given = torch.arange(10.0).reshape(2, 5), torch.arange(14.0).reshape(7, 2)
    _same(_compiled(f, given, entry), f, *given)


@pytest.mark.parametrize("dynamic", [False, True])
def test_writes_to_windows_keep_the_sign_of_a_zero(dynamic: bool) -> None:
    """torch's functional form of such a write adds them to zeros."""

    def f(x: Tensor, y: Tensor, z: Tensor) -> None:
        x.unfold(1, 1, 1).mul_(3)
        y.unfold(0, 2, 3).mul_(2)
        z.unfold(0, 1, 1).mul_(2)

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=dynamic)
    given = [torch.full(size, -0.0) for size in ((5, 1, 1), (7, 2), ())]
    compiled(*given)
    assert all(bool(x.signbit().all()) for x in given)


def test_writes_to_parts_of_a_dynamic_size() -> None:
    """Their sizes are numbers by a guard."""

    def f(x: Tensor) -> Tensor:
        x.unfold(0, 2, 2).add_(1)
        x.split(2)[-1].index_put_((torch.tensor([0]),), torch.ones(1), accumulate=True)
        return x * 2

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (5, 8, 3):
        _same(compiled, f, torch.arange(float(n)))


@pytest.mark.parametrize("entry", ["compile", "backend"])
def test_writes_to_windows_with_gaps_of_a_dynamic_size(entry: str) -> None:
    """Whether there is a gap behind the last one is not known."""

    def f(x: Tensor) -> Tensor:
        x.unfold(0, 2, 3).mul_(2)
        return x * 1.5

    if entry == "compile":
        compiled = compile_cli.compile(f, (torch.arange(9.0),), dynamic={0: {0}})
    else:
        compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (9, 10, 11, 12, 7):
        _same(compiled, f, torch.arange(float(n)))


def test_what_torch_makes_no_functional_graph_of_is_left_to_eager() -> None:
    def f(x: Tensor) -> Tensor:
        x[1::2].unfold(0, 1, 2).sub_(7)
        return x * 1.5

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    with pytest.warns(UserWarning, match=r"leaves a graph to eager: .*as_strided"):
        _same(compiled, f, torch.arange(11.0))


def test_one_window_of_a_dynamic_size() -> None:
    """Which a guard says: the length stays a symbol."""

    def f(x: Tensor) -> Tensor:
        return x.unfold(0, 1, 2) * 2

    x = torch.arange(2.0)
    _same(torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True), f, x)


def test_windows_over_one_dynamic_and_one_fixed_dimension() -> None:
    """Places of the one are counted in 64 bits."""

    def f(x: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(x, 3, 2, 1, ceil_mode=True)

    x = torch.arange(10.0).reshape(1, 1, 5, 2)
    compiled = compile_cli.compile(f, (x,), dynamic={0: {2}})
    _same(compiled, f, x)
    _same(compiled, f, torch.arange(14.0).reshape(1, 1, 7, 2))


def test_writes_to_a_part_of_nothing_that_is_repeated() -> None:
    def f(x: Tensor) -> Tensor:
        x.diagonal(0, 0, -1).index_fill_(1, torch.tensor([0]), 2.0)
        return x + 1

    x = torch.ones(1, 0, 1, 1).expand(-1, -1, 3, -1)
    _same(torch.compile(f, backend="compile_cli", fullgraph=True), f, x)


@pytest.mark.parametrize(
    ("dtype", "weighted"), [(torch.bfloat16, True), (torch.float16, False)], ids=str
)
def test_gradients_of_bags_of_16_bits(dtype: torch.dtype, weighted: bool) -> None:
    """Eager leaves results out there that torch's fake tensors say it saves."""

    def f(rows: Tensor, weights: Tensor | None) -> Tensor:
        at, starts = torch.tensor([4, 0, 2, 2, 1]), torch.tensor([0, 2])
        return nn.functional.embedding_bag(
            at, rows, starts, mode="sum", per_sample_weights=weights if weighted else None
        )

    rows = torch.linspace(-1.0, 1.0, 10).reshape(5, 2).to(dtype)
    weights = torch.linspace(0.5, 1.5, 5).to(dtype)
    leaves = [[x.clone().requires_grad_() for x in (rows, weights)] for _ in range(2)]
    got, want = torch.compile(f, backend="compile_cli")(*leaves[0]), f(*leaves[1])
    torch.testing.assert_close(got, want)
    got.sum().backward()
    want.sum().backward()
    for mine, eagers in zip(*leaves, strict=True):
        torch.testing.assert_close(mine.grad, eagers.grad)


def test_gradient_of_windows_of_elements_that_share_memory() -> None:
    base = torch.linspace(-1.0, 1.0, 7)
    both = [base.clone().unfold(0, 3, 1).detach().requires_grad_() for _ in range(2)]
    compiled = torch.compile(lambda x: x.unfold(0, 2, 2), backend="compile_cli", dynamic=True)
    got, want = compiled(both[0]), both[1].unfold(0, 2, 2)
    seed = torch.arange(12.0).reshape(want.shape)
    for x, y in ((got, both[0]), (want, both[1])):
        (y.grad,) = torch.autograd.grad(x, y, seed)
    torch.testing.assert_close(both[0].grad, both[1].grad)


def test_writes_to_what_is_transposed_later() -> None:
    """Dynamo's graph knows the layout at the end alone."""

    def f(x: Tensor) -> Tensor:
        y = x * 2
        y[...] = y.flip(0)
        return y.t_()

    _same(torch.compile(f, backend="compile_cli"), f, torch.arange(2.0).reshape(2, 1))


EXTREMES = (float("inf"), -float("inf"), float("nan"), 0.0, 1.5, 3e38)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize(
    "f", [lambda z: torch.logaddexp(z, z.flip(0)), lambda z: torch.nan_to_num(z, 1.0)]
)
def test_complex_numbers_of_infinities(f: Any, entry: str) -> None:
    """Their decompositions gave NaN, or could not be traced."""
    z = torch.tensor([complex(a, b) for a in EXTREMES for b in EXTREMES], dtype=torch.complex64)
    torch.testing.assert_close(_compiled(f, (z,), entry)(z), f(z), equal_nan=True)


@pytest.mark.parametrize("entry", ENTRIES)
def test_multiples_of_places_that_are_added(entry: str) -> None:
    """Places are counted through the three operands that these have."""

    def f(x: Tensor) -> tuple[Tensor, ...]:
        n = torch.arange(x.shape[0])
        return torch.add(n, n, alpha=3), torch.where(torch.sub(n, n, alpha=2) < 1, x, 0)

    x = torch.randn(5)
    _same(_compiled(f, (x,), entry, dynamic=True), f, x)


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_sign_of_an_imaginary_zero_that_is_conjugated(entry: str) -> None:
    """It says on which side of a cut a number is: angles were off by two pi."""

    def f(z: Tensor) -> tuple[Tensor, ...]:
        return z.conj().angle(), (z.conj() * 1).imag, z.conj().resolve_conj().sqrt()

    z = torch.complex(torch.tensor([-1.0, 2.0, 0.0, -0.0]), torch.tensor([0.0, -0.0, 0.0, 0.0]))
    for got, want in zip(_compiled(f, (z,), entry)(z), f(z), strict=True):
        torch.testing.assert_close(got, want)
        signs = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (got, want))
        torch.testing.assert_close(*(t.signbit() for t in signs))


@pytest.mark.parametrize("size", [(1, 2, 1, 1), (3, 2, 2, 2)])
@pytest.mark.parametrize("lies", [torch.contiguous_format, torch.channels_last])
def test_what_a_gpu_shuffles_nowhere_is_its_input(size: Any, lies: torch.memory_format) -> None:
    """On the CPU it is a copy; and on a GPU where the input is not contiguous."""
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(size).to(memory_format=lies)
        model = FunctionModule(lambda x: torch.channel_shuffle(x, 2))
        graph = capture(export(model, (x,), {})).graph.graph
    (value,), (place,) = graph.output_node().args[0], graph.find_nodes(op="placeholder")
    fake, given = value.meta["val"], place.meta["val"]
    assert (storage_key(fake) == storage_key(given)) == x.is_contiguous()
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert bool(copies) != x.is_contiguous() and fake.is_contiguous()


def test_windows_of_a_dynamic_size_on_a_gpu() -> None:
    """The indices of the windows have strides that are no numbers."""
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(1, 1, 6, 4)
        fold = torch.nn.functional.fold
        model = FunctionModule(lambda x: fold(torch.nn.functional.unfold(x, 3), x.shape[2:], 3))
        captured = capture(export(model, (x,), {0: {2}}))
    assert captured.graph.graph.output_node().args


def test_few_rows_of_a_dynamic_length_that_others_are_added_to() -> None:
    """Each of the rows is one sum, and all are stored by one kernel, row after row."""

    def f(x: Tensor, i: Tensor) -> Tensor:
        return torch.zeros(5, x.shape[1]).index_add(0, i, x)

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (3, 7):
        x, i = torch.arange(4.0 * n).view(4, n), torch.tensor([4, 1, 1, 0])
        _same(compiled, f, x, i)


def test_complex_numbers_by_dynamic_sizes() -> None:
    def f(x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return x * n, n / x, torch.add(x, x * 1j, alpha=n), x - n * 0.5

    compiled = torch.compile(f, backend="compile_cli", fullgraph=True, dynamic=True)
    for n in (3, 5):
        _same(compiled, f, torch.complex(torch.arange(1.0, n + 1), -torch.arange(n * 1.0)))


def test_floats_of_8_bits_are_joined() -> None:
    """They have no type in common with bools, which moves of complex numbers asked for."""

    def f(x: Tensor) -> Tensor:
        narrow = x.to(torch.float8_e4m3fn)
        return torch.cat([narrow, narrow]).float()

    _same(torch.compile(f, backend="compile_cli", fullgraph=True), f, torch.arange(6.0))


def test_a_mean_loss_of_nothing_has_a_gradient() -> None:
    """torch's decomposition divides by the number of elements."""

    def loss(x: Tensor) -> Tensor:
        return nn.functional.mse_loss(x * 2, x)

    x, y = (torch.empty(4, 0, 3).requires_grad_() for _ in range(2))
    got, want = _compiled(loss, (x,), "torch.compile")(x), loss(y)
    torch.testing.assert_close(got, want, equal_nan=True)
    grads = (torch.autograd.grad(r, leaf)[0] for r, leaf in ((got, x), (want, y)))
    torch.testing.assert_close(*grads)


def test_a_number_that_fits_a_byte_is_computed_in_32_bits() -> None:
    """It was the text of a Python number, which has no casts."""

    def f(y: Tensor) -> Tensor:
        return y + torch.clamp(torch.arange(y.shape[0])[:, None] * 5 - 4, -5, 5).to(y.dtype)

    y = torch.arange(4, dtype=torch.uint8)[None]
    _same(torch.compile(f, backend="compile_cli"), f, y)
