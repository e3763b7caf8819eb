# ruff: noqa: E501 (lines of programs)
"""Programs for a GPU: what is emitted, that it compiles and loads with no GPU, what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cpp_emit
from cpp_emit.build import find_compiler
from cpp_emit.cubins import alignment_of, required_bits
from cpp_emit.errors import BinaryError, UnsupportedArgument
from wrapper_ir import DefineKernel, KernelParam, parse_program

PROGRAM = """\
program mlp(x: bf16[s0, 64] cuda:0, w: bf16[64, 64] cuda:0, bias: bf16[64] cuda:0):
  where s0 in [1, 4096] hint 32
  symbol s0 = x.size(0)
  kernel gelu(a: *bf16 mutated aligned, n: i32, total: i64, p: f32, flag: bool) constants (BLOCK=1024) warps 4 stages 3:
    def gelu(a, n, total, p, flag, BLOCK): ...
  end
  b0 = extern aten.addmm.default(bias, x, w) -> bf16[s0, 64] cuda:0        # aten.linear mlp.py:7
  launch gelu grid (CeilDiv(s0*64, 1024), 1, 1) (b0, s0*64, s0*64, 0.5, True)  # aten.gelu mlp.py:8
  b1 = extern aten.mm.default(b0, w) -> bf16[s0, 64] cuda:0
  free b0
  return (b1,)
"""


@dataclass(frozen=True)
class Param:
    name: str


@dataclass(frozen=True)
class Binary:
    """As triton_rt's, as far as it matters here."""

    name: str = "gelu_0d1d"
    cubin: bytes = b"\x7fELF" + bytes(range(256)) + b'"\\??/'
    shared_bytes: int = 100_000
    num_warps: int = 4
    alignment: int = 1
    params: tuple[Param, ...] = tuple(map(Param, ("a", "n", "total", "p", "flag")))
    global_scratch_bytes: int = 0
    global_scratch_align: int = 1
    profile_scratch_bytes: int = 0
    num_ctas: int = 1
    cooperative: bool = False
    pdl: bool = False


def emit(mode: Any = "aot", binary: Any = None, text: str = PROGRAM, **options: Any) -> str:
    return cpp_emit.emit(
        parse_program(text),
        mode,
        schemas=cpp_emit.torch_schema,
        binaries={"gelu": Binary() if binary is None else binary},
        **options,
    )


def test_an_aot_program_builds_here_and_says_that_it_needs_a_gpu(folder: Path) -> None:
    plain = replace(Binary(), name="gelu_0d", alignment=0)
    text = emit(binary=(plain, Binary()))
    assert text.index('"gelu_0d1d"') < text.index('"gelu_0d"')  # the most demanding first
    run = cpp_emit.load(cpp_emit.build(text, folder, "mlp"), parse_program(PROGRAM))
    inputs = [torch.zeros(s, dtype=torch.bfloat16) for s in ((8, 64), (64, 64), (64,))]
    with pytest.raises(RuntimeError, match="parameter x: expected bf16 of rank 2 on cuda:0, got"):
        run(*inputs)


def test_a_lazy_program_has_no_binaries() -> None:
    assert "cubin" not in emit("lazy")


def test_the_cubin_survives_as_a_literal(folder: Path, tmp_path: Path) -> None:
    """Every byte value, and nothing that C++ reads as a trigraph or an escape."""
    text = emit()
    start = text.index("alignas(16) const char")
    main = (
        "#include <cstdio>\nnamespace cpp_emit {\nextern const char cubin_gelu_0[];\n"
        f"{text[start:]}\nint main() {{ fwrite(cpp_emit::cubin_gelu_0, 1, "
        f"sizeof(cpp_emit::cubin_gelu_0) - 1, stdout); }}\n"
    )
    (tmp_path / "main.cpp").write_text(main)
    compiler = find_compiler()
    program = tmp_path / "main"
    subprocess.run([compiler, "-std=c++17", tmp_path / "main.cpp", "-o", program], check=True)
    assert subprocess.run([program], capture_output=True, check=True).stdout == Binary().cubin


def test_scalars_of_a_launch_are_converted_and_never_wrapped() -> None:
    text = " ".join(emit().split())
    assert 'narrow<int32_t>(s0*64, "gelu.n"), int64_t(s0*64), float(0.5),' in text
    assert "CudaScope stream(0);" in text
    assert "launch( self, stream, 0, {" in text


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (replace(Binary(), global_scratch_align=512), "global_scratch_align is 512"),
        (replace(Binary(), profile_scratch_bytes=4), "profile_scratch_bytes is 4;"),
        (replace(Binary(), num_ctas=2), "num_ctas 2, the program 1"),
        (replace(Binary(), cooperative=True), "cooperative is True"),
        (replace(Binary(), pdl=True), "the binary has pdl True, the program False"),
        (replace(Binary(), cubin=b""), "its cubin is empty"),
        (replace(Binary(), params=(Param("a"),)), r"the binary takes \['a'\], the program passes"),
        (replace(Binary(), alignment=32), "names more than its 5 parameters"),
        (object(), "a binary needs cubin: bytes, got None"),
    ],
)
def test_binaries_that_the_launcher_cannot_run_are_refused(binary: Any, message: str) -> None:
    with pytest.raises(BinaryError, match=message):
        emit(binary=binary)


def test_arguments_past_the_62nd_share_a_bit() -> None:
    """A list of kernels takes hundreds of pointers, and a mask is 64 bits wide."""
    params = (*(KernelParam(f"p{n}", "*f32") for n in range(70)), KernelParam("p", "f64"))
    kernel = DefineKernel("k", "", params)
    every, own = (1 << 70) - 1, (1 << 62) - 1
    assert required_bits(kernel, replace(Binary(), alignment=every)) == (1 << 63) - 1
    assert required_bits(kernel, replace(Binary(), alignment=own)) == own
    assert alignment_of(kernel, (1 << 63) - 1) == every
    assert alignment_of(kernel, own) == own


def test_a_launch_of_many_arguments(folder: Path) -> None:
    """Those that have no bit of their own are aligned, or not, together."""
    names = [f"p{i}" for i in range(80)]
    params = ", ".join(f"{name}: *bf16 mutated" for name in names)
    text = (
        f"program many(x: bf16[64] cuda:0):\n  kernel gelu({params}) warps 4 stages 3:\n"
        f"    def gelu(): ...\n  end\n  launch gelu grid (1, 1, 1) ({', '.join(['x'] * 80)})\n"
        "  return (x,)\n"
    )
    given = tuple(map(Param, names))
    every, none = (replace(Binary(), params=given, alignment=mask) for mask in ((1 << 80) - 1, 0))
    made = emit(binary=(every, none), text=text)
    cpp_emit.load(cpp_emit.build(made, folder, "many"), parse_program(text))


def test_a_kernel_that_overlaps_the_one_before_says_so() -> None:
    overlapping = PROGRAM.replace("warps 4 stages 3", "warps 4 stages 3 overlap")
    assert overlapping != PROGRAM
    text = emit(binary=replace(Binary(), pdl=True), text=overlapping)
    assert ", 1, nullptr, 0, true}," in text
    with pytest.raises(BinaryError, match="the binary has pdl False, the program True"):
        emit(text=overlapping)


def test_aot_needs_each_binary_and_no_python() -> None:
    with pytest.raises(BinaryError, match="kernel gelu: no binary given"):
        cpp_emit.emit(parse_program(PROGRAM), "aot", schemas=cpp_emit.torch_schema)
    scalar = PROGRAM.replace("aten.mm.default(b0, w)", "aten.add.Scalar(b0, 2)")
    with pytest.raises(UnsupportedArgument, match=r"add.Scalar needs Python.*'other': 2 as Scalar"):
        emit(text=scalar)
    assert "through Python" in emit(text=scalar, python_fallback=True)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("0.5, True)", "x, True)", "argument p: f32 takes a number"),
        ("(b0, s0*64, ", "(b0, 0.5, ", "argument n: i32 takes an integer, got 0.5"),
        ("p: f32", "p: f16", "argument p: f16: kernels take pointers"),
        ("cuda:0 ", "xpu:0 ", "device xpu:0"),
    ],
)
def test_arguments_without_a_cpp_form_are_named(before: str, after: str, message: str) -> None:
    text = (PROGRAM.replace(" cuda:0", " xpu:0") if "xpu" in after else PROGRAM).replace(
        before, after
    )
    with pytest.raises(UnsupportedArgument, match=message):
        emit(text=text)


def test_the_text_is_the_same_every_time(both: Callable[..., Any]) -> None:
    assert emit() == emit()


def test_streams_of_a_program_without_launches() -> None:
    program = parse_program("""program p(x: f32[4] cuda:1):
  stream 1
  wait 0
  y = extern aten.sin.default(x) -> f32[4] cuda:1
  stream 0
  wait 1
  return (y,)
""")
    text = cpp_emit.emit(program)
    assert "CudaScope stream(1);" in text and "stream.to(1);" in text and "stream.wait(1);" in text


def test_a_program_on_two_devices_with_a_workspace() -> None:
    program = parse_program("""program p(x: f32[4] cuda:1, y: f32[s0] cuda:0):
  symbol s0 = y.size(0)
  kernel k(x: *f32 mutated) warps 4 stages 1:
    def k(x): ...
  end
  launch k grid (1, 1, 1) (x)
  device cuda:0
  w = workspace f32[s0] cuda:0
  launch k grid (1, 1, 1) (w)
  return (x,)
""")
    text = cpp_emit.emit(program)
    lines = [line.strip() for line in text.splitlines()]
    used = [x for x in lines if x.startswith(("CudaScope", "stream.", "launch(", "Tensor w"))]
    assert used == [
        "CudaScope stream(1);", 'launch(self, stream, 0, {1, 1, 1}, "launch k", pointer(x));',
        "stream.on(0);", "Tensor w = workspace(self, stream, 0, dtype::f32(), s0);",
        'launch(self, stream, 0, {1, 1, 1}, "launch k", pointer(w));',
    ]  # fmt: skip
