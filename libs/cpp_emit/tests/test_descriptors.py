# ruff: noqa: E501 (lines of programs)
"""Tensor descriptors and clusters: on the CPU, as text, and what kernels get of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cpp_emit
from cpp_emit.build import find_compiler, find_torch, headers
from cpp_emit.errors import BinaryError, UnsupportedArgument
from wrapper_ir import Descriptor, parse_program

PROGRAM = """\
program blocks(x: f32[s0, 64] cuda:0, n: int):
  symbol s0 = x.size(0)
  kernel double(t: tensordesc<f32[16,32]>, u: tensordesc<f32[16,32]> mutated, n: i32) warps 4 stages 3 ctas 2:
    def double(t, u, n): ...
  end
  b = alloc f32[s0, 64] cuda:0
  d = describe x block (16, 32)
  e = describe b block (16, 32)                    # double m.py:3
  if n > 3:
    launch double grid (CeilDiv(s0, 16), 2, 1) (d, e, n)
  else:
    f = describe b block (16, 32)
    launch double grid (CeilDiv(s0, 16), 2, 1) (d, f, n)
  launch double grid (CeilDiv(s0, 16), 2, 1) (e, e, n)
  v = view b f32[s0, 32] cuda:0 stride (64, 1) offset 32
  g = describe v block (16, 32)
  launch double grid (CeilDiv(s0, 16), 1, 1) (g, g, n)
  c = alloc f32[s0, 64] cuda:0
  copy b -> c
  free b
  return (c,)
"""


def double(grid: tuple[int, ...], t: Descriptor, u: Descriptor, n: int) -> None:
    assert t.block_shape == u.block_shape == (16, 32)
    assert t.shape == t.base.shape and t.strides == t.base.stride()
    u.base.copy_(t.base * 2 + n)


def test_on_the_cpu_python_gets_descriptors(both: Callable[..., Any]) -> None:
    p = both(PROGRAM.replace(" cuda:0", " cpu"), kernels={"double": double})
    for rows, n in ((40, 7), (1, 0)):
        p.check(torch.randn(rows, 64), n)
    assert "Descriptor" not in p.text


@dataclass(frozen=True)
class Layout:
    swizzle: int = 3
    data_type: int = 7
    element_bytes: int = 4
    box: tuple[int, ...] = (16, 32)
    fp4: bool = False


@dataclass(frozen=True)
class Param:
    name: str
    mutated: bool = False


@dataclass(frozen=True)
class Binary:
    name: str = "double"
    cubin: bytes = b"\x7fELF"
    shared_bytes: int = 100_000
    num_warps: int = 4
    alignment: int = 0
    params: tuple[Param, ...] = (Param("t"), Param("u", True), Param("n"))
    num_ctas: int = 2
    tensor_maps: tuple[Layout, ...] = (Layout(), Layout(swizzle=0))


def emit(mode: Any = "aot", binary: Any = None, text: str = PROGRAM) -> str:
    return cpp_emit.emit(
        parse_program(text),
        mode,
        schemas=cpp_emit.torch_schema,
        binaries={"double": binary or Binary()},
    )


def test_the_text_reads_as_the_program() -> None:
    text = " ".join(emit("lazy").split())
    assert "Descriptor d(x); // double m.py:3 Descriptor e(b); if (n > 3) {" in text
    assert '"launch double", reads(d), writes(e), narrow<int32_t>(n, "double.n"));' in text
    assert "Descriptor f(b);" in text and "Descriptor g(v);" in text
    # The tensor and its descriptors end together, after the last launch.
    assert "b.reset(); e.reset(); v.reset(); g.reset();" in text


def test_binaries_with_and_without_tma(folder: Path) -> None:
    plain = replace(Binary(), name="plain", tensor_maps=())
    text = emit(binary=(plain, Binary()))
    assert '{cubin_double_0, "double", 100000, 4, 3ull, 0, 2, maps_double_0, 2},' in text
    assert '{cubin_double_1, "plain", 100000, 4, 0ull, 0, 2},' in text
    assert "{3, 7, 4, 0, 2, {16, 32, 0, 0, 0}}," in text
    run = cpp_emit.load(cpp_emit.build(text, folder, "blocks"), parse_program(PROGRAM))
    with pytest.raises(RuntimeError, match="parameter x: expected f32 of rank 2 on cuda:0, got"):
        run(torch.zeros(4, 64), 1)


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (replace(Binary(), num_ctas=1), "the binary has num_ctas 1, the program 2"),
        (replace(Binary(), tensor_maps=(Layout(),)), "has 1 tensor_maps, the program 2 descr"),
        (
            replace(Binary(), params=(Param("t", True), Param("u", True), Param("n"))),
            "writes through the descriptor t, which the program does not say",
        ),
    ],
)
def test_binaries_that_do_not_fit(binary: Any, message: str) -> None:
    with pytest.raises(BinaryError, match=message):
        emit(binary=binary)


def test_a_tensor_is_no_descriptor() -> None:
    with pytest.raises(UnsupportedArgument, match="takes a descriptor, got Ref"):
        emit(text=PROGRAM.replace("(e, e, n)", "(b, e, n)"))


def test_what_kernels_get(tmp_path: Path) -> None:
    here, torch_at = Path(__file__).parent, find_torch()
    for path, text in headers().items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    compiler = find_compiler()
    fake = tmp_path / "libcuda.so.1"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-x", "c", here / "fake_driver.c", "-o", fake], check=True
    )
    program = tmp_path / "descriptors"
    subprocess.run(
        [compiler, "-std=c++17", "-Wall", "-Wextra", "-Wno-unused-parameter",
         here / "descriptors.cpp", "-o", program, f"-I{tmp_path}", "-isystem", torch_at.include,
         f"-L{torch_at.lib}", "-ltorch_cpu", "-lc10", "-ldl", f"-Wl,-rpath,{torch_at.lib}"],
        check=True,
    )  # fmt: skip
    env = dict(os.environ, LD_LIBRARY_PATH=str(tmp_path))
    ran = subprocess.run([program], capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    fields = "12 1 40 64 7 1"
    assert ran.stdout.splitlines() == [
        f"without TMA: address {fields} 0 {fields} then 7",
        f"with TMA: 42 {fields} then 7",
        f"again: 42 {fields} then 7",
        "encoded 1 type 9 rank 3 sizes 40 1 12 strides 16 128 box 32 1 4 steps 1 swizzle 3 "
        "promotion 2 fill 0 unaligned 0",
        f"other layout: 42 {fields} then 7",
        "encoded 2 box 8",
        f"of one that lies so: 42 {fields} then 7",
        "encoded 2",
        "of another: 42 4 1 40 64 7 1 then 7",
        "encoded 3",
        "fine 11",
        "rows of 12 bytes 10",
        "strides of 12 bytes 00",
        "one row 11",
        "columns 00",
        "one column 10",
        "repeated 00",
        "nothing 00",
        "address 00",
        "a descriptor of a tensor of rank 0",
    ]
