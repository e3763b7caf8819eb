"""Fusion must not be what a user waits for."""

from __future__ import annotations

from loop_ir import DType, fuse_with_report


def test_thirty_layers_fuse_in_a_moment(encoder, microseconds):
    graph = encoder(
        layers=30, batch=32, seq=512, hidden=768, heads=12, vocab=30522, dtype=DType.bf16,
        symbolic=True,
    )  # fmt: skip
    assert len(graph.nodes) > 390

    def run():
        assert fuse_with_report(graph)[1].kernels_after == 2 + 4 * 30

    assert microseconds(run, 0.9e6) < 0.9e6  # 0.6 seconds were measured
