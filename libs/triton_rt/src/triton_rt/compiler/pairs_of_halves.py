"""PTX without an instruction that ptxas gets wrong.

Where registers are short, ptxas (12.8) computes a sum of two 16-bit halves and a constant a second
time for the half that is needed, and there adds 0: `VIADD.16x2 R26, R26, 0x0` for an
`add.s16x2` of 0x00020002. LLVM makes such sums of index arithmetic, whose ranges it knows to be
narrow: a gradient of windows was zero at one point of eight."""

import re
from collections import Counter

_CONSTANT = re.compile(r"\bmov\.b32\s+(%r\d+), (-?\d+);")
_WRITTEN = re.compile(r"^\s*[a-z][\w.:]*\s+(%r\d+),", re.M)
_SUM = re.compile(r"add\.s16x2\s+(%r\d+), (%r\d+), (%r\d+);")


def without_constant_pairs(ptx: str) -> str:
    """`add.s16x2 %r3, %r1, %r2;  ->  { ... add.s16 lo, lo, 2; add.s16 hi, hi, 2; ... }`, where
    `mov.b32 %r2, 131074;` is all that writes %r2."""
    if "add.s16x2" not in ptx:
        return ptx
    times = Counter(_WRITTEN.findall(ptx))
    constants = {name: value for name, value in _CONSTANT.findall(ptx) if times[name] == 1}

    def apart(match: re.Match[str]) -> str:
        out, *args = match.groups()
        args.sort(key=constants.__contains__)
        if args[1] not in constants:
            return match[0]
        number = int(constants[args[1]])
        low, high = ((number >> shift & 0xFFFF ^ 0x8000) - 0x8000 for shift in (0, 16))
        return (
            f"{{ .reg .b16 %lo, %hi; mov.b32 {{%lo, %hi}}, {args[0]}; add.s16 %lo, %lo, {low}; "
            f"add.s16 %hi, %hi, {high}; mov.b32 {out}, {{%lo, %hi}}; }}"
        )

    return _SUM.sub(apart, ptx)
