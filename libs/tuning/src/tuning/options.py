"""How to tune, and what is tuned."""

from dataclasses import dataclass

Grid = int | tuple[int, ...]


@dataclass(frozen=True)
class Options:
    """How to tune.

    `repeats`: launches of a candidate that stays in the race to the end (others get 1, 3 or 7).
    `flush_bytes`: written before each launch to evict the L2; default twice its size.
    `overwritten`: names of mutated parameters that every candidate overwrites whole without
    reading them, so that their first values need not be kept. `verify`: compare the outputs of each
    candidate with the first one's (workers always do)."""

    repeats: int = 20
    flush_bytes: int | None = None
    overwritten: tuple[str, ...] = ()
    verify: bool = False
