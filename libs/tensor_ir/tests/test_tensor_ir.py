"""Each spelling against the library that it is for, texts there and back, and the README."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from symexpr import symbol
from tensor_ir import (
    BY_TEXT,
    BY_TRITON_SHORT,
    Decided,
    Device,
    DType,
    ParseError,
    PassError,
    Ref,
    Scanner,
    Symbol,
    TorchEnum,
    VerifyError,
    parse_symbol,
    parse_type,
    print_plain,
    print_symbol,
    print_type,
    run_passes,
)

README = Path(__file__).parents[1] / "README.md"


def test_readme_example_runs():
    example = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(example[1], {})


def test_imports_without_torch():
    code = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; import tensor_ir"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", DType)
def test_torch_has_the_type_under_that_name(dtype):
    torch = pytest.importorskip("torch")
    found = getattr(torch, dtype.torch_name)
    assert found.itemsize == dtype.itemsize
    assert found.is_floating_point == dtype.is_float
    assert found.is_complex == dtype.is_complex


@pytest.mark.parametrize("dtype", [d for d in DType if not d.is_complex])
def test_triton_has_the_type_under_both_names(dtype):
    tl = pytest.importorskip("triton.language")
    found = getattr(tl, dtype.triton_name)
    assert found.name == dtype.triton_short
    assert BY_TRITON_SHORT[found.name] is dtype
    assert max(1, found.primitive_bitwidth // 8) == dtype.itemsize


@pytest.mark.parametrize("dtype", DType)
def test_numpy_holds_the_values(dtype):
    found = np.dtype(getattr(np, dtype.numpy_name))
    assert found.itemsize >= dtype.itemsize
    assert (found.kind in "iu") == dtype.is_int
    assert (found.kind == "c") == dtype.is_complex
    assert BY_TEXT[dtype.value] is dtype


@pytest.mark.parametrize(
    "text",
    [
        "f32[] cpu",
        "bf16[s0, 768] cuda:0",
        "i64[s0*2 + 1] cuda:1 stride (3,) offset s0",
        "c64[2, 3] cpu stride (1, 2)",
    ],
)
def test_types_there_and_back(text):
    assert print_type(parse_type(text)) == text


@pytest.mark.parametrize("text", ["s0", "s0 in [1, 64] hint 2", "n in [*, 5]", "m hint 7"])
def test_symbols_there_and_back(text):
    assert print_symbol(parse_symbol(text)) == text


def test_bounds_of_symbols():
    assert parse_symbol("n in [*, 5] hint 3") == Symbol("n", None, 5, 3)


@pytest.mark.parametrize(
    "value",
    [
        3,
        -1.5,
        float("inf"),
        complex(1, -2),
        'a "b" \n',
        Device("cuda", 1),
        DType.f8e5m2,
        TorchEnum("layout", "strided"),
        symbol("s0") * 2 + 1,
        True,
        None,
    ],
)
def test_arguments_there_and_back(value):
    read = Scanner(print_plain(value), symbols={"s0"}).arg()
    assert read == value and type(read) is type(value)


def test_tuples_and_references():
    read = Scanner("(a, (s0,), ())", symbols={"s0"}).arg()
    assert read == (Ref("a"), (symbol("s0"),), ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f31[2] cpu", "line 1, column 1: expected an element type such as f32, got 'f31[2] cpu'"),
        ("f32[2] cuda:x", "line 1, column 12: expected end of the type, got ':x'"),
        ("f32[2,\n2] cpu stride (1,)", "line 2, column 15: expected 2 strides, got '(1,)'"),
    ],
)
def test_what_is_no_type(text, message):
    with pytest.raises(ParseError, match=re.escape(message)):
        parse_type(text)


@pytest.mark.parametrize("text", ["device cuda:0:1", "device 0"])
def test_what_is_no_device(text):
    with pytest.raises(ParseError, match="column 8: expected a device such as cuda:0"):
        Scanner(text).arg()


class Negative(VerifyError):
    """A number is not
    negative."""


def not_negative(number: int) -> None:
    if number < 0:
        raise Negative(str(number), "here")


@dataclass(frozen=True)
class Less:
    by: int
    name: str = "less"

    def run(self, number: int) -> int:
        return number - self.by


@dataclass(frozen=True)
class Halve:
    name = "halve"

    def run(self, number: int) -> Decided[int]:
        return Decided(number // 2, (f"{number} was {'odd' if number % 2 else 'even'}",))


def test_passes_run_in_order_and_are_seen():
    seen: list[tuple[str, int]] = []
    passes = [Less(2), Less(3, "then")]
    assert run_passes(9, passes, not_negative, lambda *a: seen.append(a)).program == 4
    assert seen == [("less", 7), ("then", 4)]


def test_the_pass_that_breaks_a_rule_is_named():
    message = r"pass then made an invalid number: here: -1 \(rule: a number is not negative\)"
    with pytest.raises(PassError, match=message):
        run_passes(4, [Less(2), Less(3, "then")], not_negative, what="number")
    assert run_passes(4, [Less(2), Less(3)], None).program == -1


def test_what_passes_decided_comes_back_in_order():
    assert run_passes(9, [Halve(), Less(1), Halve()], not_negative) == (
        1,
        ("9 was odd", "3 was odd"),
    )


def test_what_was_wrong_before_is_no_fault_of_a_pass():
    with pytest.raises(Negative):
        run_passes(-1, [Less(1)], not_negative)
