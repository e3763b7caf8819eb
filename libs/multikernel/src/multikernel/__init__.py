"""Several kernels for one job, chosen by size at run time.

A kernel tuned for one size is rarely the best for all. `MultiKernel` holds several and picks one
per call in about a microsecond; `compare_chain` gives the same choice as integer comparisons that
a code generator can print.
"""

from multikernel.chain import Branch, Comparison, Factor, compare_chain, follow, nearest, rank_hints
from multikernel.choices import ChoiceTable
from multikernel.errors import (
    AllVariantsFailed,
    InvalidChoices,
    InvalidHint,
    InvalidSizes,
    MultiKernelError,
    UnknownVariant,
    VariantFailed,
)
from multikernel.multi import MultiKernel, shape_of_first

__all__ = [
    "AllVariantsFailed",
    "Branch",
    "ChoiceTable",
    "Comparison",
    "Factor",
    "InvalidChoices",
    "InvalidHint",
    "InvalidSizes",
    "MultiKernel",
    "MultiKernelError",
    "UnknownVariant",
    "VariantFailed",
    "compare_chain",
    "follow",
    "nearest",
    "rank_hints",
    "shape_of_first",
]
