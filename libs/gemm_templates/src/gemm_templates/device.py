"""What the cost model knows of a device: plain numbers, so that it works without one."""

from dataclasses import dataclass

import torch

_KIB = 1024


@dataclass(frozen=True)
class DeviceInfo:
    """smem: bytes of shared memory that one program may use (and an SM has, nearly). Rates are
    peaks: bytes/s, and dense multiply-add operations/s (2 per multiply-add) by element type."""

    name: str
    capability: tuple[int, int]
    sms: int
    smem: int
    l2_bytes: int
    dram_rate: float
    l2_rate: float
    matrix_rate: float

    def rate(self, dtype: str, input_precision: str) -> float:
        """Matrix operations/s for operands of one element type."""
        if dtype in ("bf16", "f16"):
            return self.matrix_rate
        if dtype.startswith("f8") or dtype == "i8":
            return 2 * self.matrix_rate
        if input_precision == "tf32":
            return self.matrix_rate / 2
        return self.matrix_rate / 15  # f32 without tensor cores

    def needs_cuda_cores(self, dtype: str, input_precision: str) -> bool:
        """Exact f32 products: no tensor core makes them."""
        return dtype == "f32" and input_precision == "ieee"


# Vendor datasheets (dense rates); the L2 rate of Hopper is what fits the measured times of
# kernels best, the others are scaled from it. Memory a program may use: CUDA C programming guide,
# compute capabilities.
H200 = DeviceInfo("NVIDIA H200", (9, 0), 132, 227 * _KIB, 60 << 20, 4.8e12, 13e12, 989e12)
H100 = DeviceInfo("NVIDIA H100", (9, 0), 132, 227 * _KIB, 50 << 20, 3.35e12, 13e12, 989e12)
B200 = DeviceInfo("NVIDIA B200", (10, 0), 148, 227 * _KIB, 126 << 20, 8.0e12, 16e12, 2250e12)
A100 = DeviceInfo("NVIDIA A100", (8, 0), 108, 163 * _KIB, 40 << 20, 2.0e12, 6e12, 312e12)
KNOWN = (H200, H100, B200, A100)


def device_info(device: torch.device | str) -> DeviceInfo:
    """What the cost model knows of a CUDA device: a known one by its name, else the nearest one by
    capability, scaled by the sizes that torch reports. For "cpu": the H200, so that a machine
    without a GPU can plan."""
    device = torch.device(device)
    if device.type != "cuda":
        return H200
    found = torch.cuda.get_device_properties(device)
    for known in KNOWN:
        if known.name in found.name:
            return known
    capability = (found.major, found.minor)
    base = next((k for k in (B200, H100, A100) if k.capability <= capability), A100)
    smem = getattr(found, "shared_memory_per_block_optin", 99 * _KIB)
    scale = found.multi_processor_count / base.sms
    rates = (base.dram_rate * scale, base.l2_rate * scale, base.matrix_rate * scale)
    sms = found.multi_processor_count
    return DeviceInfo(found.name, capability, sms, smem, found.L2_cache_size, *rates)
