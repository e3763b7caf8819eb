"""What torch runs itself inside of a compiled program on a GPU: branches, flex attention, values
without a type; and a training step whose rows are scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import compile_cli

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


def branches(x: Tensor) -> Tensor:
    y = torch.cond(x.sum() > 0, lambda x: x.sin() @ x, lambda x: x - 1, (x,))
    return y * torch.tensor(0.5) + torch.tensor(2)


def through_sparse(x: Tensor) -> Tensor:
    return torch.sparse.mm(x.relu().to_sparse(), x + 1).cos()


def number_of_data(x: Tensor) -> Tensor:
    return (x * x.sum().item()).sin() + x[x > 0].sum()


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
@pytest.mark.parametrize("f", [branches, through_sparse, number_of_data])
def test_what_torch_runs(f: Callable[..., Any], emit: str, options: dict[str, Any]) -> None:
    x = torch.randn(16, 16, device="cuda")
    compiled = compile_cli.compile(f, (x,), options={**options, "emit": emit})
    assert compiled.graph.fallbacks
    for value in (x, -x, x):
        torch.testing.assert_close(compiled(value), f(value))


def transforms(x: Tensor) -> list[Tensor]:
    """Of which cuFFT has no call for more than three dimensions."""
    fft, turned = torch.fft, x[0].transpose(0, 1)
    return [
        fft.fftn(x), fft.ifftn(x, dim=(0, 4, 2, 3)), fft.fftn(x.permute(3, 1, 0, 2, 4)),
        fft.fft2(x[0], dim=(2, 0)), fft.irfftn(x), fft.irfftn(turned, dim=(0, 1, 3)),
        fft.rfftn(x.real), fft.rfftn(turned.real), fft.rfftn(x[0, 0, :, :, 1:].imag, dim=(0, 2)),
    ]  # fmt: skip


def test_transforms_lie_as_in_eager(options: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 4, 5, 6, device="cuda", dtype=torch.complex64)
    compiled = compile_cli.compile(transforms, (x,), options=options)
    for got, want in zip(compiled(x), transforms(x), strict=True):
        torch.testing.assert_close(got, want, check_stride=True)


def test_branches_are_left_out_of_cuda_graphs(options: dict[str, Any]) -> None:
    x = torch.randn(16, 16, device="cuda")
    compiled = compile_cli.compile(branches, (x,), options={**options, "cuda_graphs": True})
    for value in (x, -x, x, -x):
        torch.testing.assert_close(compiled(value), branches(value))
    torch.rand(2, device="cuda")  # torch's generators are no longer part of a graph


def test_flex_attention_and_its_gradients() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.1)

    given = [torch.randn(1, 2, 128, 32, device="cuda", requires_grad=True) for _ in range(3)]
    expected = [t.detach().clone().requires_grad_() for t in given]
    got, want = torch.compile(f, backend="compile_cli")(*given), f(*expected)
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
    got.sum().backward()
    want.sum().backward()
    for a, b in zip(given, expected, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)


class Language(nn.Module):
    """The ends of GPT-2: embeddings of tokens and positions, a norm, and a loss that ignores the
    label which the shift leaves without one."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(50, 64), nn.Embedding(8, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.norm(self.token(ids) + self.place(places))
        labels = nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
        logits = x @ self.token.weight.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("size", [(1, 2), (2, 8)])
def test_a_training_step_of_a_language_model(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = Language().cuda()
    ids = torch.randint(0, 50, size, device="cuda")
    model(ids).backward()
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(model, backend="compile_cli")(ids).backward()
    for p, want in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, want, rtol=1e-3, atol=1e-4)


def slow(x: Tensor) -> Tensor:
    """Takes a GPU longer than a host needs to queue what follows."""
    for _ in range(4):
        x = torch.fft.fft(x.reshape(-1, 64)).abs().reshape(-1) * 0.1
    return x


def recorded(x: Tensor, side: Any, event: Any) -> Tensor:
    y = slow(x).sin()
    event.record()
    return y


def after_the_event(f: Callable[..., Tensor], x: Tensor, side: Any, event: Any) -> Tensor:
    y, out, other = f(x, side, event), torch.empty_like(x), torch.cuda.Stream()
    with torch.cuda.stream(other):
        event.wait()
        out.copy_(y)
    return out


def made_there(x: Tensor, side: Any, event: Any) -> Tensor:
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return slow(x)


def read_there(f: Callable[..., Tensor], x: Tensor, side: Any, event: Any) -> Tensor:
    y, out = f(x, side, event), torch.empty_like(x)
    with torch.cuda.stream(side):
        out.copy_(y)
    return out


def read_here(x: Tensor, side: Any, event: Any) -> Tensor:
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.current_stream().wait_stream(side)
    return y


def waits_alone(x: Tensor, side: Any, event: Any) -> Tensor:
    torch.cuda.current_stream().wait_stream(side)
    return x * 2


def waits_for_an_event(x: Tensor, side: Any, event: Any) -> Tensor:
    event.wait()
    return x * 2


def given_there(f: Callable[..., Tensor], x: Tensor, side: Any, event: Any) -> Tensor:
    with torch.cuda.stream(side):
        y = slow(x)
        event.record()
    return f(y, side, event)


def to_the_host(x: Tensor, side: Any, event: Any) -> Tensor:
    y = slow(x).to("cpu", non_blocking=True)
    event.record()
    event.synchronize()
    return y * 2


def as_it_is(f: Callable[..., Tensor], x: Tensor, side: Any, event: Any) -> Tensor:
    return f(x, side, event)


@pytest.mark.parametrize("options", [{}, {"emit": "cpp"}, {"cuda_graphs": True}])
@pytest.mark.parametrize(
    ("f", "use"),
    [
        (recorded, after_the_event), (made_there, read_there), (read_here, given_there),
        (waits_alone, given_there), (waits_for_an_event, given_there), (to_the_host, as_it_is),
    ],
)  # fmt: skip
def test_streams_of_the_users(f: Any, use: Any, options: dict[str, Any]) -> None:
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    x = torch.rand(1 << 23, device="cuda")
    with torch.cuda.stream(side):
        slow(x)  # plans of FFTs
    torch.cuda.synchronize()
    want = use(f, x, side, event)
    torch.cuda.synchronize()
    run = torch.compile(f, backend="compile_cli", fullgraph=True, options=options)
    for _ in range(3):
        got = use(run, x, side, event)
        torch.cuda.synchronize()
        torch.testing.assert_close(got, want)
