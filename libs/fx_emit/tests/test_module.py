"""The emitted module as an object: readable, extensible, and wrong uses of `emit`."""

from __future__ import annotations

import copy
import importlib
import pickle
import re
from pathlib import Path

import pytest
import torch

from fx_emit import FxBackend, FxEmitError, emit
from fx_emit.errors import (
    GluonDescriptor,
    UndeclaredAlias,
    UnknownLaunch,
    UnknownOperator,
    UnknownTorchEnum,
)
from wrapper_ir import parse_program
from wrapper_ir.errors import AssertionFailed

TEXT = """program model(x: f32[s0, 4] cpu, w: f32[4, 4] cpu):
  where s0 in [1, 16] hint 2
  symbol s0 = x.size(0)
  kernel square(x: *f32 mutated, n: i32) constants (B=16) warps 2 stages 1:
    import triton
    import triton.language as tl


    @triton.jit
    def square(x, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        v = tl.load(x + i, mask=i < n)
        tl.store(x + i, v * v, mask=i < n)
  end
  # one layer
  y = extern aten.mm.default(x, w) -> f32[s0, 4] cpu  # aten.mm model.py:7
  v = view y f32[s0] cpu stride (4,) offset 1
  launch square grid (CeilDiv(s0, 4), 1, 1) (y, s0*4)  # aten.square model.py:8
  z = extern aten.exp.default(v) -> f32[s0] cpu
  free y
  return (z,)
"""
DIRECT = """
def forward(self, x, w):
    check_rank = fx_emit_host_check_rank(x, 'x', 2);  check_rank = None
    s0 = x.size(0)
    check_range = fx_emit_host_check_range(s0, 's0 in [1, 16] hint 2', 1, 16);  check_range = None
    check_input = fx_emit_host_check_input(x, 'x: f32[s0, 4] cpu', torch.float32, (s0, 4), (4, 1));  check_input = None
    check_inputs = fx_emit_host_check_inputs((w,), ('w: f32[4, 4] cpu',));  check_inputs = None
    # one layer
    y = torch.mm(x, w);  x = w = None  # aten.mm model.py:7
    add = s0 + 3
    floordiv = add // 4;  add = None
    mul = s0 * 4
    launch_square = kernel_square((floordiv, 1, 1), y, mul);  floordiv = mul = launch_square = None  # aten.square model.py:8
    v = torch__C__dynamo_guards__reinterpret_tensor(y, (s0,), (4,), 1)
    z = torch.ops.aten.exp.default(v);  v = None
    z_as_declared = fx_emit_host_conform_result(z, 'aten.exp.default', 'z: f32[s0] cpu', torch.float32, (s0,), (1,));  z = s0 = None
    free_y = fx_emit_host_free(y);  y = free_y = None
    return (z_as_declared,)
"""  # noqa: E501


def commuted(code):
    """Sums and products of sympy have no order of their own."""
    code = re.sub(r"\b(\d+) ([*+]) (\w+)", r"\3 \2 \1", code)
    return code.strip()


def test_direct_code_reads_as_a_wrapper(load_launcher):
    gm = emit(parse_program(TEXT), "direct", load_kernel=load_launcher)
    assert sorted(commuted(gm.code).split("\n")) == sorted(commuted(DIRECT).split("\n"))
    assert type(gm).__name__ == "model"


def test_print_readable(load_jit, capsys):
    text = emit(parse_program(TEXT), load_kernel=load_jit).print_readable(print_output=False)
    assert "class model(torch.nn.Module)" in text and "# one layer" in text
    assert re.search(r'y: "f32\[s\d+, 4\]" = torch.ops.aten.mm.default\(x, w\)', text)


def test_backend_sees_the_whole_graph(load_jit):
    class Counting(FxBackend):
        def load_kernel(self, kernel):
            return load_jit(kernel)

        def compile_graph(self, gm):
            self.launches = sum("triton_kernel" in str(n.target) for n in gm.graph.nodes)
            return torch.fx.Interpreter(gm).run

    backend = Counting()
    run = backend.compile(parse_program(TEXT))
    x, w = torch.ones(3, 4), torch.eye(4)
    torch.testing.assert_close(run(x, w)[0], torch.ones(3).exp())
    assert backend.launches == 1


KEPT = """program kept(x: f32[s0, 4] cpu):
  where s0 in [1, 16] hint 2
  symbol s0 = x.size(0)
  assert s0 < 9 "few rows"
  y = extern aten.exp.default(x) -> f32[s0, 4] cpu
  v = view y f32[CeilDiv(s0, 2)] cpu stride (4,) offset 1
  if s0 > 2:
    extern aten.zero_.default(v) mutates (v,)
  free y
  return (v, s0*4)
"""


@pytest.mark.parametrize("kept", ["pickle", "folder", "copy"])
def test_what_is_no_kernel_is_kept(tmp_path, monkeypatch, kept):
    gm = emit(parse_program(KEPT), load_kernel=None)
    if kept == "folder":
        gm.to_folder(tmp_path / "of_a_program", "Kept")
        monkeypatch.syspath_prepend(tmp_path)
        again = importlib.import_module("of_a_program").Kept()
    else:
        again = copy.deepcopy(gm) if kept == "copy" else pickle.loads(pickle.dumps(gm))
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(again(x), gm(x))
    with pytest.raises(AssertionFailed, match="few rows"):
        again(torch.randn(9, 4))


def test_backend_without_kernels():
    text = "program p(x: f32[2] cpu):\n  y = extern aten.exp.default(x) -> f32[2] cpu\n"
    run = FxBackend().compile(parse_program(text + "  return (y,)\n"))
    torch.testing.assert_close(run(torch.zeros(2))[0], torch.ones(2))
    with pytest.raises(TypeError, match="FxBackend must define load_kernel to run square"):
        FxBackend().compile(parse_program(TEXT))


def test_a_kernel_is_loaded_once_and_not_copied(load_launcher):
    loaded = []

    def load(kernel):
        loaded.append(kernel.name)
        return load_launcher(kernel)

    twice = TEXT.replace("  z =", "  launch square grid (1, 1, 1) (y, 4)\n  z =")
    gm = emit(parse_program(twice), "direct", load_kernel=load)
    assert loaded == ["square"] and gm.code.count("kernel_square(") == 2


def program(body):
    return parse_program(f"program p(x: f32[2] cpu):\n{body}  return ()\n")


@pytest.mark.parametrize(("body", "error", "message"), [
    ("  extern aten.nothing.default(x)\n", UnknownOperator, "torch.ops.aten.nothing.default"),
    ("  y = extern aten.contiguous.default(x) -> f32[2] cpu\n", UndeclaredAlias, "give it `alias`"),
    ("  (y,) = extern aten.split.Tensor(x, 2) -> (f32[2] cpu,)\n", UndeclaredAlias, "y as a view"),
    ("  y = extern aten._unsafe_view.default(x, (2,)) -> f32[2] cpu\n", UndeclaredAlias, "copies"),
    ("  extern nowhere.f(x)\n", UnknownOperator, "pass it in `operators`"),
    ("  extern aten.exp.default(x, layout float32)\n", UnknownTorchEnum, "no layout"),
    ("  extern aten.exp.default(x, memory_format no)\n", UnknownTorchEnum, "no memory format"),
])  # fmt: skip
def test_errors(body, error, message):
    with pytest.raises(error, match=message) as caught:
        emit(program(body), load_kernel=lambda kernel: None)
    assert isinstance(caught.value, FxEmitError)


def test_unknown_launch():
    with pytest.raises(UnknownLaunch, match="'stream'"):
        emit(program(""), "stream", load_kernel=lambda kernel: None)


def test_a_gluon_kernel_gets_no_descriptors_from_the_operator(load_jit):
    text = """program p(x: f32[8, 8] cpu):
  kernel copy(d: tensordesc<f32[8,8]> mutated) warps 1 stages 1:
    from triton.experimental import gluon


    @gluon.jit
    def copy(d):
        pass
  end
  d0 = describe x block (8, 8)
  launch copy grid (1, 1, 1) (d0)
  return (x,)
"""
    with pytest.raises(GluonDescriptor, match=r"copy is a @gluon.jit kernel.*here: d\)"):
        emit(parse_program(text), load_kernel=load_jit)


def test_readme_example_runs():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    example = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(example[1], {})
