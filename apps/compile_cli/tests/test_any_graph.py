"""Graphs that any compiler has to take: what cannot become a kernel stays a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compile_cli


@pytest.fixture(autouse=True)
def fresh_dynamo(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def check(f: Callable[..., Any], *args: Any, entry: str = "torch.compile") -> Any:
    """Calls `f` compiled twice, and compares results and what happens to the inputs with eager."""
    if entry == "torch.compile":
        compiled: Any = torch.compile(f, backend="compile_cli", fullgraph=True)
    else:
        compiled = compile_cli.compile(f, _fresh(args))
    for _ in range(2):
        given, expected = _fresh(args), _fresh(args)
        got, want = compiled(*given), f(*expected)
        torch.testing.assert_close(got, want, equal_nan=True)
        torch.testing.assert_close(given, expected, equal_nan=True)
    return compiled


def _fresh(args: Any) -> Any:
    return torch.utils._pytree.tree_map_only(
        Tensor, lambda t: t.detach().clone().requires_grad_(t.requires_grad), args
    )


def check_gradients(f: Callable[..., Tensor], *args: Tensor) -> None:
    """Compares the gradients of the sum of `f` with eager's."""
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    expected = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    torch.compile(f, backend="compile_cli", fullgraph=True)(*given).sum().backward()
    f(*expected).sum().backward()
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad, equal_nan=True)


@pytest.mark.parametrize("entry", ["torch.compile", "compile"])
def test_views_of_copies_that_go_lie_where_the_copied_lies(entry: str) -> None:
    x = torch.arange(6.0)
    check(lambda x: x[1:].to(torch.float32, copy=True).permute(0).cumsum(0), x, entry=entry)
    check(lambda x: x[2:].clone()[1:] + 1, x, entry=entry)
    check(lambda x: x.view(2, 3)[1:].clone().view(3).cumsum(0), x, entry=entry)


@pytest.mark.parametrize(
    "pad",
    [
        (-1, 2, 1, -2),
        *(pytest.param(p, marks=pytest.mark.slow) for p in ((2, 1), (0, 3, 4, 0), (5, 5, 4, 4))),
    ],
)
def test_circular_padding(pad: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4, 5)
    x = x if len(pad) == 4 else x[0]
    check(lambda x: F.pad(x, pad, "circular") * 2, x)
    check(lambda x: F.pad(x, pad, "circular"), x.transpose(-1, -2).contiguous().transpose(-1, -2))
    check_gradients(lambda x: F.pad(x, pad, "circular").square(), x)


ENTRIES = ["torch.compile", "compile"]


def constants(x: Tensor) -> tuple[Tensor, ...]:
    half, two = torch.tensor(0.5), torch.tensor(2)
    row = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return x * half + two, row * x, torch.where(torch.tensor(True), x, -x), torch.tensor(3)


def written_constants(x: Tensor) -> tuple[Tensor, ...]:
    half, row = torch.tensor(0.5), torch.tensor([1.0, 2.0, 3.0, 4.0])
    half.add_(1)
    row.add_(x[0])
    x.mul_(torch.tensor(3.0))
    return half * x, row * x


def masked(x: Tensor) -> tuple[Tensor, ...]:
    on = x > 0
    names = ("sum", "mean", "amax", "prod", "var", "softmax", "argmax")
    return tuple(getattr(torch.masked, name)(x, 1, mask=on) for name in names)


@pytest.mark.spread(2)
@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("f", [constants, written_constants, masked])
def test_scalar_constants(f: Callable[..., Any], entry: str) -> None:
    check(f, torch.randn(3, 4), entry=entry)


def test_gradients_through_scalar_constants() -> None:
    check_gradients(lambda x: constants(x)[0] * constants(x)[1], torch.randn(3, 4))


def branches(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    def yes(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x @ w, x + 1

    def no(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x - w[0], x * 2

    a, b = torch.cond(x.sum() > 0, yes, no, (x, w))
    return a * 2 + b, a


def scanned(x: Tensor, w: Tensor) -> Any:
    return torch._higher_order_ops.scan(lambda c, y: (c + y, c * y), w[0], x)


def sparse(x: Tensor, w: Tensor) -> Tensor:
    return torch.sparse.mm(x.relu().to_sparse(), w) + x


def number_of_data(x: Tensor, w: Tensor) -> Tensor:
    return (x * x.sum().item()).sin() @ w


def other_float(x: Tensor, w: Tensor) -> Tensor:
    return (x + 1).to(torch.float8_e4m3fnuz).float() + w[0]


SUBGRAPHS = [branches, scanned]


@pytest.mark.parametrize("f", [*SUBGRAPHS, sparse, number_of_data, other_float])
def test_torch_runs_what_no_kernel_can(f: Callable[..., Any]) -> None:
    args = torch.randn(3, 4), torch.randn(4, 4)
    compiled = check(f, *args, entry="compile")
    assert bool(compiled.graph.fallbacks) == (f not in SUBGRAPHS)
    assert (-args[0]).sum() != 0
    torch.testing.assert_close(compiled(-args[0], args[1]), f(-args[0], args[1]))


def dropped(x: Tensor, w: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        return nn.functional.dropout(torch.sin(x @ w), 0.5)

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)  # type: ignore[no-any-return]  # untyped in torch


def test_random_numbers_are_drawn_again_in_the_backward_pass() -> None:
    """The gradient is that of the numbers that the forward pass drew."""
    x, w = torch.randn(30, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    y = torch.compile(dropped, backend="compile_cli", fullgraph=True)(x, w)
    got = torch.autograd.grad(y.sum(), (x, w))
    kept = y != 0
    assert 0.2 < float(kept.float().mean()) < 0.8
    want = torch.autograd.grad((torch.sin(x @ w) * kept * 2).sum(), (x, w))
    torch.testing.assert_close(got, want)


def test_sizes_that_torch_makes_up() -> None:
    """The backward pass of `index_fill` takes one gradient of each index that there is, which
    the fake tensor of `aten._unique` does not know to depend on data."""
    index = torch.tensor([0, 2, 0, 1])
    check_gradients(
        lambda x, i, v: x.index_fill(-1, i, v).sin(), torch.randn(3, 5), index, torch.tensor(1.0)
    )


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 128, 16)
    check(lambda q: flex_attention(q, q + 1, q, score_mod=lambda s, b, h, i, j: s + (i - j)), q)


def test_branches_of_dynamic_sizes() -> None:
    w = torch.randn(4, 4)
    compiled = compile_cli.compile(branches, (torch.randn(3, 4), w), dynamic={0: {0}})
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, w), branches(x, w))


class Kinds(nn.Module):
    """Parameters shared, an input that is not used, results of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, d: dict[str, Any], n: int, unused: Any, *, k: Any = None) -> Any:
        y = self.b(self.a(d["x"][0])) * n
        return {"y": [y, (y.shape[0], y.real)], "n": None, "s": "text", "f": 2.5, "k": k}


def test_containers_constants_and_numbers() -> None:
    torch.manual_seed(0)
    model, x = Kinds(), torch.randn(3, 4, requires_grad=True)
    args: tuple[Any, ...] = ({"x": [x, None]}, 3, torch.ones(2))
    got, want = compile_cli.compile(model, args)(*args), model(*args)
    assert torch.utils._pytree.tree_structure(got) == torch.utils._pytree.tree_structure(want)
    for a, b in zip(*map(torch.utils._pytree.tree_leaves, (got, want)), strict=True):
        assert torch.allclose(a, b) if isinstance(b, Tensor) else a == b


@pytest.mark.parametrize(
    "f", [torch.sin, functools.partial(torch.add, other=2), nn.Linear(4, 4).forward]
)
def test_functions_of_all_kinds(f: Any) -> None:
    check(f, torch.randn(3, 4), entry="compile")


def test_operators_of_numbers_alone() -> None:
    batched = torch.vmap(lambda t: (t * 2).cumsum(-1) - t.mean())
    check(batched, torch.randn(3), entry="compile")
    x = torch.randn(4, 3, requires_grad=True)
    out = torch.compile(lambda x: -x * (1 + 2j), backend="compile_cli")(x)
    (found,) = torch.autograd.grad(out.abs().sum(), x)
    torch.testing.assert_close(found, x.detach().sign() * 5**0.5)


def test_complex_and_double() -> None:
    z = torch.complex(torch.randn(3), torch.randn(3))
    check(lambda z: z * 2 + 1j, z, entry="compile")
    check(lambda z: z * 2, z.conj(), entry="compile")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        check(
            lambda x: x * torch.tensor(0.1) + torch.ones(3) * 1.1, z.real.double(), entry="compile"
        )
    finally:
        torch.set_default_dtype(before)


class Stands:
    """For a stream or an event of a GPU: notes what it is asked."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes, self.device = name, notes, torch.device("cpu")

    def __getattr__(self, call: str) -> Callable[..., None]:
        return lambda *others: self.notes.append(" ".join((self.name, call, *map(str, others))))

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize("grad", [False, True])
def test_streams_and_events_in_turn(grad: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done of them happens between what was computed before and after, on one stream."""
    from aten_lowering.passes import one_stream

    notes = list[str]()
    here, *objects = (Stands(name, notes) for name in ("here", "s", "t", "e"))
    monkeypatch.setattr(one_stream, "external_object", objects.__getitem__)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda _: here)
    streams = torch.ops.streams

    @torch.library.custom_op("test_any_graph::noted", mutates_args=())
    def noted(x: Tensor) -> Tensor:
        notes.append("product")
        return x + 1

    noted.register_fake(torch.empty_like)
    noted.register_autograd(lambda _, gradient: gradient)

    def f(x: Tensor) -> Tensor:
        y = noted(x * 2)
        streams.record_event(2, 0)
        z = noted(y.sin()) + y
        streams.wait_event(2, 1)
        return noted(z * 2)

    x = torch.rand(6, requires_grad=grad)
    got = torch.compile(f, backend="compile_cli", fullgraph=True)(x)
    first, last = ["here wait_stream s", "here wait_stream t"], ["s wait_stream here"]
    between = ["product", "e record", "product", "e wait", "product"]
    assert notes == [*first, *between, *last, "t wait_stream here"]
    monkeypatch.undo()
    monkeypatch.setattr(torch.ops.streams, "record_event", lambda *_: None)
    monkeypatch.setattr(torch.ops.streams, "wait_event", lambda *_: None)
    torch.testing.assert_close(got, f(x))


@pytest.mark.parametrize("dynamic", [None, {0: {0}}])
def test_what_asks_data_whether_its_arguments_are_valid(dynamic: Any) -> None:
    def f(x: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        clean = x.nan_to_num()
        return (
            x.quantile(q, 0), x.nanquantile(0.3), clean.quantile(0.4, 1, keepdim=True),
            clean.quantile(q, interpolation="nearest"), clean.cov(), clean.corrcoef(),
            clean[0].cov(correction=0), clean.quantile(0.1, 0, interpolation="midpoint"),
        )  # fmt: skip

    q = torch.tensor([0.0, 0.7])
    compiled = compile_cli.compile(f, (torch.rand(5, 4), q), dynamic=dynamic)
    for n in (5, 3) if dynamic else (5,):
        x = torch.rand(n, 4)
        x[1, 2] = float("nan")
        for got, want in zip(compiled(x, q), f(x, q), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, check_stride=True)
    with pytest.raises(RuntimeError, match="in the range"):
        compiled(torch.rand(5, 4), q + 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_sums_of_weights_are_no_integers(dtype: torch.dtype) -> None:
    x, weights = torch.tensor([0, 2, 2, 5]), torch.tensor([1.5, 2.25, 0.5, 3]).to(dtype)
    got = compile_cli.compile(torch.bincount, (x, weights))(x, weights)
    torch.testing.assert_close(got, torch.bincount(x, weights))


@pytest.mark.parametrize("name", ["class", "a b", 'x"y', "z"])
def test_exported_parameters_whose_names_no_python_has(name: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleDict({name: nn.BatchNorm1d(3), "plain": nn.Linear(3, 3)})

        def forward(self, x: Tensor) -> Any:
            return self.parts["plain"](self.parts[name](x))

    x = torch.rand(4, 3)
    dims = ({0: torch.export.Dim("n", min=2, max=64)},)
    torch.export.save(torch.export.export(Model(), (x,), dynamic_shapes=dims), tmp_path / "m.pt2")
    program, same = (torch.export.load(tmp_path / "m.pt2") for _ in range(2))
    compiled = compile_cli.compile(program, (x,))
    for rows in (4, 9):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(compiled(x), _as_exported(same, x))


def _as_exported(program: Any, x: Tensor) -> Tensor:
    given = [program.state_dict.get(s.target, x) for s in program.graph_signature.input_specs]
    result: Tensor = torch.fx.Interpreter(program.graph_module).run(*given)[-1]
    return result


def test_what_is_asserted_of_data_is_asserted() -> None:
    def f(x: Tensor) -> Tensor:
        torch._assert_async((x < 1).all(), "too large")
        return x.sin()

    compiled = check(f, torch.rand(4))
    with pytest.raises(RuntimeError, match="too large"):
        compiled(torch.ones(4))
