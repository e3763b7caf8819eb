"""Programs on the CPU whose kernels are C++ loops, against eager."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import compile_cli
import cpp_loops
import planner.loops
from compile_cli.errors import UnknownOption
from compile_cli.options import Options
from loop_ir import Kernel
from planner import Kernels
from planner.errors import NotOnCPU, NotTriton
from planner.kernels import kernel_source
from wrapper_ir import Launch, parse_program, print_program
from wrapper_ir.analysis import kernels, walk

LOOPS = {"cpu_kernels": "cpp"}


def languages(compiled: Any) -> set[str]:
    return {define.language for define in kernels(compiled.graph.program).values()}


@pytest.mark.parametrize("emit", ["fx", pytest.param("cpp", marks=pytest.mark.slow)])
def test_the_encoder(emit: str, example: ModuleType) -> None:
    """In both host programs, of any batch in one; its text is read again."""
    torch.manual_seed(0)
    model, (ids, mask) = example.Encoder(layers=1).eval(), example.get_inputs()
    options, dynamic = {**LOOPS, "emit": emit}, {0: {0}, 1: {0}} if emit == "fx" else {}
    compiled = compile_cli.compile(model, (ids, mask), dynamic=dynamic, options=options)
    assert languages(compiled) == {"cpp"}
    program = compiled.graph.program
    assert parse_program(print_program(program)) == program
    with torch.no_grad():
        for batch in (1, 2, 5) if dynamic else (2,):
            rows = torch.arange(batch) % 2
            got, want = compiled(ids[rows], mask[rows]), model(ids[rows], mask[rows])
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_training() -> None:
    """Gradients: reductions of rows and of columns, a gather, scattered rows, random numbers."""
    torch.manual_seed(0)
    table = torch.nn.Embedding(50, 24)
    norm = torch.nn.LayerNorm(24)
    ids = torch.randint(0, 50, (6, 9))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        x = norm(table(ids)).softmax(-1)
        kept = torch.nn.functional.dropout(torch.ones_like(x), 0.5)
        return (x.square().sum(1).amax(-1) + 0 * kept.sum()).mean()

    want = torch.autograd.grad(loss(ids), [*table.parameters(), *norm.parameters()])
    step = torch.compile(loss, backend="compile_cli", options=LOOPS)
    got = torch.autograd.grad(step(ids), [*table.parameters(), *norm.parameters()])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_without_a_compiler_kernels_are_interpreted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So they are for programs that others launch, where that is asked for, and where a compiler
    fails."""

    def compiled_as(**options: Any) -> set[str]:
        x = torch.ones(3)
        compiled = compile_cli.compile(Twice(), (x,), options=options)
        assert torch.equal(compiled(x), 2 * x)
        fallbacks.append([f.op for f in compiled.graph.fallbacks])
        return languages(compiled)

    fallbacks: list[list[str]] = []

    monkeypatch.setenv("COMPILE_CLI_CPU_KERNELS", "auto")
    assert compiled_as() == {"cpp"}
    assert compiled_as(cpu_kernels="interpreter") == compiled_as(emit="hop") == {"triton"}
    planner.loops.has_compiler.cache_clear()
    monkeypatch.setenv("PATH", "")
    with pytest.warns(UserWarning, match="kernels on the CPU are interpreted"):
        assert compiled_as() == {"triton"}
    planner.loops.has_compiler.cache_clear()
    (tmp_path / "g++").symlink_to("/bin/false")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.warns(UserWarning, match="interpreted: the C.* refused"):
        assert compiled_as(cache_dir=str(tmp_path)) == {"triton"}
    assert fallbacks == [[], [], [], [], ["kernels on the CPU"]]
    planner.loops.has_compiler.cache_clear()
    monkeypatch.setenv("COMPILE_CLI_CPU_KERNELS", "cpp")
    assert Options.from_mapping({"emit": "hop"}).cpu_kernels == "interpreter"
    with pytest.raises(UnknownOption, match="exclude each other"):
        Options(emit="hop", cpu_kernels="cpp")


class Twice(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_what_cannot_be_said_in_it_is_interpreted_and_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(kernel: Kernel) -> None:
        raise cpp_loops.UnsupportedKernel(kernel.name, "an index may be beyond 64 bits")

    monkeypatch.setattr(cpp_loops, "emit", refuse)
    compiled = compile_cli.compile(Twice(), (torch.ones(3),), options=LOOPS)
    assert languages(compiled) == {"triton"}
    (fallback,) = compiled.graph.fallbacks
    assert fallback.op.startswith("kernel mul")
    assert "beyond 64 bits" in fallback.reason


def test_tensors_of_other_devices_are_refused() -> None:
    compiled = compile_cli.compile(Twice(), (torch.ones(3),), options=LOOPS)
    program = compiled.graph.program
    (define,) = kernels(program).values()
    launcher = Kernels(Options(cpu_kernels="cpp")).launcher(define)
    (launch,) = (op for op in walk(program.ops) if isinstance(op, Launch))
    on_meta = [torch.ones(3, device="meta") for _ in launch.args]
    with pytest.raises(NotOnCPU, match="given another"):
        launcher((1, 1, 1), *on_meta)
    with pytest.raises(NotTriton, match="cpu_kernels=interpreter"):
        kernel_source(define)
