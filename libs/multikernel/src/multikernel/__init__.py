"""Several kernels for one job, chosen by size at run time.

A kernel tuned for one size is rarely the best for all. `MultiKernel` holds several and picks one
per call in well under a microsecond, by the nearest size or by what it measured;
`compare_chain` gives the same choice as integer comparisons that a code generator can print."""

from typing import TYPE_CHECKING

from multikernel.faces import imported_later as imported_later
from multikernel.files import BoundedFolder as BoundedFolder
from multikernel.files import write_whole as write_whole

if TYPE_CHECKING:
    from multikernel.chain import Branch as Branch
    from multikernel.chain import Comparison as Comparison
    from multikernel.chain import Factor as Factor
    from multikernel.chain import boundary as boundary
    from multikernel.chain import compare_chain as compare_chain
    from multikernel.chain import follow as follow
    from multikernel.chain import nearest as nearest
    from multikernel.chain import rank_hints as rank_hints
    from multikernel.choices import ChoiceTable as ChoiceTable
    from multikernel.errors import AllVariantsFailed as AllVariantsFailed
    from multikernel.errors import DamagedEntry as DamagedEntry
    from multikernel.errors import InvalidBox as InvalidBox
    from multikernel.errors import InvalidChoices as InvalidChoices
    from multikernel.errors import InvalidHint as InvalidHint
    from multikernel.errors import InvalidOption as InvalidOption
    from multikernel.errors import InvalidSizes as InvalidSizes
    from multikernel.errors import InvalidTime as InvalidTime
    from multikernel.errors import MultiKernelError as MultiKernelError
    from multikernel.errors import NoChain as NoChain
    from multikernel.errors import StoreUnavailable as StoreUnavailable
    from multikernel.errors import UnknownVariant as UnknownVariant
    from multikernel.errors import VariantFailed as VariantFailed
    from multikernel.keys import shape_of_first as shape_of_first
    from multikernel.keys import sizes_of as sizes_of
    from multikernel.measurement import Measurement as Measurement
    from multikernel.measurement import host_timer as host_timer
    from multikernel.multi import MultiKernel as MultiKernel
    from multikernel.records import RecordFolder as RecordFolder
    from multikernel.records import RecordStore as RecordStore
    from multikernel.runs import fewest_runs as fewest_runs
    from multikernel.sampler import sample_hints as sample_hints
    from multikernel.settings import Settings as Settings
    from multikernel.store import TableStore as TableStore
    from multikernel.table import Decision as Decision
    from multikernel.table import DecisionTable as DecisionTable


#: Libraries that write files, and choose nothing, start without the modules of the other names.
_MODULES = """
errors chain keys runs records choices measurement table store sampler settings multi
"""
__getattr__ = imported_later(__name__, _MODULES.split())
