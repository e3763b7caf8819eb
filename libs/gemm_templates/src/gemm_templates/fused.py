"""What is computed with a product in one kernel: plain data, texts included."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from gemm_templates.epilogue_cost import instructions
from triton_rt import KernelParam


@dataclass(frozen=True)
class Part:
    """A device function of a kernel.

    name: the `@triton.jit` function. text: module text that defines or imports it.
    operands: run-time parameters of the kernel that it gets as the tuple `operands`."""

    name: str
    text: str
    operands: tuple[KernelParam, ...] = ()

    @property
    def key(self) -> str:
        """Tells parts of one kind apart."""
        return f"{self.name}-{hashlib.sha256(self._whole.encode()).hexdigest()[:12]}"

    @property
    def _whole(self) -> str:
        """All that tells it apart but for its name."""
        raise NotImplementedError


@dataclass(frozen=True)
class Epilogue(Part):
    """What happens to a tile before it is stored: `(acc, rm, rn, mask, operands) -> value`.

    stores: it stores its results itself, and `out` is not written.
    bytes_per_element: what it reads and writes (besides `out`) for each output element, for the
        cost model.
    work: roughly how many f32 instructions it takes for each element (erf: 28); None counts them
        in `text` (`instructions`), helper functions included but not what `text` imports.
    batched: the tuple starts with the batch number (0 where there is no batch; the group's of a
        jagged matmul), before the operands.
    free: the vendor's call does this, too, at no cost."""

    stores: bool = False
    bytes_per_element: float = 0.0
    work: float | None = None
    batched: bool = False
    free: bool = False

    @cached_property
    def instructions(self) -> float:
        """f32 instructions for each element."""
        return instructions(self.text) if self.work is None else self.work

    @property
    def _whole(self) -> str:
        return f"{self.text}{' batched' if self.batched else ''}"


@dataclass(frozen=True)
class Prologue(Part):
    """What happens to a tile of an operand between its load and the product:
    `(tile, r_outer, rk, first_k, mask, operands) -> tile`.

    `r_outer` are the numbers of rows of `a` (columns of `b`) and `rk` those along K, from `first_k`
    on, a multiple of the tile's size there; both are shaped to broadcast with the tile
    ([BLOCK_M, 1] and [1, BLOCK_K] for `a`; [1, BLOCK_N] and [BLOCK_K, 1] for `b`); `mask`: where
    the tile lies inside of the matrix. What it makes of elements outside does not matter, but it
    must not read memory for them.

    dtype: element type of what it returns.
    bytes_per_element: what it reads besides the tile at a place of its own for each element, not
        for each row or column; a part of it where elements along K share a place.
    batched: the tuple starts with the batch number (0 where there is no batch), before the
        operands."""

    dtype: str = "bf16"
    bytes_per_element: float = 0.0
    batched: bool = False

    @property
    def _whole(self) -> str:
        return f"{self.text} -> {self.dtype} {self.operands}{' batched' if self.batched else ''}"


@dataclass(frozen=True)
class Pick(Part):
    """Which of several matrices, whose columns lie side by side, a tile's columns of `b` are of:
    `(first_n, operands) -> (pointer, first)`, where the matrix with column `first_n` begins, and
    the number of its first column.

    columns: how many of each divide all that it has; a tile lies in one matrix. Strides are those
        of `b`, for all."""

    columns: int = 1

    @property
    def _whole(self) -> str:
        return f"{self.text} {self.columns} {self.operands}"


@dataclass(frozen=True)
class BlockScale(Part):
    """A factor for the product of each `block_k` elements along K, in f32, before it is summed:
    `(rm, rn, first_n, k, operands) -> factor`, which broadcasts to [BLOCK_M, BLOCK_N].

    `rm` [BLOCK_M, 1] and `rn` [1, BLOCK_N] are row and column numbers that lie inside of the matrix
    (0 in place of those outside), `first_n` is the first column of the tile, `k` the first element
    along K."""

    block_k: int = 128

    @property
    def _whole(self) -> str:
        return f"{self.text} {self.block_k} {self.operands}"
