"""How many kernels well-known work takes, forward and backward, and that it is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aten_lowering import lower_with_report
from compile_cli import pipeline
from compile_cli.capture import capture, export
from compile_cli.result import CompiledGraph
from loop_ir import FuseOptions, fuse_with_report
from tensor_ir import DType
from wrapper_ir import Allocate, CopyBack, ExternCall, If, Launch, Program, Return


@pytest.fixture
def programs(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Program]]:
    """Those that are compiled, in order."""
    found: list[Program] = []
    original = pipeline.compile_graph

    def compile_graph(*args: Any, **kwargs: Any) -> CompiledGraph:
        compiled = original(*args, **kwargs)
        found.append(compiled.program)
        return compiled

    monkeypatch.setattr(pipeline, "compile_graph", compile_graph)
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def kernels(program: Program) -> int:
    calls = {op.target for op in program.ops if isinstance(op, ExternCall)}
    assert calls <= {"aten.mm.default", "aten.addmm.default"}, calls
    return sum(isinstance(op, Launch | If) for op in program.ops)  # one of several schedules


@dataclass(frozen=True)
class Work:
    run: Callable[..., Any]
    args: Callable[[], tuple[Tensor, ...]]
    forward: int
    backward: int | None = None


def wide(x: Tensor) -> Tensor:
    return x.float()


def rows(*size: int) -> Tensor:
    return torch.randn(size)


def overlap(x: Tensor, y: Tensor) -> Tensor:
    """The generalised overlap of boxes: places, then sizes."""
    (a, b), (c, d) = (torch.stack((z[:2], z[:2] + z[2:].abs())) for z in (x, y))
    both = (torch.minimum(b, d) - torch.maximum(a, c)).clamp(min=0).prod(0)
    hull = (torch.maximum(b, d) - torch.minimum(a, c)).prod(0)
    union = (b - a).prod(0) + (d - c).prod(0) - both
    return (1 - both / (union + 1e-7) + (hull - union) / (hull + 1e-7)).mean()


WORK = {
    "overlap of boxes": Work(overlap, lambda: (rows(4, 41), rows(4, 41)), 1, 1),
    "softmax": Work(lambda x: x.softmax(-1), lambda: (rows(8, 40),), 1, 1),
    "layer norm": Work(
        lambda x, y, w, b: F.layer_norm(x + y, (24,), w, b),
        lambda: (rows(40, 24), rows(40, 24), rows(24), rows(24)),
        1, 2,
    ),
    "cross entropy": Work(
        lambda x, t: F.cross_entropy(x, t, ignore_index=2), lambda: (rows(6, 40), torch.arange(6)),
        2, 1,
    ),
    "logarithms of the probabilities of tokens": Work(
        lambda x, t: x.log_softmax(-1).gather(-1, t[:, None])[:, 0],
        lambda: (rows(6, 40), torch.arange(6)), 1, 1,
    ),
    "sums of one element": Work(
        lambda x: x.logsumexp(1, True).sum(1) * 10, lambda: (rows(6, 40),), 1
    ),
    "rotary embedding": Work(
        lambda x, c, s: x * c + torch.cat((-x[..., 4:], x[..., :4]), -1) * s,
        lambda: (rows(40, 3, 8), rows(3, 8), rows(3, 8)), 1, 1,
    ),
    "halves of bytes": Work(
        lambda q, s: torch.stack(((q & 15).float() - 8, (q >> 4).float() - 8), -1).flatten(1) * s,
        lambda: (torch.arange(48, dtype=torch.uint8).view(6, 8), rows(6, 1)), 1,
    ),
    "bilinear": Work(
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda: (rows(1, 2, 3, 4),),
        1, 1,
    ),
    "reflection": Work(lambda x: F.pad(x, (1, 2, 2, 1), "reflect"), lambda: (rows(2, 4, 5),), 1, 1),
    "log softmax": Work(lambda x: x.log_softmax(-1), lambda: (rows(6, 40),), 1, 1),
    "group norm": Work(
        lambda x, w, b: F.silu(F.group_norm(x, 2, w, b)),
        lambda: (rows(3, 4, 5, 2), rows(4), rows(4)), 1,
    ),
    "quantised rows": Work(
        lambda x: (s := x.abs().amax(-1, keepdim=True) / 448, (x / s).to(torch.float8_e4m3fn)),
        lambda: (rows(6, 40),), 1,
    ),
    "gated halves": Work(
        lambda x: F.silu(x[..., :8]) * x[..., 8:], lambda: (rows(6, 16),), 1, 1
    ),
    "sum of columns beside what reads them": Work(
        lambda x: (x.sum((0, 1)), x * 2), lambda: (rows(4, 8, 16),), 1
    ),
    "rms norm": Work(lambda x, w: F.rms_norm(x, (24,), w), lambda: (rows(40, 24), rows(24)), 1, 2),
    "gradients of pieces": Work(
        lambda x: (lambda a, b, c: F.gelu(a) * b.sin() * c.softmax(-1))(*x.split(16, -1)),
        lambda: (rows(6, 48),), 1, 1
    ),
    "joined norms": Work(
        lambda x, y: torch.cat((F.rms_norm(x, (16,)), y, x.softmax(-1)), -1),
        lambda: (rows(6, 16), rows(6, 8)), 2
    ),
    "means beside what is left of rows": Work(
        lambda x: torch.cat((x.mean(1, True), x - x.mean(1, True)), 1), lambda: (rows(6, 5, 32),), 1
    ),
    "rotary embedding of neighbours": Work(
        lambda x, c, s: torch.stack(
            (x[..., ::2] * c - x[..., 1::2] * s, x[..., 1::2] * c + x[..., ::2] * s), -1
        ).flatten(-2),
        lambda: (rows(40, 3, 8), rows(3, 4), rows(3, 4)), 1, 2,
    ),
    "rotary embedding as complex numbers": Work(
        lambda x, f: torch.view_as_real(
            torch.view_as_complex(x.unflatten(-1, (-1, 2)))
            * torch.view_as_complex(f.float()).conj()
        ).flatten(-2) * 2,
        lambda: (rows(40, 3, 8), torch.arange(24).view(3, 4, 2)), 2, 1,
    ),
    "magnitudes": Work(
        lambda x: x.abs().square(), lambda: (torch.randn(6, 8, dtype=torch.complex64),), 1
    ),
    "windows as columns": Work(
        lambda x: F.unfold(x, 3, padding=1), lambda: (rows(2, 3, 5, 6),), 1, 1
    ),
    "largest of windows": Work(
        lambda x: F.max_pool2d(x.sin(), 3, 2, 1).relu(), lambda: (rows(2, 3, 9, 8),), 1, 1
    ),
    "sums of a factor of rows, and of a bias of columns": Work(
        lambda x, y, z: (x * y + z).tanh(), lambda: (rows(6, 5, 24), rows(5, 1), rows(24)), 1, 2
    ),
    "gradient of an activation, and its sum for a bias": Work(
        lambda x, w, b: F.gelu(F.linear(x, w, b)), lambda: (rows(8, 8), rows(8, 8), rows(8)), 1, 1
    ),
    "nearest of a code book": Work(
        lambda x, c: (x[:, None] - c).square().sum(-1).argmin(-1),
        lambda: (rows(256, 8), rows(256, 8)), 1,
    ),
    "running products": Work(lambda x: x.cumprod(1), lambda: (rows(2, 300),), 1, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_kernels(name: str, programs: list[Program]) -> None:
    torch.manual_seed(0)
    work = WORK[name]
    args = work.args()
    leaves = [a.requires_grad_() for a in args if a.is_floating_point() and work.backward]
    want = work.run(*args)
    got = torch.compile(work.run, backend="compile_cli", dynamic=False)(*args)
    torch.testing.assert_close(pytree.tree_map(wide, got), pytree.tree_map(wide, want))
    if leaves:
        seed = torch.randn_like(want)
        torch.testing.assert_close(
            torch.autograd.grad(got, leaves, seed), torch.autograd.grad(want, leaves, seed),
            rtol=1e-4, atol=1e-5,
        )  # fmt: skip
    counts = [kernels(p) for p in programs]
    assert counts == [n for n in (work.forward, work.backward) if n is not None]


@dataclass(frozen=True)
class Step:
    """Work on modules and states: `run()` of what `make()` gives, once. kernels: of each graph."""

    make: Callable[[], tuple[Callable[..., Any], tuple[Tensor, ...]]]
    kernels: tuple[int, ...]
    random: bool = False


def batch_norm() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    norm = torch.nn.BatchNorm2d(4).train()

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return norm(x), norm.running_mean, norm.running_var, norm.num_batches_tracked

    return run, (rows(3, 4, 5, 2),)


def in_place() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    return lambda x: x.add_(1), (rows(7, 5),)


def dropout_and_residual() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    return lambda x, y: F.dropout(x, 0.5, True) + y, (rows(7, 5), rows(7, 5))


def optimizer(count: int = 3) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """One step of torch's AdamW over lists of tensors."""
    sizes = ((5, 7), (7,), (3, 4), (16, 16)) if count > 3 else ((5, 7),)
    made = tuple(torch.nn.Parameter(rows(*sizes[n % len(sizes)])) for n in range(count))
    for p in made:
        p.grad = p.detach() * 2
    adamw = torch.optim.AdamW(made, foreach=True)

    def run(*parameters: Tensor) -> None:
        adamw.step()

    return run, made


def clipping() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Gradients scaled in place by their norm, of two sizes."""
    grads = tuple(rows(*size) for _ in range(4) for size in ((5, 7), (7,)))

    def run(*grads: Tensor) -> None:
        total = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        for g in grads:
            g.mul_((1.0 / (total + 1e-6)).clamp(max=1.0))

    return run, grads


def unscaling() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """Gradients divided by a scale, and whether they are finite."""

    def run(scale: Tensor, *grads: Tensor) -> Tensor:
        for g in grads:
            g.mul_(1 / scale)
        return torch.stack([g.isfinite().all() for g in grads]).all()

    return run, (torch.tensor(8.0), *(rows(5, 7) for _ in range(5)))


STEPS = {
    "gradients clipped": Step(clipping, (3,)),
    "gradients unscaled": Step(unscaling, (2,)),
    "optimizer": Step(optimizer, (2,)),
    "optimizer of a hundred": Step(partial(optimizer, 100), (2,)),
    "batch norm in training, which counts": Step(batch_norm, (1,)),
    "in place": Step(in_place, (1,)),
    "dropout and sum": Step(dropout_and_residual, (1,), random=True),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * ("hundred" in n)) for n in STEPS]
)
def test_steps(name: str, programs: list[Program]) -> None:
    step = STEPS[name]
    torch.manual_seed(0)
    run, args = step.make()
    torch.manual_seed(0)
    eager, own = step.make()
    torch._dynamo.reset()
    got = torch.compile(run, backend="compile_cli", dynamic=False)(*args)
    if not step.random:
        torch.testing.assert_close(got, eager(*own))
        torch.testing.assert_close(args, own)
    ops = [op for p in programs for op in p.ops]
    assert not any(isinstance(op, CopyBack) for op in ops)
    calls = [op.target for op in ops if isinstance(op, ExternCall)]
    assert calls == (["aten.randint.low"] if step.random else [])  # the seed
    found = [sum(isinstance(op, Launch | If) for op in p.ops) for p in programs]
    assert found == list(step.kernels)


class _PlannedError(Exception):
    """The host program is known, and need not run."""


def adafactor(
    params: list[Tensor], grads: list[Tensor], rows: list[Tensor], columns: list[Tensor]
) -> None:
    """Factored second moments of matrices, whole ones of the rest; the update clipped by its
    norm (Shazeer and Stern)."""
    for p, g, r, c in zip(params, grads, rows, columns, strict=True):
        squares = g.float().square() + 1e-30
        if p.dim() < 2:
            u = g * c.lerp_(squares, 0.1).rsqrt()
        else:
            r.lerp_(squares.mean(-1), 0.1)
            c.lerp_(squares.mean(-2), 0.1)
            u = g * (r / r.mean(-1, keepdim=True)).rsqrt()[..., None] * c.rsqrt()[..., None, :]
        p.add_(u / u.square().mean().sqrt().clamp(min=1.0), alpha=-1e-2)


def lion(params: list[Tensor], grads: list[Tensor], means: list[Tensor]) -> None:
    """Chen et al."""
    for p, g, m in zip(params, grads, means, strict=True):
        p.mul_(1 - 1e-4).add_((m * 0.9 + g * 0.1).sign(), alpha=-1e-3)
        m.lerp_(g.float(), 0.01)


MIXED = [
    (768, 768), (768,), (50257, 768), (3072, 768), (3072,), (768, 3072), (64, 3, 7, 7), (1,), (13,),
    (2304, 768), (1000, 512), (1000,),
]  # fmt: skip
SMALL = [(48, 32), (16,), (64, 128), (5,), (1,), (32, 48), (2, 2, 8), (128,)]
BY_TORCH = {
    "sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam, "adagrad": torch.optim.Adagrad,
    "rmsprop": partial(torch.optim.RMSprop, momentum=0.5),
}  # fmt: skip
CAPTURABLE = ("adam", "adamw", "nadam", "radam", "rmsprop")
QUICK_STEPS = [("adafactor", MIXED, 16, torch.float32, {})]
SLOW_STEPS = [
    *(("adafactor", sizes, n, torch.bfloat16, {}) for sizes in (MIXED, SMALL) for n in (100, 300)),
    *(("lion", MIXED, n, torch.bfloat16, {}) for n in (100, 300)),
    *((name, SMALL, 100, torch.bfloat16, {"foreach": False}) for name in BY_TORCH),
    *((name, SMALL, 300, torch.float32, {"foreach": True}) for name in BY_TORCH),
    *((name, SMALL, 100, torch.float32, {"foreach": True, "capturable": True})
      for name in CAPTURABLE),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sizes", "count", "dtype", "options"),
    [*QUICK_STEPS, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_STEPS)],
    ids=lambda v: str(len(v)) if isinstance(v, list) else str(v).removeprefix("torch."),
)
def test_a_step_is_four_launches(
    name: str, sizes: list[tuple[int, ...]], count: int, dtype: torch.dtype,
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch, own_cache: Path,
) -> None:  # fmt: skip
    """Whatever the number and the sizes of the parameters: matrices, vectors, an embedding."""
    made: list[Program] = []
    original = pipeline.host_program

    def host_program(*args: Any, **kwargs: Any) -> None:
        made.append(original(*args, **kwargs).program)
        raise _PlannedError

    shapes = [sizes[n % len(sizes)] for n in range(count)]
    params = [torch.nn.Parameter(torch.empty(s, dtype=dtype)) for s in shapes]
    for p in params:
        p.grad = torch.empty_like(p)
    wide = [torch.empty(s) for s in shapes]
    run: Callable[..., Any]
    args: tuple[Any, ...] = ()
    if name in BY_TORCH:
        optimizer = BY_TORCH[name](params, lr=1e-3, **options)
        torch._dynamo.reset()
        if name != "sgd":
            group = optimizer.param_groups[0]
            group["capturable"] = False  # which tensors on the CPU are only where it is compiled
            optimizer.step()
            group |= {"capturable": False, **options}
        run = optimizer.step
    elif name == "lion":
        run, args = lion, (params, [p.grad for p in params], wide)
    else:
        rows = [torch.empty(s[:-1]) for s in shapes]
        columns = [torch.empty(*s[:-2], s[-1]) if len(s) > 1 else torch.empty(s) for s in shapes]
        run, args = adafactor, (params, [p.grad for p in params], rows, columns)
    monkeypatch.setattr(pipeline, "host_program", host_program)
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    torch._dynamo.reset()
    grad = torch.enable_grad() if name in BY_TORCH else torch.no_grad()
    with grad, pytest.raises(Exception, match="_PlannedError"):
        torch.compile(run, backend="compile_cli", dynamic=False)(*args)
    (program,) = made
    assert not [op for op in program.ops if isinstance(op, ExternCall | CopyBack)]
    assert sum(isinstance(op, Launch | If) for op in program.ops) <= 4


@pytest.mark.parametrize("count", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_gradients_of_a_norm_with_dynamic_rows(count: int, programs: list[Program]) -> None:
    torch.manual_seed(0)

    def run(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (24,), w, b)

    compiled = torch.compile(run, backend="compile_cli", dynamic=True)
    w, b = rows(24).requires_grad_(), rows(24).requires_grad_()
    for n in (40, count):
        x = rows(n, 24).requires_grad_()
        want = torch.autograd.grad(run(x, w, b).square().sum(), (x, w, b))
        got = torch.autograd.grad(compiled(x, w, b).square().sum(), (x, w, b))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert [kernels(p) for p in programs[:2]] == [1, 2]


CHEAP = [
    F.silu, F.gelu, F.mish, F.hardswish, F.leaky_relu, F.elu, F.relu, F.softplus, F.relu6,
    F.hardsigmoid, F.hardtanh, F.selu, F.celu, F.softsign, F.tanhshrink, F.softshrink, F.hardshrink,
    torch.sigmoid, torch.tanh,
]  # fmt: skip


@pytest.mark.parametrize(
    "activation",
    [*CHEAP[1:4], *(pytest.param(f, marks=pytest.mark.slow) for f in (CHEAP[0], *CHEAP[4:]))],
    ids=lambda f: f.__name__,
)
def test_a_gradient_computes_cheap_operators_again(
    programs: list[Program], activation: Any
) -> None:
    """Of `act(x) * scale` the forward program returns the product alone: what the gradient of
    `scale` needs is computed again from `x`."""
    x, scale = rows(8, 16).requires_grad_(), rows(16).requires_grad_()
    result = torch.compile(lambda x, s: activation(x) * s, backend="compile_cli")(x, scale)
    result.sum().backward()
    (returned,) = (op for op in programs[0].ops if isinstance(op, Return))
    inputs = {p.name for p in programs[0].params}
    assert len({v.name for v in returned.values} - inputs) == 1


def test_a_gradient_computes_a_gate_of_two_halves_again(programs: list[Program]) -> None:
    """The forward program returns the product alone, and nothing is copied."""
    x = rows(8, 16).requires_grad_()

    def gated(x: torch.Tensor) -> torch.Tensor:
        a, b = x.split([8, 8], -1)
        return a.tanh() * b.sigmoid()

    (want,) = torch.autograd.grad(gated(x).sum(), x)
    (got,) = torch.autograd.grad(torch.compile(gated, backend="compile_cli")(x).sum(), x)
    torch.testing.assert_close(got, want)
    (returned,) = (op for op in programs[0].ops if isinstance(op, Return))
    assert len({v.name for v in returned.values} - {p.name for p in programs[0].params}) == 1
    assert [kernels(p) for p in programs[:2]] == [1, 1]


def test_a_gradient_of_a_norm_computes_differences_again(programs: list[Program]) -> None:
    """Beside its inputs a triplet loss saves numbers of rows: what the norms are of is computed
    again."""
    tensors = tuple(rows(6, 16).requires_grad_() for _ in range(3))
    result = torch.compile(F.triplet_margin_loss, backend="compile_cli")(*tensors)
    got = torch.autograd.grad(result, tensors)
    want = torch.autograd.grad(F.triplet_margin_loss(*tensors), tensors)
    torch.testing.assert_close(got, want)
    sizes = {op.out: op.type.size for op in programs[0].ops if isinstance(op, Allocate)}
    (returned,) = (op for op in programs[0].ops if isinstance(op, Return))
    saved = [sizes[v.name] for v in returned.values if v.name in sizes]
    assert len(saved) >= 2 and all(math.prod(map(int, size)) <= 6 for size in saved)


def attention(x: Tensor, s: Tensor) -> Tensor:
    return (x.to(s.dtype) * 0.5).softmax(-1).to(x.dtype) + 0 * s.sum()


def adaptive_norm(x: Tensor, s: Tensor) -> Tensor:
    return F.layer_norm(x, (64,)) * (1 + s).to(x.dtype)


@pytest.mark.parametrize(
    ("run", "dtype", "tolerance"),
    [(attention, torch.bfloat16, 2**-8), (adaptive_norm, torch.float32, 1e-4)],
)
def test_a_gradient_saves_numbers_of_rows(
    programs: list[Program], run: Callable[..., Tensor], dtype: torch.dtype, tolerance: float
) -> None:
    """Beside the input, of which the rest is computed again: neither a softmax in f32, which is
    twice as large as its 16-bit scores, nor a norm that is scaled by something else than a
    weight."""
    x, s = rows(6, 64).to(dtype).requires_grad_(), rows(64).requires_grad_()
    seed = rows(6, 64).to(dtype)
    result = torch.compile(run, backend="compile_cli")(x, s)
    got = torch.autograd.grad(result, (x, s), seed)
    exact = [t.detach().double().requires_grad_() for t in (x, s)]
    want = torch.autograd.grad(run(*exact), exact, seed.double())
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g.double(), w, rtol=tolerance, atol=tolerance * 1e-2)
    made = {op.out: op.type for op in programs[0].ops if isinstance(op, Allocate)}
    (returned,) = (op for op in programs[0].ops if isinstance(op, Return))
    results = [made[v.name] for v in returned.values if v.name in made]
    assert sorted(int(t.size[-1]) for t in results) == [1, 1, 64]


@pytest.mark.parametrize("dims", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
def test_of_largest_elements_a_byte_is_kept(dims: int, programs: list[Program]) -> None:
    """Of their places, between forward and backward; whatever the size of the batch."""
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1]
    compiled = torch.compile(lambda x: pool(x * 2, 3, 2, 1), backend="compile_cli", dynamic=True)
    for batch in (2, 5, 1):
        x = rows(batch, 3, *(4, 5, 6)[:dims]).requires_grad_()
        got, want = compiled(x), pool(x * 2, 3, 2, 1)
        torch.testing.assert_close(got, want)
        seed = torch.randn_like(want)
        (found,), (wanted,) = (torch.autograd.grad(y, x, seed) for y in (got, want))
        torch.testing.assert_close(found, wanted)
    types = [op.type.dtype for op in programs[0].ops if isinstance(op, Allocate)]
    assert DType.i64 not in types


def test_places_that_are_a_result_are_as_ever(programs: list[Program]) -> None:
    def fn(x: Tensor) -> Any:
        return F.max_pool2d(x, 3, 2, 1, return_indices=True)

    x = rows(2, 3, 8, 7).requires_grad_()
    got, want = torch.compile(fn, backend="compile_cli")(x), fn(x)
    torch.testing.assert_close(got, want)
    assert got[1].dtype is torch.int64
    seed = torch.randn_like(want[0])
    found, wanted = (torch.autograd.grad(y, x, seed) for y in (got[0], want[0]))
    torch.testing.assert_close(found, wanted)


def test_parts_in_turns_that_read_the_same_are_not_stored_apart(programs: list[Program]) -> None:
    """Each alone reads twice what it makes; all of them together what the whole is."""

    def rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.stack((even * c - odd * s, odd * c + even * s), -1).flatten(-2).to(x.dtype)

    x = rows(4, 32, 8, 32).bfloat16().requires_grad_()
    c, s = (rows(32, 1, 16).requires_grad_() for _ in range(2))
    got, want = (
        torch.compile(rotary, backend="compile_cli", dynamic=False)(x, c, s),
        rotary(x, c, s),
    )
    torch.testing.assert_close(got, want)
    seed = torch.randn_like(want)
    found, wanted = (torch.autograd.grad(y, (x, c, s), seed) for y in (got, want))
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert [sum(isinstance(op, Allocate) for op in p.ops) for p in programs] == [1, 3]


def modulated(x: Tensor, m: Tensor) -> Tensor:
    scale, shift, gate = m[:, None].chunk(3, -1)
    return x + gate * (F.layer_norm(x, x.shape[-1:]) * (1 + scale) + shift)


@pytest.mark.parametrize(
    ("count", "run", "sizes"),
    [
        (1, modulated, ((3, 5, 16), (3, 48))),
        (1, lambda x, y: (x[:, ::2] + y).relu(), ((6, 9), (6, 5))),
        (1, lambda x, y: F.max_pool2d(x, 2, 2) * y, ((2, 3, 12, 14), (2, 3, 6, 7))),
        (2, lambda x, w, s: F.group_norm(x, 4, w) * s, ((3, 8, 5, 5), (8,), (3, 8, 1, 1))),
    ],
)
def test_sizes_that_guards_say_are_equal(
    count: int, run: Any, sizes: tuple[tuple[int, ...], ...], programs: list[Program]
) -> None:
    args = [torch.randn(size) for size in sizes]
    compiled = torch.compile(run, backend="compile_cli", dynamic=True)
    torch.testing.assert_close(compiled(*args), run(*args))
    assert kernels(programs[-1]) == count


@pytest.mark.parametrize(("images", "count"), [(2, 1), (512, 2)])
def test_windows_of_windows(images: int, count: int) -> None:
    """Each point would read 64 places: of images that leave the cache, those between are stored."""
    with FakeTensorMode():
        x = torch.empty(images, 4, 8, 32, 32)
        pools = torch.nn.Sequential(torch.nn.MaxPool3d(2), torch.nn.MaxPool3d(2))
        loop = lower_with_report(capture(export(pools, (x,), {})).graph).graph
    assert len(fuse_with_report(loop, FuseOptions())[0].nodes) == count
