"""What inputs, results and values are held against."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from fx_emit import emit
from wrapper_ir import parse_program
from wrapper_ir.errors import InputMismatch, ResultMismatch

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


def test_inputs_are_checked(check, load_jit):
    modules = check(HEAD + "  return ()\n", inputs(2))
    x = torch.zeros(2, 8)
    wrong = [
        ((x.double(), 3), "x: expected f32"), ((x[0], 3), "x: expected rank 2, got rank 1"),
        ((torch.zeros(2, 9), 3), r"x: expected f32\[s0, 8\] cpu = \[2, 8\]"),
        ((torch.zeros(8, 2).T, 3), r"stride \(1, 2\)"), ((x, 100), r"n: expected n in \[-4, 99\]"),
        ((torch.zeros(65, 8), 3), r"s0: expected s0 in \[1, 64\] hint 2, got 65"),
        ((x, 1.5), "n: expected an integer"),
    ]  # fmt: skip
    for gm in modules.values():
        for args, message in wrong:
            with pytest.raises(InputMismatch, match=message):
                gm(*args)
        gm(torch.zeros(1, 16)[:, :8], 3)  # the stride of a single row does not count
    unchecked = emit(parse_program(HEAD + "  return ()\n"), load_kernel=load_jit, checks=False)
    unchecked(torch.zeros(65, 9), 1)


def test_inputs_of_fixed_sizes_are_checked_at_each_call(check, load_launcher):
    """Those that were right once are compared at once; a parameter whose data was replaced is the
    same object."""
    text = "program p(x: f32[2, 8] cpu, w: f32[8, 2] cpu stride (1, 8)):\n  return ()\n"
    w = torch.nn.Parameter(torch.zeros(2, 8).T)
    right = [torch.zeros(2, 8), w]
    check(text, [torch.zeros(2, 8), torch.zeros(2, 8).T])
    asked = []

    def same(tensors):
        asked.append([(t.dtype, t.shape, t.stride()) for t in tensors])
        return lambda others: asked[0] == [(t.dtype, t.shape, t.stride()) for t in others]

    forms = [
        emit(parse_program(text), launch, load_kernel=load_launcher, check_inputs=given)
        for launch, given in (("hop", True), ("direct", True), ("direct", same))
    ]
    wrong = [
        (torch.zeros(2, 8).double(), r"x: expected f32\[2, 8\]"),
        (torch.zeros(8, 2).T, r"x: .* got f32\[2, 8\] stride \(1, 2\)"),
        (torch.zeros(1, 8), r"x: .* got f32\[1, 8\]"), (torch.zeros(16), r"x: .* got f32\[16\]"),
    ]  # fmt: skip
    for gm in forms:
        for _ in range(2):
            gm(*right)
            for x, message in wrong:
                with pytest.raises(InputMismatch, match=message):
                    gm(x, w)
        w.data = torch.zeros(8, 2)
        with pytest.raises(InputMismatch, match="w: expected"):
            gm(right[0], w)
        w.data = torch.zeros(2, 8).T
    gm(*right)
    assert len(asked) == 1


def test_results_are_checked(load_jit):
    text = HEAD + "  a = extern aten.mul.Tensor(x, 2) -> f32[8, s0] cpu\n  return (a,)\n"
    gm = emit(parse_program(text), load_kernel=load_jit)
    with pytest.raises(ResultMismatch, match=r"aten.mul.Tensor returned a as f32\[2, 8\]"):
        gm(*inputs(2))


def test_results_of_another_layout_or_type_are_converted(load_jit):
    text = HEAD + "  a = extern aten.mul.Tensor(x, 2) -> bf16[s0, 8] cpu stride (1, s0)\n"
    gm = emit(parse_program(text + "  return (a,)\n"), load_kernel=load_jit)
    x, n = inputs(2)
    (a,) = gm(x, n)
    assert a.dtype == torch.bfloat16 and a.stride() == (1, 2)
    assert torch.equal(a, (x * 2).bfloat16())


def test_values_are_fake_tensors_of_the_declared_layout(load_jit):
    text = """program p(x: bf16[s0, 8] cuda:0, n: int):
  where s0 hint 5
  symbol s0 = x.size(0)
  a = alloc f8e4m3[s0, 2] cuda:0 stride (16, 1)
  v = view a f8e4m3[2] cuda:0 offset s0
  (m, _) = extern aten.max.dim(x, 1) -> (bf16[s0] cuda:0, _)
  return (v, m, s0 + 1)
"""
    gm = emit(parse_program(text), load_kernel=load_jit)
    values = {node.name: node.meta["val"] for node in gm.graph.nodes}
    assert isinstance(values["a"], FakeTensor) and values["a"].device == torch.device("cuda:0")
    assert values["a"].shape == (5, 2) and values["a"].stride() == (16, 1)
    assert values["a"].dtype == torch.float8_e4m3fn and values["v"].storage_offset() == 5
    assert values["s0"] == 5 and values["m"].shape == (5,)
    assert values["output"][1] is values["m"] and values["output"][2] == 6
