"""What a family takes besides one plain product."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Abilities:
    """Declared by each family as `CAN`.

    jagged: groups whose ends only the device knows (`Problem.jagged`).
    gate: two products and a gate (`Problem.gate`), and nothing else.
    prologues, block_scale: as of `Problem`. fp8: "" for none, "fast" for sums that stay in the
    tensor cores (`Problem.fast_accum`), "all" for these and for sums in f32.
    columns: epilogues that look at several columns of a row (`Epilogue.columns`).
    shares_last: `Config.split_k` is for the tiles that fill no round alone.
    descriptors: "given" if the host makes its tensor descriptors (`Config.maps`), "made" if its
    kernels do, in memory that a launch brings; "" if it has none. gluon: kernels are Gluon's.
    """

    jagged: bool = False
    gate: bool = False
    prologues: bool = False
    block_scale: bool = False
    fp8: str = ""
    columns: bool = False
    shares_last: bool = False
    descriptors: str = ""
    gluon: bool = False
