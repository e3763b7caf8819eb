"""The families of operators and how often each is drawn."""

from __future__ import annotations

from collections.abc import Callable

from fuzzer import chains, numeric, special, structure, wider
from fuzzer.generate import Maker

FAMILIES: tuple[tuple[Callable[[Maker], None], float], ...] = (
    (numeric.unary, 12),
    (numeric.binary, 16),
    (numeric.ternary, 5),
    (numeric.comparison, 4),
    (numeric.bits, 3),
    (numeric.cast, 5),
    (numeric.reduction, 9),
    (numeric.position, 3),
    (numeric.scan, 2),
    (numeric.normalization, 4),
    (numeric.product, 5),
    (numeric.convolution, 1.5),
    (numeric.pooling, 1.5),
    (numeric.sizes, 2),
    (special.special, 3),
    (structure.view, 20),
    (structure.moved, 7),
    (structure.joined, 5),
    (structure.created, 3),
    (structure.gathered, 7),
    (structure.scattered, 5),
    (structure.written, 10),
    (structure.assigned, 5),
    (structure.ordered, 2),
    (chains.chain, 2.5),
    (chains.recurrence, 1),
    (chains.attention, 1.5),
    (wider.chance, 2),
    (wider.branched, 1),
    (wider.transformed, 1.5),
    (wider.custom, 1.5),
    (wider.several, 3),
    (wider.statistics, 1.5),
    (wider.complexes, 3),
    (wider.contraction, 3),
    (wider.filters, 2),
    (wider.narrow_types, 1),
)
