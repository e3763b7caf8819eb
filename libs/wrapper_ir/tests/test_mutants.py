"""Printed programs with lines deleted, swapped and changed, and texts that are no programs: what
`verify` accepts computes something defined, and what is wrong is named, with its line."""

from __future__ import annotations

import contextlib
import random
import re
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wrapper_ir import errors, interpret, parse_program, print_program, verify
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes


def mutate(text: str, rng: random.Random) -> str:
    """One to three changes of lines, numbers and words."""
    lines = text.split("\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        i, j = rng.randrange(1, len(lines)), rng.randrange(1, len(lines))
        kind = rng.randrange(6)
        if kind <= 1:
            del lines[i]
        elif kind == 2:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 3:
            lines.insert(j, lines[i])
        elif numbers := list(re.finditer(r"\d+", lines[i])):
            m = rng.choice(numbers)
            new = rng.choice(["0", "1", "2", "3", "4", "7", "65", "s0"])
            lines[i] = lines[i][: m.start()] + new + lines[i][m.end() :]
        if len(lines) < 3:
            break
    return "\n".join(lines)


# Kernels that write all of what they mutate, and read none of it: nobody can tell from a program
# whether a kernel reads what it mutates.
def assign(grid, x, out, scale):
    out[...] = x.astype(np.float64).sum() * scale % 97


def total(grid, blocks, out):
    out[...] = blocks.base.sum() % 89


def increment(x, by):
    x[...] = by


def results(program, runtime, poison, s0):
    """All that a caller can see, and the error if there is one."""
    host = runtime(**{"accumulate": assign, "total": total, "test.increment_.default": increment})
    plain = host.empty_strided

    def poisoned(size, stride, dtype, device):
        out = plain(size, stride, dtype, device)
        memory = out
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        memory[...] = poison
        return out

    host.empty_strided = poisoned
    x, y = np.arange(s0 * 4, dtype=np.float32).reshape(s0, 4), np.ones((4, s0), np.float32)
    try:
        values = interpret(program, [x, y, 3], host, {"weights.0": np.eye(2, dtype=np.float32)})
    except errors.WrapperIRError as error:
        return [type(error)]
    arrays = [*values, x, y]
    return [v.tobytes() if isinstance(v, np.ndarray) else v for v in arrays]


@settings(max_examples=20, deadline=None)
@given(data=st.data(), seed=st.integers(0, 10**9))
def test_mutants_are_caught_or_defined(data, programs, runtime, seed):
    """Accepted by `verify`, a mutant gives the same results whatever uninitialised memory holds."""
    program = run_passes(data.draw(programs), [InsertFrees(), PlanMemory()])
    rng = random.Random(seed)
    for _ in range(8):
        text = mutate(print_program(program), rng)
        try:
            mutant = parse_program(text)
            verify(mutant)
        except (errors.ParseError, errors.VerifyError):
            continue
        for s0 in (1, 3):
            same = [results(mutant, runtime, poison, s0) for poison in (0x3F, 0x41)]
            assert same[0] == same[1], text


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_each_line_deleted(data, programs, runtime):
    """Caught, or the results are those of the whole program: but for a write over a write."""
    program = data.draw(programs)
    lines = print_program(program).split("\n")
    at = data.draw(st.sampled_from([i for i, x in enumerate(lines) if x.startswith("  launch fill")]
                                   or [1]))  # fmt: skip
    mutant = "\n".join(lines[:at] + lines[at + 1 :])
    try:
        parsed = parse_program(mutant)
        verify(parsed)
    except (errors.ParseError, errors.VerifyError):
        return
    same = [results(parsed, runtime, poison, 2) for poison in (0x3F, 0x41)]
    assert same[0] == same[1]


def junk(rng: random.Random, text: str) -> str:
    """Bytes changed, dropped, repeated, moved."""
    chars = list(text)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(chars))
        size = rng.choice([0, 1, 1, 3, 40])
        new = rng.choice(
            ["", chr(rng.randrange(256)), rng.choice("()[]{}\"'#:,=-<>*/\\\n\t "), "\u2028",
             "\ud800", "9" * 5000, "(" * 500, "lambda", "1.5", "1e999", "True", "a<b", "1//0",
             "9**9**9",
             "complex(1, x)", "tensordesc<f32[" + "9" * 5000 + "]>", "cuda:" + "1" * 5000]
        )  # fmt: skip
        chars[at : at + size] = new
    return "".join(chars)


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(4))
def test_any_text_is_read_or_refused(golden, seed):
    """A ParseError with its line, or a program that prints; `verify` raises only its own errors."""
    rng = random.Random(seed)
    whole = golden("encoder.txt")
    head, _, body = whole.partition("  # embeddings")
    texts = [whole, head[:900] + "\n", "program p(x: f32[4] cpu):\n" + body, ""]
    for number in range(150):
        text = junk(rng, rng.choice(texts[: 1 + number % 3]))
        if number % 10 == 0:
            text = "".join(chr(rng.choice([rng.randrange(256), 32, 10])) for _ in range(200))
        start = time.process_time()
        try:
            program = parse_program(text)
        except errors.ParseError as error:
            assert 1 <= error.line <= text.count("\n") + 1 and error.column >= 1
        else:
            assert parse_program(print_program(program)) == program
            with contextlib.suppress(errors.VerifyError):
                verify(program)
        assert time.process_time() - start < 20, text


def test_blocks_and_brackets_have_a_depth():
    deep = "program p(x: f32[4] cpu):\n" + "".join(
        f"{'  ' * (i + 1)}if 1 < 2:\n" for i in range(400)
    )
    for text in (deep, f"program p():\n  return ({'(' * 400}1,{'),' * 400})\n"):
        with pytest.raises(errors.ParseError, match="inside of one another"):
            parse_program(text)
