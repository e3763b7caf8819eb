"""The matmuls that `gemm.py` times: tensors, the product as a problem of ours, torch's way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F

import gemm_templates as g
from gemm_templates.ops import grouped as grouped_ops
from gemm_templates.ops import linear, matmul, scaled
from gemm_templates.ops.activations import TORCH_ACTIVATIONS
from gemm_templates.ops.operation import Operation
from gemm_templates.ops.padded import padded_mm
from gemm_templates.ops.run import Call

BF16, F16, FP8 = torch.bfloat16, torch.float16, torch.float8_e4m3fn


@dataclass(frozen=True)
class Task:
    """One product on tensors.

    inputs: `out` is to be written. extern: returns a result of its own. examples: the tensors that
    are measured, where these inputs will not do.
    """

    problem: g.Problem
    inputs: g.Inputs
    extern: Callable[[g.Inputs], torch.Tensor]
    examples: g.Inputs | None = None


@dataclass(frozen=True)
class Case:
    """task: the product of tensors that `make(device)` gives. eager: the same by torch.

    floor: least seconds by arithmetic and by bytes, each input read and each output written once.
    public: the function to call where it may pad the operands.
    """

    name: str
    make: Callable[[str], tuple[Any, ...]]
    task: Callable[..., Task]
    eager: Callable[..., torch.Tensor]
    floor: tuple[float, float]
    public: Callable[..., torch.Tensor] | None = None


@dataclass(frozen=True)
class Group:
    """bar: what the geometric mean of the ratios is to be; least: what each one is."""

    name: str
    bar: float | None
    cases: Callable[[bool], list[Case]]
    least: float = 0.0


def task_of(operation: Operation, options: tuple[Any, ...], *tensors: Any) -> Task:
    call = Call(operation, tensors, options)
    out = call.new_result()
    problem = call.problem(out)
    assert problem is not None
    if operation.examples is None:
        return Task(problem, call.inputs(out), call.extern)
    example = replace(call, tensors=operation.examples(tensors))
    examples = example.inputs(example.new_result())
    return Task(
        problem, call.inputs(out), lambda t: (example if t is examples else call).extern(), examples
    )


def floor_of(flops: float, moved: float, rate: float) -> tuple[float, float]:
    return flops / rate, moved / 4.8e12


def random(device: str, *shape: int, dtype: torch.dtype = BF16, scale: float = 1.0) -> torch.Tensor:
    if device == "meta":
        return torch.empty(shape, dtype=dtype, device="meta")
    made = torch.randn(shape, dtype=torch.float32, device=device) * scale
    return made.to(dtype)


def product(name: str, m: int, n: int, k: int, dtype: torch.dtype = BF16) -> Case:
    """`x @ w.T`, as a linear layer has it."""

    def make(device: str) -> tuple[Any, ...]:
        return random(device, m, k, dtype=dtype), random(device, n, k, dtype=dtype, scale=k**-0.5)

    return Case(
        name, make, lambda x, w: task_of(matmul.MM, (None,), x, w.t()),
        lambda x, w: torch.mm(x, w.t()),
        floor_of(2 * m * n * k, 2 * (m * k + k * n + m * n), 989e12),
        lambda x, w: g.mm(x, w.t()),
    )  # fmt: skip


def fused(end: str, m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        last = (m, n) if end == "residual" else (n,)
        return (
            random(device, m, k), random(device, n, k, scale=k**-0.5), random(device, *last)
        )  # fmt: skip

    def task(x: torch.Tensor, w: torch.Tensor, last: torch.Tensor) -> Task:
        if end == "residual":
            return task_of(matmul.ADDMM, (1.0, 1.0, None), last, x, w.t())
        return task_of(linear.LINEAR_ACT, (end,), x, w, last)

    def eager(x: torch.Tensor, w: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        if end == "residual":
            return F.linear(x, w) + last
        return TORCH_ACTIVATIONS[end](F.linear(x, w, last))

    more = m * n if end == "residual" else n
    moved = 2 * (m * k + k * n + m * n + more)
    return Case(f"{end} {m}x{n}x{k}", make, task, eager, floor_of(2 * m * n * k, moved, 989e12))


def gated(m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        return (
            random(device, m, k), random(device, n, k, scale=k**-0.5),
            random(device, n, k, scale=k**-0.5),
        )  # fmt: skip

    def eager(x: torch.Tensor, w1: torch.Tensor, w3: torch.Tensor) -> torch.Tensor:
        return F.silu(F.linear(x, w1)) * F.linear(x, w3)

    return Case(
        f"silu pair {m}x{n}x{k}", make,
        lambda x, w1, w3: task_of(linear.GATED_LINEAR, ("silu",), x, w1, w3), eager,
        floor_of(4 * m * n * k, 2 * (m * k + 2 * k * n + m * n), 989e12),
    )  # fmt: skip


def fp8(m: int, n: int, k: int) -> Case:
    """Row-wise scales, fast accumulation on both sides."""

    def make(device: str) -> tuple[Any, ...]:
        return (
            random(device, m, k, dtype=FP8), random(device, n, k, dtype=FP8),
            random(device, m, 1, dtype=torch.float32).abs(),
            random(device, 1, n, dtype=torch.float32).abs(),
        )  # fmt: skip

    def eager(a: Any, b: Any, sa: Any, sb: Any) -> torch.Tensor:
        return torch._scaled_mm(a, b.t(), sa, sb, out_dtype=BF16, use_fast_accum=True)

    return Case(
        f"row-wise {m}x{n}x{k}", make,
        lambda a, b, *scales: task_of(
            scaled.SCALED_MM, (None, True, "none"), a, b.t(), *scales, None
        ), eager,
        floor_of(2 * m * n * k, m * k + k * n + 2 * m * n + 4 * (m + n), 1979e12),
    )  # fmt: skip


def batched(batch: int, m: int, n: int, k: int) -> Case:
    def make(device: str) -> tuple[Any, ...]:
        return random(device, batch, m, k), random(device, batch, k, n)

    return Case(
        f"{batch}x{m}x{n}x{k}", make, lambda a, b: task_of(matmul.BMM, (None,), a, b), torch.bmm,
        floor_of(2 * batch * m * n * k, 2 * batch * (m * k + k * n + m * n), 989e12),
    )  # fmt: skip


def grouped(sizes: list[int], n: int, k: int) -> Case:
    total = sum(sizes)

    def make(device: str) -> tuple[Any, ...]:
        ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
        weights = random(device, len(sizes), n, k, scale=k**-0.5)
        return random(device, total, k), weights, ends.to(device)

    name = f"{len(sizes)}x{min(sizes)}" + (f"..{max(sizes)}" if min(sizes) != max(sizes) else "")
    return Case(
        f"{name}x{n}x{k}", make,
        lambda a, w, offs: task_of(
            grouped_ops.GROUPED_MM, (), a, w.transpose(1, 2), offs, None
        ),
        lambda a, w, offs: torch._grouped_mm(a, w.transpose(1, 2), offs=offs),
        floor_of(2 * total * n * k, 2 * (total * (n + k) + len(sizes) * n * k), 989e12),
    )  # fmt: skip


NK = ((4096, 4096), (12288, 4096), (4096, 14336), (32000, 4096))


def squares(quick: bool) -> list[Case]:
    sizes = (1024, 4096) if quick else (1024, 1536, 2048, 3072, 4096, 6144, 8192)
    return [product(f"{s} square", s, s, s) for s in sizes]


def odd(quick: bool) -> list[Case]:
    return [product(f"{s} square", s, s, s) for s in ((4097,) if quick else (4095, 4097))]


def odd_views(quick: bool) -> list[Case]:
    """The result a part of a wider matrix, as Inductor's is; else it is contiguous, as eager's."""

    def public(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return padded_mm(x, w.t(), torch.mm, contiguous=False)

    return [replace(case, public=public) for case in odd(quick)]


def rows(*counts: int) -> Callable[[bool], list[Case]]:
    def cases(quick: bool) -> list[Case]:
        shapes = [(m, n, k) for m in counts for n, k in (NK[:1] if quick else NK)]
        return [product(f"{m}x{n}x{k}", m, n, k) for m, n, k in shapes]

    return cases


def split_k(quick: bool) -> list[Case]:
    sizes = (16, 64) if quick else (16, 32, 48, 64)
    lengths = (8192, 32768) if quick else range(4096, 32768 + 1, 4096)
    found = [product(f"{s}x{s}x{k} f16", s, s, k, F16) for s in sizes for k in lengths]
    large = [(128, 128, 65536), (256, 256, 65536), (512, 512, 131072)]
    return found + [product(f"{m}x{n}x{k}", m, n, k) for m, n, k in large[: 1 if quick else 3]]


def endings(quick: bool) -> list[Case]:
    shapes = [(16384, 3072, 768), (16384, 768, 768), (4096, 4096, 4096), (8192, 4096, 1024)]
    return [fused(end, *s) for s in (shapes[:1] if quick else shapes)
            for end in ("gelu", "relu", "residual")]  # fmt: skip


def pairs(quick: bool) -> list[Case]:
    shapes = [(4096, 14336, 4096), (8192, 3072, 1024), (2048, 11008, 4096), (64, 14336, 4096)]
    return [gated(*s) for s in (shapes[1:2] if quick else shapes)]


def fp8_rows(quick: bool) -> list[Case]:
    shapes = [(4096, 4096, 4096), (8192, 8192, 8192), (4096, 14336, 4096), (64, 4096, 4096),
              (64, 14336, 4096)]  # fmt: skip
    return [fp8(*s) for s in (shapes[:1] if quick else shapes)]


def batches(quick: bool) -> list[Case]:
    shapes = [(64, 1024, 1024, 64), (16, 2048, 2048, 512)]
    return [batched(*s) for s in (shapes[:1] if quick else shapes)]


def groups_of_rows(quick: bool) -> list[Case]:
    mixed = [512, 768, 1024, 1280, 1536, 1792, 2048, 640]
    sizes = [mixed, [512] * 8, [1024] * 8, [2048] * 8]
    return [grouped(s, 4096, 4096) for s in (sizes[:1] if quick else sizes)]


GROUPS = (
    Group("plain", 1.00, squares, 0.97),
    Group("skinny", 1.05, rows(1, 8, 64), 0.97),
    Group("rows", 1.00, rows(512, 2048), 0.97),
    Group("odd", 1.00, odd, 0.97),
    Group("odd_views", 1.00, odd_views, 0.97),
    Group("split_k", 1.50, split_k),
    Group("fused", 1.12, endings),
    Group("gated", 1.10, pairs),
    Group("fp8", 1.00, fp8_rows),
    Group("bmm", 1.05, batches),
    Group("grouped", None, groups_of_rows),
)
