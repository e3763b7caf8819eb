"""TMA: tensors as the unit that copies blocks takes them, and its rules. Imports no torch."""

from triton_rt.tma.encode import MAP_BYTES, encode
from triton_rt.tma.layout import DATA_TYPES, MapLayout
from triton_rt.tma.map_plan import MapPlan
from triton_rt.tma.rules import ALIGNMENT, Violation, violations
from triton_rt.tma.tensor_map import (
    Address,
    TensorMap,
    as_tensor_map,
    describe,
    is_descriptor,
    raise_violation,
)
