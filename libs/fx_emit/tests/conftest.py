"""Loads the Triton kernels of test programs for the interpreter of Triton, on CPU tensors."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from fx_emit import TorchRuntime, emit
from wrapper_ir import DefineKernel, Descriptor, Program, interpret, parse_program, verify


@pytest.fixture
def load_jit(tmp_path) -> Callable[[DefineKernel], Any]:
    """The `@triton.jit` function of a kernel; Triton reads its source from a file."""

    def load(kernel: DefineKernel) -> Any:
        path = tmp_path / f"{kernel.name}_{abs(hash(kernel.source))}.py"
        path.write_text(kernel.source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            spec.loader.exec_module(module)
        return getattr(module, kernel.name)

    return load


@pytest.fixture
def load_launcher(load_jit) -> Callable[[DefineKernel], Callable[..., None]]:
    def load(kernel: DefineKernel) -> Callable[..., None]:
        function = load_jit(kernel)

        def launch(grid, *args):
            args = [as_tritons(a) if isinstance(a, Descriptor) else a for a in args]
            function[grid](*args, **dict(kernel.constants))

        return launch

    return load


def as_tritons(d: Descriptor) -> TensorDescriptor:
    return TensorDescriptor(d.base, list(d.shape), list(d.strides), list(d.block_shape))


def clone(value: Any) -> Any:
    """A copy with the same strides and storage offset, of the whole storage."""
    if not isinstance(value, torch.Tensor):
        return value
    out = torch.empty(0, dtype=value.dtype)
    storage = value.untyped_storage().clone()
    return out.set_(storage, value.storage_offset(), value.shape, value.stride())


def assert_same(expected: Any, got: Any) -> None:
    assert len(expected) == len(got)
    for a, b in zip(expected, got, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.stride() == b.stride() and a.dtype == b.dtype
            torch.testing.assert_close(b, a, rtol=0, atol=0, equal_nan=True)
        else:
            assert type(a) is type(b) and a == b


@pytest.fixture
def check(load_jit, load_launcher) -> Callable[..., dict[str, torch.fx.GraphModule]]:
    """Runs a program by `wrapper_ir.interpret` and by every form of the emitted modules, for each
    list of inputs; results and effects on the inputs must be the same to the bit."""

    def run(text, *input_lists, constants=None, operators=None):
        program = text if isinstance(text, Program) else parse_program(text)
        verify(program)
        loaders = {"hop": load_jit, "direct": load_launcher}
        out = {}
        for launch, load in loaders.items():
            gm = emit(program, launch, load_kernel=load, constants=constants, operators=operators)
            gm.graph.lint()
            again = emit(
                program, launch, load_kernel=load, constants=constants, operators=operators
            )
            assert again.code == gm.code or launch == "hop"
            copied = copy.deepcopy(gm)
            copied.recompile()
            forms = [gm, gm, copied, again, torch.fx.Interpreter(again).run]
            for inputs in input_lists:
                runtime = TorchRuntime(load_launcher, operators)
                expected_inputs = [clone(i) for i in inputs]
                expected = interpret(program, expected_inputs, runtime, constants)
                for form in forms:
                    actual_inputs = [clone(i) for i in inputs]
                    assert_same(expected, form(*actual_inputs))
                    assert_same(expected_inputs, actual_inputs)
            assert all("val" in node.meta for node in gm.graph.nodes)
            out[launch] = gm
        return out

    return run
