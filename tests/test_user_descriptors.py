"""Tensor descriptors in a compiled model, made on the host and in kernels: on CPU, in every host
program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

import triton_rt
from planner.kernels import kernel_source
from wrapper_ir import (
    CopyBack,
    DefineKernel,
    Describe,
    ExternCall,
    Free,
    Launch,
    Ref,
    Reuse,
    parse_program,
    print_program,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")
EMITS = ("fx", "hop", "cpp")

# Of fixed sizes in one host program, of symbolic ones in two; `slow`: in all three.
as_fixed_and_symbolic = pytest.mark.parametrize(
    ("compiled", "dynamic"),
    [
        pytest.param(
            emit, dynamic, id=f"{emit}-{'dynamic' if dynamic else 'static'}",
            marks=() if emit == "fx" or (emit, dynamic) == ("cpp", True) else pytest.mark.slow,
        )
        for emit in EMITS
        for dynamic in (False, True)
    ],
    indirect=["compiled"],
)  # fmt: skip
# What one host program shows; `slow`: in all three.
in_a_module = pytest.mark.parametrize(
    "compiled",
    [pytest.param(emit, marks=() if emit == "fx" else pytest.mark.slow) for emit in EMITS],
    indirect=True,
)


@triton.jit
def add_blocks(a, b, out, M: tl.constexpr, N: tl.constexpr):
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    out.store(at, a.load(at) + b.load(at))


def added_blocks(x: Tensor, y: Tensor) -> Tensor:
    z = x * 2
    out = torch.empty_like(z)
    a, b, c = (TensorDescriptor.from_tensor(t, [16, 32]) for t in (z, y, out))
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 32))
    add_blocks[grid](a, b, c, 16, 32)
    return out + 1


@as_fixed_and_symbolic
def test_host_descriptors(compiled: Any, dynamic: bool) -> None:
    """Of fixed and of symbolic sizes: launches as any other."""
    run = compiled(added_blocks, dynamic=None if dynamic else False)
    for rows in (32, 7, 40)[: 3 if dynamic else 2]:
        x, y = torch.randn(rows, 48), torch.randn(rows, 48)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
            torch._dynamo.mark_dynamic(y, 0)
        torch.testing.assert_close(run(x, y), x * 2 + y + 1)
    assert len(compiled.graphs) == (1 if dynamic else 2)
    assert [op.kernel for op in compiled.ops(Launch)].count("add_blocks") == 1
    assert not compiled.ops(ExternCall)
    assert not compiled.graphs[-1].fallbacks
    described = compiled.ops(Describe)
    assert [d.block for d in described] == [(16, 32)] * 3 and len({d.src for d in described}) == 3
    user = next(d for d in compiled.ops(DefineKernel) if d.name == "add_blocks")
    assert [p.kind for p in user.params] == ["tensordesc<f32[16,32]>"] * 3
    assert [p.mutated for p in user.params] == [False, False, True]
    program = compiled.graphs[-1].program
    assert parse_program(print_program(program)) == program


@in_a_module
def test_one_descriptor_for_the_same_tensor_and_block(compiled: Any) -> None:
    """However many launches take it; it dies with its tensor, after the last of them."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        z, out, again = x.sin(), torch.empty_like(x), torch.empty_like(x)
        a = TensorDescriptor.from_tensor(z, [16, 32])
        same, other = (TensorDescriptor.from_tensor(z, [n, 32]) for n in (16, 8))
        first = TensorDescriptor.from_tensor(out, [16, 32])
        add_blocks[(2, 2)](a, same, first, 16, 32)
        narrow = (TensorDescriptor.from_tensor(t, [8, 32]) for t in (out, again))
        add_blocks[(4, 2)](other, *narrow, 8, 32)
        return again @ y

    x, y = torch.randn(32, 64), torch.randn(64, 8)
    torch.testing.assert_close(compiled(fn)(x, y), (x.sin() * 3) @ y)
    ops = compiled.graphs[-1].program.ops
    first, second = [op for op in ops if isinstance(op, Launch) and len(op.args) == 3]
    assert first.args[0] == first.args[1]
    z = next(d.src for d in compiled.ops(Describe) if Ref(d.out) == first.args[0])
    described = [(d.src, d.block) for d in compiled.ops(Describe)]
    assert len(described) == len(set(described)) == 5
    assert described.count((z, (16, 32))) == described.count((z, (8, 32))) == 1
    end = next(
        i for i, op in enumerate(ops)
        if (isinstance(op, Free) and op.name == z) or (isinstance(op, Reuse) and op.src == z)
    )  # fmt: skip
    assert end > ops.index(second)


def test_tensors_that_break_the_rules_of_tma(compiled: Any) -> None:
    """Rows of 40 bytes, 48 apart: a store by TMA would write on to the next 16 bytes."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        whole = torch.zeros(20, 12)
        out = whole[:, :10]
        a, b, c = (TensorDescriptor.from_tensor(t, [16, 32]) for t in (x, y, out))
        add_blocks[(2, 1)](a, b, c, 16, 32)
        return whole

    x, y = (torch.randn(20, 12)[:, :10] for _ in range(2))
    got = compiled(fn)(x, y)
    torch.testing.assert_close(got[:, :10], x + y)
    assert not got[:, 10:].any()
    if compiled.options.emit == "hop":  # Triton itself launches there
        assert "rows of out may be no multiple of 16" in compiled.graphs[-1].fallbacks[0].reason
    else:
        assert compiled.ops(Launch) and not compiled.graphs[-1].fallbacks


@in_a_module
def test_an_input_is_written_through_a_descriptor(compiled: Any) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        a, b = (TensorDescriptor.from_tensor(t, [16, 32]) for t in (x, y))
        add_blocks[(2, 2)](a, b, a, 16, 32)
        return x * 2

    x, y = torch.randn(32, 64), torch.randn(32, 64)
    want = x + y
    torch.testing.assert_close(compiled(fn)(x, y), want * 2)
    torch.testing.assert_close(x, want)
    assert not compiled.ops(CopyBack) and len(compiled.ops(Describe)) == 2


@triton.jit
def double_blocks(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """`out = 2 x` through descriptors made in the kernel."""
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [M, N])
    target = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [M, N])
    target.store(at, source.load(at) * 2)


@as_fixed_and_symbolic
def test_device_descriptors(compiled: Any, dynamic: bool) -> None:
    """The same definition, compiled for a GPU, asks for a workspace for its two maps."""

    def fn(x: Tensor) -> Tensor:
        z = x + 1
        out = torch.empty_like(z)
        grid = (triton.cdiv(x.shape[0], 16), 2)
        double_blocks[grid](z, out, x.shape[0], x.shape[1], 16, 32)
        return out

    run = compiled(fn, dynamic=None if dynamic else False)
    for rows in (32, 40)[: 2 if dynamic else 1]:
        x = torch.randn(rows, 48)
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(run(x), (x + 1) * 2)
    assert len(compiled.graphs) == 1 and not compiled.ops(ExternCall)
    define = next(d for d in compiled.ops(DefineKernel) if d.name.startswith("double_blocks"))
    binary = triton_rt.compile(kernel_source(define), triton_rt.Target(90))
    assert binary.global_scratch_bytes >= 2 * 128
