"""Tensor maps that the host makes: what the descriptor parameters of a kernel describe.

`a` of [M, K], contiguous along K   -> shape (M, K), strides (stride_am, 1), block (rows, block_k)
contiguous along M                  -> shape (K, M), strides (stride_ak, 1), block (block_k, rows)
a batch of them                     -> shape (batch, ...), strides (stride_ab, ...), block (1, ...)
"""

from __future__ import annotations

from gemm_templates.plan import Maps
from gemm_templates.problem import Config, Problem
from triton_rt import MapPlan


def of_matrices(problem: Problem, config: Config, rows: int, stored: bool) -> Maps:
    """Of the operands and, if `stored`, of `out`, of which a copy moves `rows` rows; none where
    kernels make their own (`Config.maps`)."""
    if not config.maps:
        return ()
    k = config.block_k
    found = {"a": _matrix(problem, "a", ("M", "K"), (rows, k))}
    for name in ("b", "b2") if problem.gate else ("b",):
        found[name] = _matrix(problem, "b", ("K", "N"), (k, config.block_n))
    if stored:
        part = (rows, config.block_n // config.parts)
        found["out"] = _matrix(problem, "out", ("M", "N"), part)
    return tuple(found.items())


def described(problem: Problem, stored: bool) -> frozenset[str]:
    """What a template with descriptors moves by these."""
    return frozenset({"a", "b", *(("b2",) if problem.gate else ()), *(("out",) if stored else ())})


def of_batches(
    problem: Problem, config: Config, rows: int, stored: bool, shared: frozenset[str]
) -> Maps:
    """The same of a batch; `shared`: operands of which there is one for all products."""
    plain = dict(of_matrices(problem, config, rows, stored))
    out: dict[str, MapPlan] = {}
    for name, plan in plain.items():
        assert plan.shape is not None and plan.strides is not None
        alone = name in shared
        count = 1 if alone else problem.batch
        # Of one matrix any stride will do: only the first is read.
        distance = plan.strides[0] if alone else f"stride_{name[0]}b"
        out[name] = MapPlan((1, *plan.block), (count, *plan.shape), (distance, *plan.strides))
    return tuple(out.items())


def _matrix(
    problem: Problem, tensor: str, sizes: tuple[str, str], block: tuple[int, int]
) -> MapPlan:
    first, second = sizes
    row, column = (f"stride_{tensor[0]}{d.lower()}" for d in sizes)
    if problem.major(tensor) == column:
        return MapPlan(block, (first, second), (row, 1))
    return MapPlan((block[1], block[0]), (second, first), (column, 1))
