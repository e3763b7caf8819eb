"""The kernels against float64, on CPU tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gemm_templates import (
    Config,
    Epilogue,
    Inputs,
    Problem,
    addmm,
    bind,
    linear_act,
    mm,
    source,
)
from gemm_templates.dtypes import DTYPES
from gemm_templates.epilogues import ACTIVATIONS, GELU_NARROW, residual_of
from gemm_templates.problem import ITEMSIZE

SMALL = Config(16, 16, 16, 2, 4, 2)
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


def tensor(shape, stride, dtype, seed):
    """Random values at the given strides, in a storage that ends where the tensor does."""
    generator = torch.Generator().manual_seed(seed)
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    storage = torch.randn(size, generator=generator).to(DTYPES[dtype])
    return storage.as_strided(shape, stride)


def run(problem, config=SMALL, operands=()):
    d = problem.dims()
    m, n, k = problem.m, problem.n, problem.k
    lead = (problem.batch,) if problem.batch > 1 else ()

    def strides(batch, rows, columns):
        return (d[batch], d[rows], d[columns]) if lead else (d[rows], d[columns])

    a = tensor((*lead, m, k), strides("stride_ab", "stride_am", "stride_ak"), problem.a_dtype, 0)
    b = tensor((*lead, k, n), strides("stride_bb", "stride_bk", "stride_bn"), problem.b_dtype, 1)
    out = tensor(
        (*lead, m, n), strides("stride_ob", "stride_om", "stride_on"), problem.out_dtype, 2
    ).fill_(float("nan"))
    bias = tensor((n,), (problem.bias_stride,), problem.bias, 3) if problem.bias else None
    bind(problem, config)(Inputs(a, b, out, bias, operands))
    expected = a.double() @ b.double()
    return out, expected if bias is None else expected + bias.double()


def check(out, expected):
    name = {v: k for k, v in DTYPES.items()}[out.dtype]
    tolerance = TOLERANCE[name]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("size", [(32, 32, 32), (17, 33, 19), (1, 1, 1), (5, 40, 64)])
def test_sizes_and_dtypes(size, dtype):
    check(*run(Problem(*size, dtype, dtype, dtype)))


@pytest.mark.parametrize("a_stride", [(20, 1), (1, 18), (37, 2)])
@pytest.mark.parametrize("b_stride", [(24, 1), (1, 20), (50, 2)])
def test_strides(a_stride, b_stride):
    check(*run(Problem(18, 23, 20, "f32", "f32", "f32", a_stride, b_stride, (1, 30))))


@pytest.mark.parametrize("size", [(0, 8, 8), (8, 0, 8), (0, 0, 0)])
def test_empty_results(size):
    out, expected = run(Problem(*size, "f32", "f32", "f32", bias="f32"))
    assert out.shape == expected.shape


def test_empty_k_gives_the_bias():
    check(*run(Problem(20, 8, 0, "f32", "f32", "f32", bias="f32")))


@pytest.mark.parametrize(
    "config",
    [
        Config(32, 16, 16, 1, 4, 2),
        Config(16, 32, 32, 8, 4, 3),
        Config(64, 64, 16, 3, 4, 1),
    ],
)
@pytest.mark.parametrize("size", [(70, 33, 40), (64, 64, 32)])
def test_blocks_and_groups(size, config):
    check(*run(Problem(*size, "f32", "f32", "f32"), config))


def test_dynamic_sizes_and_strides():
    names = frozenset({"M", "K", "stride_am", "stride_bn", "stride_om", "stride_bias"})
    for wide in (None, False):
        problem = Problem(
            19, 21, 33, "f32", "f32", "f32", bias="f32", bias_stride=2, dynamic=names, wide=wide
        )
        check(*run(problem))


def test_a_kernel_with_dynamic_m_serves_other_sizes():
    from gemm_templates import source
    from gemm_templates.launch import arguments
    from triton_rt import LazyKernel

    problem = Problem(16, 24, 20, "f32", "f32", "f32", dynamic=frozenset({"M"}))
    kernel = source(problem, SMALL)
    lazy = LazyKernel(kernel.source)
    for m in (1, 16, 45):
        a, b = torch.randn(m, 20), torch.randn(20, 24)
        out = torch.full((m, 24), float("nan"))
        *tensors, _ = arguments(problem, kernel, Inputs(a, b, out))
        lazy(kernel.grid(m, 24), *tensors, m)
        check(out, a.double() @ b.double())


TMA = Config(16, 32, 16, 2, 4, 2, "tma", 3)
ALIGNED = frozenset({"a", "b", "out"})


@pytest.mark.spread(3)
@pytest.mark.parametrize("split", [0, 2, 4])
@pytest.mark.parametrize("a_rows", [False, True])
@pytest.mark.parametrize("b_rows", [False, True])
def test_tma(a_rows, b_rows, split):
    m, n, k = 36, 72, 40
    problem = Problem(
        m, n, k, "f32", "f32", "f32", (k, 1) if a_rows else (1, m), (n, 1) if b_rows else (1, k),
        bias="f32", epilogue=ACTIVATIONS["relu"], aligned=ALIGNED,
    )  # fmt: skip
    out, linear = run(problem, replace(TMA, split_n=split))
    check(out, linear.relu())


def test_tma_with_dynamic_sizes_and_a_strided_result():
    names = frozenset({"M", "N", "stride_am", "stride_om"})
    problem = Problem(
        20, 40, 24, "f32", "f32", "f32", None, (1, 24), (50, 1),
        dynamic=names, aligned=frozenset({"a", "b"}), divisors=(("stride_am", 4), ("M", 4)),
    )  # fmt: skip
    check(*run(problem, TMA))


@pytest.mark.parametrize("n", [70, 72])
def test_tma_stores_keep_to_their_rows(n):
    """Rows that end inside 16 bytes are stored without a descriptor, which would write on."""
    problem = Problem(
        20, n, 24, "bf16", "bf16", "bf16", None, (1, 24), (80, 1), aligned=ALIGNED
    )  # fmt: skip
    described = [name for name, _ in source(problem, TMA).maps]
    assert ("out" in described) == (n == 72)
    a, b = tensor((20, 24), (24, 1), "bf16", 0), tensor((24, n), (1, 24), "bf16", 1)
    whole = torch.full((20, 80), 7.0, dtype=torch.bfloat16)
    bind(problem, TMA)(Inputs(a, b, whole[:, :n]))
    check(whole[:, :n], a.double() @ b.double())
    assert bool((whole[:, n:] == 7).all())


@pytest.mark.parametrize("dynamic", [frozenset(), frozenset({"stride_ab", "M"})])
def test_batches(dynamic):
    check(*run(Problem(17, 20, 18, "f32", "f32", "f32", batch=3, dynamic=dynamic)))
    expanded = (0, 18 * 20, 17 * 20)
    check(*run(Problem(17, 20, 18, "f32", "f32", "f32", batch=2, batch_strides=expanded)))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("act", ["relu", "gelu", "silu"])
def test_bias_and_activation(act, dtype):
    problem = Problem(18, 33, 20, dtype, dtype, dtype, bias=dtype, epilogue=ACTIVATIONS[act])
    out, linear = run(problem)
    check(out, {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}[act](linear))


def test_gelu_for_narrow_results_is_exact_to_their_precision():
    """Relative error below 3e-5 down to -4.2, where GELU is 6e-5; 2e-4 down to -5.5."""
    x = torch.linspace(-16, 16, 64 * 512, dtype=torch.float64).float().view(64, 512)
    problem = Problem(64, 512, 64, "f32", "f32", "f32", epilogue=GELU_NARROW)
    out = torch.empty(64, 512)
    bind(problem, Config(32, 128, 64))(Inputs(torch.eye(64), x, out))
    expected = F.gelu(x.double())
    error = (out.double() - expected).abs()
    assert float(error.max()) < 4e-6
    assert float((error / expected.abs())[(x > -4.2) & (x != 0)].max()) < 3e-5
    assert float((error / expected.abs())[(x > -5.5) & (x != 0)].max()) < 2e-4
    odd = torch.tensor([[float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.0]])
    out = linear_act(odd.t().bfloat16(), torch.ones(1, 1).bfloat16(), config=SMALL).flatten()
    assert out[0].isnan() and out[1] == float("inf") and out[3] == odd[0, 3].bfloat16()
    assert out[2].isnan()  # -inf times zero, as in eager
    assert float(out[[4, 5]].abs().max()) < 1e-30


def test_residual():
    residual = torch.randn(33, 18).t()
    literal = residual_of("f32", ITEMSIZE["f32"], stride=residual.stride())
    out, product = run(
        Problem(18, 33, 20, "f32", "f32", "f32", epilogue=literal), SMALL, (residual,)
    )
    check(out, product + residual.double())
    problem = Problem(18, 33, 20, "f32", "f32", "f32", epilogue=residual_of("f32", ITEMSIZE["f32"]))
    out, product = run(problem, operands=(residual, *residual.stride()))
    check(out, product + residual.double())


GENERATED = Epilogue(
    "scale_and_keep",
    """
@triton.jit
def scale_and_keep(acc, rm, rn, mask, operands):
    copy, scale, columns = operands
    value = acc * scale
    tl.store(copy + (rm * columns + rn), value, mask=mask)
    return value
""",
    operands=(),
)


@pytest.mark.parametrize("stores", [False, True])
def test_an_epilogue_given_as_text_with_operands(stores):
    from triton_rt import KernelParam

    operands = (
        KernelParam("copy", "*f32", mutated=True),
        KernelParam("scale", "f32"),
        KernelParam("columns", "i32"),
    )
    epilogue = replace(GENERATED, operands=operands, stores=stores)
    problem = Problem(18, 20, 16, "f32", "f32", "f32", epilogue=epilogue)
    copy = torch.full((18, 20), float("nan"))
    out, product = run(problem, operands=(copy, 0.5, 20))
    check(copy, product * 0.5)
    if stores:
        assert out.isnan().all()
    else:
        check(out, product * 0.5)


def test_nan_passes_through_relu():
    a = torch.full((4, 16), float("nan"))
    out = linear_act(a, torch.randn(8, 16), act="relu", config=SMALL)
    assert out.isnan().all()


def test_public_functions():
    a, b = torch.randn(18, 20), torch.randn(33, 20).t()
    check(mm(a, b, config=SMALL), a.double() @ b.double())
    check(mm(a, b), a.double() @ b.double())
    product = a.double() @ b.double()
    for bias in (torch.randn(33), torch.randn(1), torch.randn(18, 1), torch.randn(18, 33)):
        check(addmm(bias, a, b, config=SMALL), product + bias.double())
        check(addmm(bias, a, b), product + bias.double())
    x, weight, bias = torch.randn(2, 3, 20), torch.randn(9, 20), torch.randn(9)
    for act, fn in (("gelu", F.gelu), ("none", lambda t: t)):
        expected = fn(F.linear(x.double(), weight.double(), bias.double()))
        check(linear_act(x, weight, bias, act, config=SMALL), expected)
        check(linear_act(x, weight, bias, act), expected)
    assert linear_act(torch.randn(2, 0, 20), weight, bias, config=SMALL).shape == (2, 0, 9)


def test_gradients_flow_through_torch():
    a = torch.randn(4, 8, requires_grad=True)
    b = torch.randn(8, 3)
    mm(a, b, config=SMALL).sum().backward()
    torch.testing.assert_close(a.grad, b.sum(1).expand(4, 8))
