"""The public functions: torch's own on the CPU, or a template that is interpreted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gemm_templates
from gemm_templates import (
    Config,
    InvalidArguments,
    addmm,
    baddbmm,
    bmm,
    gated_linear,
    grouped_mm,
    linear_act,
    mixed_mm,
    mm,
    scaled_mm,
)
from gemm_templates.errors import UnsupportedProblem
from gemm_templates.ops.operation import config_text, parse_config
from gemm_templates.ops.padded import on_lines, padded_mm
from gemm_templates.ops.plain import direct

CONFIG = Config(16, 16, 16)
FP8 = torch.float8_e4m3fn
OPS = torch.ops.gemm_templates


def random(*shape, dtype=torch.float32, grad=False):
    return torch.randn(shape, dtype=dtype).requires_grad_(grad)


def check(out, expected, tolerance=1e-5):
    torch.testing.assert_close(out.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    torch._dynamo.reset()


LAYOUTS = {
    "rows": lambda t: t,
    "columns": lambda t: t.mT.contiguous().mT,
    "apart": lambda t: torch.cat([t, t], -1)[..., : t.shape[-1]],
    "steps": lambda t: t.repeat_interleave(2, -1)[..., ::2],
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(layout, config):
    lay = LAYOUTS[layout]
    a, b, bias = random(20, 30), random(30, 18), random(18)
    check(mm(lay(a), lay(b), config=config), a @ b)
    check(addmm(lay(random(20, 18) * 0 + bias), lay(a), lay(b), config=config), a @ b + bias)
    out = lay(torch.full((20, 18), float("nan")))
    assert mm(lay(a), lay(b), out=out, config=config) is out
    check(out, a @ b)
    x, y = random(3, 20, 30), random(3, 30, 18)
    check(bmm(lay(x), lay(y), config=config), x @ y)
    out = lay(torch.full((3, 20, 18), float("nan")))
    check(baddbmm(bias, lay(x), lay(y), out=out, alpha=2, config=config), 2 * x @ y + bias)


FACTORS = [(1, 0), (1, 1), (1, -0.5), (2.5, 0), (2.5, 1), (2.5, -0.5)]
SHAPES = [(18,), (1, 18), (20, 1), (20, 18), ()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
@pytest.mark.parametrize(
    ("alpha", "beta", "shape"),
    [
        *((*factors, SHAPES[0]) for factors in FACTORS),
        *((*FACTORS[-1], shape) for shape in SHAPES[1:]),
        *(
            pytest.param(*factors, shape, marks=pytest.mark.slow)
            for factors in FACTORS[:-1]
            for shape in SHAPES[1:]
        ),
    ],
)
def test_alpha_and_beta(alpha, beta, shape, config):
    a, b, bias = random(20, 30), random(30, 18), random(*shape)
    kwargs = {"alpha": alpha, "beta": beta}
    expected = torch.addmm(bias, a, b, **kwargs)
    check(addmm(bias, a, b, **kwargs, config=config), expected)
    out = addmm(bias, a, b, **kwargs, out=torch.empty(18, 20).t(), config=config)
    check(out, expected)
    batch = torch.stack([a, -a]), torch.stack([b, b])
    check(baddbmm(bias, *batch, **kwargs, config=config), torch.baddbmm(bias, *batch, **kwargs))
    each = random(2, 20, 18)
    check(baddbmm(each, *batch, **kwargs, config=config), torch.baddbmm(each, *batch, **kwargs))


@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
def test_beta_of_zero_does_not_read(config):
    a, b, bad = random(20, 30), random(30, 18), torch.full((18,), float("nan"))
    check(addmm(bad, a, b, beta=0, config=config), a @ b)
    check(baddbmm(bad, a[None], b[None], beta=0, alpha=3, config=config), 3 * (a @ b)[None])


@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
@pytest.mark.parametrize("size", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (0, 0, 0)])
def test_empty_sizes(size, config):
    m, n, k = size
    a, b, bias = random(m, k), random(k, n), random(n)
    check(mm(a, b, config=config), torch.zeros(m, n))
    check(addmm(bias, a, b, config=config), bias.expand(m, n))
    check(linear_act(a, b.t(), bias, "relu", config=config), bias.relu().expand(m, n))
    check(bmm(a[None], b[None], config=config), torch.zeros(1, m, n))
    check(gated_linear(a, b.t(), b.t()), torch.zeros(m, n))
    assert bmm(random(0, 4, 5), random(0, 5, 6)).shape == (0, 4, 6)


def test_out_may_share_memory_with_what_is_read():
    a, b = random(16, 16), random(16, 16)
    for out in (a, a.t()):
        a, expected = a.clone(), a @ b
        shared = a if out.stride() == a.stride() else a.t()
        check(mm(a, b, out=shared, config=CONFIG), expected)


@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
def test_f32_from_16_bits(config):
    a, b = random(20, 30, dtype=torch.bfloat16), random(30, 18, dtype=torch.bfloat16)
    out = mm(a, b, out_dtype=torch.float32, config=config)
    assert out.dtype == torch.float32
    check(out, a.double() @ b.double())
    bias = random(18, dtype=torch.bfloat16)
    out = addmm(bias, a, b, out_dtype=torch.float32, alpha=2, config=config)
    check(out, 2 * (a.double() @ b.double()) + bias.double())
    assert mm(a, b, out=torch.empty(20, 18)).dtype == torch.float32


PLACES = {
    "rows": lambda t: t,
    "columns": lambda t: t.t().contiguous().t(),
    "rows apart": lambda t: torch.cat([t, t], 1)[:, : t.shape[1]],
    "neither": lambda t: t.repeat_interleave(2, 1)[:, ::2],
}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "size",
    [
        (5, 7, 9),
        (16, 8, 8),
        (3, 1, 1),
        (2, 1100, 10),
        pytest.param((2, 1100, 1030), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "layouts",
    [
        ("rows", "columns"),
        pytest.param(("columns", "rows"), marks=pytest.mark.slow),
        pytest.param(("rows apart", "rows apart"), marks=pytest.mark.slow),
        ("neither", "neither"),
    ],
)
def test_padded_products_are_exact(size, layouts):
    m, n, k = size
    a, b = (PLACES[name](t) for name, t in zip(layouts, (random(m, k), random(k, n)), strict=True))
    a[0, 0] = float("inf")
    seen = []

    def multiply(x, y):
        seen.extend(t.stride() for t in (x, y))
        return x @ y

    out = padded_mm(a, b, multiply)
    assert out.is_contiguous() and out.shape == (m, n)
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-3, equal_nan=True)
    assert all(max(stride) % 8 == 0 for stride in seen)


@pytest.mark.parametrize("layout", list(PLACES))
def test_copies_on_lines(layout):
    """Of the same sizes and values, rows (or columns) at multiples of 64 elements; what is even
    already stays."""
    odd, other, even = PLACES[layout](random(5, 9)), random(7, 3), random(4, 16)
    copies = on_lines(odd, even, other)
    assert copies[1] is even and torch.equal(copies[0], odd) and torch.equal(copies[2], other)
    assert all(max(x.stride()) % 64 == 0 and min(x.stride()) == 1 for x in (copies[0], copies[2]))


def test_f64_is_torchs():
    a = random(4, 4, dtype=torch.float64)
    check(mm(a, a), a @ a, 1e-14)
    with pytest.raises(UnsupportedProblem):
        mm(a, a, config=CONFIG)


ACTS = {"none": lambda x: x, "gelu": F.gelu, "relu": F.relu, "silu": F.silu}


@pytest.mark.spread(2)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("config", [None, CONFIG], ids=["torch", "template"])
def test_linear_act_and_its_gradients(act, config):
    x, w, bias = random(2, 10, 24, grad=True), random(18, 24, grad=True), random(18, grad=True)
    expected = ACTS[act](F.linear(x, w, bias))
    check(linear_act(x.detach(), w, bias, act, config=config), expected)
    out = linear_act(x, w, bias, act, config=config)
    check(out, expected)
    weight = torch.randn_like(expected)
    found = torch.autograd.grad((out * weight).sum(), (x, w, bias))
    for one, other in zip(
        found, torch.autograd.grad((expected * weight).sum(), (x, w, bias)), strict=True
    ):
        check(one, other)
    flat = x.reshape(-1, 24)
    made_again = OPS.linear_act(flat, w, bias, act, config_text(config))
    found = torch.autograd.grad((made_again.view_as(weight) * weight).sum(), (x, w, bias))
    for one, other in zip(
        found, torch.autograd.grad((ACTS[act](F.linear(x, w, bias)) * weight).sum(), (x, w, bias)),
        strict=True,
    ):  # fmt: skip
        check(one, other)


@pytest.mark.parametrize("act", ["silu", "gelu", "relu"])
def test_gated_linear_and_its_gradients(act):
    x, w1, w3 = random(2, 10, 24, grad=True), random(18, 24, grad=True), random(18, 24, grad=True)
    expected = ACTS[act](F.linear(x, w1)) * F.linear(x, w3)
    weight = torch.randn_like(expected)
    wanted = torch.autograd.grad((expected * weight).sum(), (x, w1, w3))
    again = OPS.gated_linear(x.reshape(-1, 24), w1, w3, act).view_as(expected)
    for out in (gated_linear(x, w1, w3, act), again):
        check(out, expected)
        for one, other in zip(
            torch.autograd.grad((out * weight).sum(), (x, w1, w3)), wanted, strict=True
        ):
            check(one, other)


def test_gated_template():
    config = Config(16, 32, 16, 2, 4, 2, "gated", 2)
    x, w1, w3 = (t.bfloat16() for t in (random(20, 32), random(64, 32), random(64, 32)))
    out = gated_linear(x, w1, w3, config=config)
    wide = [t.double() for t in (x, w1, w3)]
    check(out, F.silu(wide[0] @ wide[1].t()) * (wide[0] @ wide[2].t()), 2e-2)


def test_gradients_of_products_in_f64():
    def make(*shape):
        return random(*shape, dtype=torch.float64, grad=True)

    a, b, bias = make(5, 4), make(4, 3), make(3)
    torch.autograd.gradcheck(mm, (a, b))
    torch.autograd.gradgradcheck(mm, (a, b))
    torch.autograd.gradcheck(lambda *t: addmm(*t, alpha=2.0, beta=-0.5), (bias, a, b))
    x, y = make(2, 5, 4), make(2, 4, 3)
    torch.autograd.gradcheck(bmm, (x, y))
    torch.autograd.gradcheck(lambda *t: baddbmm(*t, alpha=2.0, beta=-0.5), (bias, x, y))
    for act in ACTS:
        torch.autograd.gradcheck(lambda *t, act=act: linear_act(*t, act), (a, make(3, 4), bias))
        torch.autograd.gradgradcheck(lambda *t, act=act: linear_act(*t, act), (a, make(3, 4), bias))
        torch.autograd.gradcheck(
            lambda *t, act=act: OPS.gated_linear(*t, act), (a, make(3, 4), make(3, 4))
        )


def grouped_case(kind, grad=True):
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    dtype = {"dtype": torch.bfloat16, "grad": grad}
    return {
        "rows": (random(24, 16, **dtype), random(3, 16, 8, **dtype), ends),
        "columns": (random(3, 8, 16, **dtype), random(16, 24, **dtype), ends),
        "sums": (random(8, 24, **dtype), random(24, 16, **dtype), ends),
        "batch": (random(3, 8, 16, **dtype), random(3, 16, 8, **dtype), None),
    }[kind]


def grouped_reference(a, b, ends):
    if ends is None:
        return a.double() @ b.double()
    bounds = list(zip([0, *ends.tolist()], ends.tolist(), strict=False))
    if a.dim() == 2 and b.dim() == 2:
        return torch.stack([a.double()[:, i:j] @ b.double()[i:j] for i, j in bounds])
    if b.dim() == 3:
        return torch.cat([a.double()[i:j] @ b.double()[n] for n, (i, j) in enumerate(bounds)])
    return torch.cat([a.double()[n] @ b.double()[:, i:j] for n, (i, j) in enumerate(bounds)], 1)


@pytest.mark.parametrize("kind", ["rows", "columns", "sums", "batch"])
def test_grouped_mm_and_its_gradients(kind):
    a, b, ends = grouped_case(kind)
    out, expected = grouped_mm(a, b, ends), grouped_reference(a, b, ends)
    check(out, expected, 2e-2)
    weight = torch.randn_like(out)
    found = torch.autograd.grad((out * weight).sum(), (a, b))
    wanted = torch.autograd.grad((expected * weight.double()).sum(), (a, b))
    for one, other in zip(found, wanted, strict=True):
        check(one, other, 5e-2)


def scaled_case():
    a, b = random(16, 32).to(FP8), random(16, 32).to(FP8).t()
    return a, b, torch.rand(16, 1) + 0.5, torch.rand(1, 16) + 0.5


def mixed_case():
    a = random(16, 32, dtype=torch.bfloat16)
    return a, torch.randint(-127, 127, (32, 16), dtype=torch.int8), torch.rand(16)


def op_calls(grad):
    a, b, bias = random(6, 8, grad=grad), random(8, 4, grad=grad), random(4, grad=grad)
    x, y = random(2, 6, 8, grad=grad), random(2, 8, 4, grad=grad)
    w1, w3 = random(4, 8, grad=grad), random(4, 8, grad=grad)
    return {
        "mm": (a, b),
        "bmm": (x, y),
        "addmm": (bias, a, b, -0.5, 2.0),
        "baddbmm": (bias, x, y, -0.5, 2.0),
        "linear_act": (a, w1, bias, "gelu"),
        "linear_act_keep": (a, w1, bias, "silu"),
        "gated_linear": (a, w1, w3, "silu"),
        "grouped_mm": grouped_case("rows", grad),
        "mm_out": (a.detach(), b.detach(), torch.empty(6, 4)),
        "bmm_out": (x.detach(), y.detach(), torch.empty(2, 6, 4)),
        "addmm_out": (bias.detach(), a.detach(), b.detach(), torch.empty(6, 4)),
        "baddbmm_out": (bias.detach(), x.detach(), y.detach(), torch.empty(2, 6, 4)),
        "scaled_mm": scaled_case(),
        "mixed_mm": mixed_case(),
    }


@pytest.mark.parametrize("name", op_calls(False))
def test_custom_ops_are_registered_well(name):
    tests = ["test_autograd_registration", "test_faketensor"]
    if name != "scaled_mm":  # it compares inputs by arithmetic that fp8 has not
        tests.append("test_schema")
    torch.library.opcheck(getattr(OPS, name).default, op_calls(True)[name], test_utils=tests)


# `test_compiled` shows it of the operators that it calls; those of fp8 and i8 have no gradients.
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("grouped_mm", "addmm_out") else pytest.param(name, marks=pytest.mark.slow)
        for name in op_calls(False)
        if name not in ("scaled_mm", "mixed_mm")
    ],
)
def test_custom_ops_are_traced_well(name):
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "grouped_mm" else {}
    torch.library.opcheck(
        getattr(OPS, name).default,
        op_calls(True)[name],
        test_utils=["test_aot_dispatch_dynamic"],
        **tolerance,
    )


def everything(bias, a, b, w1, w3, x, y, out):
    first = addmm(bias, a, b, alpha=2.0)
    second = linear_act(mm(a, b), w1.t()[:, :4], None, "gelu")
    third = gated_linear(a, w1, w3) + mm(a, b, config=CONFIG)
    mm(a.detach(), b.detach(), out=out)
    return first.sum() + second.sum() + third.sum() + baddbmm(bias, x, y).sum() + out.sum()


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager"])
def test_compiled(backend, dynamic):
    compiled = torch.compile(everything, backend=backend, fullgraph=True, dynamic=dynamic)
    for m in (6, 9) if dynamic else (6,):
        w1, w3, bias = random(4, 8, grad=True), random(4, 8, grad=True), random(4, grad=True)
        a, b = random(m, 8, grad=True), random(8, 4, grad=True)
        x, y = random(2, m, 8), random(2, 8, 4)
        leaves = (bias, a, b, w1, w3)
        outs = torch.empty(m, 4), torch.empty(m, 4)
        expected = everything(*leaves, x, y, outs[0])
        found = compiled(*leaves, x, y, outs[1])
        check(found, expected)
        check(outs[1], outs[0])
        for one, other in zip(
            torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True
        ):
            check(one, other)


def test_compiled_scaled_and_grouped():
    def both(a, b, scale_a, scale_b, x, y, ends):
        return scaled_mm(a, b, scale_a, scale_b), grouped_mm(x, y, ends)

    tensors = (*scaled_case(), *grouped_case("rows", False))
    found = torch.compile(both, backend="aot_eager", fullgraph=True)(*tensors)
    for one, other in zip(found, both(*tensors), strict=True):
        check(one, other)
    a, b, scale = mixed_case()
    compiled = torch.compile(mixed_mm, backend="aot_eager", fullgraph=True)
    check(compiled(a, b, scale), mixed_mm(a, b, scale))


def test_what_intercepts_calls_sees_them():
    a, b = random(4, 4), random(4, 4)
    assert direct(a, b, None)
    assert direct(torch.nn.Parameter(a, requires_grad=False), b)
    assert not direct(a.clone().requires_grad_(), b)
    assert not direct(torch._neg_view(a), b)
    check(mm(torch._neg_view(a), b), -a @ b)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = mode.from_tensor(a)
        assert not direct(fake, fake)
        assert mm(fake, fake).shape == (4, 4)
    with torch.inference_mode():
        assert direct(random(4, 4), b)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        mm(a, b)
    assert "gemm_templates.mm.default" in seen


@pytest.mark.parametrize(
    "call",
    [
        lambda: mm(torch.ones(2, 3), torch.ones(2, 3)),
        lambda: mm(torch.ones(2, 3), torch.ones(3, 2).half()),
        lambda: mm(torch.ones(2, 3).int(), torch.ones(3, 2).int()),
        lambda: mm(torch.ones(2, 3), torch.ones(3, 2, device="meta")),
        lambda: mm(torch.ones(2, 3), torch.ones(3, 2), out=torch.empty(2, 3)),
        lambda: mm(torch.ones(2, 3), torch.ones(3, 2), out=torch.empty(2, 2).half()),
        lambda: mm(torch.ones(2, 3), torch.ones(3, 2), out_dtype=torch.bfloat16),
        lambda: mm(torch.ones(2, 2).requires_grad_(), torch.ones(2, 2), out=torch.empty(2, 2)),
        lambda: addmm(torch.ones(5), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: addmm(torch.ones(1, 1, 2), torch.ones(2, 3), torch.ones(3, 2)),
        lambda: bmm(torch.ones(2, 2, 3), torch.ones(1, 3, 2)),
        lambda: bmm(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: linear_act(torch.ones(2, 3), torch.ones(2, 4)),
        lambda: linear_act(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3)),
        lambda: linear_act(torch.ones(2, 3), torch.ones(2, 3), act="tanh"),
        lambda: gated_linear(torch.ones(2, 3), torch.ones(2, 3), torch.ones(3, 3)),
        lambda: grouped_mm(torch.ones(2, 3), torch.ones(1, 3, 2)),
        lambda: OPS.mm(torch.ones(2, 3), torch.ones(2, 3)),
    ],
)
def test_bad_arguments_are_named(call):
    with pytest.raises(InvalidArguments):
        call()


def test_configs_as_text():
    config = Config(16, 32, 64, 4, 8, 5, "split_k", 132, 2, 8)
    assert parse_config(config_text(config)) == config
    assert parse_config("") is None and config_text(None) == ""


def test_the_package_names_its_functions():
    assert all(hasattr(gemm_templates, name) for name in ("mm", "choose_range", "RangeChoice"))
    with pytest.raises(AttributeError):
        gemm_templates.nothing  # noqa: B018
