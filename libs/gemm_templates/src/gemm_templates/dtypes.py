"""Element types as torch's; apart from `problem`, which compile workers load without torch."""

from __future__ import annotations

import torch

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
