"""A torch runtime for the reference interpreter, and a builder shared by all tests of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import cpp_emit
from wrapper_ir import DefineKernel, Device, DType, Program, interpret, parse_program, verify

DTYPES = {
    DType.bool_: torch.bool, DType.u8: torch.uint8, DType.i8: torch.int8, DType.i16: torch.int16,
    DType.i32: torch.int32, DType.i64: torch.int64, DType.f16: torch.float16,
    DType.bf16: torch.bfloat16, DType.f32: torch.float32, DType.f64: torch.float64,
    DType.c64: torch.complex64, DType.u16: torch.uint16, DType.f8e4m3: torch.float8_e4m3fn,
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(ValueError):  # another library's conftest has it already
        parser.addoption("--accept", action="store_true", help="rewrite golden files")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` compares with `golden/name`; `--accept` rewrites it."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--accept", default=False):
            path.write_text(text)
        assert path.read_text() == text, f"{path} differs; pytest --accept rewrites it"

    return compare


class TorchRuntime:
    """`wrapper_ir.Runtime` over CPU tensors; kernels are Python functions by name."""

    def __init__(self, kernels: Mapping[str, Callable[..., None]]) -> None:
        self.kernels = kernels

    def empty_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: DType, device: Device
    ) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=DTYPES[dtype], device=str(device))

    def as_strided(
        self,
        base: torch.Tensor,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: DType,
    ) -> torch.Tensor:
        start = base.storage_offset() * base.element_size() // DTYPES[dtype].itemsize
        whole = torch.empty(0, dtype=DTYPES[dtype]).set_(base.untyped_storage())
        return whole.as_strided(size, stride, start + offset)

    def launch(self, kernel: DefineKernel, grid: tuple[int, int, int], args: Sequence[Any]) -> None:
        self.kernels[kernel.name](grid, *args)

    def extern(self, target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return cpp_emit.call_torch(target, args, kwargs)

    def copy(self, src: torch.Tensor, dst: torch.Tensor) -> None:
        dst.copy_(src)

    def size(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tuple(tensor.shape)

    def stride(self, tensor: torch.Tensor) -> tuple[int, ...]:
        return tensor.stride()

    def dtype(self, tensor: torch.Tensor) -> DType:
        return next(ours for ours, theirs in DTYPES.items() if theirs == tensor.dtype)


class Both:
    """One program, run by the interpreter and as C++, on copies of the same inputs."""

    def __init__(
        self,
        program: Program,
        folder: Path,
        kernels: Mapping[str, Callable[..., None]] | None = None,
        constants: Mapping[str, torch.Tensor] | None = None,
        schemas: Any = cpp_emit.torch_schema,
        mode: Any = "lazy",
    ) -> None:
        verify(program)
        self.program = program
        self.runtime = TorchRuntime(kernels or {})
        self.constants = constants or {}
        self.text = cpp_emit.emit(program, mode, schemas=schemas)
        self.path = cpp_emit.build(self.text, folder, program.name)
        self.run = cpp_emit.load(
            self.path,
            program,
            cpp_emit.Callbacks(launch=self.runtime.launch),
            self.constants,
        )

    def check(self, *inputs: Any) -> tuple[Any, ...]:
        """Same results, same layouts, same effects on the inputs; returns the C++ results."""
        ours, theirs = [_same(i) for i in inputs], [_same(i) for i in inputs]
        expected = interpret(self.program, theirs, self.runtime, self.constants)
        got = self.run(*ours)
        assert len(got) == len(expected)
        for a, b in zip((*got, *ours), (*expected, *theirs), strict=True):
            if isinstance(b, torch.Tensor):
                assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
                assert torch.equal(a, b)
            else:
                assert type(a) is type(b) and a == b
        return got


def _same(value: Any) -> Any:
    """A copy with the layout and the storage offset of the original."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    whole = torch.empty(0, dtype=value.dtype).set_(storage)
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


@pytest.fixture(scope="session")
def folder(libraries: Path) -> Path:
    return libraries


@pytest.fixture(scope="session")
def both(folder: Path) -> Callable[..., Both]:
    def make(text: str | Program, **options: Any) -> Both:
        program = parse_program(text) if isinstance(text, str) else text
        return Both(program, folder, **options)

    return make
