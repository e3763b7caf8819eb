"""Batched matmuls, and matmuls with prologues, through the compiler on a real GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES
from planner.matmul.decide import MatmulPlanner, Way

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def bf16(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def int8(*size: int) -> torch.Tensor:
    return torch.randint(-127, 128, size, device="cuda", dtype=torch.int8)


def scores(q: Any, k: Any, mask: Any) -> Any:
    return torch.matmul(q, k.mT) * 0.125 + mask


def rows(c: Any, a: Any, b: Any) -> Any:
    return F.gelu(torch.baddbmm(c, a, b, alpha=0.5))


def weights(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(F.linear(x, q.to(x.dtype) * s[:, None]))


def groups(x: Any, q: Any, s: Any, z: Any) -> Any:
    wide = (q.reshape(*s.shape, -1) - z[..., None]).to(x.dtype) * s[..., None]
    return F.linear(x, wide.reshape(q.shape)).relu()


def nibbles(x: Any, q: Any, s: Any) -> Any:
    return F.linear(x, _of_nibbles(x, q, s))


def _of_nibbles(x: Any, q: Any, s: Any) -> Any:
    wide = torch.stack([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype) - 8
    return (wide * s[..., None]).reshape(q.shape[0], -1)


def packed(x: Any, q: Any, s: Any) -> Any:
    return torch._weight_int8pack_mm(x, q, s).relu()


def gated(x: Any, g: Any, w: Any, r: Any) -> Any:
    return (x.relu() * g) @ (w * r)


def scaled(x: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
    return F.silu(torch._scaled_mm(x, w.t(), a, b, bias=c, out_dtype=torch.bfloat16))


def blocks(x: Any, w: Any, a: Any, b: Any) -> Any:
    return F.silu(torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16))


def experts(x: Any, w: Any, p: Any, ends: Any) -> Any:
    return F.silu(torch._grouped_mm(x, w.mT, offs=ends)) * p


def scaled_experts(x: Any, w: Any, a: Any, b: Any, ends: Any) -> Any:
    return F.silu(torch._scaled_grouped_mm(x, w.mT, a, b, offs=ends, out_dtype=torch.bfloat16))


def inner(x: Any, y: Any, ends: Any) -> Any:
    return torch._grouped_mm(x.t(), y, offs=ends) * 2


def packed4(x: Any, q: Any, s: Any) -> Any:
    return torch._weight_int4pack_mm(x, q, 64, s).relu()


def int4(n: int, k: int) -> torch.Tensor:
    numbers = int8(n, k // 2).view(torch.uint8)
    return torch.ops.aten._convert_weight_to_int4pack(numbers, 8)


def ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)


def factors(outer: int, inner: int) -> torch.Tensor:
    return torch.rand(inner, outer, device="cuda").t()


def integers(q: Any, w: Any, a: Any, b: Any, c: Any) -> Any:
    return (torch._int_mm(q, w.t()) * a * b + c).bfloat16()


def fp8(*size: int) -> torch.Tensor:
    return torch.randn(size, device="cuda").to(torch.float8_e4m3fn)


Case = tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], tuple[str, ...]]
# Of which templates that make operands are measured, too.
TWICE = ("weights", "groups", "nibbles", "packed", "packed4", "gated")
BATCHED = ("tiled", "batched_tma", "gluon_batched", "decompose_k")
CASES: dict[str, Case] = {
    "scores": (scores, lambda: (bf16(2, 4, 200, 64), bf16(2, 4, 264, 64), bf16(2, 1, 200, 264)),
               BATCHED[:3]),
    "rows": (rows, lambda: (bf16(6, 200, 1), bf16(6, 200, 520), bf16(6, 520, 264)), BATCHED),
    "weights": (weights, lambda: (bf16(200, 144), int8(264, 144), bf16(264) * 0.01),
                ("tiled", "tma")),
    "groups": (groups, lambda: (bf16(200, 192), int8(264, 192) // 2, bf16(264, 3) * 0.01,
                                int8(264, 3) // 2), ("tiled", "tma")),
    "nibbles": (nibbles, lambda: (bf16(20, 192), int8(264, 96).view(torch.uint8),
                                  bf16(264, 3) * 0.01), ("tiled", "gemv")),
    "packed": (packed, lambda: (bf16(20, 144), int8(264, 144), bf16(264) * 0.01),
               ("tiled", "gemv")),
    "gated": (gated, lambda: (bf16(200, 136), bf16(200, 136), bf16(136, 264), bf16(264)),
              ("tiled", "tma")),
    "integers": (integers, lambda: (int8(200, 144), int8(272, 144), bf16(200, 1).float(),
                                    bf16(272).float(), bf16(272).float()),
                 ("tiled", "tma", "gluon", "decompose_k", "split_k")),
    "scaled": (scaled, lambda: (fp8(200, 144), fp8(272, 144), bf16(200, 1).float().abs(),
                                bf16(1, 272).float().abs(), bf16(272)),
               ("tiled", "tma", "gluon_scaled")),
    "blocks": (blocks, lambda: (fp8(200, 512), fp8(384, 512), factors(200, 4),
                                factors(3, 4).contiguous().t()),
               ("tiled", "tma", "gluon_scaled")),
    "experts": (experts, lambda: (bf16(400, 136), bf16(5, 264, 136), bf16(400, 1),
                                  ends(8, 8, 141, 300, 400)), ("grouped", "gluon_batched")),
    "scaled experts": (scaled_experts, lambda: (fp8(400, 144), fp8(5, 272, 144),
                                                bf16(400).float().abs(), bf16(5, 272).float().abs(),
                                                ends(8, 8, 141, 300, 400)), ("grouped",)),
    "inner": (inner, lambda: (bf16(400, 136), bf16(400, 264), ends(8, 8, 144, 304, 400)),
              ("grouped",)),
    "packed4": (packed4, lambda: (bf16(40, 256), int4(264, 256), bf16(4, 264, 2)),
                ("tiled", "gemv")),
}  # fmt: skip


def exact(fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The matmul of eager's bf16 operands in float64, and all that follows."""
    wide: list[torch.Tensor] = [x.double() if x.is_floating_point() else x for x in args]
    if fn is weights:
        x, q, s = args
        return F.gelu(F.linear(wide[0], (q.to(x.dtype) * s[:, None]).double()))
    if fn is nibbles:
        return wide[0] @ _of_nibbles(*args).double().t()
    if fn is packed:
        return (wide[0] @ wide[1].double().t() * wide[2]).relu()
    if fn is groups:
        x, q, s, z = args
        w = (q.reshape(*s.shape, -1) - z[..., None]).to(x.dtype) * s[..., None]
        return (wide[0] @ w.reshape(q.shape).double().t()).relu()
    if fn is gated:
        x, g, w, r = args
        return (x.relu() * g).double() @ (w * r).double()
    if fn is integers:
        q, w, a, b, c = (x.double() for x in args)
        return (q @ w.t()) * a * b + c
    if fn is blocks:
        each = (s.double().repeat_interleave(128, 1) for s in (args[2], args[3].t()))
        a, b = next(each), next(each).repeat_interleave(128, 0)
        return F.silu((wide[0] * a) @ (wide[1] * b).t())
    if fn in (experts, scaled_experts, inner):
        starts = [0, *args[-1].tolist()]
        parts = [slice(*p) for p in pairwise(starts)]
        if fn is inner:
            return torch.stack([wide[0][p].t() @ wide[1][p] * 2 for p in parts])
        if fn is scaled_experts:
            wide = [wide[0] * wide[2][:, None], wide[1] * wide[3][..., None], wide[2].new_ones(())]
        rows = torch.cat([wide[0][p] @ wide[1][i].t() for i, p in enumerate(parts)])
        return F.silu(rows) * wide[2]
    if fn is packed4:
        return packed4(*args).double()  # what is packed how, the operator knows
    if fn is scaled:
        x, w, a, b, c = wide
        return F.silu((x @ w.t()) * a * b + c)
    result: torch.Tensor = fn(*wide)
    return result


def check(compiled: Any, fn: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        assert relative_error(compiled(*args).double(), exact(fn, args)) < 8e-3


@pytest.fixture
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"cache_dir": str(tmp_path_factory.mktemp("cache"))}


@pytest.mark.parametrize(
    ("name", "family"), [(name, f) for name, case in CASES.items() for f in case[2]]
)
def test_each_family(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, family: str
) -> None:
    fn, make, _ = CASES[name]

    def ways(self: MatmulPlanner, node: Any, rung: Any, many: bool) -> dict[str, Any]:
        task = self._fused(node, rung) if node.prologues else self._task(node, rung)
        assert task is not None
        info = gemm_templates.device_info("cuda")
        config = next(
            c
            for c in FAMILIES[family].configs(task.problem, info)
            if is_legal(task.problem, c, info) and self.chooser.sayable(task, c)
        )
        return {family: (1.0, Way(task, config))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)
    torch.manual_seed(0)
    args = make()
    compiled = compile_cli.compile(fn, args, options=options)
    (decided,) = compiled.graph.decided.values()
    assert family == "tiled" or family in str(decided[0])
    check(compiled, fn, args)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
def test_what_is_measured(options: dict[str, Any], name: str, emit: str) -> None:
    """Whatever is chosen is right, and no candidate disagreed with the vendor's way."""
    fn, make, _ = CASES[name]
    torch.manual_seed(0)
    args = make()
    compiled = compile_cli.compile(fn, args, options={**options, "emit": emit, "tune": "max"})
    check(compiled, fn, args)
    choices = compiled.graph.matmuls.values()
    assert len(choices) == (2 if name in TWICE else 1)
    failures = [why for choice in choices for _, why in choice.failures]
    assert not [why for why in failures if "differs from" in why or "has shape" in why]


@pytest.mark.parametrize("emit", ["fx", "hop", "cpp"])
def test_a_dynamic_batch(options: dict[str, Any], emit: str) -> None:
    def fn(a: Any, b: Any, c: Any) -> Any:
        return (torch.bmm(a, b.mT) + c).relu()

    def inputs(batch: int) -> tuple[torch.Tensor, ...]:
        return bf16(batch, 96, 64), bf16(batch, 72, 64), bf16(batch, 96, 1)

    torch.manual_seed(0)
    compiled = compile_cli.compile(
        fn, inputs(4), dynamic={0: {0}, 1: {0}, 2: {0}},
        options={**options, "gemm": "template", "emit": emit},
    )  # fmt: skip
    for batch in (4, 1, 33):
        check(compiled, fn, inputs(batch))
    assert compiled(*inputs(0)).shape == (0, 96, 72)


def test_rows_that_are_dynamic_with_weights_of_8_bits(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    q, s = int8(512, 256), bf16(512) * 0.01
    compiled = compile_cli.compile(
        weights, (bf16(64, 256), q, s), dynamic={0: {0}},
        options={**options, "gemm": "template"},
    )  # fmt: skip
    for m in (1, 2, 17, 300, 2049):
        check(compiled, weights, (bf16(m, 256), q, s))
