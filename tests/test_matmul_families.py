"""Each family of templates with what surrounds a product, tensor maps from the host included."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compile_cli
import gemm_templates
from compile_cli.cli.measure import relative_error
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES, able
from planner.matmul.decide import MatmulPlanner, Way
from wrapper_ir import Describe, ExternCall
from wrapper_ir.analysis import walk

EMITS = ("fx", "hop", "cpp")
# Those that are proposed for larger sizes.
SPLIT = {
    "decompose_k": gemm_templates.Config(16, 16, 16, 4, 1, 1, "decompose_k", split_k=2),
    "split_k": gemm_templates.Config(16, 16, 16, 4, 1, 1, "split_k", split_k=2),
}


def bf16(*size: int) -> torch.Tensor:
    return torch.randn(size).bfloat16()


def int8(*size: int) -> torch.Tensor:
    return torch.randint(-99, 99, size, dtype=torch.int8)


def scores(q: Any, k: Any, mask: Any) -> Any:
    return torch.matmul(q, k.mT) * 0.125 + mask


def parts(x: Any, c: Any) -> Any:
    return torch.baddbmm(c, x[..., :32], x[..., 32:].mT, alpha=0.5).relu()


def weights(x: Any, q: Any, s: Any) -> Any:
    return F.gelu(F.linear(x, q.to(x.dtype) * s[:, None]))


def groups(x: Any, q: Any, s: Any, z: Any) -> Any:
    wide = (q.reshape(*s.shape, -1) - z[..., None]).to(x.dtype) * s[..., None]
    return F.linear(x, wide.reshape(q.shape)).relu()


def nibbles(x: Any, q: Any, s: Any) -> Any:
    """Two weights of 4 bits in a byte."""
    wide = torch.stack([q & 15, q >> 4], -1).reshape(*s.shape, -1).to(x.dtype) - 8
    return F.linear(x, (wide * s[..., None]).reshape(q.shape[0], -1))


def words(x: Any, q: Any, s: Any) -> Any:
    """Eight weights of 4 bits in a word."""
    wide = (q[:, :, None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
    wide = wide.reshape(*s.shape, -1).to(x.dtype) - 8
    return F.linear(x, (wide * s[..., None]).reshape(q.shape[0], -1))


def batch(x: Any, g: Any, w: Any) -> Any:
    return torch.bmm(x * g, w.relu().mT) + 1.0


def gated(x: Any, g: Any, w: Any, r: Any) -> Any:
    return ((x.relu() * g) @ (w * r)).tanh()


CASES: dict[
    str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], Set[str]]
] = {
    "scores": (scores, lambda: (bf16(2, 2, 24, 32), bf16(2, 2, 40, 32), bf16(2, 1, 24, 40)),
               {"tiled", "batched_tma", "decompose_k"}),
    "parts": (parts, lambda: (bf16(3, 24, 64), bf16(3, 24, 1)),
              {"tiled", "batched_tma", "decompose_k"}),
    "weights": (weights, lambda: (bf16(24, 80), int8(40, 80), bf16(40) * 0.01), able("prologues")),
    "groups": (groups, lambda: (bf16(24, 96), int8(40, 96) // 2, bf16(40, 3), int8(40, 3) // 2),
               able("prologues")),
    "nibbles": (nibbles, lambda: (bf16(24, 96), int8(40, 48).view(torch.uint8), bf16(40, 3)),
                able("prologues") - {"tma"}),
    "words": (words, lambda: (bf16(24, 128), torch.randint(-2**31, 2**31 - 1, (40, 16),
              dtype=torch.int32), bf16(40, 2)), {"tiled"}),
    "one packed row": (nibbles, lambda: (bf16(1, 96), int8(40, 48).view(torch.uint8), bf16(40, 3)),
                       {"gemv"}),
    "one row": (weights, lambda: (bf16(1, 81), int8(40, 81), bf16(40) * 0.01), {"gemv"}),
    "batch": (batch, lambda: (bf16(3, 24, 72), bf16(3, 24, 1), bf16(3, 40, 72)),
              able("prologues") - {"tma"}),
    "gated": (gated, lambda: (bf16(24, 72), bf16(24, 72), bf16(72, 40), bf16(40)),
              able("prologues")),
}  # fmt: skip


PAIRS = sorted((name, family) for name in CASES for family in CASES[name][2])
# Every pair as FX, and one with tensor maps as a HOP. What each family needs of a C++ program is in
# the tests of batches, of what is zeroed, of descriptors and of workspaces.
RUN = {*((pair, "fx") for pair in PAIRS), (("weights", "tma"), "hop")}
EVERY = [
    pytest.param(*pair, emit, marks=() if (pair, emit) in RUN else pytest.mark.slow)
    for pair in PAIRS
    for emit in EMITS
]


def choose(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every matmul by a template of the family."""

    def ways(self: MatmulPlanner, node: Any, rung: Any, many: bool) -> dict[str, Any]:
        task = self._fused(node, rung) if node.prologues else self._task(node, rung)
        assert task is not None
        h200 = gemm_templates.H200
        own = [SPLIT[family]] if family in SPLIT else []
        offered = own or FAMILIES[family].configs(task.problem, h200)
        config = next(
            c for c in offered if is_legal(task.problem, c, h200) and self.chooser.sayable(task, c)
        )
        return {family: (1.0, Way(task, config))}

    monkeypatch.setattr(MatmulPlanner, "_ways", ways)


@pytest.mark.parametrize(("name", "family", "emit"), EVERY)
def test_each_family(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str, family: str, emit: str
) -> None:
    choose(family, monkeypatch)
    torch.manual_seed(0)
    fn, make, _ = CASES[name]
    args = make()
    compiled = compile_cli.compile(
        fn, args, options={**options, "gemm": "template", "emit": emit}
    )  # fmt: skip
    ops = list(walk(compiled.graph.program.ops))
    assert not [o for o in ops if isinstance(o, ExternCall)]
    assert any(isinstance(o, Describe) for o in ops) == family.endswith("tma")
    # Eager rounds the product once more, and it alone, before what follows.
    assert relative_error(compiled(*args), fn(*args)) < 8e-3


@pytest.mark.parametrize("family", ["tiled", "split_k"])
def test_a_gradient_is_added_where_it_lies(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """In f32, by the product's own kernel, at an address that is odd; where it is an operand too,
    by one of its own."""
    choose(family, monkeypatch)
    torch.manual_seed(0)

    def add(x: torch.Tensor, g: torch.Tensor, total: torch.Tensor) -> None:
        total += (x.t() @ g).float()

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        x += x @ w

    total = torch.randn(24 * 40 + 1)[1:].view(24, 40)
    cases = (add, (bf16(64, 24), bf16(64, 40), total), 1), (step, (bf16(24, 24), bf16(24, 24)), 2)
    for fn, given, kernels in cases:
        compiled = compile_cli.compile(fn, given, options={**options, "gemm": "template"})
        assert len(compiled.graph.fused.nodes) == kernels
        want = [x.clone() for x in given]
        fn(*want)
        compiled(*given)
        assert all(relative_error(x, y) < 8e-3 for x, y in zip(given, want, strict=True))
