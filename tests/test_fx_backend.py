"""Backends of others, which get host programs as FX graphs: reached from `torch.compile`."""

from __future__ import annotations

import copy
import importlib.util
from pathlib import Path

import pytest
import torch

from compile_cli.errors import UnknownOption
from fx_emit import FxBackend
from fx_emit.hop import LAUNCH

EXAMPLE = Path(__file__).parents[1] / "examples" / "fx_backend.py"


@pytest.fixture(params=["hop", "direct"])
def kind(request):
    class Kept(FxBackend):
        launch = request.param
        graphs = []  # noqa: RUF012  # of one test

        def compile_graph(self, gm):
            self.graphs.append(gm)
            return torch.fx.Interpreter(gm).run

    return Kept


def model(x, w):
    y = (x @ w).relu()
    return y.sum(1), (y.t() * 2).softmax(0)


def placeholders(gm):
    return [n.meta["val"] for n in gm.graph.find_nodes(op="placeholder")]


@pytest.mark.spread(2)
@pytest.mark.parametrize("dynamic", [False, True])
def test_from_torch_compile(fresh_dynamo, kind, dynamic):
    by_option = torch.compile(
        model, backend="compile_cli", dynamic=dynamic, options={"fx_backend": kind}
    )
    by_class = torch.compile(model, backend=kind.as_torch_backend(fuse=False), dynamic=dynamic)
    for rows in (4, 6) if dynamic else (4,):
        x, w = torch.randn(rows, 8), torch.randn(8, 8)
        for run in (by_option, by_class):
            torch.testing.assert_close(run(x, w), model(x, w))
    for gm in kind.graphs:
        sizes = {str(n) for t in placeholders(gm) if isinstance(t, torch.Tensor) for n in t.shape}
        assert any(n.startswith("s") for n in sizes) == dynamic
    fused, apart = (len(gm.meta["kernels"]) for gm in kind.graphs)
    assert fused < apart, "options reach the compiler"


def test_training(fresh_dynamo, kind):
    run = torch.compile(model, backend=kind.as_torch_backend())
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    got, want = (
        torch.autograd.grad(sum(y.square().sum() for y in f(x, w)), (x, w)) for f in (run, model)
    )
    torch.testing.assert_close(got, want)
    assert len(kind.graphs) == 2


def test_a_graph_is_like_others(fresh_dynamo, kind):
    """It is copied, run node by node, printed, and rid of dead code, which no launch is."""
    x, w = torch.randn(4, 8), torch.randn(8, 8)
    want = torch.compile(model, backend=kind.as_torch_backend())(x, w)
    (gm,) = kind.graphs
    for graph in (gm, copy.deepcopy(gm)):
        given = [x if t.shape == x.shape else w for t in placeholders(graph)]
        before = len(graph.graph.nodes)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        launches = [n for n in graph.graph.nodes if n.target is LAUNCH or "kernel" in n.name]
        assert before - len(graph.graph.nodes) < before // 2
        assert launches or kind.launch == "direct"
        torch.testing.assert_close(tuple(graph(*given)), tuple(want))
        assert "def forward(self, arg0_1: " in graph.print_readable(print_output=False)


def test_constants_are_there_as_a_backend_compiles(fresh_dynamo, tmp_path):
    """What it copies, uploads and writes to a folder are numbers, no fakes."""
    table = torch.arange(6.0)
    uploaded = []

    class Uploads(FxBackend):
        def compile_graph(self, gm):
            uploaded.extend((b + 1).tolist() for b in gm.buffers() if b.shape == table.shape)
            gm.to_folder(tmp_path / "program", "Program")
            return torch.fx.Interpreter(copy.deepcopy(gm)).run

    def shifted(x):
        return torch.sin(x) + torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])

    x = torch.randn(6)
    run = torch.compile(shifted, backend=Uploads.as_torch_backend())
    torch.testing.assert_close(run(x), x.sin() + table)
    assert uploaded == [(table + 1).tolist()]
    assert (tmp_path / "program" / "module.py").exists()


def test_kernels_of_ones_own(fresh_dynamo):
    loaded = []

    class Loading(FxBackend):
        launch = "direct"

        def load_kernel(self, kernel):
            loaded.append(kernel.name)
            return lambda grid, *args: [a.zero_() for a in args[1:2]]

    run = torch.compile(lambda x: x.sin() + 1, backend=Loading.as_torch_backend())
    torch.testing.assert_close(run(torch.ones(5)), torch.zeros(5))
    assert len(loaded) == 1


def test_what_is_no_backend_is_refused(fresh_dynamo):
    for other in (int, "hop", type("Odd", (FxBackend,), {"launch": "stream"})):
        run = torch.compile(torch.sin, backend="compile_cli", options={"fx_backend": other})
        with pytest.raises(Exception, match="option fx_backend") as caught:
            run(torch.ones(2))
        assert UnknownOption.__name__ in repr(caught.value) or caught.type is UnknownOption


def test_the_example(fresh_dynamo, capsys):
    spec = importlib.util.spec_from_file_location("fx_backend", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    forward, backward = capsys.readouterr().out.splitlines()
    assert "aten.addmm.default': 4" in forward and "launch': 2" in forward
    assert "aten.mm.default': 6" in backward
