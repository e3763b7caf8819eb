"""Schemas, names, literals, the compiler, and programs that are refused."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cpp_emit
from cpp_emit.build import FLAGS, find_compiler, find_torch
from cpp_emit.errors import (
    BuildFailed,
    CompilerNotFound,
    SchemaError,
    UnboundSymbol,
    UndefinedName,
    UnsupportedArgument,
    UnsupportedOp,
)
from cpp_emit.extern import float_literal
from cpp_emit.names import Names
from cpp_emit.parts import compiled_parts
from cpp_emit.schema import NO_DEFAULT, bind, parse_schema
from wrapper_ir import Launch, Program, Ref, Return, parse_program


def test_schemas_are_read_as_torch_reads_them() -> None:
    names = [n for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::")]
    assert len(names) > 2500
    for name, _, overload in (n.partition(".") for n in names):
        theirs = torch._C._get_schema(name, overload)
        text = str(theirs)
        ours = parse_schema(text)
        assert (ours.name, ours.overload) == (theirs.name, theirs.overload_name)
        assert [a.name for a in ours.arguments] == [a.name for a in theirs.arguments]
        assert len(ours.returns) == len(theirs.returns)
        for a, b in zip(ours.arguments, theirs.arguments, strict=True):
            assert a.kwarg_only == b.kwarg_only
            assert (a.default is NO_DEFAULT) == (not b.has_default_value())
            if b.has_default_value() and not isinstance(a.default, str):
                expected = b.default_value
                expected = tuple(expected) if isinstance(expected, list) else expected
                # `int[2] padding=0` stands for two zeros.
                scalar = isinstance(expected, tuple) and not isinstance(a.default, tuple)
                ours_value = (a.default,) * (a.type.list_length or 0) if scalar else a.default
                assert ours_value == expected, text


def test_schema_mistakes_are_named() -> None:
    schema = parse_schema("aten::f(Tensor self, int n, *, float s=1.5) -> Tensor")
    assert bind(schema, (1, 2), (), "call") == [1, 2, 1.5]
    assert bind(schema, (1,), (("n", 3), ("s", 2.0)), "call") == [1, 3, 2.0]
    for args, kwargs, message in (
        ((1, 2, 3), (), "aten::f takes 2 positional arguments, got 3"),
        ((1,), (), "argument 'n' of aten::f is missing"),
        ((1, 2), (("q", 1),), "argument 'q' of aten::f is not in the schema"),
        ((1, 2), (("n", 1),), "argument 'n' of aten::f is given twice"),
    ):
        with pytest.raises(SchemaError, match=message):
            bind(schema, args, kwargs, "call")
    with pytest.raises(SchemaError, match="cannot read the operator schema 'f'"):
        parse_schema("f")


@given(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=12))
def test_names_become_distinct_identifiers(given_names: list[str]) -> None:
    names = Names()
    made = [names[n] for n in given_names]
    assert len(set(made)) == len(made)
    assert made == [names[n] for n in given_names]
    for name in made:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and "__" not in name


def test_words_of_cpp_and_of_the_text_are_no_names() -> None:
    names = Names()
    assert [names[n] for n in ("x", "new", "view", "_a__b", "1", "é")] == [
        "x", "new_1", "view_1", "a_b", "v1", "v",
    ]  # fmt: skip


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_float_literals_are_exact_and_floating(value: float) -> None:
    text = float_literal(value)
    assert float(text) == value and re.search(r"[.e]", text)


def test_floats_that_have_no_digits() -> None:
    assert float_literal(float("-inf")) == "-std::numeric_limits<double>::infinity()"
    assert "quiet_NaN" in float_literal(float("nan"))


def test_a_second_build_is_free(folder: Path) -> None:
    text = cpp_emit.emit(parse_program("program same(x: f32[2] cpu):\n  return (x,)\n"))
    first = cpp_emit.build(text, folder, "same")
    changed = first.stat().st_mtime_ns
    assert cpp_emit.build(text, folder, "same", compiler=None) == first
    assert first.stat().st_mtime_ns == changed
    assert first.with_suffix(".cpp").read_text() == text


def _returns(name: str) -> tuple[str, Any]:
    program = parse_program(f"program {name}(x: f32[2] cpu):\n  return (x,)\n")
    return cpp_emit.emit(program), program


def test_damaged_parts_are_made_again(tmp_path: Path) -> None:
    """Of small headers: the real ones take seconds."""
    headers = {
        "cpp_emit/runtime.h": "int answer();\n",
        "cpp_emit/runtime_body.h": "int answer() { return 42; }\n",
    }
    source = tmp_path / "program.cpp"
    source.write_text('#include "cpp_emit/runtime.h"\nextern "C" int f() { return answer(); }\n')
    compiler = [find_compiler(), *FLAGS, "-fvisibility=default"]
    torch_at = find_torch()
    for name in ("first", "second"):
        parts = compiled_parts(tmp_path / "parts", compiler, headers, torch_at.include)
        assert parts is not None
        library = tmp_path / f"{name}.so"
        assert parts.link(source, library, torch_at.lib)
        assert ctypes.CDLL(str(library)).f() == 42
        made = parts.folder / "runtime.o"
        whole = made.read_bytes()
        assert whole.startswith(b"\x7fELF")
        made.write_bytes(whole[: len(whole) // 2])


def test_a_compiler_that_cannot_make_parts_builds_without(tmp_path: Path) -> None:
    poor = tmp_path / "poor"
    poor.write_text(
        '#!/bin/sh\ncase "$*" in *soname*) echo unknown option >&2; exit 1;; esac\n'
        f'exec {find_compiler()} "$@"\n'
    )
    poor.chmod(0o700)
    text, program = _returns("plain")
    library = cpp_emit.build(text, tmp_path / "out", "plain", compiler=str(poor))
    (y,) = cpp_emit.load(library, program)(torch.ones(2))
    assert y.tolist() == [1, 1]
    assert not list((tmp_path / "out").glob("parts_*"))


def test_errors_of_the_compiler_show_the_line(folder: Path) -> None:
    text = "#include <cstdint>\nint f() {\n  return no_such_name;\n}\n"
    with pytest.raises(BuildFailed, match=r"line 3: .no_such_name. was not .*\n    return no_such"):
        cpp_emit.build(text, folder, "broken")
    assert not list(folder.glob("broken*"))


def test_no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompilerNotFound, match="cannot run the compiler /no/such"):
        cpp_emit.build("int x;", folder, compiler="/no/such")
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(CompilerNotFound, match=r"no g\+\+, clang\+\+ or c\+\+ on the PATH"):
        cpp_emit.build("int y;", folder)


def test_torch_is_found_without_importing_it() -> None:
    script = (
        "import sys; from cpp_emit.build import find_torch; print(find_torch().version); "
        "assert 'torch' not in sys.modules"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().split("+")[0] == torch.__version__.split("+")[0]


HEAD = "program bad(x: f32[s0] cpu):\n  symbol s0 = x.size(0)\n"


def _emit(ops: str, **options: Any) -> str:
    return cpp_emit.emit(parse_program(HEAD + ops), schemas=cpp_emit.torch_schema, **options)


@pytest.mark.parametrize(
    ("ops", "error", "message"),
    [
        ("  b = view nothing f32[2] cpu\n  return (x,)\n", UndefinedName, "no tensor nothing"),
        ("  b = alloc f32[2] cpu\n  free b\n  return (b,)\n", UndefinedName, "no tensor b is al"),
        ("  if s0 > 1:\n    b = alloc f32[1] cpu\n  return (b,)\n", UndefinedName, "no tensor b"),
        ("  b = alloc f32[2] xpu:0\n  return (b,)\n", UnsupportedArgument, "device xpu:0"),
        (
            "  b = alloc f32[s0] cpu\n  symbol s0 = x.size(0)\n  return (b,)\n",
            UnboundSymbol,
            "twice",
        ),
        (
            "  b = extern aten.mm.default(x) -> f32[2] cpu\n  return (b,)\n",
            SchemaError,
            "argument 'mat2' of aten::mm is missing",
        ),
        (
            "  (b, c) = extern aten.mm.default(x, x) -> (f32[2] cpu, f32[2] cpu)\n  return (b,)\n",
            SchemaError,
            "the program takes 2 results, the operator returns 1",
        ),
        ("  if s0 > 1:\n    return (x,)\n  return (x,)\n", UnsupportedOp, "Return inside an If"),
    ],
)
def test_programs_that_are_refused(ops: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _emit(ops)


def test_unbound_symbols_and_unknown_kernels() -> None:
    program = parse_program(HEAD + "  return (x,)\n")
    unbound = Program("bad", program.params, program.ops[1:])
    with pytest.raises(UnboundSymbol, match="s0 in s0 is bound neither by a SymbolDef nor"):
        cpp_emit.emit(unbound)
    launch = Launch("absent", (1, 1, 1), (Ref("x"),))
    with pytest.raises(UndefinedName, match="launch of absent"):
        cpp_emit.emit(Program("bad", program.params, (program.ops[0], launch, Return(()))))


def test_only_python_can_make_some_calls() -> None:
    call = "  b = extern aten.{} -> f32[s0] cpu\n  return (b,)\n"
    for target, reason in (
        ("add.Scalar(x, 2)", "argument 'other': 2 as Scalar"),
        ("clone.default(x, memory_format=layout strided)", "layout strided where a memory_format"),
        ("nosuchop.default(x)", "no schema is known of it"),
    ):
        with pytest.raises(UnsupportedArgument, match=reason):
            _emit(call.format(target), python_fallback=False)
        assert "through Python" in _emit(call.format(target))


def test_results_of_different_types_go_through_python() -> None:
    """torch 2.11's dispatcher ABI reads the results of such operators in the wrong order."""
    text = _emit(
        "  (b, _) = extern aten._cudnn_rnn_flatten_weight_like.default(x) -> (f32[s0] cpu, _)\n"
        "  return (b,)\n"
    )
    assert "no schema is known" in text
    schema = {"my.op.default": "my::op(Tensor x) -> (Tensor, int)"}
    program = parse_program(
        HEAD + "  (b, _) = extern my.op.default(x) -> (f32[s0] cpu, _)\n  return (b,)\n"
    )
    assert "results of different types" in cpp_emit.emit(program, schemas=schema)


def test_readme_example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libraries: Path) -> None:
    (tmp_path / "built").symlink_to(libraries)
    monkeypatch.chdir(tmp_path)
    readme = Path(__file__).parent.parent / "README.md"
    example = re.search(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert example is not None
    exec(example[1], {})
