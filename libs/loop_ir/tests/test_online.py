"""The maximum of a row and the sum of its exponentials as one reduction."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

from loop_ir import Kernel, Reduce, interpret_kernel, parse_kernel, print_kernel
from loop_ir.ir.analysis import statements
from loop_ir.ir.verify_kernel import KernelVerifier
from loop_ir.splitting.chunks import Cut, chunks
from loop_ir.splitting.online_softmax import pair_softmax
from loop_ir.splitting.stages import separate

SOFTMAX = """
kernel k(
    x: f32[6, 8] cuda:0,
    out y: f32[6, 8] cuda:0,
    out s: f32[6] cuda:0,
):
  parallel i0 < 6:
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce max(v0) : f32
    over r0 < 8:
      v2 = sub(v0, v1) : f32
      v3 = exp(v2) : f32
      v4 = reduce sum(v3) : f32
    once:
      store s[i0] = v4
    over r0 < 8:
      v5 = div(v3, v4) : f32
      store y[i0*8 + r0] = v5
"""
LOGSUMEXP = """
kernel k(
    x: f32[6, 8] cuda:0,
    out y: f32[6] cuda:0,
):
  parallel i0 < 6:
    over r0 < 8:
      v0 = load x[i0*8 + r0] : f32
      v1 = reduce max(v0) : f32
    once:
      v2 = abs(v1) : f32
      v3 = const inf : f32
      v4 = eq(v2, v3) : bool
      v5 = const 0.0 : f32
      v6 = where(v4, v5, v1) : f32
    over r0 < 8:
      v7 = sub(v0, v6) : f32
      v8 = exp(v7) : f32
      v9 = reduce sum(v8) : f32
    once:
      v10 = log(v9) : f32
      v11 = add(v10, v6) : f32
      store y[i0] = v11
"""
BOTH = LOGSUMEXP.replace("    out y", "    out s: f32[6] cuda:0,\n    out y").replace(
    "v9 = reduce sum(v8) : f32",
    """v9 = reduce sum(v8) : f32
    over r0 < 8:
      v12 = sub(v0, v1) : f32
      v13 = exp(v12) : f32
      v14 = reduce sum(v13) : f32
    once:
      store s[i0] = v14""",
)
INF, NAN = float("inf"), float("nan")


def rows() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
    x[1, :3] = -INF
    x[2] = -INF
    x[3, 4] = INF
    x[4, 6] = NAN
    return {"x": x}


def ops(kernel: Kernel) -> list[str]:
    return [s.op for s in statements(kernel) if isinstance(s, Reduce)]


@pytest.mark.parametrize("text", [SOFTMAX, LOGSUMEXP, BOTH], ids=["softmax", "logsumexp", "both"])
def test_the_same_numbers(text: str) -> None:
    kernel = parse_kernel(text)
    paired = pair_softmax(kernel)
    assert ops(paired) == ["softmax"]
    KernelVerifier(paired).run()
    assert parse_kernel(print_kernel(paired)) == paired
    want, got = interpret_kernel(kernel, rows()), interpret_kernel(paired, rows())
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)


@pytest.mark.parametrize("length", [1, 3, 4, 8])
@pytest.mark.parametrize("text", [SOFTMAX, LOGSUMEXP], ids=["softmax", "logsumexp"])
def test_shared_between_programs(text: str, length: int) -> None:
    kernel = parse_kernel(text)
    paired = pair_softmax(kernel)
    count = -(-8 // length)
    held = dict(rows())
    parts: list[Kernel] = []
    taken = {"k", "x", "y", "s"}
    for stage in separate(paired, taken):
        if not ops(stage):
            parts.append(stage)
            continue
        axis = next(p.axes for p in stage.phases if p.axes)[0]
        cut = Cut(axis, sympy.Integer(count), sympy.Integer(length), 8 % length == 0)
        parts += chunks(stage, cut, taken)
    assert len(parts) == (3 if text is SOFTMAX else 2)
    for part in parts:
        KernelVerifier(part).run()
        held |= interpret_kernel(part, held)
    for name, value in interpret_kernel(kernel, rows()).items():
        np.testing.assert_allclose(held[name], value, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [("sub(v0, v1)", "sub(v1, v0)"), ("reduce max", "reduce min"), ("exp(v2)", "exp2(v2)")],
)
def test_other_sums_stay(old: str, new: str) -> None:
    kernel = parse_kernel(SOFTMAX.replace(old, new))
    assert pair_softmax(kernel) is kernel


@pytest.mark.parametrize(("after", "paired"), [(False, True), (True, False)])
def test_rows_that_caches_keep_are_read_again_for_each_of_their_results_alone(
    after: bool, paired: bool
) -> None:
    """What is stored while the maximum is found costs no reading."""
    text = LOGSUMEXP.replace("6, 8]", "6, 10000]").replace("8 + r0", "10000 + r0")
    text = text.replace("r0 < 8", "r0 < 10000")
    text = text.replace("out y: f32[6]", "out z: f32[6, 10000] cuda:0,\n    out y: f32[6]")
    at = "v9 = reduce sum(v8) : f32" if after else "v1 = reduce max(v0) : f32"
    value = "v7" if after else "v0"
    kernel = parse_kernel(text.replace(at, f"{at}\n      store z[i0*10000 + r0] = {value}"))
    found = [s.op for s in statements(pair_softmax(kernel)) if isinstance(s, Reduce)]
    assert found == (["softmax"] if paired else ["max", "sum"])
