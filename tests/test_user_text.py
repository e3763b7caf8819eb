"""No text of a user (a path, a name, a message) becomes code of an emitted program."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import cpp_emit
import cpp_loops
import fx_emit
import triton_emit
import wrapper_ir
from compile_cli.cli.app import app
from loop_ir import Origin, parse_graph, parse_kernel, print_graph, print_kernel
from triton_rt import KernelParam, KernelSource, load_jit
from wrapper_ir import (
    Allocate,
    Assert,
    Comment,
    Constant,
    CopyBack,
    ExternCall,
    Free,
    If,
    Program,
    Ref,
    Return,
    SymbolDef,
    View,
    parse_program,
    print_program,
)

PIECES = [
    "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[2J", "\\",
    "\\\n", "\\ ", "??/", "*/", "/*", "//", "#", '"', "'", '"""', "'''", "{", "}", "{0}", "%s", "%",
    "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\U000e0001", "é", "coding: utf-7", "+AAo-",
    "import os", "boom()", ";", ")", " -> ", "x", " ", "\t", "\xa0", " at ", "  # ", "\\u000a",
]  # fmt: skip
hostile = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)

KERNEL = """kernel k(
    x: f32[8] cpu,
    out y: f32[8] cpu,
):
  # from op at source
  parallel i0 < 8:
    once:
      v0 = load x[i0] : f32
      v1 = neg(v0) : f32
      store y[i0] = v1
"""


def python_tokens(source: str) -> list[str]:
    """What is code of a Python text: no comments, nothing of strings but that they are there."""
    ast.parse(source)
    ast.parse(source.encode())  # as a file: a comment may name another encoding
    skipped = (tokenize.COMMENT, tokenize.NL)
    return [
        "STRING" if t.type == tokenize.STRING else t.string
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type not in skipped
    ]


_CPP = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|\w+|\S')


def cpp_tokens(source: str) -> list[str]:
    """The same for C++, with its phases 1 and 2 before: trigraphs, and lines that go on."""
    assert "/*" not in re.sub(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"", "", source)
    spliced = re.sub(r"\\[ \t\v\f\r]*\n", "", source.replace("??/", "\\"))
    spliced = re.sub(r"[\r\v\f\x85\u2028\u2029]", "\n", spliced)  # some compiler may think so
    return ["STRING" if t[0] == '"' else t for t in _CPP.findall(spliced) if t[:2] != "//"]


def kernel_texts(text: str) -> tuple[str, str]:
    """Of Triton, and of C++."""
    kernel = replace(parse_kernel(KERNEL), origins=(Origin(text or "op", text), Origin("b", text)))
    triton = triton_emit.emit(kernel, triton_emit.default_schedule(kernel, {})).source
    return triton, cpp_loops.emit(kernel).source


def program(text: str) -> Program:
    """Every op that holds text of a user."""
    n, f32 = sympy.Symbol("n", integer=True), wrapper_ir.parse_type("f32[n] cpu")
    call = ExternCall(
        "aten.div.Tensor_mode", (Ref("x"), Ref("c")), (("rounding_mode", text),), (("b", f32),),
        comment=text,
    )  # fmt: skip
    ops: tuple[Any, ...] = (
        SymbolDef("n", "x", 0, text),
        Comment(text),
        Assert(n < 100, text, text),
        Constant("c", f32, text, text),
        call,
        Allocate("a", f32, text),
        View("v", "a", f32, text),
        CopyBack("b", "v", text),
        If(n > 3, (CopyBack("v", "b", text),), (CopyBack("b", "v", text),), text),
        Free("a", text),
        Return((Ref("b"), n), text),
    )
    made = Program("p", (wrapper_ir.Param("x", f32),), ops, (wrapper_ir.Symbol("n", 1, 9, 4),))
    wrapper_ir.verify(made)
    return made


def fx_text(made: Program, key: str) -> str:
    def no_kernel(kernel: Any) -> Any:
        raise AssertionError(kernel)

    gm = fx_emit.emit(made, launch="direct", load_kernel=no_kernel, constants={key: torch.ones(4)})
    return str(gm.code)


PLAIN = "text"


@settings(max_examples=30, deadline=None)
@given(text=hostile)
def test_no_text_becomes_code(text: str) -> None:
    (triton, loops), (plain_triton, plain_loops) = kernel_texts(text), kernel_texts(PLAIN)
    assert python_tokens(triton) == python_tokens(plain_triton)
    assert cpp_tokens(loops) == cpp_tokens(plain_loops)
    made, plain = program(text), program(PLAIN)
    assert parse_program(print_program(made)) == made
    assert len(print_program(made).splitlines()) == len(print_program(plain).splitlines())
    assert python_tokens(fx_text(made, text)) == python_tokens(fx_text(plain, PLAIN))
    schemas = {"aten.div.Tensor_mode": SCHEMA}
    ours, theirs = (cpp_emit.emit(p, schemas=schemas) for p in (made, plain))
    digest = re.compile(r'fingerprint = ".*"')
    assert cpp_tokens(digest.sub("", ours)) == cpp_tokens(digest.sub("", theirs))


SCHEMA = "aten::div.Tensor_mode(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor"


@settings(max_examples=20, deadline=None)
@given(text=hostile)
def test_loop_ir_reads_back_what_users_say(text: str) -> None:
    kernel = replace(parse_kernel(KERNEL), origins=(Origin(text or "op", text), Origin("b")))
    assert parse_kernel(print_kernel(kernel)) == kernel
    assert len(print_kernel(kernel).splitlines()) == len(KERNEL.splitlines()) + 1
    graph = parse_graph(GRAPH)
    (node,) = graph.nodes
    node = replace(node, origins=(Origin(text or "op", text),), kwargs=(("s", text),))
    graph = replace(graph, nodes=(node,))
    assert parse_graph(print_graph(graph)) == graph


GRAPH = """graph g(
    x: f32[8] cpu,
):
  extern aten.f.default(x: f32[8] cpu, s = "t")
    # from op at source
    out y: f32[8] cpu
  return (y: f32[8] cpu)
"""


def test_a_function_is_found_at_the_line_of_the_tokenizer() -> None:
    """Triton and the interpreter read it there: a line more and they would run the comment."""
    text = (
        '"""\x0c\x1c\x85\u2028"""\nimport triton\nimport triton.language as tl\n'
        "# \u2028\u2028\x0c@triton.jit\n@triton.jit\ndef k(x):\n    tl.store(x, 1.0)\n"
    )
    source = KernelSource("k", text, (KernelParam("x", "*f32", mutated=True),))
    x = torch.zeros(1)
    load_jit(source, interpret=True)[(1,)](x)
    assert x.item() == 1.0


@pytest.mark.parametrize(
    ("newline", "emit"),
    [("\r", "fx"), ("\u2028", "fx"), ("\n", "cpp")],
)
def test_a_file_name_of_an_exported_program_is_not_run(
    tmp_path: Path, own_cache: Path, newline: str, emit: str
) -> None:
    proof = tmp_path / "ran"

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).relu() @ x

    exported = torch.export.export(Model(), (torch.ones(4, 4),))
    evil = f"open({str(proof)!r}, 'w')".replace("/", "' + chr(47) + '").replace('"', "'")
    for node in exported.graph.nodes:
        node.meta["stack_trace"] = f'  File "x{newline}{evil}{newline}#", line 1, in forward\n'
    torch.export.save(exported, tmp_path / "evil.pt2")
    command = ["run", str(tmp_path / "evil.pt2"), "--device", "cpu", "--emit", emit]
    done = CliRunner().invoke(app, [*command, "--cache-dir", str(own_cache)])
    assert done.exit_code == 0, done.output
    assert not proof.exists()
