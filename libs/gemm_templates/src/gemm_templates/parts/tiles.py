"""What the templates share: where a tile lies, its loop over K, and what happens to its sums."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(pid, M, N, tile):
    """Program -> (tile row, tile column), GROUP_M rows at a time, so that programs which run
    together read few different rows of `a` and columns of `b` (from the L2 cache)."""
    num_m = tl.cdiv(M, tile.BLOCK_M)
    num_n = tl.cdiv(N, tile.BLOCK_N)
    width = tile.GROUP_M * num_n
    first = (pid // width) * tile.GROUP_M
    rows = tl.minimum(num_m - first, tile.GROUP_M)
    inside = pid % width
    return first + inside % rows, inside // rows


@triton.jit
def identity(acc, rm, rn, mask, operands):
    """The epilogue of a problem without one."""
    return acc


@triton.jit
def numbers_of(first_m, first_n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """The numbers of rows and of columns from (first_m, first_n) on, in 64 bits if WIDE."""
    rm = first_m + tl.arange(0, ROWS)
    rn = first_n + tl.arange(0, COLUMNS)
    if WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
    return rm, rn


@triton.jit
def share_of(part, K, BLOCK_K: tl.constexpr, share):
    """(first block of K, number of blocks) of one of SPLIT_K programs; of a lone one, if `share` is
    None."""
    steps = tl.cdiv(K, BLOCK_K)
    if share is None:
        first = 0
        count = steps
    else:
        each = tl.cdiv(steps, share.SPLIT_K)
        first = part * each
        if share.EVEN:
            count = each
        else:
            count = tl.maximum(tl.minimum(each, steps - first), 0)
    return first, count


@triton.jit
def product_of(a, b, pid_m, pid_n, part, share, sizes, tile, beginning, SWAP: tl.constexpr = False):
    """Sums of a tile over a program's share of K (`share_of`), in f32 (of integers, in i32).

    SWAP: the result is the transpose, [BLOCK_N, BLOCK_M]: the tensor cores then take `b` for their
    first operand, whose tile is at least 64 high, and `a` for the second, which may be 8 wide."""
    rm = pid_m * tile.BLOCK_M + tl.arange(0, tile.BLOCK_M)
    rn = pid_n * tile.BLOCK_N + tl.arange(0, tile.BLOCK_N)
    first, count = share_of(part, sizes.K, tile.BLOCK_K, share)
    rk = tl.arange(0, tile.BLOCK_K)
    if tile.WIDE:
        rm = rm.to(tl.int64)
        rn = rn.to(tl.int64)
        rk = rk.to(tl.int64)
    start = first * tile.BLOCK_K
    along = start + rk
    a_ptrs = a.ptr + (rm[:, None] * a.stride_row + along[None, :] * a.stride_column)
    start_b, of_b = picked_b(b, pid_n * tile.BLOCK_N, beginning)
    b_ptrs = start_b + (along[:, None] * b.stride_row + (rn - of_b)[None, :] * b.stride_column)
    if SWAP:
        acc = no_sums(tile.BLOCK_N, tile.BLOCK_M, tile)
    else:
        acc = no_sums(tile.BLOCK_M, tile.BLOCK_N, tile)
    inner_m = tl.where(rm < sizes.M, rm, 0)[:, None]
    inner_n = tl.where(rn < sizes.N, rn, 0)[None, :]
    for step in tl.range(0, count):
        k = start + step * tile.BLOCK_K
        left = sizes.K - start - step * tile.BLOCK_K
        if beginning.SCALE is not None:
            factor = beginning.SCALE(
                inner_m, inner_n, pid_n * tile.BLOCK_N, k, beginning.scale_operands
            )
        in_m = rm[:, None] < sizes.M
        in_n = rn[None, :] < sizes.N
        x = load_block(a_ptrs, in_m, rk[None, :] < left, tile.EDGE_M, tile.EVEN_K)
        y = load_block(b_ptrs, in_n, rk[:, None] < left, tile.EDGE_N, tile.EVEN_K)
        if beginning.PROLOGUE_A is not None:
            inside = inside_of(x, in_m, rk[None, :] < left, tile.EDGE_M)
            x = prepare_a(x, rm[:, None], k + rk[None, :], k, inside, beginning, tile)
        if beginning.PROLOGUE_B is not None:
            inside = inside_of(y, in_n, rk[:, None] < left, tile.EDGE_N)
            y = prepare_b(y, rn[None, :], k + rk[:, None], k, inside, beginning, tile)
        if SWAP:
            acc = multiply_add(tl.trans(y), tl.trans(x), acc, tile)
        elif beginning.SCALE is not None:
            product = tl.dot(x, y, input_precision=tile.INPUT_PRECISION)
            acc = tl.fma(product, factor, acc)
        else:
            acc = multiply_add(x, y, acc, tile)
        a_ptrs += tile.BLOCK_K * a.stride_column
        b_ptrs += tile.BLOCK_K * b.stride_row
    return acc


@triton.jit
def picked_b(b, first_n, beginning):
    """Where the matrix begins that a tile's columns are of, and the number of its first column."""
    if beginning.PICK_B is None:
        start, first = b.ptr, 0
    else:
        start, first = beginning.PICK_B(first_n, beginning.b_operands)
    return start, first


@triton.jit
def no_sums(ROWS: tl.constexpr, COLUMNS: tl.constexpr, tile):
    """Zeros of the type that products are summed in."""
    if tile.INTEGER:
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.int32)
    else:
        sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    return sums


@triton.jit
def load_block(ptrs, inside, along, EDGE: tl.constexpr, EVEN_K: tl.constexpr):
    """A block of an operand: zeros where it is not `along` K, and beyond edges that are masked,
    where it is not `inside`. EVEN_K: K never ends within it."""
    if EDGE == "mask":
        if EVEN_K:
            block = tl.load(ptrs, mask=inside, other=0.0)
        else:
            block = tl.load(ptrs, mask=inside & along, other=0.0)
    else:
        if EVEN_K:
            block = tl.load(ptrs)
        else:
            block = tl.load(ptrs, mask=along, other=0.0)
    return block


@triton.jit
def inside_of(block, inside, along, EDGE: tl.constexpr):
    """Where a block lies inside of its operand, for a prologue."""
    mask = tl.broadcast_to(along, block.shape)
    if EDGE == "mask":
        mask = mask & inside
    return mask


@triton.jit
def multiply_add(x, y, acc, tile):
    """`acc + x @ y` by the tensor cores."""
    return tl.dot(
        x,
        y,
        acc,
        input_precision=tile.INPUT_PRECISION,
        max_num_imprecise_acc=tile.IMPRECISE,
        out_dtype=acc.dtype,
    )


@triton.jit
def prepare_a(block, r_outer, rk, first_k, inside, beginning, tile):
    """What the prologue of `a` makes of a block; outside along K that is zero, whatever it is."""
    block = beginning.PROLOGUE_A(block, r_outer, rk, first_k, inside, beginning.a_operands)
    if not tile.EVEN_K:
        block = tl.where(inside, block, tl.zeros_like(block))
    return block


@triton.jit
def prepare_b(block, r_outer, rk, first_k, inside, beginning, tile):
    """The same of `b`."""
    block = beginning.PROLOGUE_B(block, r_outer, rk, first_k, inside, beginning.b_operands)
    if not tile.EVEN_K:
        block = tl.where(inside, block, tl.zeros_like(block))
    return block


@triton.jit
def finish(acc, first_m, first_n, sizes, tile, ending, desc=None, matrix=None):
    """Bias, epilogue and store of the sums that start at (first_m, first_n): through a descriptor,
    if that is given; to matrix number `matrix` of a batch, if there is one."""
    rm, rn = numbers_of(first_m, first_n, acc.shape[0], acc.shape[1], tile.WIDE)
    rm = rm[:, None]
    rn = rn[None, :]
    mask = mask_of(rm, rn, sizes, tile)
    if ending.bias is not None:
        if tile.EDGE_N == "none":
            bias = tl.load(ending.bias + rn * ending.stride_bias)
        else:
            bias = tl.load(ending.bias + rn * ending.stride_bias, mask=rn < sizes.N, other=0.0)
        acc += bias.to(tl.float32)
    value = ending.EPILOGUE(acc, rm, rn, mask, ending.operands)
    if ending.out is not None:
        if desc is None:
            # Not by a name of its own, which would make values of its constants.
            start = ending.out.ptr
            result = value.to(start.dtype.element_ty)
            if matrix is not None:
                start += tl.cast(matrix, tl.int64) * ending.out.stride_batch
            inside = rm * ending.out.stride_row + rn * ending.out.stride_column
            tl.store(start + inside, result, mask=mask)
        elif matrix is None:
            desc.store([first_m, first_n], value.to(desc.dtype))
        else:
            block = value.to(desc.dtype).reshape(1, acc.shape[0], acc.shape[1])
            desc.store([matrix, first_m, first_n], block)


@triton.jit
def mask_of(rm, rn, sizes, tile):
    """Where rows `rm` and columns `rn` lie inside of the matrix. Where the blocks divide the sizes
    the mask is a constant, which the compiler drops."""
    shape: tl.constexpr = (rm.shape[0], rn.shape[1])
    if tile.EDGE_M == "none":
        if tile.EDGE_N == "none":
            mask = tl.full(shape, True, tl.int1)
        else:
            mask = tl.broadcast_to(rn < sizes.N, shape)
    else:
        if tile.EDGE_N == "none":
            mask = tl.broadcast_to(rm < sizes.M, shape)
        else:
            mask = (rm < sizes.M) & (rn < sizes.N)
    return mask
