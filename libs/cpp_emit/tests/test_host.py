"""A library in a process that has no Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cpp_emit
from cpp_emit.build import find_compiler, find_torch
from wrapper_ir import parse_program

PROGRAM = """\
program hosted(x: f32[s0, 4] cpu, n: int):
  symbol s0 = x.size(0)
  w = constant f32[2, 4] cpu "w"
  y = extern aten.linear.default(x, w) -> f32[s0, 2] cpu
  return (y, s0*n)
"""


def test_a_host_in_cpp(folder: Path) -> None:
    text = cpp_emit.emit(parse_program(PROGRAM), "aot", schemas=cpp_emit.torch_schema)
    library = cpp_emit.build(text, folder, "hosted")
    torch, host = find_torch(), folder / "host"
    subprocess.run(
        [find_compiler(), "-std=c++17", Path(__file__).parent / "host.cpp", "-o", host,
         "-isystem", torch.include, f"-L{torch.lib}", "-ltorch_cpu", "-lc10", "-ldl",
         f"-Wl,-rpath,{torch.lib}"],
        check=True,
    )  # fmt: skip
    ran = subprocess.run([host, library], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines() == [
        "4 15",
        "the program gives 1 tensors and 1 integers; room was given for 1 and 0",
        "hosted: expected 1 tensors and 1 integers, got 0 and 1",
        "no loaded program has number 0",
    ]
