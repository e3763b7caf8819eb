"""Sums of two halves and a constant, which ptxas gets wrong, do not reach it."""

from __future__ import annotations

import re

import pytest
import triton
import triton.language as tl

from triton_rt import Target, compile
from triton_rt.compiler.pairs_of_halves import without_constant_pairs

TWO = "\tmov.b32 \t%r2, 131074;\n"
SUM = "\tadd.s16x2 \t%r3, %r1, %r2;\n"


@triton.jit
def steps(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2 + 3)


def test_no_constant_is_added_to_two_halves_at_once() -> None:
    binary = compile(
        steps,
        Target(90),
        signature={"x": "*i16", "y": "*i16"},
        constants={"BLOCK": 512},
        alignment=3,
        keep_ptx=True,
    )
    constants = re.findall(r"mov\.b32\s+(%r\d+), -?\d+;", binary.ptx)
    sums = re.findall(r"add\.s16x2\s+%r\d+, (%r\d+), (%r\d+);", binary.ptx)
    assert "add.s16 " in binary.ptx
    assert not [pair for pair in sums if set(pair) & set(constants)]


@pytest.mark.parametrize("sum", [SUM, SUM.replace("%r1, %r2", "%r2, %r1")])
def test_halves_are_added_one_by_one(sum: str) -> None:
    apart = without_constant_pairs(TWO + sum)
    assert "s16x2" not in apart
    assert "mov.b32 {%lo, %hi}, %r1; add.s16 %lo, %lo, 2; add.s16 %hi, %hi, 2;" in apart


def test_each_half_has_a_sign() -> None:
    apart = without_constant_pairs(TWO.replace("131074", "-131069") + SUM)
    assert "add.s16 %lo, %lo, 3; add.s16 %hi, %hi, -2;" in apart


@pytest.mark.parametrize(
    "ptx",
    [
        SUM,
        TWO + "\tadd.s32 \t%r2, %r2, 1;\n" + SUM,
        TWO + SUM.replace("s16x2", "s32"),
    ],
)
def test_what_is_no_such_sum_stays(ptx: str) -> None:
    assert without_constant_pairs(ptx) == ptx
