"""A call of a compiled model: nestings, what is checked, and that an edited host program runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import compile_cli
from compile_cli.errors import BadInput
from compile_cli.graph_cache import GraphCode
from compile_cli.options import Options
from compile_cli.pipeline import compile_graph
from compile_cli.record import Record


class Nested(nn.Module):
    def forward(self, pair: tuple[Tensor, Tensor], scale: float, named: dict[str, Tensor]) -> Any:
        return {"sum": pair[0] + pair[1] * scale, "rest": [named["z"] - 1, 3]}


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x * y


def compiled(model: nn.Module, args: tuple[Any, ...], folder: Path, **settings: Any) -> Any:
    return compile_cli.compile(model, args, options={"cache_dir": str(folder)}, **settings)


def test_nested_inputs_and_results(own_cache: Path) -> None:
    x, y, z = (torch.randn(3, 4) for _ in range(3))
    run = compiled(Nested(), ((x, y), 2.0, {"z": z}), own_cache)
    for _ in range(2):
        out = run((x, y), 2.0, {"z": z})
        torch.testing.assert_close(out["sum"], x + y * 2.0)
        torch.testing.assert_close(out["rest"][0], z - 1)
        assert out["rest"][1] == 3
    with pytest.raises(BadInput, match="constant"):
        run((x, y), 3.0, {"z": z})
    with pytest.raises(BadInput, match="nested"):
        run([x, y], 2.0, {"z": z})


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_autocast_around_a_call(emit: str, own_cache: Path) -> None:
    """What was compiled outside of it: products gave 16 bits into memory of 32."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)), torch.randn(3, 8)
    run = compiled(model, (x,), own_cache)
    torch._dynamo.reset()
    options = {"cache_dir": str(own_cache), "emit": emit}
    y = torch.compile(model, backend="compile_cli", options=options)(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(x)
        gradients = torch.autograd.grad(y.sum(), tuple(model.parameters()))
    expected = model(x)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        gradients, torch.autograd.grad(expected.sum(), tuple(model.parameters()))
    )


@pytest.mark.parametrize("emit", ["fx", "cpp"])
def test_fake_tensors_are_refused(emit: str, own_cache: Path) -> None:
    """Kernels read what lies at address 0."""
    x = torch.ones(3)
    run = compile_cli.compile(Two(), (x, x), options={"cache_dir": str(own_cache), "emit": emit})
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(x)
        for given in (x, fake):
            with pytest.raises(BadInput, match="fake"):
                run(given, given)
    with pytest.raises(BadInput, match="FakeTensor"):
        run(x, fake)


def test_tensors_alone(own_cache: Path) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    run = compiled(Two(), (x, y), own_cache)
    for _ in range(2):
        total, product = run(x, y)
        assert torch.equal(total, x + y) and torch.equal(product, x * y)
    with torch.no_grad():
        assert torch.equal(run(x, y)[0], x + y)
    for wrong in ((x,), (x, y, x), (x, 1.0), ((x, y),), (x, None)):
        with pytest.raises(BadInput):
            run(*wrong)
    for other in (x.double(), x[:2], x.t().contiguous().t(), x[None]):
        with pytest.raises(BadInput, match="input y"):
            run(x, other)
        with pytest.raises(BadInput, match="input y"):  # a refused layout is not remembered
            run(x, other)
    assert torch.equal(run(x, y)[0], x + y)


def test_sizes_are_checked_at_every_new_one(own_cache: Path) -> None:
    x = torch.randn(4, 8)
    run = compiled(nn.GELU(), (x,), own_cache, dynamic={0: {0}})
    for n in (4, 2, 7, 4, 1):
        given = torch.randn(n, 8)
        torch.testing.assert_close(run(given), nn.functional.gelu(given), rtol=1e-5, atol=1e-6)
    with pytest.raises(BadInput, match="size"):
        run(torch.randn(4, 9))


def test_no_gradient_is_recorded(own_cache: Path) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    assert not compiled(nn.GELU(), (x.detach(),), own_cache)(x).requires_grad


def test_an_edited_host_program_runs(own_cache: Path) -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    run = compiled(Two(), (x, y), own_cache)
    host = run.graph.host
    (output,) = [n for n in host.graph.nodes if n.op == "output"]
    output.args = (tuple(reversed(output.args[0])),)
    host.recompile()
    assert torch.equal(run(x, y)[0], x * y)


def test_what_a_backward_pass_has_used_is_let_go() -> None:
    """AOTAutograd gives its saved tensors away in a list; nobody else holds them."""
    aten = torch.ops.aten
    gm = torch.fx.symbolic_trace(lambda x, tangents_1: (aten.mm(aten.sin(x), tangents_1),))
    x, tangent = torch.randn(4, 4), torch.randn(4, 4)
    for node in gm.graph.nodes:
        node.meta["val"] = (x,) if node.op == "output" else x
    run = GraphCode(compile_graph(gm, Options(), Record()).run, lambda: pytest.fail("not kept"))

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is aten.mm.default:
                alive.append(not held.expired())
            return func(*args, **(kwargs or {}))

    for keep in (None, x):
        alive: list[bool] = []
        given = [x.clone() if keep is None else x, tangent]
        held, wanted = StorageWeakRef(given[0].untyped_storage()), x.sin() @ tangent
        with Watch(), torch.no_grad():
            (result,) = run(given)
        assert given == [] and alive == [keep is not None]
        torch.testing.assert_close(result, wanted)
