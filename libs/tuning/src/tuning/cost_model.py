"""A cost model: good enough to leave out what cannot win, and to choose where nothing may be run.

It knows bytes, flops, occupancy and spills, and nothing of access patterns: keep its margin wide.
"""

import math
from dataclasses import dataclass
from typing import Self

import torch

from triton_rt.driver import driver
from tuning.resources import SYSTEM_SHARED, Resources

# The constants below fit 54 measurements of row kernels on an H200 (benchmarks/tune.py).
#: Seconds that a block lives: load, reduce, store. Little's law turns it into bytes in flight.
_LIFE = 1.6e-6
#: Seconds of a launch between two events.
_LAUNCH = 4.0e-6
#: The part of the peak bandwidth that a streaming kernel gets.
_STREAM = 0.88
#: The same of one block that has a multiprocessor to itself: nothing runs while it waits.
_ALONE = 0.65
#: A multiprocessor alone can draw about this multiple of its share of the bandwidth.
_SM_SHARE = 2.0
#: L2 moves about this multiple of what device memory does; spills mostly stay there.
_L2_FACTOR = 2.5

#: Dense 16-bit tensor-core flops per clock and multiprocessor, by major architecture.
_TENSOR_FLOPS = {7: 1024, 8: 2048, 9: 4096, 10: 8192}


@dataclass(frozen=True)
class Work:
    """What all candidates of a kernel have to do: `bytes` through device memory, each input read
    once and each output written once; `flops`, on tensor cores or not."""

    bytes: int = 0
    flops: int = 0
    tensor_cores: bool = False


@dataclass(frozen=True)
class Machine:
    """A GPU in numbers: `clock` in Hz, `bandwidth` of device memory in bytes per second."""

    name: str
    arch: int
    sms: int
    clock: float
    bandwidth: float
    l2_bytes: int
    shared_per_sm: int
    shared_per_block: int
    registers_per_sm: int = 65536
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32

    @classmethod
    def of(cls, device: int) -> Self:
        """This machine's GPU, by its driver. Raises `NoGPU`."""
        opened = driver()
        limits, read = opened.device(device), opened.device_attribute
        # Numbers of CUdevice_attribute in cuda.h; clocks are in kHz, HBM moves data twice a clock.
        return cls(
            name=torch.cuda.get_device_name(device),
            arch=limits.capability,
            sms=limits.multiprocessors,
            clock=1e3 * read(13, device),
            bandwidth=2e3 * read(36, device) * read(37, device) / 8,
            l2_bytes=read(38, device),
            shared_per_sm=read(81, device),
            shared_per_block=limits.shared,
            registers_per_sm=read(82, device),
            threads_per_sm=read(39, device),
            blocks_per_sm=read(106, device),
        )


#: From the vendor's data sheets, to choose for a GPU that is not here.
A100 = Machine("NVIDIA A100-SXM4-80GB", 80, 108, 1.41e9, 2.04e12, 40 << 20, 167936, 166912)
H200 = Machine("NVIDIA H200", 90, 132, 1.98e9, 4.8e12, 50 << 20, 233472, 232448)


def occupancy(needs: Resources, machine: Machine) -> int:
    """Blocks that a multiprocessor holds at once; 0 if none fits, so that a launch would fail.

    Registers go to a warp in units of 256 and warps in fours (CUDA occupancy calculator)."""
    per_warp = -(-needs.registers * 32 // 256) * 256
    warps = needs.threads // 32
    by_registers = machine.registers_per_sm // max(per_warp, 256) // 4 * 4 // warps
    by_shared = machine.shared_per_sm // max(-(-needs.shared_bytes // 128) * 128, 1)
    if needs.shared_bytes > machine.shared_per_block + SYSTEM_SHARED:
        return 0
    by_threads = machine.threads_per_sm // needs.threads
    return min(by_registers, by_shared, by_threads, machine.blocks_per_sm)


def estimate(needs: Resources, programs: int, work: Work, machine: Machine) -> float:
    """Seconds for `programs` blocks that share `work`; infinite if a block fits nowhere."""
    resident = occupancy(needs, machine)
    if resident == 0:
        return math.inf
    blocks = max(1, programs * needs.num_ctas)
    active = min(float(resident), max(1.0, blocks / machine.sms))
    used = min(1.0, blocks / machine.sms * _SM_SHARE)
    # A block has at most as many bytes on the way as half of its registers hold.
    held = needs.threads * needs.registers * 4 / 2
    flying = active * min(work.bytes / blocks, held)
    wanted = machine.bandwidth / machine.sms * _LIFE
    reach = min(1.0, used, max(flying / wanted, 1e-3)) if work.bytes else 1.0
    if resident == 1 and blocks > machine.sms:
        reach *= _ALONE
    memory = work.bytes / (machine.bandwidth * _STREAM * reach)
    spilled = 2.0 * needs.local_bytes * needs.threads * blocks
    memory += spilled / (machine.bandwidth * _L2_FACTOR)
    per_clock = 256 if not work.tensor_cores else _TENSOR_FLOPS.get(machine.arch // 10, 2048)
    lanes = min(1.0, blocks / machine.sms) * min(1.0, active * needs.threads / 256)
    compute = work.flops / (per_clock * machine.sms * machine.clock * lanes)
    if blocks > resident * machine.sms:  # the last wave runs as long as a full one
        waves = blocks / (resident * machine.sms)
        compute *= math.ceil(waves) / waves
    return max(memory, compute) + _LAUNCH
