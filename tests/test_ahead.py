"""`compile-cli compile`: a library for a GPU that is not here, its weights, and a header."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import safetensors.torch
import torch
from ahead_models import MODELS, Scatter
from typer.testing import CliRunner

import cpp_emit
from compile_cli.cli.app import app
from compile_cli.errors import NoLibrary, UsageError
from cpp_emit.build import find_compiler, find_torch
from wrapper_ir import parse_program

FILE = Path(__file__).parent / "ahead_models.py"
CASES = [pytest.param(m, marks=() if m is Scatter else pytest.mark.slow) for m in MODELS]


def compiled(name: str, inputs: list[str], output: Path, *more: str) -> str:
    given = [word for spec in inputs for word in ("--input", spec)]
    arguments = ["compile", f"{FILE}:{name}", *given, "-o", str(output), "--debug", *more]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    return result.output


@pytest.mark.parametrize("model", CASES)
def test_models(model, tmp_path, own_cache):
    library = tmp_path / "m.so"
    more = ("--cache-dir", str(own_cache))
    assert "kernels for cuda:90" in compiled(model.__name__, MODELS[model], library, *more)
    program = parse_program(library.with_suffix(".txt").read_text())
    weights = safetensors.torch.load_file(library.with_suffix(".safetensors"))
    assert list(weights) == sorted(p.name for p in program.params if p.name in weights)
    torch.manual_seed(0)
    for tensor in model().state_dict().values():
        assert any(torch.equal(tensor, weight) for weight in weights.values())
    run = cpp_emit.load(library, program)  # no callback: it asks Python for nothing
    tensors = [torch.zeros(1) for p in program.params if p.type is not None]
    ints = [3 for p in program.params if p.type is None]
    with pytest.raises(RuntimeError, match="on cuda:0, got"):
        run(*(ints.pop() if p.type is None else tensors.pop() for p in program.params))
    if model is Scatter:
        source = tmp_path / "main.c"
        source.write_text('#include "m.h"\nint main() { return cpp_emit_drop(0) != 1; }\n')
        command = [find_compiler(), "-x", "c++", "-fsyntax-only", "-isystem", find_torch().include]
        subprocess.run([*command, source], check=True)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        (("--target", "cpu"), NoLibrary, "for cpu runs without Python"),
        (("--emit", "fx"), UsageError, "--emit fx makes no library"),
    ],
)
def test_what_is_refused(tmp_path, more, error, message):
    with pytest.raises(error, match=message):
        compiled("MLP", ["f32[3,16]"], tmp_path / "m.so", *more)
