"""What factors of rows cost where tensors are kept for backward in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from compile_cli.narrow_saved import narrow_saved
from compile_cli.options import Options
from compile_cli.partition import partition
from loop_ir import Extern, Kernel, fuse_with_report

ROWS, COLUMNS = 64, 128


def test_factors_cost_no_kernel_where_rows_are_made(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel that makes a row finds its largest, too. Weights in 16 bits, which autocast made,
    stay as they are."""
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    x, up, down = (torch.randn(n, COLUMNS, requires_grad=True) for n in (ROWS, COLUMNS, COLUMNS))

    def f(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.linear(F.gelu(F.linear(x, up)), down).float()

    def forward_of(options: dict[str, Any]) -> tuple[list[type], list[Tensor]]:
        """The kinds of its graph's nodes, and what it keeps."""
        nodes: list[list[type]] = []
        kept: list[Tensor] = []

        def parts(*args: Any, **more: Any) -> Any:
            both = partition(*args, **more)
            results = both[0].graph.output_node().args[0][more["num_fwd_outputs"] :]
            kept.extend(r.meta["val"] for r in results if isinstance(r, fx.Node))
            return both

        def fused(*args: Any, **more: Any) -> Any:
            made = fuse_with_report(*args, **more)
            nodes.append([type(node) for node in made[0].nodes])
            return made

        with monkeypatch.context() as patch:
            patch.setattr("compile_cli.graph_compiler.partition", parts)
            patch.setattr("compile_cli.pipeline.fuse_with_report", fused)
            torch._dynamo.reset()
            out = torch.compile(f, backend="compile_cli", options=options)(x, up, down)
            torch.autograd.grad(out.sum(), x)
        return nodes[0], kept

    plain, _ = forward_of({})
    scaled, kept = forward_of({"saved": "scaled_float8_e4m3fn", "saved_from": 64})
    assert scaled.count(Kernel) == plain.count(Kernel)
    assert scaled.count(Extern) == plain.count(Extern)
    narrow = [tuple(t.shape) for t in kept if t.dtype is torch.float8_e4m3fn]
    assert narrow and set(narrow) == {(ROWS, COLUMNS)}


@pytest.mark.parametrize("half", [False, True], ids=["f32", "bf16"])
@pytest.mark.parametrize("exponents", [True, False])
def test_logarithms_of_probabilities_stay(half: bool, exponents: bool) -> None:
    """Forward has subtracted a row's statistic: an eighth of -100 is much to an exponential."""

    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x - x.logsumexp(-1, True)
        return kept.sum(), kept.bfloat16() if half else kept

    def backward(sub: Tensor, _to_copy: Tensor, tangent: Tensor) -> Tensor:
        kept = _to_copy.float() if half else sub
        return tangent * (kept.exp() if exponents else kept.tanh())

    x = torch.randn(ROWS, COLUMNS)
    graphs = (
        make_fx(forward, tracing_mode="fake")(x),
        make_fx(backward, tracing_mode="fake")(x, x.bfloat16(), torch.ones(())),
    )
    results: Any = graphs[0].graph.output_node().args[0]
    given = graphs[1].graph.find_nodes(op="placeholder")[half]
    given.name = results[1].name
    narrow_saved(*graphs, 1, Options(saved="float8_e5m2", saved_from=64))
    found = graphs[0](x)[1].dtype
    assert (found is torch.float8_e5m2) != exponents
