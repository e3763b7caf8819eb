"""Libraries that are compiled ahead of time, run on a GPU without Python's help, against eager."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from ahead_models import MODELS

import cpp_emit
from compile_cli.ahead import compile_ahead
from compile_cli.cli.loading import load_target
from compile_cli.cli.run import export_target
from compile_cli.options import Options
from wrapper_ir import parse_program

FILE = Path(__file__).parents[1] / "ahead_models.py"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.usefixtures("fresh_dynamo"),
]


@pytest.mark.parametrize("model", MODELS)
def test_models(model: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    target = load_target(f"{FILE}:{model.__name__}", MODELS[model], torch.device("cpu"))
    library = tmp_path / "m.so"
    major, minor = torch.cuda.get_device_capability()
    name = f"cuda:{10 * major + minor}"
    compile_ahead(export_target(target, []), library, name, Options.from_mapping(options))
    program = parse_program(library.with_suffix(".txt").read_text())
    weights = safetensors.torch.load_file(library.with_suffix(".safetensors"), device="cuda")
    run = cpp_emit.load(library, program)
    eager: Any = target.model.cuda()
    for rows in (3, 5) if target.dynamic else (None,):
        given = [x.cuda() if rows is None else x[:1].repeat(rows, 1).cuda() for x in target.args]
        sizes, tensors = [rows], [*given]
        args = [
            weights[p.name] if p.name in weights
            else sizes.pop(0) if p.type is None else tensors.pop(0)
            for p in program.params
        ]  # fmt: skip
        got = run(*args)
        with torch.no_grad():
            want = eager(*given)
        want = want if isinstance(want, tuple) else (want,)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
