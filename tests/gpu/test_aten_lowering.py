"""Layouts that fake tensors promise for CUDA are those that the GPU gives."""

from __future__ import annotations

import importlib.util
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.export import export

from aten_lowering import decompositions, lower_with_report

EXAMPLE = Path(__file__).parents[2] / "examples" / "encoder.py"


class StrideChecker(fx.Interpreter):
    """Runs a graph eagerly and compares each result's strides with its fake tensor's."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        fake = n.meta.get("val")
        if n.op == "call_function" and n.target is not operator.getitem:
            pairs = zip(*(v if isinstance(v, list | tuple) else [v] for v in (result, fake)),
                        strict=True)  # fmt: skip
            for real, expected in pairs:
                if isinstance(real, torch.Tensor) and real.numel():
                    want = [int(s) for s in expected.stride()]
                    sizes = zip(real.shape, real.stride(), want, strict=True)
                    assert all(k == 1 or a == b for k, a, b in sizes), (n.name, real.stride(), want)
        return result


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_encoder(dtype: torch.dtype) -> None:
    spec = importlib.util.spec_from_file_location("encoder_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Encoder(hidden=128).eval().to("cuda", dtype)
    inputs = [x.cuda() for x in module.get_inputs()]
    program = export(model, tuple(inputs)).run_decompositions(decompositions())
    assert lower_with_report(program.graph_module).fallbacks == ()
    parameters = dict(model.named_parameters())
    arguments = [parameters[s.target] for s in program.graph_signature.input_specs if s.target]
    with torch.no_grad():
        (got,) = StrideChecker(program.graph_module).run(*arguments, *inputs)
        torch.testing.assert_close(got, model(*inputs))


def test_the_checker_itself() -> None:
    """On the CPU, it accepts what eager gives."""

    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.t() + 1).contiguous() * 2

    x = torch.randn(3, 4)
    program = export(Twice(), (x,))
    program = program.run_decompositions(decompositions())
    (got,) = StrideChecker(program.graph_module).run(x)
    torch.testing.assert_close(got, Twice()(x))
