"""The launches that a config becomes: plain data, from which hosts of any kind launch."""

from dataclasses import dataclass
from typing import TypeAlias

from triton_rt import KernelSource, MapPlan

#: Parameters that are descriptors, each with what it describes in terms of `DIMS`.
Maps: TypeAlias = "tuple[tuple[str, MapPlan], ...]"


@dataclass(frozen=True)
class Workspace:
    """Memory that the launches of one call share, and nobody reads afterwards.

    name: of the kernel parameter that points to it. dtype: "f32" or "i32".
    Elements: `per_tile` for each tile of block_m x block_n outputs, `per_output` for each output
    of the matrix, and `fixed`; the batch multiplies the first two.
    zeroed: all zero at the start of a call; the kernels leave it all zero."""

    name: str
    dtype: str
    per_tile: int = 0
    block_m: int = 1
    block_n: int = 1
    per_output: int = 0
    fixed: int = 0
    batch: int = 1
    zeroed: bool = False

    def elements(self, m: int, n: int) -> int:
        """For a result of [m, n]."""
        tiles = -(-m // self.block_m) * -(-n // self.block_n)
        return (self.per_tile * tiles + self.per_output * m * n) * self.batch + self.fixed

    @property
    def elements_text(self) -> str:
        """The same as an expression of `M` and `N` with `CeilDiv`."""
        parts = []
        if self.per_tile:
            tiles = f"CeilDiv(M, {self.block_m})*CeilDiv(N, {self.block_n})"
            parts.append(f"{self.per_tile * self.batch}*{tiles}")
        if self.per_output:
            parts.append(f"{self.per_output * self.batch}*M*N")
        if self.fixed or not parts:
            parts.append(str(self.fixed))
        return " + ".join(parts)


@dataclass(frozen=True)
class TemplateKernel:
    """A kernel as text, and its grid.

    source.params: run-time parameters in order: `a, b, [b2], [bias], [out], [offs]`, workspaces,
        the operands of the epilogue, of the prologues and of the block scale, then the dynamic
        names of `DIMS` in the order of `DIMS`; a kernel of several has those of them that it uses.
    source.constants: the block sizes.
    maps: of `a`, `b`, `b2` and `out`, those that are descriptor parameters (`tensordesc<...>`),
        with the matrix and the block of each; sizes and strides by the names of `DIMS`.
    grid: tiles = cdiv(M, block_m) * cdiv(N, block_n) in x, at most `programs` if that is not 0;
        the batch in y; `splits` in z. `grid_text` is that as expressions of `M` and `N` with
        `CeilDiv`, `Min`. flat: the programs walk over the batch, too: its tiles are in x.
    shares: so many of the `programs` may share a tile: their number is at most that many times the
        tiles."""

    source: KernelSource
    block_m: int
    block_n: int
    batch: int = 1
    programs: int = 0
    splits: int = 1
    flat: bool = False
    maps: Maps = ()
    shares: int = 1

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        """The grid of a launch for a result of [m, n]."""
        tiles = -(-m // self.block_m) * -(-n // self.block_n) * (self.batch if self.flat else 1)
        batch = 1 if self.flat else self.batch
        most = tiles * self.shares
        return (min(most, self.programs) if self.programs else tiles, batch, self.splits)

    @property
    def grid_text(self) -> tuple[str, str, str]:
        """The same as expressions of `M` and `N`."""
        tiles = f"CeilDiv(M, {self.block_m})*CeilDiv(N, {self.block_n})"
        if self.flat:
            tiles += f"*{self.batch}"
        most = f"{tiles}*{self.shares}" if self.shares > 1 else tiles
        x = f"Min({most}, {self.programs})" if self.programs else tiles
        return (x, "1" if self.flat else str(self.batch), str(self.splits))


@dataclass(frozen=True)
class Plan:
    """Kernels launched one after the other on one stream, and the memory that they share."""

    steps: tuple[TemplateKernel, ...]
    workspaces: tuple[Workspace, ...] = ()
