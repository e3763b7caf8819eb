"""Templates with tensor maps from the host: the same bits as with maps made in the kernel, at any
address, and in compiled models of every emitter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gemm_templates import Config, Inputs, Problem, bind, device_info
from gemm_templates.epilogues import GELU, SILU
from gemm_templates.launch import Bound
from gemm_templates.model import is_legal
from gemm_templates.registry import FAMILIES
from planner.matmul.decide import VENDOR, MatmulPlanner
from triton_rt import CompilePool, errors
from wrapper_ir import Describe
from wrapper_ir.analysis import walk

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
]
ALIGNED = frozenset({"a", "b", "b2", "bias", "out"})
DESCRIBED = ("tma", "gluon", "gluon_scaled", "gated", "gated_gluon", "batched_tma", "gluon_batched")
BF16 = torch.bfloat16


def first(problem: Problem, template: str) -> Config:
    """The first legal config of a template."""
    info = device_info("cuda")
    return next(c for c in FAMILIES[template].configs(problem, info) if is_legal(problem, c, info))


def both(problem: Problem, config: Config, pool: CompilePool) -> tuple[Bound, Bound]:
    """With maps of the host's, and with the kernel's own."""
    runs = bind(problem, config, pool=pool), bind(problem, replace(config, maps=False), pool=pool)
    assert runs[0].plan.steps[0].maps and not runs[1].plan.steps[0].maps
    return runs


def random(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


M, N, K = 1000, 776, 328
PLAIN = Problem(M, N, K, aligned=ALIGNED)
PROBLEMS = {
    "rows": PLAIN,
    "columns": replace(PLAIN, a_stride=(1, M), b_stride=(1, K)),
    "fused": replace(PLAIN, b_stride=(1, K), bias="bf16", epilogue=GELU),
    "stored from registers": replace(PLAIN, n=N - 1, b_stride=(1, K)),
    "wide result": replace(PLAIN, out_dtype="f32"),
    "gated": replace(PLAIN, gate=SILU),
    "gated columns": replace(PLAIN, b_stride=(1, K), gate=SILU),
    "batch": replace(PLAIN, batch=3),
    "batch columns": replace(PLAIN, batch=3, a_stride=(1, M), b_stride=(1, K)),
    "one weight": replace(PLAIN, batch=3, batch_strides=(M * K, 0, M * N)),
    "fp8": replace(
        PLAIN, k=336, a_dtype="f8e4m3", b_dtype="f8e4m3", b_stride=(1, 336), fast_accum=True
    ),
    "fp8 exact": replace(PLAIN, k=336, a_dtype="f8e4m3", b_dtype="f8e4m3", b_stride=(1, 336)),
}


def configs_of(problem: Problem) -> list[Config]:
    """Two of each template that can."""
    info = device_info("cuda")
    found: list[Config] = []
    for template in DESCRIBED:
        offered = FAMILIES[template].configs(problem, info)
        found += [config for config in offered if is_legal(problem, config, info)][:2]
    return found


def inputs_of(problem: Problem) -> Inputs:
    """With a guard of 64 elements behind the result."""
    torch.manual_seed(0)
    p, batch = problem, problem.batch
    dtype = torch.float8_e4m3fn if p.a_dtype == "f8e4m3" else BF16
    lead = (batch,) if batch > 1 else ()
    a = random(*lead, p.m, p.k, dtype=dtype)
    if p.a_stride == (1, p.m):
        a = random(*lead, p.k, p.m, dtype=dtype).mT
    alone = p.batch_strides is not None and p.batch_strides[1] == 0

    def right() -> torch.Tensor:
        shape = () if alone else lead
        if p.b_stride == (1, p.k):
            found = random(*shape, p.n, p.k, dtype=dtype).mT
        else:
            found = random(*shape, p.k, p.n, dtype=dtype)
        return found.expand(batch, p.k, p.n) if alone else found

    b, b2 = right(), right() if p.gate else None
    out_type = torch.float32 if p.out_dtype == "f32" else BF16
    whole = torch.full((batch * p.m * p.n + 64,), -7.0, device="cuda", dtype=out_type)
    out = whole[:-64].view(*lead, p.m, p.n)
    return Inputs(a, b, out, random(p.n) if p.bias else None, b2=b2)


def expected_of(problem: Problem, x: Inputs) -> torch.Tensor:
    found = x.a.double() @ x.b.double()
    if x.bias is not None:
        found = found + x.bias.double()
    if problem.gate:
        assert x.b2 is not None
        found = F.silu(found) * (x.a.double() @ x.b2.double())
    return F.gelu(found) if problem.epilogue else found


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_same_bits(name: str, pool: CompilePool) -> None:
    problem = PROBLEMS[name]
    configs = configs_of(problem)
    assert any("gluon" in c.template for c in configs)
    runs = [both(problem, config, pool) for config in configs]
    x = inputs_of(problem)
    assert x.out is not None
    expected = expected_of(problem, x)
    scale = float(expected.abs().max())
    results = []
    for config, pair in zip(configs, runs, strict=True):
        for run in pair:
            x.out.fill_(float("nan"))
            run(x)
            results.append(x.out.clone())
            torch.testing.assert_close(x.out.double(), expected, rtol=2e-2, atol=4e-3 * scale)
        assert torch.equal(results[-1], results[-2]), config
    guard = torch.as_strided(x.out, (64,), (1,), x.out.numel())
    assert bool((guard == -7).all())


@pytest.mark.parametrize("template", ["gluon", "tma"])
def test_any_address_and_any_rows(template: str, pool: CompilePool) -> None:
    """More addresses than are remembered, and one address with other rows each time."""
    n, k = 256, 128
    problem = Problem(200, n, k, dynamic=frozenset({"M"}), aligned=ALIGNED)
    run = bind(problem, first(problem, template), pool=pool)
    b = random(k, n)
    store, kept = random(700 * 16 + 300, k), torch.zeros(300, n, device="cuda", dtype=BF16)
    for start in range(700):
        m = 1 + start * 37 % 300
        a, out = store[16 * start : 16 * start + m], kept[:m]
        kept.fill_(-7)
        run(Inputs(a, b, out), m)
        if start % 9 == 0:
            torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=0.3)
            assert bool((kept[m:] == -7).all())


def test_an_address_with_elements_of_another_type(pool: CompilePool) -> None:
    """The map of the tensor that was there before does not pass for this one's."""
    n, k = 128, 128
    run = bind(Problem(64, n, k, aligned=ALIGNED), Config(128, 128, 64, 8, 8, 6, "gluon", 132, 2))
    a, b, out = random(64, k), random(k, n), torch.empty(64, n, device="cuda", dtype=BF16)
    run(Inputs(a, b, out))
    with pytest.raises(errors.WrongDType):
        run(Inputs(a.view(torch.float16), b, out))
    run(Inputs(a, b, out))
    torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=0.3)


def test_graphs_and_threads(pool: CompilePool) -> None:
    problem = replace(PLAIN, epilogue=GELU)
    run = bind(problem, first(problem, "gluon"), pool=pool)
    x = inputs_of(problem)
    assert x.out is not None
    run(x)
    expected = x.out.clone()
    graph = torch.cuda.CUDAGraph()
    x.out.zero_()
    with torch.cuda.graph(graph):
        run(x)
    assert not x.out.any()
    graph.replay()
    assert torch.equal(x.out, expected)
    x.out.zero_()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            bind(problem, first(problem, "gluon"))(x)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and torch.equal(x.out, expected)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 776)
        self.down = nn.Parameter(torch.randn(776, 256) / 28)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.up(x)) @ self.down


@pytest.mark.usefixtures("few_rungs")
@pytest.mark.parametrize("template", ["gluon", "tma"])
@pytest.mark.parametrize("emit", ["fx", "cpp", "hop"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiled_models(
    template: str,
    emit: str,
    dynamic: bool,
    compiled_as: Callable[[str], Any],
    fresh_dynamo: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if emit == "hop" and template == "gluon":
        pytest.skip("torch's operator describes tensors for @triton.jit kernels only")

    def times(self: Any, node: Any, rung: Any, task: Any, many: bool) -> Any:
        if task is None:
            return {VENDOR: (1.0, None)}
        config = first(task.problem, template)
        return {str(config): (1.0, config)}

    monkeypatch.setattr(MatmulPlanner, "_times", times)
    torch.manual_seed(0)
    layer = Layer().to("cuda", BF16)
    compiled = compiled_as(emit)
    run = compiled(layer, dynamic=None if dynamic else False)
    rows = (1000, 129, 2048, 2) if dynamic else (1000,)
    for m in rows:
        x = random(m, 512)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        for _ in range(2):
            want = layer(x)
            torch.testing.assert_close(run(x), want, rtol=3e-2, atol=3e-2)
    if not dynamic:  # where no map can begin
        x = random(m * 512 + 1)[1:].view(m, 512)
        torch.testing.assert_close(run(x), layer(x), rtol=3e-2, atol=3e-2)
    assert len(compiled.graphs) == 1
    program = compiled.graphs[-1].program
    assert sum(isinstance(op, Describe) for op in walk(program.ops)) >= 5
