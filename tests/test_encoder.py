"""The main job, end to end: the example encoder through every stage, against float64."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import compile_cli
import triton_rt
from compile_cli.cli.measure import relative_error
from compile_cli.record import Record
from loop_ir import Extern, Kernel, Matmul
from planner.kernels import expected_variants, kernel_source
from symexpr import to_python
from wrapper_ir import DefineKernel, ExternCall, If, Launch, Program, interpret
from wrapper_ir.analysis import walk

Encoders = Callable[..., Any]


@pytest.fixture(scope="module")
def compile_encoder(
    encoder: Any, example: Any, libraries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Encoders:
    """`compile_encoder(dynamic=False, emit="fx", model=encoder, **options)`, compiled once each.
    A dynamic batch has 15 tokens a text, so that no block size divides the count of rows."""
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "cpp").symlink_to(libraries)

    @functools.cache
    def made(dynamic: bool, model: Any, **more: Any) -> Any:
        return compile_cli.compile(
            model,
            example.tokenize(example.TEXTS, 15) if dynamic else tuple(example.get_inputs()),
            dynamic={"ids": {0}, "mask": {0}} if dynamic else None,
            options={"cache_dir": str(folder), **more},
            record=Record(keep=True),
        )

    return lambda dynamic=False, emit="fx", model=encoder, **more: made(
        dynamic, model, emit=emit, **more
    )


@pytest.fixture(scope="module")
def shallow(example: Any) -> Any:
    """An encoder of one layer."""
    torch.manual_seed(0)
    return example.Encoder(layers=1).eval()


def launches(program: Program) -> list[Launch]:
    return [op for op in walk(program.ops) if isinstance(op, Launch)]


@pytest.mark.parametrize(
    "emit", ["fx", *(pytest.param(emit, marks=pytest.mark.slow) for emit in ("hop", "cpp"))]
)
def test_as_good_as_eager_against_float64(
    encoder: Any, example: Any, compile_encoder: Encoders, emit: str
) -> None:
    args = tuple(example.get_inputs())
    exact = copy.deepcopy(encoder).double()(*args)
    compiled = compile_encoder(emit=emit)
    ours = relative_error(compiled(*args), exact)
    eager = relative_error(encoder(*args), exact)
    assert ours < 1e-6
    assert ours < 2 * eager


def test_what_is_fused(compile_encoder: Encoders) -> None:
    compiled = compile_encoder()
    graph = compiled.graph.fused
    kernels = [n for n in graph.nodes if isinstance(n, Kernel)]
    ops = [[o.op for o in k.origins] for k in kernels]
    embed, *rest = ops
    assert set(embed) == {
        "aten.arange.default", "aten.embedding.default", "aten.add.Tensor",
        "aten.native_layer_norm.default",
    }  # fmt: skip
    norm = ["aten.add.Tensor", "aten.native_layer_norm.default"]
    assert rest == [norm, ["aten.gelu.default"], norm] * 2
    externs = [n for n in graph.nodes if isinstance(n, Extern)]
    assert [n.target for n in externs] == ["aten.scaled_dot_product_attention.default"] * 2
    assert not any(n.fallback for n in externs)
    assert len([n for n in graph.nodes if isinstance(n, Matmul)]) == 12
    fusion = compiled.graph.fusion
    assert fusion.bytes_after < fusion.bytes_before


def test_host_program_means_what_it_says(example: Any, compile_encoder: Encoders) -> None:
    """The reference interpreter of the host program gives the emitted module's very numbers."""
    from fx_emit import TorchRuntime

    compiled = compile_encoder()
    args = tuple(example.get_inputs())
    inputs = [*compiled.captured.lifted.values(), *args]
    runtime = TorchRuntime(lambda define: triton_rt.LazyKernel(kernel_source(define)))
    with torch.no_grad():
        (reference,) = interpret(compiled.graph.program, inputs, runtime)
    torch.testing.assert_close(compiled(*args), reference, rtol=0, atol=0)


@pytest.mark.parametrize(
    "emit", [*(pytest.param(emit, marks=pytest.mark.slow) for emit in ("fx", "hop")), "cpp"]
)
def test_one_compilation_serves_every_batch(
    encoder: Any, shallow: Any, example: Any, compile_encoder: Encoders, emit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    model = encoder if emit == "hop" else shallow
    compiled = compile_encoder(emit=emit, dynamic=True, model=model)

    def again(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("compile_cli.api.compile_graph", again)
    texts = ("one", "a second text", "and a third one", "4", "five", "the sixth", "seven")
    for batch in (1, 3):
        args = example.tokenize(texts[:batch], 15)
        expected = model(*args).detach()
        assert relative_error(compiled(*args), expected) < 1e-6


def test_grids_are_integer_divisions(shallow: Any, example: Any, compile_encoder: Encoders) -> None:
    compiled = compile_encoder(dynamic=True, model=shallow)
    program = compiled.graph.program
    symbol = program.symbols[0].name
    grids = {to_python(g) for launch in launches(program) for g in launch.grid}
    dynamic = {g for g in grids if symbol in g}
    assert any("//" in g for g in dynamic)
    assert all(re.fullmatch(r"[\w\s()+*/-]+", g) and "floor" not in g for g in dynamic)
    args = example.tokenize(example.TEXTS, 15)
    assert relative_error(compiled(*args), shallow(*args).detach()) < 1e-6


def test_several_kernels_for_one_job(shallow: Any, example: Any, compile_encoder: Encoders) -> None:
    """A dynamic batch gets kernels for the sizes it may have; integers decide, all are right."""
    compiled = compile_encoder(dynamic=True, model=shallow)
    branches = [op for op in walk(compiled.graph.program.ops) if isinstance(op, If)]
    assert branches
    (symbol,) = (s.name for s in compiled.graph.program.symbols)
    assert {str(s) for op in branches for s in op.condition.free_symbols} == {symbol}
    near = rf"\b{symbol} <= (\d+)"
    thresholds = {int(n) for op in branches for n in re.findall(near, str(op.condition))}
    assert len(thresholds) >= 2
    for threshold in sorted(thresholds)[:1]:
        for batch in (threshold, threshold + 1):
            args = example.tokenize(tuple(f"text {i}" for i in range(batch)), 15)
            assert relative_error(compiled(*args), shallow(*args).detach()) < 1e-6


def test_templates_take_the_epilogue(shallow: Any, example: Any, compile_encoder: Encoders) -> None:
    """Every matmul as our template, the MLP's with bias and GELU inside, interpreted."""
    compiled = compile_encoder(gemm="template", model=shallow)
    program = compiled.graph.program
    externs = [op.target for op in program.ops if isinstance(op, ExternCall)]
    assert externs == ["aten.scaled_dot_product_attention.default"]
    fused = [n for n in compiled.graph.fused.nodes if isinstance(n, Matmul) and n.epilogue]
    assert len(fused) == 1
    args = tuple(example.get_inputs())
    assert relative_error(compiled(*args), shallow(*args).detach()) < 1e-6


def test_kernels_compile_for_a_gpu_that_is_not_there(
    compile_encoder: Encoders, tmp_path: Path
) -> None:
    """Every kernel of the encoder to an sm_90 cubin; the second time from the disk."""
    program = compile_encoder().graph.program
    target = triton_rt.Target(90)
    cache = triton_rt.Cache(tmp_path)
    variants = expected_variants(program)
    for define, alignment in variants:
        binary = triton_rt.compile(kernel_source(define), target, alignment=alignment, cache=cache)
        assert binary.cubin[:4] == b"\x7fELF"
    again = triton_rt.Cache(tmp_path)
    for define, alignment in variants:
        triton_rt.compile(kernel_source(define), target, alignment=alignment, cache=again)
    assert (again.hits, again.misses) == (len(variants), 0)


def test_layers_share_their_kernels(compile_encoder: Encoders) -> None:
    program = compile_encoder().graph.program
    defined = [op for op in program.ops if isinstance(op, DefineKernel)]
    assert len(defined) < len(launches(program))


def test_memory_is_planned(compile_encoder: Encoders) -> None:
    from wrapper_ir.memory import peak_bytes

    planned = compile_encoder().graph.program
    plain = compile_encoder(plan_memory=False).graph.program
    assert peak_bytes(planned) <= peak_bytes(plain)
