"""Element types as torch's; apart from `problem`, which compile workers load without torch."""

import torch

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i8": torch.int8,
    "u8": torch.uint8,
    "i32": torch.int32,
}
# Those that are multiplied without scales.
NAMES = {dtype: name for name, dtype in DTYPES.items() if name in ("bf16", "f16", "f32")}
