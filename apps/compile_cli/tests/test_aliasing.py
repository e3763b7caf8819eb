"""Memory as in eager: what a call writes, which results share memory, lazy conjugation."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor

import compile_cli
from compile_cli.capture import share_elements
from compile_cli.capture.overlaps import overlaps_itself
from compile_cli.errors import BadInput


def ramp(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size).numel()).reshape(size) / 3


def spiral(*size: int) -> Tensor:
    return torch.complex(ramp(*size), ramp(*size).flip(0) - 2)


def shared(tensors: list[Tensor]) -> dict[tuple[int, int], int]:
    """Distance in bytes of every two tensors that lie in one storage."""
    return {
        (i, j): b.data_ptr() - a.data_ptr()
        for j, b in enumerate(tensors)
        for i, a in enumerate(tensors[:j])
        if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
    }


def objects(tensors: list[Tensor]) -> list[int]:
    """For each the first that is the very same tensor."""
    return [next(i for i, a in enumerate(tensors) if a is b) for b in tensors]


def same(got: Tensor, want: Tensor) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert (got.is_conj(), got.is_neg()) == (want.is_conj(), want.is_neg())
    strides = zip(want.shape, got.stride(), want.stride(), strict=True)
    assert all(n == 1 or a == b for n, a, b in strides), (got.stride(), want.stride())
    torch.testing.assert_close(got, want)


def as_eager(fn: Callable[..., Any], args: tuple[Any, ...], backend: str, **more: Any) -> None:
    """`fn`, compiled, leaves its arguments and gives results as eager does: values, layouts, and
    which tensors share memory, or are one."""
    torch._dynamo.reset()
    wanted, given = copy.deepcopy(args), copy.deepcopy(args)
    with torch.no_grad():
        want = fn(*wanted)
        if backend == "export":
            got = compile_cli.compile(fn, copy.deepcopy(args), **more)(*given)
        else:
            got = torch.compile(fn, backend="compile_cli", fullgraph=True, **more)(*given)
    expected, found = (
        [t for t in pytree.tree_leaves(x) if isinstance(t, Tensor)]
        for x in ((wanted, want), (given, got))
    )
    for g, w in zip(found, expected, strict=True):
        same(g, w)
    assert shared(found) == shared(expected)
    assert objects(found) == objects(expected)


both = pytest.mark.parametrize("backend", ["export", "dynamo"])


def written_and_returned(x: Tensor) -> Any:
    x.add_(1)
    x[0].mul_(2)
    return x.t(), x, x[0], x * 1


def result_and_views(x: Tensor) -> Any:
    y = x + 1
    y[0].mul_(2)
    return y, y[0], y.view(torch.int32), y.view(torch.int16), y.clone()


def written_bits(x: Tensor) -> Any:
    x.view(torch.int16)[:, ::2] = 0
    return x, x.view(torch.int32)


def views_at_other_types(x: Tensor) -> Any:
    return (
        x.t().view(torch.int32), x.t().view(torch.int32) + 1, x[:, ::2].view(torch.int32) * 2,
        x[:, :2].view(torch.int64) + 1, x[1:].view(torch.float64), x.view(torch.int16) + 1,
    )  # fmt: skip


def equal_but_apart(x: Tensor) -> Any:
    return x + 1, x + 1, x.clone(), x


@pytest.mark.spread(2)
@both
@pytest.mark.parametrize(
    "fn",
    [written_and_returned, result_and_views, written_bits, views_at_other_types, equal_but_apart],
)
def test_results_share_memory_as_in_eager(fn: Any, backend: str) -> None:
    as_eager(fn, (ramp(2, 4),), backend)


def one_and_several(x: Tensor, w: Tensor) -> Any:
    y = x + 1
    z = y.t()[:]
    views = y[:], y.view(y.shape), y.detach(), y.expand_as(y), y.t().t(), y[:], z, z, y.t()
    of_input = x.detach(), x.view(x.shape), x[:], x.t().t()
    dropped = torch.nn.functional.dropout(x, 0.5, False)
    seen = w[:]
    w.add_(1)
    seen.mul_(2)
    return y, *views, y, y.contiguous(), x, *of_input, dropped, seen, w, w[:], w.contiguous(), seen


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("backend", "emit", "dynamic"),
    [
        ("export", "fx", False), ("export", "hop", True), ("export", "cpp", True),
        ("dynamo", "fx", True), ("dynamo", "hop", False), ("dynamo", "cpp", False),
    ],
)  # fmt: skip
def test_a_view_is_another_tensor(backend: str, emit: str, dynamic: bool) -> None:
    """One of the same layout is, too."""
    which = ({0: {0}} if dynamic else None) if backend == "export" else dynamic
    inputs = ramp(4, 3), ramp(2, 3)
    as_eager(one_and_several, inputs, backend, dynamic=which, options={"emit": emit})


def test_a_gradient_that_several_get_is_copied() -> None:
    """Autograd keeps what it gets as a gradient, where nobody else has that tensor."""
    a, b = (ramp(3).requires_grad_() for _ in range(2))
    run = torch.compile(lambda a, b: (a + b.view(3)).mul(2), backend="compile_cli")
    run(a, b).mul(2).sum().backward()
    assert a.grad is not None and b.grad is not None
    assert torch.equal(a.grad, b.grad) and a.grad.data_ptr() != b.grad.data_ptr()


def test_returned_buffers_are_the_models(tmp_path: Any) -> None:
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Tensor) -> Any:
            self.count.add_(x)
            return self.count, self.count[1:]

    model = Counter()
    run = compile_cli.compile(model, (ramp(2),))
    whole, part = run(ramp(2))
    assert whole.data_ptr() == model.count.data_ptr() and part.data_ptr() == whole[1:].data_ptr()
    torch.testing.assert_close(model.count, ramp(2))


def conjugated(x: Tensor) -> Any:
    y = x.conj()
    return y, y.t() @ x, y.imag, y.imag + 1, (x * 2).conj(), torch.cat([y, x]), y.real.sum(0)


def written_through_conj(x: Tensor) -> Any:
    y = x.conj()
    y.add_(1j)
    return y, x + 1


def parts(x: Tensor) -> Any:
    return torch.view_as_real(x), x.real * x.imag, torch.view_as_real(x * 2)[..., 1], x[1:].imag


def negated(x: Tensor) -> Any:
    y = torch._neg_view(x)
    return y, y.sum(1), y @ x.t(), y[:, 1:] * 2


def transforms(x: Tensor) -> Any:
    y = x.conj()
    return (
        torch.fft.hfft(x), torch.fft.ihfft(x.real), torch.fft.fft(y), torch.fft.irfft2(y),
        torch.fft.fftshift(y), torch.fft.ihfftn(y.imag),
    )  # fmt: skip


@pytest.mark.spread(2)
@both
@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (conjugated, spiral(2, 3)), (conjugated, spiral(2, 3).conj()), (parts, spiral(2, 3)),
        (written_through_conj, spiral(2, 3)), (written_through_conj, spiral(2, 3).conj()),
        (negated, ramp(2, 3)), (negated, spiral(2, 3).conj().imag), (transforms, spiral(4, 6)),
        (lambda x: torch.view_as_complex(x[1:]) * 2, ramp(3, 2)),
    ],
)  # fmt: skip
def test_lazy_conjugation_and_negation(fn: Any, x: Tensor, backend: str) -> None:
    as_eager(fn, (x,), backend)


def test_an_input_is_conjugated_as_it_was_compiled() -> None:
    run = compile_cli.compile(lambda x: x + 1, (spiral(3),))
    with pytest.raises(compile_cli.CompileCliError, match="conjugation"):
        run(spiral(3).conj())


@pytest.mark.spread(2)
@pytest.mark.parametrize("given", [Tensor.clone, Tensor.conj, torch._neg_view])
@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (torch.fft.ifft, ramp(2, 3)),  # whose result is lazily conjugated
        (lambda x: x * 2, spiral(2, 3)),
        (lambda x: torch.sin(x) * 2, ramp(2, 3)),
    ],
)
def test_a_gradient_is_lazy_or_not(fn: Any, x: Tensor, given: Any) -> None:
    """Whatever the result is: autograd gives its gradient as it comes."""
    torch._dynamo.reset()
    x = x.requires_grad_()
    want = fn(x)
    gradient = given(spiral(2, 3) if want.is_complex() else ramp(2, 3))
    got = torch.compile(fn, backend="compile_cli")(x)
    ours, theirs = (torch.autograd.grad(y, x, gradient)[0] for y in (got, want))
    torch.testing.assert_close(ours, theirs)


def out_of_its_tensor(x: Tensor) -> Any:
    return x.as_strided((2, 2), (1, 3)) + 1, x.as_strided((2, 2), (1, 3), 0) * 2


@both
@pytest.mark.parametrize("part", [slice(0, 1), slice(2, 3)])
def test_as_strided_reaches_out_of_its_tensor(part: slice, backend: str) -> None:
    class Part(torch.nn.Module):
        def forward(self, x: Tensor) -> Any:
            return out_of_its_tensor(x)

    # as_eager copies the whole storage with its view
    as_eager(Part(), (ramp(4, 3)[part],), backend)


def into_copies(x: Tensor) -> Any:
    one = torch.arange(1, 2)
    return (
        x.index_fill(0, one, 9.0), x.select_scatter(x[0] * 2, 0, 1),
        x.slice_scatter(x[:1] * 3, 0, 1, 2), torch.diagonal_scatter(x, x[0] + 1),
        torch.as_strided_scatter(x, x[:2, :2] + 5, (2, 2), (1, 2)),
    )  # fmt: skip


@pytest.mark.spread(2)
@both
@pytest.mark.parametrize(
    "x", [ramp(3, 4).t(), ramp(3).expand(3, 3), ramp(3, 1).expand(3, 3), ramp(4, 3)[1:]]
)
def test_writes_into_copies_of_rearranged_tensors(x: Tensor, backend: str) -> None:
    as_eager(into_copies, (x[:, :3],), backend)


def diagonal_of_itself(x: Tensor, i: Tensor) -> None:
    x.diagonal().index_put_((i,), x.diagonal()[0], accumulate=True)


def rows_of_itself(x: Tensor, i: Tensor) -> None:
    x.flatten()[1:3].index_add_(0, i[:2], x.flatten()[1:2].expand(2))


def shifted(x: Tensor, i: Tensor) -> None:
    x[:, 1:] = x[:, :-1]


def transposed_sum(x: Tensor, i: Tensor) -> None:
    x += x.t()


def added(x: Tensor, i: Tensor) -> None:
    x.add_(1)


def row_added(x: Tensor, i: Tensor) -> None:
    x[0].add_(1)


def row_filled(x: Tensor, i: Tensor) -> None:
    x[0] = 5.0


def expanded_filled(x: Tensor, i: Tensor) -> Tensor:
    y = x + 1
    y.expand(2, *x.shape).fill_(2.0)
    return y


FOLDED = ramp(12).as_strided((3, 7), (1, 1))


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (diagonal_of_itself, ramp(4, 4)), (rows_of_itself, ramp(2, 3)), (shifted, ramp(2, 4)),
        (transposed_sum, ramp(3, 3)), (added, FOLDED), (row_added, FOLDED), (row_filled, FOLDED),
        (expanded_filled, ramp(3)), (added, ramp(3).expand(2, 3)),
    ],
)  # fmt: skip
def test_writes_whose_result_hangs_on_an_order_are_refused(fn: Any, x: Tensor) -> None:
    expected = (BadInput, RuntimeError)  # torch refuses what is expanded as it is captured
    with pytest.raises(expected, match=r"writes to memory in an order|written-to tensor"):
        compile_cli.compile(fn, (x, torch.tensor([0, 1, 1, 3])))


@pytest.mark.parametrize(
    ("fn", "x"),
    [
        (diagonal_of_itself, ramp(4, 4)),
        (shifted, ramp(2, 4)),
        (row_added, FOLDED),
        (row_filled, FOLDED),
        (expanded_filled, ramp(3)),
    ],
)
def test_dynamo_leaves_them_to_eager(fn: Any, x: Tensor) -> None:
    with pytest.warns(UserWarning, match="leaves a graph to eager"):
        as_eager(fn, (x, torch.tensor([0, 1, 1, 3])), "dynamo")


def test_dynamo_refuses_what_eager_refuses() -> None:
    run = torch.compile(transposed_sum, backend="compile_cli")
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="written-to tensor"):
        run(ramp(3, 3), torch.tensor([0]))


def apart(x: Tensor) -> Any:
    x[:, 0] += x[:, 1]
    x[::2] = x[1::2]
    a, b = x.chunk(2)
    a.mul_(b)
    x.expand(1, 4, 4)[0].add_(1)
    x.add_(x)
    return b, torch.mul(x, 2, out=x)


@both
def test_writes_beside_what_they_read(backend: str) -> None:
    as_eager(apart, (ramp(4, 4),), backend)


def assigned(x: Tensor) -> Tensor:
    x[:] = 5.0
    return x * 1


@both
@pytest.mark.parametrize("fill", [lambda x: x.fill_(2.0) * 1, assigned])
def test_filling_an_overlapping_input(fill: Any, backend: str) -> None:
    as_eager(fill, (FOLDED,), backend)


def moved_ahead(x: Tensor) -> Tensor:
    x[:, :-1] = x[:, 1:]
    x[:, :-2] *= x[:, 2:]
    return x.expand(1, *x.shape).squeeze_(0) + 1


@both
def test_writes_behind_what_they_read(backend: str) -> None:
    as_eager(moved_ahead, (ramp(3, 5),), backend)


def writes_data(x: Tensor) -> Any:
    x.data.add_(1)
    x.detach().mul_(2)
    return x * 2


@both
def test_data_of_a_tensor_is_written(backend: str) -> None:
    as_eager(writes_data, (ramp(3),), backend)


def takes_data(x: Tensor, y: Tensor) -> Any:
    z = x + 1
    z.data = y  # as which z is written
    z.add_(3)
    return z.sum(), y * 1


def test_a_tensor_takes_the_data_of_another() -> None:
    as_eager(takes_data, (ramp(3), ramp(3)), "export")


def replaces_data(x: Tensor) -> Tensor:
    x.data = x * 2
    return x


@pytest.mark.parametrize(
    "change",
    [
        torch.t,
        lambda x: x.resize_(2),
        lambda x: x.t_().add_(1),
        replaces_data,
        lambda x: x.unsqueeze_(0),
    ],
)
def test_an_input_keeps_its_layout(change: Any) -> None:
    def model(x: Tensor) -> Any:
        return change(x) * 2

    if change is torch.t:
        as_eager(model, (ramp(2, 3),), "export")
    else:
        with pytest.raises(BadInput, match="changes the layout of input"):
            compile_cli.compile(model, (ramp(2, 3),))


def test_arguments_that_share_what_is_written() -> None:
    def model(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return y * 2, x

    whole = ramp(4, 6)
    for pair in ((whole[:2], whole[2:]), (whole[:, ::2], whole[:, 1::2])):
        as_eager(model, pair, "export")
    run = compile_cli.compile(model, (whole, whole))  # the example's memory does not matter
    for pair in ((whole, whole), (whole, whole.detach())):
        with pytest.raises(BadInput, match="share memory"):
            run(*pair)
    run(whole, ramp(4, 6))
    read = compile_cli.compile(lambda x, y: x + y, (whole, whole))
    torch.testing.assert_close(read(whole, whole), whole + whole)


def test_shared_elements_are_found() -> None:
    draw, base = random.Random(0), torch.zeros(100)

    def view() -> tuple[Tensor, list[int]]:
        rank = draw.randint(0, 3)
        size, stride = ([draw.randint(low, 6) for _ in range(rank)] for low in (1, 0))
        x = base.as_strided([min(n, 4) for n in size], stride, draw.randint(0, 20))
        places = torch.arange(100).as_strided(x.shape, x.stride(), x.storage_offset())
        return x, places.flatten().tolist()

    for _ in range(500):
        (a, here), (b, there) = view(), view()
        assert share_elements(a, b) == bool(set(here) & set(there))
        assert overlaps_itself(a) == (len(set(here)) < len(here))


@torch.library.custom_op("aliasing_tests::add_to", mutates_args={"x"})
def add_to(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@torch.library.custom_op("aliasing_tests::scale", mutates_args={"xs", "o"})
def scale(xs: list[Tensor], o: Tensor | None, k: int) -> Tensor:
    for x in xs:
        x.mul_(k)
    if o is not None:
        o.add_(1)
    return xs[0].sum(0)


@scale.register_fake
def _(xs: list[Tensor], o: Tensor | None, k: int) -> Tensor:
    return xs[0].new_empty(xs[0].shape[1:])


@torch.library.custom_op("aliasing_tests::twice", mutates_args=())
def twice(x: Tensor, k: float) -> tuple[Tensor, Tensor]:
    return x * k, (x + k).t().contiguous()


@twice.register_fake
def _(x: Tensor, k: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[::-1])


@torch.library.custom_op("aliasing_tests::empty_into", mutates_args={"x"})
def empty_into(x: Tensor) -> Tensor:
    total = x.sum()
    x.zero_()
    return total


@empty_into.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(())


def writes_and_gives_another(x: Tensor, y: Tensor) -> Any:
    return empty_into(y), empty_into(x[0]) + x, y


def writes_and_keeps(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    old = z + 1
    add_to(z[0], y)
    add_to(x, y)
    return z, old, x, x * 1


def writes_lists(x: Tensor, y: Tensor) -> Any:
    z = x * 2
    first = scale([z[:1], z[1:]], None, 3)
    return z, first, scale([z[1:], x], y, 2)


def writes_nothing(x: Tensor, y: Tensor) -> Any:
    return twice(x, 2.0), y + 1


@both
@pytest.mark.parametrize(
    "fn", [writes_and_keeps, writes_and_gives_another, writes_lists, writes_nothing]
)
def test_custom_operators(fn: Any, backend: str) -> None:
    as_eager(fn, (ramp(2, 3), ramp(3)), backend)


@both
def test_custom_operators_that_write_to_nothing(backend: str) -> None:
    """The strides of an empty tensor span an element, which is not there to be copied."""
    as_eager(writes_and_keeps, (torch.empty(1, 2, 0, 1), torch.empty(2, 0, 1)), backend)


def beyond(x: Tensor) -> tuple[Tensor, ...]:
    wide = x.as_strided((3,), (1,), 1)
    return wide, x.as_strided((2, 2), (1, 2), 0), wide * 2, x[1:]


@pytest.mark.parametrize("backend", ["export", "dynamo"])
def test_views_that_reach_out_of_an_input(backend: str) -> None:
    as_eager(beyond, (ramp(6)[1:3],), backend)
    as_eager(lambda x: x.as_strided((3,), (1,)), (ramp(3)[:1],), backend)


@pytest.mark.parametrize("training", [False, True])
def test_views_of_written_inputs_begin_where_these_do(training: bool) -> None:
    """Of a dynamic size AOTAutograd asks the graph's result, of which torch's own begins at 0."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.mul_(2)
        return x.view(x.shape[0] // 2, -1)[1:], (x * w).sum()

    memory = [torch.arange(13.0) for _ in range(2)]
    weights = [torch.ones(1, requires_grad=training) for _ in range(2)]
    compiled = torch.compile(fn, backend="compile_cli", dynamic=True)
    for n in (9, 13):
        got, want = (f(m[1:n], w) for f, m, w in zip((compiled, fn), memory, weights, strict=True))
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        assert got[0].data_ptr() - memory[0].data_ptr() == want[0].data_ptr() - memory[1].data_ptr()
        torch.testing.assert_close(*memory)


def test_inputs_at_another_type_of_symbolic_sizes_are_left_to_eager() -> None:
    """AOTAutograd makes such a result of the input at its own type."""

    def fn(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
        return x.exp(), i.view(torch.int16).unflatten(-1, (-1, 4))

    compiled = torch.compile(fn, backend="compile_cli", dynamic=True)
    x, i = torch.ones(7), torch.arange(3)
    with pytest.warns(UserWarning, match="an input at another type"):
        got, want = compiled(x, i), fn(x, i)
    assert torch.equal(got[1], want[1]) and got[1].data_ptr() == i.data_ptr()


@pytest.mark.parametrize("emit", ["fx", "hop"])
def test_results_that_require_grad_may_be_written_to(emit: str) -> None:
    """A layer's result is a view of its matmul's; to autograd it is a tensor of its own."""
    weight = torch.linspace(-1, 1, 64).reshape(8, 8).requires_grad_()
    compiled = torch.compile(
        torch.nn.functional.linear, backend="compile_cli", options={"emit": emit}
    )
    gradients = []
    for run in (compiled, torch.nn.functional.linear):
        y = run(torch.linspace(0, 2, 48).reshape(2, 3, 8), weight)
        y[:, 0] = 0.0
        gradients += torch.autograd.grad(y.square().sum(), weight)
    torch.testing.assert_close(*gradients)
