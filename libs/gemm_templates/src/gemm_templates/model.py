"""Which configs are worth measuring: an analytic model of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch

from gemm_templates.device import DeviceInfo, device_info
from gemm_templates.errors import UnsupportedProblem
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import tma_allows

# (block_m, block_n, block_k, num_warps, num_stages)
_SHAPES = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4),
    (128, 128, 64, 4, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4),
    (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4),
    (64, 256, 64, 4, 4), (128, 128, 128, 8, 3), (64, 64, 128, 4, 4), (64, 128, 128, 4, 3),
    (128, 64, 32, 4, 4), (64, 64, 32, 4, 4), (64, 32, 64, 4, 4), (32, 64, 64, 4, 4),
    (32, 32, 64, 4, 4), (16, 64, 128, 4, 4), (64, 16, 128, 4, 4), (16, 32, 128, 2, 4),
    (16, 16, 128, 2, 4), (128, 128, 32, 8, 3), (128, 64, 16, 8, 3), (64, 64, 16, 4, 3),
)  # fmt: skip
CONFIGS = tuple(Config(m, n, k, 8, warps, stages) for m, n, k, warps, stages in _SHAPES)
# (block_m, block_n, block_k, num_warps, num_stages, split_n, programs a multiprocessor)
_TMA_SHAPES = (
    (128, 256, 64, 8, 3, True, 1), (128, 256, 64, 8, 4, True, 1), (128, 256, 64, 8, 3, False, 1),
    (256, 128, 64, 8, 3, False, 1), (256, 128, 64, 8, 4, True, 1), (128, 128, 64, 8, 4, False, 1),
    (128, 128, 64, 4, 4, False, 1), (128, 128, 64, 8, 5, True, 1), (128, 128, 128, 8, 2, False, 1),
    (128, 128, 32, 8, 4, True, 2), (128, 128, 64, 8, 2, True, 2), (128, 64, 64, 4, 4, False, 2),
    (64, 128, 64, 4, 4, False, 2), (64, 64, 64, 4, 4, False, 2),
)  # fmt: skip


def tma_configs(device: DeviceInfo) -> tuple[Config, ...]:
    """The persistent configs, with one or two programs a multiprocessor."""
    if device.capability < (9, 0):
        return ()
    return tuple(
        Config(m, n, k, 8, warps, stages, "tma", device.sms * programs, split)
        for m, n, k, warps, stages, split, programs in _TMA_SHAPES
    )


_LAUNCH = 3e-6  # s, from the first program to the last result
_FILL = 1.2e-6  # s, to fill the pipeline of one program and drain it


@dataclass(frozen=True)
class Candidate:
    """A config, or the vendor call (`config` None), with the model's time in seconds."""

    config: Config | None
    predicted: float
    why: str = ""

    @property
    def label(self) -> str:
        return "extern" if self.config is None else str(self.config)


def shared_memory(problem: Problem, config: Config) -> int:
    """Bytes that the pipelined loop keeps in shared memory, an upper bound of what the compiler
    takes; the store of the tile reuses them."""
    size = ITEMSIZE[problem.a_dtype]
    stage = (config.block_m + config.block_n) * config.block_k * size
    out = config.block_m * config.block_n * ITEMSIZE[problem.out_dtype]
    if config.template == "tma":  # the next tile is loaded while this one is stored
        part = out // (2 if config.split_n else 1)
        if problem.epilogue and problem.epilogue.operands:  # they change layout on the way
            part += part // 8
        return stage * config.num_stages + part + 2048
    return max(stage * config.num_stages, out + out // 16)


def is_legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """Fits in shared memory and registers, the accumulators give each thread work, and the
    operands can be addressed."""
    if config.template == "tma" and not (device.capability >= (9, 0) and tma_allows(problem)):
        return False
    accumulators = config.block_m * config.block_n / (32 * config.num_warps)
    if not 1 <= accumulators <= 128:
        return False
    return shared_memory(problem, config) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds, and what bounds them.

    The SM with the most tiles sets the time of the arithmetic; reads of both operands by every
    tile go through the L2 cache; DRAM sees each tensor once, or an operand once per wave where
    a wave's working set is larger than the L2.
    """
    size = ITEMSIZE[problem.a_dtype]
    out_size = ITEMSIZE[problem.out_dtype]
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    tiles = ceil(m / config.block_m) * ceil(n / config.block_n) * batch
    if tiles == 0:
        return 0.0, "empty"
    steps = max(1, ceil(k / config.block_k))
    smem = shared_memory(problem, config)
    resident = _resident(config, smem, device)
    rounds = ceil(tiles / device.sms)

    sm_rate = device.rate(problem.a_dtype, problem.input_precision) / device.sms
    rate = sm_rate * _efficiency(config, resident, steps)
    tile_flops = 2 * config.block_m * config.block_n * config.block_k * steps
    # Programs that share an SM hide each other's ends and epilogues; a lone one shows them.
    shown = rounds if resident == 1 else ceil(rounds / resident)
    if config.template == "tma":  # one start for all tiles; 2 us more to make the descriptors
        rate *= 1.05
        shown = 2
    compute = rounds * tile_flops / rate + shown * _FILL
    if problem.epilogue:
        elements = config.block_m * config.block_n * rounds
        lanes = 128 * 1.7e9  # f32 instructions/s of an SM, from Ampere on
        seconds = elements * problem.epilogue.work / lanes
        spills = 1.3 if elements / rounds / config.num_warps >= 4096 and not config.split_n else 1.0
        compute += seconds * spills * (1.0 if resident == 1 else 0.4)

    l2 = tiles * (config.block_m + config.block_n) * config.block_k * steps * size / device.l2_rate
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    a_bytes, b_bytes = m * k * size * batch, k * n * size * batch
    wave = device.sms * resident
    rows = min(config.group_m, ceil(m / config.block_m))
    wave_bytes = (rows * config.block_m + wave / rows * config.block_n) * k * size
    again = 1.0 if wave_bytes < device.l2_bytes / 2 else min(2.0, tiles / wave)
    dram = (
        a_bytes * again + b_bytes * again + m * n * batch * (out_size + extra)
    ) / device.dram_rate
    times = {"arithmetic": compute, "L2": l2, "DRAM": dram}
    worst = max(times, key=lambda name: times[name])
    return times[worst] + _LAUNCH, worst


def predict_extern(problem: Problem, device: DeviceInfo) -> tuple[float, str]:
    """The vendor's matmul, and an elementwise kernel for the epilogue: it reads and writes the
    result once more."""
    size, out_size = ITEMSIZE[problem.a_dtype], ITEMSIZE[problem.out_dtype]
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    if m * n == 0:
        return 0.0, "empty"
    rate = device.rate(problem.a_dtype, problem.input_precision) * 0.78
    tile_waves = ceil(m / 128) * ceil(n / 128) * batch / device.sms
    rounding = ceil(tile_waves) / tile_waves if tile_waves > 1 else 1 / max(tile_waves, 0.25)
    compute = problem.flops / rate * min(rounding, 2.0)
    dram = ((m * k + k * n) * size + m * n * out_size) * batch / device.dram_rate
    time, why = max((compute, "arithmetic"), (dram, "DRAM"))
    time += _LAUNCH
    if problem.epilogue:
        traffic = m * n * batch * (2 * out_size + problem.epilogue.bytes_per_element)
        time += traffic / (0.9 * device.dram_rate) + _LAUNCH
        why += " + epilogue kernel"
    return time, why


def candidates(
    problem: Problem,
    device: DeviceInfo | torch.device | str = "cuda",
    *,
    limit: int = 6,
    configs: Sequence[Config] | None = None,
) -> list[Candidate]:
    """The `limit` candidates with the least predicted time, best first; the vendor call is
    always among them. Every config is legal for the device. Tiles of different shape come
    before variants of one, since the model knows shapes better than stages.

    configs: by default `CONFIGS` and `tma_configs(device)`.
    """
    info = device if isinstance(device, DeviceInfo) else device_info(device)
    found = []
    for config in (*CONFIGS, *tma_configs(info)) if configs is None else configs:
        if is_legal(problem, config, info) and not _too_large(problem, config):
            found.append(Candidate(config, *predict(problem, config, info)))
    found.sort(key=lambda c: (c.predicted, c.label))
    first: list[Candidate] = []
    rest: list[Candidate] = []
    seen: set[tuple[str, int, int]] = set()
    for candidate in found:
        assert candidate.config is not None
        shape = (candidate.config.template, candidate.config.block_m, candidate.config.block_n)
        (rest if shape in seen else first).append(candidate)
        seen.add(shape)
    near = [c for c in first if c.predicted <= 1.3 * first[0].predicted]
    found = [*near, *rest, *first[len(near) :]]
    found = [*found[: max(0, limit - 1)], Candidate(None, *predict_extern(problem, info))]
    found.sort(key=lambda c: (c.predicted, c.label))
    return found


def best_config(problem: Problem, device: DeviceInfo | torch.device | str = "cuda") -> Config:
    """The config with the least predicted time. Raises UnsupportedProblem if none is legal."""
    for candidate in candidates(problem, device):
        if candidate.config is not None:
            return candidate.config
    raise UnsupportedProblem(f"{problem}: no config fits the device")


def explain(
    problem: Problem, found: Sequence[Candidate], measured: dict[str, float] | None = None
) -> str:
    """A table of predicted and measured times in microseconds, fastest first."""
    times = measured or {}
    rows = sorted(found, key=lambda c: (times.get(c.label, c.predicted), c.label))
    lines = [
        str(problem),
        f"{'config':<26}{'predicted':>10}{'measured':>10}{'TFLOP/s':>9}  bound by",
    ]
    for c in rows:
        time = times.get(c.label)
        shown = f"{time * 1e6:.1f}" if time is not None else "-"
        speed = f"{problem.flops / time / 1e12:.0f}" if time else "-"
        lines.append(f"{c.label:<26}{c.predicted * 1e6:>10.1f}{shown:>10}{speed:>9}  {c.why}")
    return "\n".join(lines)


def _efficiency(config: Config, resident: int, steps: int) -> float:
    """Share of the tensor-core rate that the loop reaches.

    Operands are read from shared memory once per warp group: flops per byte of that grow with
    the tile's harmonic mean. A lone warp group cannot overlap its own waits as well as two.
    """
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    shape = mean / (mean + 35)
    groups = max(1, config.num_warps // 4) * resident
    overlap = {1: 0.75, 2: 0.93}.get(groups, 1.0) * min(1.0, 0.7 + 0.1 * config.num_stages)
    narrow = 0.6 if config.num_warps < 4 or config.block_m < 64 else 1.0  # no warp-group MMA
    deep = min(1.0, 0.85 + config.block_k / 400)
    return shape * overlap * narrow * deep


def _resident(config: Config, smem: int, device: DeviceInfo) -> int:
    """Programs on one SM at a time: a program reserves 1 KiB besides what it asks for, and needs
    about 64 registers a thread beside its accumulators, of 65536."""
    accumulators = config.block_m * config.block_n // (32 * config.num_warps)
    registers = min(255, accumulators + 64) * 32 * config.num_warps
    fits = min((device.smem + 1024) // (smem + 1024), 65536 // registers, 4)
    if config.template == "tma":
        fits = min(fits, config.programs // device.sms)
    return max(1, fits)


def _too_large(problem: Problem, config: Config) -> bool:
    """A tile of twice the matrix wastes half of its work."""
    return (config.block_m > 16 and config.block_m >= 2 * problem.m) or (
        config.block_n > 16 and config.block_n >= 2 * problem.n
    )
