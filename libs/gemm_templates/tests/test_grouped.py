"""Grouped matmuls, interpreted, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gemm_templates import (
    H200,
    Config,
    Epilogue,
    Inputs,
    InvalidArguments,
    InvalidConfig,
    InvalidProblem,
    Problem,
    bind,
    candidates,
    grouped_mm,
    source,
)
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import RELU
from triton_rt import KernelParam, Target, compile

ALIGNED = frozenset({"a", "b", "bias", "out"})
CONFIG = Config(16, 32, 16, 2, 4, 2, "grouped", 3)
TOLERANCE = {"f32": 1e-5, "bf16": 1.6e-2}
# the ends of groups along a size of 40; the last rows may belong to no group
ENDS = {
    "even": [16, 32, 40],
    "odd": [3, 20, 39],
    "empty": [0, 0, 17, 17, 40],
    "all empty": [0, 0],
    "one": [37],
    "many": [*range(0, 40, 2), 40],
}


def tensor(shape, stride, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    return torch.randn(size, generator=generator).to(DTYPES[dtype]).as_strided(shape, stride)


def operands(jagged, sizes, groups, dtype, a_rows=None, b_rows=None):
    """The operands, and the problem of them."""
    a_rows = jagged != "K" if a_rows is None else a_rows
    b_rows = jagged != "N" if b_rows is None else b_rows
    m, n, k = sizes
    a_stride, b_stride = (k, 1) if a_rows else (1, m), (n, 1) if b_rows else (1, k)
    a = tensor((groups, m, k), (m * k, *a_stride), dtype, 0)
    b = tensor((groups, k, n), (k * n, *b_stride), dtype, 1)
    problem = Problem(
        m, n, k, dtype, dtype, dtype, a_stride, b_stride, batch=groups, aligned=ALIGNED,
        jagged=jagged,
    )  # fmt: skip
    return problem, a if jagged == "N" else a[0], b if jagged == "M" else b[0]


def reference(jagged, a, b, ends):
    """In float64; what belongs to no group is left out."""
    a, b, start, found = a.double(), b.double(), 0, []
    for i, end in enumerate(ends):
        part = slice(start, end)
        start = end
        if jagged == "M":
            found.append(a[part] @ b[i])
        elif jagged == "N":
            found.append(a[i] @ b[:, part])
        else:
            found.append(a[:, part] @ b[part])
    return torch.cat(found, {"M": 0, "N": 1}[jagged]) if jagged != "K" else torch.stack(found)


def run(problem, a, b, ends, config=CONFIG, operands=()):
    """What belongs to a group; the rest must be as it was."""
    shape = (problem.m, problem.n)
    out = torch.full((len(ends), *shape) if problem.jagged == "K" else shape, float("nan"))
    out = out.to(DTYPES[problem.out_dtype])
    bind(problem, config)(
        Inputs(a, b, out, None, operands, offs=torch.tensor(ends, dtype=torch.int32))
    )
    if problem.jagged == "M":
        assert out[ends[-1] :].isnan().all()
        return out[: ends[-1]]
    if problem.jagged == "N":
        assert out[:, ends[-1] :].isnan().all()
        return out[:, : ends[-1]]
    return out


def check(out, expected):
    name = {v: k for k, v in DTYPES.items()}[out.dtype]
    torch.testing.assert_close(out.double(), expected, rtol=TOLERANCE[name], atol=TOLERANCE[name])


@pytest.mark.spread(2)
@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("jagged", ["M", "N", "K"])
def test_groups(jagged, ends):
    sizes = {"M": (40, 36, 24), "N": (36, 40, 24), "K": (36, 24, 40)}[jagged]
    problem, a, b = operands(jagged, sizes, len(ends), "f32")
    check(run(problem, a, b, ends), reference(jagged, a, b, ends))


@pytest.mark.spread(2)
@pytest.mark.parametrize("parts", [0, 2])
@pytest.mark.parametrize(
    ("jagged", "a_rows", "b_rows"),
    [("M", True, False), ("M", True, True), ("N", False, False), ("N", True, False),
     ("K", False, True)],
)  # fmt: skip
def test_transposes(jagged, a_rows, b_rows, parts):
    problem, a, b = operands(jagged, (40, 40, 40), 3, "bf16", a_rows, b_rows)
    ends = [7, 30, 40]
    out = run(problem, a, b, ends, replace(CONFIG, split_n=parts))
    check(out, reference(jagged, a, b, ends))


def test_another_group_that_is_no_number_is_not_seen():
    problem, a, b = operands("K", (24, 32, 40), 2, "f32")
    a[:, 21:], b[21:] = float("inf"), float("nan")
    out = run(problem, a, b, [21, 40])
    check(out[0], a[:, :21].double() @ b[:21].double())
    assert out[1].isnan().all()


def test_ends_that_are_wrong_write_nothing_outside():
    problem, a, b = operands("M", (40, 32, 24), 4, "f32")
    storage = torch.full((60, 32), 7.0)
    ends = torch.tensor([-5, 20, 10, 1000], dtype=torch.int32)
    bind(problem, CONFIG)(Inputs(a, b, storage[:40], offs=ends))
    assert bool((storage[40:] == 7).all())
    check(storage[:10], a[:10].double() @ b[1].double())
    check(storage[20:40], a[20:40].double() @ b[3].double())


BIAS = Epilogue(
    "bias_of_group",
    """
@triton.jit
def bias_of_group(acc, rm, rn, mask, operands):
    group, bias = operands
    return acc + tl.load(bias + group * 32 + rn, mask=rn < 32, other=0.0)
""",
    (KernelParam("group_bias", "*f32"),),
    batched=True,
)


@pytest.mark.parametrize("epilogue", [BIAS, RELU], ids=["bias", "relu"])
def test_epilogues(epilogue):
    problem, a, b = operands("M", (40, 32, 24), 3, "f32")
    ends, bias = [16, 16, 40], torch.randn(3, 32)
    out = run(
        replace(problem, epilogue=epilogue),
        a,
        b,
        ends,
        operands=(bias,) if epilogue is BIAS else (),
    )
    expected = reference("M", a, b, ends)
    if epilogue is BIAS:
        expected = torch.cat([expected[:16] + bias[0], expected[16:] + bias[2]])
    check(out, expected if epilogue is BIAS else expected.relu())


def test_rows_known_at_run_time():
    problem, a, b = operands("M", (40, 32, 24), 3, "f32")
    problem = replace(problem, dynamic=frozenset({"M"}))
    ends = [5, 30, 40]
    check(run(problem, a, b, ends), reference("M", a, b, ends))


def test_what_it_is_not_for_is_refused():
    problem, *_ = operands("M", (40, 32, 24), 3, "f32")
    with pytest.raises(InvalidConfig, match="jagged"):
        bind(problem, Config(16, 16, 16))
    with pytest.raises(InvalidConfig, match="jagged"):
        bind(replace(problem, jagged=None), CONFIG)
    with pytest.raises(InvalidConfig, match="expected `jagged`"):
        bind(replace(problem, aligned=frozenset()), CONFIG)
    for jagged, a_rows, b_rows in [("M", False, True), ("N", True, True), ("K", True, True)]:
        problem, *_ = operands(jagged, (40, 40, 40), 3, "f32", a_rows, b_rows)
        with pytest.raises(InvalidConfig, match="not the one with the groups"):
            bind(problem, CONFIG)
    with pytest.raises(InvalidProblem, match="jagged='B'"):
        replace(problem, jagged="B")


@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
@pytest.mark.parametrize("biased", [False, True])
def test_public_function(config, biased):
    ends = [8, 8, 40]
    offs = torch.tensor(ends, dtype=torch.int32)
    bias = torch.randn(3, 32).bfloat16() if biased else None

    def added(expected):
        if not biased:
            return expected
        rows = bias.double()
        if expected.dim() == 3:
            return expected + rows[:, None]
        return torch.cat([expected[: ends[0]] + rows[0], expected[ends[0] :] + rows[2]])

    _, a, b = operands("M", (40, 32, 24), 3, "bf16", True, False)
    out = grouped_mm(a, b, offs, bias, config=config)
    check(out, added(reference("M", a, b, ends)))
    _, a, b = operands("K", (24, 32, 40), 3, "bf16")
    check(grouped_mm(a, b, offs, bias, config=config), added(reference("K", a, b, ends)))
    _, a, b = operands("N", (24, 40, 16), 3, "bf16")
    if not biased:
        check(grouped_mm(a, b, offs, config=config), reference("N", a, b, ends))
    a, b = torch.randn(3, 24, 16).bfloat16(), torch.randn(3, 16, 32).bfloat16()
    batched = config and replace(config, template="batched_tma")
    check(grouped_mm(a, b, bias=bias, config=batched), added(a.double() @ b.double()))


def test_the_result_is_laid_out_as_torch_does():
    _, a, b = operands("M", (16, 21, 24), 2, "bf16", True, False)
    offs = torch.tensor([5, 16], dtype=torch.int32)
    out = grouped_mm(a, b, offs, config=CONFIG)
    assert out.stride() == (24, 1)
    check(out, reference("M", a, b, [5, 16]))


def test_gradients_flow_through_torch():
    a, b = torch.randn(8, 16).bfloat16().requires_grad_(), torch.randn(2, 16, 8).bfloat16()
    out = grouped_mm(a, b, torch.tensor([3, 8], dtype=torch.int32), config=CONFIG)
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(a.grad[0].float(), b[0].sum(1).float(), rtol=0.02, atol=0.05)


def test_wrong_tensors_are_refused():
    a, b = torch.randn(8, 16).bfloat16(), torch.randn(2, 16, 8).bfloat16()
    offs = torch.tensor([3, 8], dtype=torch.int32)
    for wrong, match in [
        ((a, b), "needs offs"),
        ((b, b.mT, offs), "needs no offs"),
        ((a, b, offs.long()), "torch.int32"),
        ((a, b, offs[:1]), "numbers of groups"),
        ((a.float(), b, offs), "bfloat16"),
        ((a, b.mT, offs), "same k"),
        ((a, b, offs, torch.randn(5)), "broadcast"),
    ]:
        with pytest.raises(InvalidArguments, match=match):
            grouped_mm(*wrong)


GROUPS = Problem(10240, 4096, 4096, b_stride=(1, 4096), batch=8, jagged="M", aligned=ALIGNED)


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        pytest.param(
            GROUPS,
            Config(128, 128, 64, 8, 4, 3, "grouped", 264, 4),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(GROUPS, aligned=ALIGNED - {"out"}),
            Config(128, 256, 64, 8, 8, 3, "grouped", 132, 4),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            replace(GROUPS, jagged="N"),
            Config(128, 128, 64, 8, 4, 3, "grouped", 264, 4),
            marks=pytest.mark.slow,
        ),
        (
            replace(GROUPS, jagged="K", m=512, n=512, a_stride=(1, 512), b_stride=None),
            Config(128, 128, 64, 8, 4, 3, "grouped", 264, 4),
        ),
        (GROUPS, Config(128, 128, 64, 4, 8, 6, "gluon_batched", 132, 4)),
    ],
    ids=["rows", "rows by address", "columns", "sums", "roles"],
)
def test_code_for_hopper(problem, config):
    """What the interpreter does not see: pipelines and warps with roles compile, and fit."""
    kernel = source(problem, config).source
    binary = compile(kernel, Target(90), alignment=(1 << len(kernel.params)) - 1, keep_ptx=True)
    assert "wgmma.mma_async" in binary.ptx and "ld.local" not in binary.ptx
    assert "cp.async.bulk.tensor.3d" in binary.ptx
    assert binary.shared_bytes <= H200.smem


def test_only_templates_for_groups_are_proposed():
    found = {c.config.template for c in candidates(GROUPS, H200) if c.config}
    assert found == {"grouped", "gluon_batched"}
    sums = replace(GROUPS, jagged="K", m=512, n=512, a_stride=(1, 512), b_stride=None)
    assert {c.config.template for c in candidates(sums, H200) if c.config} == {"grouped"}
    unaligned = candidates(replace(GROUPS, aligned=frozenset()), H200)
    assert [c.config for c in unaligned] == [None]
