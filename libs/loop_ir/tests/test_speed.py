"""Fusion must not be what a user waits for."""

from __future__ import annotations

import time

from loop_ir import DType, fuse_with_report


def test_twelve_layers_fuse_in_a_moment(encoder):
    graph = encoder(
        layers=30, batch=32, seq=512, hidden=768, heads=12, vocab=30522, dtype=DType.bf16,
        symbolic=True,
    )  # fmt: skip
    assert len(graph.nodes) > 390
    start = time.process_time()
    _, report = fuse_with_report(graph)
    seconds = time.process_time() - start
    assert report.kernels_after == 2 + 4 * 30
    assert seconds < 5, f"{seconds:.2f} s for {len(graph.nodes)} nodes"
