"""What factors of rows cost where tensors are kept for backward in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

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
