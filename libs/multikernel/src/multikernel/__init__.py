"""Several kernels for one job, chosen by size at run time.

A kernel tuned for one size is rarely the best for all. `MultiKernel` holds several and picks one
per call in well under a microsecond, by the nearest size or by what it measured;
`compare_chain` gives the same choice as integer comparisons that a code generator can print.
"""

from multikernel.chain import Branch, Comparison, Factor, compare_chain, follow, nearest, rank_hints
from multikernel.choices import ChoiceTable
from multikernel.errors import (
    AllVariantsFailed,
    DamagedEntry,
    InvalidBox,
    InvalidChoices,
    InvalidHint,
    InvalidOption,
    InvalidSizes,
    InvalidTime,
    MultiKernelError,
    NoChain,
    StoreUnavailable,
    UnknownVariant,
    VariantFailed,
)
from multikernel.keys import shape_of_first, sizes_of
from multikernel.measurement import Measurement, host_timer
from multikernel.multi import MultiKernel
from multikernel.sampler import sample_hints
from multikernel.store import TableStore
from multikernel.table import Decision, DecisionTable

__all__ = [
    "AllVariantsFailed",
    "Branch",
    "ChoiceTable",
    "Comparison",
    "DamagedEntry",
    "Decision",
    "DecisionTable",
    "Factor",
    "InvalidBox",
    "InvalidChoices",
    "InvalidHint",
    "InvalidOption",
    "InvalidSizes",
    "InvalidTime",
    "Measurement",
    "MultiKernel",
    "MultiKernelError",
    "NoChain",
    "StoreUnavailable",
    "TableStore",
    "UnknownVariant",
    "VariantFailed",
    "compare_chain",
    "follow",
    "host_timer",
    "nearest",
    "rank_hints",
    "sample_hints",
    "shape_of_first",
    "sizes_of",
]
