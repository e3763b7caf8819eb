"""Several kernels for one job, chosen by size at run time.

A kernel tuned for one size is rarely the best for all. `MultiKernel` holds several and picks one
per call in well under a microsecond, by the nearest size or by what it measured;
`compare_chain` gives the same choice as integer comparisons that a code generator can print."""

from typing import TYPE_CHECKING

from multikernel.faces import imported_later
from multikernel.files import BoundedFolder, write_whole

if TYPE_CHECKING:
    from multikernel.chain import (
        Branch,
        Comparison,
        Factor,
        boundary,
        compare_chain,
        follow,
        nearest,
        rank_hints,
    )
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
    from multikernel.records import RecordFolder, RecordStore
    from multikernel.runs import fewest_runs
    from multikernel.sampler import sample_hints
    from multikernel.settings import Settings
    from multikernel.store import TableStore
    from multikernel.table import Decision, DecisionTable

__all__ = [
    "AllVariantsFailed",
    "BoundedFolder",
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
    "RecordFolder",
    "RecordStore",
    "Settings",
    "StoreUnavailable",
    "TableStore",
    "UnknownVariant",
    "VariantFailed",
    "boundary",
    "compare_chain",
    "fewest_runs",
    "follow",
    "host_timer",
    "imported_later",
    "nearest",
    "rank_hints",
    "sample_hints",
    "shape_of_first",
    "sizes_of",
    "write_whole",
]

#: Libraries that write files, and choose nothing, start without the modules of the other names.
_MODULES = """
errors chain keys runs records choices measurement table store sampler settings multi
"""
__getattr__ = imported_later(__name__, _MODULES.split())
