"""Text of others stays on its line and in its comment, in every language, and can be read back."""

from __future__ import annotations

import ast
import io
import shutil
import subprocess
import tokenize

import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symexpr import (
    Min,
    from_one_line,
    one_line,
    parse,
    symbol,
    to_cpp,
    to_function,
    to_python,
    to_triton,
)
from symexpr.errors import BadName

PIECES = [
    "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\0", "\x1b[31m",
    "\\", "\\\n", "\\ ", "??/", "*/", "/*", "//", "#", '"', "'", '"""', "{", "}", "{0}", "%s",
    "\u202e", "\u2066", "\u200b", "\ufeff", "\ud800", "\U000e0001", "é", "ﬁ", "coding: utf-7",
    "coding=", "+AAo-", "import os", ";", "x", " ", "\t", "\xa0", "\u3000", "\\x0a", "\\u000a",
]  # fmt: skip
hostile = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


@settings(max_examples=30, deadline=None)
@given(text=hostile)
@example(text="\\")
@example(text="??/")
@example(text="coding: utf-7")
def test_one_line(text):
    line = one_line(text)
    assert from_one_line(line) == text
    assert len(f"a{line}".splitlines()) == 1 and line.isprintable()
    assert line.strip() == line and not line.endswith("\\")
    for forbidden in ("*/", "??/", "coding:", "coding="):
        assert forbidden not in line
    line.encode()  # no surrogates


@settings(max_examples=40, deadline=None)
@given(text=hostile)
def test_python_sees_a_comment(text):
    source = f"# {one_line(text)}\nx = 1  # {one_line(text)}\n"
    assert ast.dump(ast.parse(source)) == ast.dump(ast.parse("x = 1"))
    assert ast.dump(ast.parse(source.encode())) == ast.dump(ast.parse("x = 1"))  # as a file
    kept = [
        t.string
        for t in tokenize.generate_tokens(io.StringIO(source).readline)
        if t.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
    ]
    assert kept == ["x", "=", "1"]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("standard", ["c++11", "c++20"])  # the first knows trigraphs
def test_cpp_sees_a_comment(standard):
    texts = [a + b for a in PIECES for b in ("", "x", *PIECES[:4])]
    lines = ["int bad;"]
    for number, text in enumerate(texts):
        lines += [f"// {one_line(text)}", f"const int v{number} = 1;  /* {one_line(text)} */"]
        lines.append(f'static_assert(v{number} == 1, "");  // {one_line(text)}')
    lines.append(f'static_assert(__LINE__ == {len(lines) + 1}, "");')
    command = ["g++", f"-std={standard}", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(
        command, input="\n".join(lines).encode(), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[:2000]


def test_what_is_printed_names_no_code():
    evil = symbol("__import__('os').system('x')")
    for text in (to_python, to_cpp):
        with pytest.raises(BadName, match="has to be an identifier"):
            text(evil + 1)
    with pytest.raises(BadName):
        to_function(sympy.Integer(1), ["a=print(1)"])
    with pytest.raises(BadName):
        to_function(parse("a + 1"), ["a", "lambda"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (to_python, ["min", "max", "math", "\ufb01"]),
        (to_cpp, ["int", "std", "symexpr", "xor", "\ufb01"]),
        (to_triton, ["tl", "floor_div", "\ufb01"]),
    ],
)
def test_names_that_mean_something_else_in_a_text(text, names):
    """`min(min, a)` calls a number; the ligature of f and i is read as two letters."""
    for name in names:
        with pytest.raises(BadName, match="symbol"):
            text(Min(symbol(name), symbol("a")))
    with pytest.raises(BadName, match="something else"):
        to_function(symbol("a"), ["a", "a"])
