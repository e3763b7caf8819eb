"""Which tiles a persistent program multiplies, and along which steps of K.

Whole tiles alone leave most programs without work in the last round. With shares, the tiles that
fill no round are cut along K into SHARES pieces each, for as many programs:

    SHARES = 0   5 tiles, 4 programs   0: t0 t4   1: t1      2: t2      3: t3      two rounds
    SHARES = 4                         0: t4a t0  1: t4b t1  2: t4c t2  3: t4d t3  1.25 rounds

Neighbours have the same part of K, so that they ask the L2 cache for what they share at the same
time: pieces laid end to end over all such tiles, as stream-K has them, took longer than whole tiles
did (4096 square on an H200: 216 us, 183 without). Pieces come first, so that their sums are added
up while other tiles are multiplied."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def shares_of(pid, programs, tiles, SHARES: tl.constexpr):
    """How many items `item_of` has for a program, whether the first is a piece (0 or 1), and how
    many tiles are shared: the last ones."""
    if SHARES == 0:
        items = tl.cdiv(tiles - pid, programs)
        pieces = 0
        shared = 0
    else:
        rest = tiles % programs
        shared = tl.where(rest * SHARES <= programs, rest, 0)
        pieces = (pid < shared * SHARES).to(tl.int32)
        items = pieces + tl.cdiv(tiles - shared - pid, programs)
    return items, pieces, shared


@triton.jit
def item_of(number, pid, programs, tiles, pieces, shared, steps, SHARES: tl.constexpr):
    """Item `number` of a program: (tile, its first step, how many, how many steps came before)."""
    tile = pid + number * programs
    first = 0
    count = steps
    before = number * steps
    if SHARES != 0:  # noqa: SIM102  (a constant)
        if pieces > 0:
            part = pid // shared
            start = part * steps // SHARES
            length = (part + 1) * steps // SHARES - start
            if number == 0:
                tile = tiles - shared + pid % shared
                first = start
                count = length
            else:
                tile -= programs
                before -= steps - length
    return tile, first, count, before
