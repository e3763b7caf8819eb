"""Batched and grouped matmuls on a real GPU, against float64."""

from __future__ import annotations

import pytest
import torch

from gemm_templates import (
    Inputs,
    InvalidArguments,
    Problem,
    baddbmm,
    bind,
    bmm,
    candidates,
    device_info,
    grouped_mm,
)
from gemm_templates.epilogues import GELU, RELU, alpha_beta_of, group_bias_of
from gemm_templates.families.batched_tma import family as batched_tma
from gemm_templates.families.gluon_batched import family as gluon_batched
from gemm_templates.families.grouped import family as grouped
from gemm_templates.families.tiled import family as tiled
from gemm_templates.model import is_legal

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TOLERANCE = {"bf16": 1.6e-2, "f16": 2e-3, "f32": 1e-4}
ALIGNED = frozenset({"a", "b", "out"})


def strided(shape, stride, dtype, scale=1.0):
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    values = torch.randn(size, device="cuda") * scale
    return values.to(DTYPES[dtype]).as_strided(shape, stride)


def tensors(problem):
    """Operands, and a result of NaN inside of memory that is 7."""
    torch.manual_seed(0)
    d, batch = problem.dims(), problem.batch
    m, n, k = problem.m, problem.n, problem.k
    a = strided((batch, m, k), (d["stride_ab"], d["stride_am"], d["stride_ak"]), problem.a_dtype)
    b = strided(
        (batch, k, n), (d["stride_bb"], d["stride_bk"], d["stride_bn"]), problem.b_dtype, k**-0.5
    )
    whole = torch.full(
        (batch * d["stride_ob"] + 64,), 7.0, device="cuda", dtype=DTYPES[problem.out_dtype]
    )
    out = whole.as_strided((batch, m, n), (d["stride_ob"], d["stride_om"], d["stride_on"]))
    out.fill_(float("nan"))
    return a, b, out, whole


def check(out, expected, dtype):
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def legal(problem, families):
    info = device_info("cuda")
    return [
        c
        for family in families
        for c in family.configs(problem, info)
        if is_legal(problem, c, info)
    ]


def case(batch, m, n, k, dtype="bf16", a_rows=True, b_rows=True, shared="", **more):
    strides = [0 if "a" in shared else m * k, 0 if "b" in shared else k * n, m * n + 8]
    return Problem(
        m, n, k, dtype, dtype, dtype, (k, 1) if a_rows else (1, m), (n, 1) if b_rows else (1, k),
        batch=batch, batch_strides=tuple(strides), aligned=ALIGNED, **more,
    )  # fmt: skip


BATCHES = {
    "even": case(6, 256, 256, 128),
    "one step": case(64, 256, 384, 64),
    "edges": case(5, 200, 264, 72),
    "rows inside 16 bytes": case(3, 72, 101, 64, b_rows=False),
    "tiny": case(300, 8, 8, 8),
    "a by columns": case(3, 136, 200, 96, a_rows=False),
    "b by columns": case(3, 136, 200, 96, b_rows=False),
    "both by columns": case(3, 136, 200, 96, a_rows=False, b_rows=False),
    "one a": case(7, 136, 200, 96, shared="a"),
    "one b": case(7, 136, 200, 96, shared="b"),
    "f16": case(3, 200, 264, 72, "f16", b_rows=False),
    "tf32": case(3, 200, 264, 72, "f32", input_precision="tf32"),
    "relu": case(3, 200, 264, 72, epilogue=RELU),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_config_of_a_batch(name, pool):
    problem = BATCHES[name]
    a, b, out, whole = tensors(problem)
    expected = a.double() @ b.double()
    if problem.epilogue is RELU:
        expected = expected.relu()
    families = [batched_tma, gluon_batched]
    configs = [*legal(problem, families), *legal(problem, [tiled])[:2]]
    assert len(configs) >= (4 if problem.a_dtype == "f32" else 8)
    tolerance = "f16" if problem.a_dtype == "f32" else problem.a_dtype
    others = torch.ones_like(whole, dtype=torch.bool)
    others.as_strided(out.shape, out.stride()).fill_(False)
    for run in [bind(problem, config, pool=pool) for config in configs]:
        out.fill_(float("nan"))
        run(Inputs(a, b, out))
        check(out, expected, tolerance)
        assert bool((whole[others] == 7).all()), run.plan


def test_every_config_with_an_epilogue_that_knows_the_batch(pool):
    problem = case(5, 200, 264, 72)
    added = torch.randn(5, 200, 264, device="cuda").bfloat16()
    epilogue = alpha_beta_of("bf16", added.stride(), True)
    problem = case(5, 200, 264, 72, epilogue=epilogue)
    a, b, out, _ = tensors(problem)
    expected = 0.5 * added.double() - 2 * (a.double() @ b.double())
    configs = [*legal(problem, [batched_tma, gluon_batched]), *legal(problem, [tiled])[:2]]
    assert len(configs) >= 8
    for run in [bind(problem, config, pool=pool) for config in configs]:
        out.fill_(float("nan"))
        run(Inputs(a, b, out, None, (-2.0, 0.5, added)))
        check(out, expected, "bf16")


ENDS = {
    "even": [128, 256, 384, 512],
    "odd": [3, 130, 131, 500],
    "empty": [0, 0, 300, 300, 512],
    "all empty": [0, 0, 0],
    "one": [511],
    "many": [min(512, 4 * i) for i in range(150)],
}


def groups_of(jagged, ends, a, b):
    start = 0
    for i, end in enumerate(ends):
        part = slice(start, end)
        start = end
        if jagged == "M":
            yield a[part] @ b[i]
        elif jagged == "N":
            yield a[i] @ b[:, part]
        else:
            yield a[:, part] @ b[part]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("jagged", ["M", "N", "K"])
def test_every_config_of_groups(jagged, ends, biased, pool):
    torch.manual_seed(0)
    count, total = len(ends), 512
    m, n, k = {"M": (total, 264, 136), "N": (136, total, 72), "K": (136, 264, total)}[jagged]
    a = strided((count, m, k), (m * k, 1, m) if jagged == "K" else (m * k, k, 1), "bf16")
    b = strided((count, k, n), (k * n, 1, k) if jagged == "N" else (k * n, n, 1), "bf16", k**-0.5)
    a, b = (a if jagged == "N" else a[0]), (b if jagged == "M" else b[0])
    bias = torch.randn(count, n, device="cuda").bfloat16()
    epilogue = group_bias_of(n, bias.stride()) if biased else None
    problem = Problem(
        m, n, k, a_stride=a.stride()[-2:], b_stride=b.stride()[-2:], batch=count, jagged=jagged,
        aligned=ALIGNED, epilogue=epilogue,
    )  # fmt: skip
    found = list(groups_of(jagged, ends, a.double(), b.double()))
    if biased:
        start = 0
        for i, end in enumerate(ends):
            row = bias[i].double()
            found[i] = found[i] + (row[start:end] if jagged == "N" else row)
            start = end
    offs = torch.tensor(ends, dtype=torch.int32, device="cuda")
    configs = legal(problem, [grouped, gluon_batched])
    assert len(configs) >= (8 if jagged == "M" else 4)
    for run in [bind(problem, config, pool=pool) for config in configs]:
        shape = (count, m, n) if jagged == "K" else (m, n)
        out = torch.full(shape, float("nan"), device="cuda", dtype=torch.bfloat16)
        run(Inputs(a, b, out, None, (bias,) if biased else (), offs=offs))
        if jagged == "K":
            check(out, torch.stack(found), "bf16")
        else:
            along = 0 if jagged == "M" else 1
            inside, outside = out.split([ends[-1], total - ends[-1]], along)
            check(inside, torch.cat(found, along), "bf16")
            assert bool(outside.isnan().all())


def test_candidates_propose_them():
    info = device_info("cuda")
    if info.capability != (9, 0):
        pytest.skip("Hopper")
    found = candidates(Problem(2048, 2048, 512, batch=16, aligned=ALIGNED, epilogue=GELU), info)
    names = {c.config.template for c in found if c.config}
    assert names & {"batched_tma", "gluon_batched"}
    problem = Problem(8192, 4096, 4096, batch=8, jagged="M", aligned=ALIGNED)
    names = {c.config.template for c in candidates(problem, info) if c.config}
    assert names <= {"grouped", "gluon_batched"} and names


def test_public_functions(monkeypatch, tmp_path):
    monkeypatch.setenv("GEMM_TEMPLATES_CACHE_DIR", str(tmp_path))
    a = torch.randn(12, 512, 256, device="cuda").bfloat16()
    b = torch.randn(12, 384, 256, device="cuda").bfloat16().mT / 16
    product = a.double() @ b.double()
    added = torch.randn(12, 512, 384, device="cuda").bfloat16()
    offs = torch.tensor([100, 100, 512], dtype=torch.int32, device="cuda")
    for _ in range(2):
        check(bmm(a, b), product, "bf16")
        out = baddbmm(added, a, b, beta=2, alpha=0.5)
        check(out, 2 * added.double() + 0.5 * product, "bf16")
        out = grouped_mm(a[0], b[:3], offs)
        check(
            out, torch.cat(list(groups_of("M", offs.tolist(), a[0].double(), b.double()))), "bf16"
        )
        check(grouped_mm(a[:3], b[:3]), product[:3], "bf16")
    with pytest.raises(InvalidArguments):
        bmm(a, b.cpu())
