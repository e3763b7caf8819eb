"""What templates take: tuples with names, which the text of a kernel makes of its parameters.

A launch passes pointers and integers only, and what is static is a literal of the text. A constant
stays one in a tuple that is an argument, but not in one that a variable holds."""

from __future__ import annotations

from typing import Any, NamedTuple


class Matrix(NamedTuple):
    """An operand or the result: where it begins, and the distances between its rows, its columns,
    and the matrices of a batch.

    BY_ROWS: it is contiguous along its rows, else along its columns. SHARED: all products of a
    batch have the same matrix (a batch stride of 0, which is no stride that a descriptor takes).
    TMA: it is moved through a tensor descriptor, which `ptr` is if the host made it (GIVEN)."""

    ptr: Any
    stride_row: Any
    stride_column: Any
    stride_batch: Any = 0
    BY_ROWS: Any = True
    SHARED: Any = False
    TMA: Any = False
    GIVEN: Any = False


class Sizes(NamedTuple):
    """The sizes M, N and K of a product, and how many products there are if it is a batch."""

    M: Any
    N: Any
    K: Any
    BATCH: Any = None


class Tile(NamedTuple):
    """The block of the result that a program computes, BLOCK_K along K at a time: constants.

    GROUP_M: `tile_of`. EDGE_M, EDGE_N: "none" if BLOCK divides the size; "mask" if rows (columns)
    outside are to be read as zeros. EVEN_K: BLOCK_K divides K. WIDE: offsets in 64 bits, for
    operands of 2**31 elements and more. IMPRECISE: fp8 products are summed in f32 after that many
    along K (None: by the tensor cores alone). INTEGER: operands are i8, and sums i32."""

    BLOCK_M: Any
    BLOCK_N: Any
    BLOCK_K: Any
    GROUP_M: Any
    EDGE_M: Any
    EDGE_N: Any
    EVEN_K: Any
    WIDE: Any
    INPUT_PRECISION: Any
    IMPRECISE: Any = None
    INTEGER: Any = False


class Ending(NamedTuple):
    """What happens to the sums.

    bias: pointer, or None. EPILOGUE(acc, rm, rn, mask, operands) -> the value to store: `acc` in
    f32 with the bias added, `rm` [rows, 1] and `rn` [1, columns] the row and column numbers, `mask`
    where they lie inside. GATE: None, or a function like it: the epilogue gets
    `GATE(a @ b) * (a @ b2)`. out: None where the epilogue has stored what it wanted.
    BATCHED: `operands` is to start with the number of the product."""

    bias: Any
    stride_bias: Any
    EPILOGUE: Any
    operands: Any
    out: Any
    GATE: Any = None
    BATCHED: Any = False


class Beginning(NamedTuple):
    """What happens to blocks of the operands before they are multiplied.

    PROLOGUE_A(tile, r_outer, rk, first_k, mask, a_operands) -> tile, or None; so PROLOGUE_B.
    SCALE(rm, rn, first_n, k, scale_operands) -> an f32 factor for the product of each BLOCK_K.
    PICK_B(first_n, b_operands) -> (where the matrix begins that a tile is of, its first column)."""

    PROLOGUE_A: Any = None
    a_operands: Any = None
    PROLOGUE_B: Any = None
    b_operands: Any = None
    SCALE: Any = None
    scale_operands: Any = None
    PICK_B: Any = None


class Groups(NamedTuple):
    """Products whose sizes only the device knows.

    ends: pointer to the end of each group along one size of the product, or None for a batch.
    SPAN: a power of two, at least the number of groups."""

    ends: Any = None
    SPAN: Any = 1


class Share(NamedTuple):
    """How K is shared by the programs of a tile: constants.

    SPLIT_K: by how many. CHUNK: so many partial sums are read at a time, a power of two.
    EVEN: all have the same number of blocks, which is a constant if K is one."""

    SPLIT_K: Any
    CHUNK: Any
    EVEN: Any


class Scratch(NamedTuple):
    """Memory that programs share: sums; i32 counters, all zero before and after a launch."""

    partials: Any = None
    counters: Any = None


class Pipeline(NamedTuple):
    """The schedule of a Gluon kernel whose warps have roles: constants.

    STAGES: of the ring. TURNS: a tile belongs to one group of warps, else both share it. PARTS: the
    epilogue runs on that many parts of a group's columns. BUFFERS: parts that wait to be stored,
    for each group. BY_LINES: the epilogue gets eight columns side by side in a thread, for what
    reads or writes matrices, not the layout of `wgmma`. LINES: what no descriptor stores is written
    as `store_lines` does it. SHARES: of tiles that fill no round (`tail_tiles.py`)."""

    STAGES: Any
    TURNS: Any = False
    PARTS: Any = 1
    BUFFERS: Any = 1
    BY_LINES: Any = False
    LINES: Any = False
    SHARES: Any = 0
