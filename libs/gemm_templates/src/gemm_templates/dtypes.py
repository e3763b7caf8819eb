"""Element types as torch's; apart from `problem`, which compile workers load without torch."""

from gemm_templates.problem import ITEMSIZE
from triton_rt.element_types import torch_dtype

DTYPES = {name: torch_dtype(name) for name in ITEMSIZE}
# Those that are multiplied without scales.
NAMES = {dtype: name for name, dtype in DTYPES.items() if name in ("bf16", "f16", "f32")}
