"""Which configs are worth measuring: an analytic model of time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path

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
    (16, 16, 128, 2, 4), (128, 128, 32, 8, 3), (128, 128, 32, 4, 4), (128, 64, 16, 8, 3),
    (64, 64, 16, 4, 3),
)  # fmt: skip
CONFIGS = tuple(Config(m, n, k, 8, warps, stages) for m, n, k, warps, stages in _SHAPES)
# (block_m, block_n, block_k, group_m, num_warps, num_stages, split_n, programs a multiprocessor)
_TMA_SHAPES = (
    (128, 256, 64, 8, 8, 4, 2, 1), (128, 256, 64, 8, 8, 3, 2, 1), (128, 256, 64, 8, 8, 4, 4, 1),
    (256, 128, 64, 8, 8, 4, 2, 1), (256, 128, 64, 8, 8, 4, 4, 1), (128, 128, 64, 4, 8, 3, 4, 2),
    (128, 128, 64, 4, 4, 3, 4, 2), (128, 128, 64, 8, 4, 3, 4, 2), (128, 128, 64, 8, 4, 4, 0, 1),
    (128, 128, 64, 8, 8, 5, 2, 1), (128, 128, 32, 8, 8, 5, 2, 2), (128, 64, 64, 8, 4, 4, 0, 2),
    (64, 128, 64, 8, 4, 4, 0, 2), (64, 64, 64, 8, 4, 4, 0, 2),
)  # fmt: skip


def tma_configs(device: DeviceInfo) -> tuple[Config, ...]:
    """The persistent configs, with one or two programs a multiprocessor: two multiply on beside
    each other's epilogues."""
    if device.capability < (9, 0):
        return ()
    return tuple(
        Config(m, n, k, group, warps, stages, "tma", device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in _TMA_SHAPES
    )


# The constants below were fitted to the times of 64 configs on 18 problems on an H200 (bf16 and
# tf32, from 16 to 16384 rows); in seconds where not said otherwise.
_LAUNCH = 5.9e-6  # a launch, as events around it see it
_DESCRIPTORS = 3.9e-6  # to make the tensor descriptors, at the start of every program
_FILL = 1.4e-6  # to fill the pipeline of one program and drain it
_LATENCY = 0.87e-6  # of a load
_LANES = 128 * 1.24e9  # f32 instructions/s of a multiprocessor, beside waits
_SHARED = 0.67  # what is left of an epilogue's time where another program multiplies meanwhile
_STORE = 3.8  # instructions to store an element


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
        part = out // config.parts
        if problem.epilogue and problem.epilogue.operands:  # they change layout on the way
            part += min(part, 4096 * config.num_warps)
        return stage * config.num_stages + part + 2048
    return max(stage * config.num_stages, out + out // 16)


def is_legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """Fits in shared memory and registers, the accumulators give each thread work, and the
    operands can be addressed."""
    if config.template == "tma" and (
        not (device.capability >= (9, 0) and tma_allows(problem))
        # measured: 25 to 80 times slower than `tiled`
        or device.needs_cuda_cores(problem.a_dtype, problem.input_precision)
    ):
        return False
    accumulators = config.block_m * config.block_n / (32 * config.num_warps)
    if not 1 <= accumulators <= 128:
        return False
    return shared_memory(problem, config) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds, and what bounds them.

    The multiprocessor with the most tiles sets the time. Programs that share it (`_resident`)
    share its tensor cores and its way to the L2 cache, and hide part of each other's epilogues;
    a lone one shows all of its own. DRAM sees each tensor once.
    """
    size, out_size = ITEMSIZE[problem.a_dtype], ITEMSIZE[problem.out_dtype]
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    tiles = ceil(m / config.block_m) * ceil(n / config.block_n) * batch
    if tiles == 0:
        return 0.0, "empty"
    tma = config.template == "tma"
    steps = max(1, ceil(k / config.block_k))
    rounds = ceil(tiles / device.sms)
    together = min(_resident(config, shared_memory(problem, config), device), rounds)

    rate = device.rate(problem.a_dtype, problem.input_precision) / device.sms
    if device.needs_cuda_cores(problem.a_dtype, problem.input_precision):
        rate *= _exact_efficiency(config, together)
    else:
        rate *= _efficiency(config)
    multiply = 2 * config.block_m * config.block_n * config.block_k * steps / rate
    tile_bytes = (config.block_m + config.block_n) * config.block_k * steps * size
    load = tile_bytes / (device.l2_rate / device.sms)
    wait = steps * _LATENCY / max(1, config.num_stages - 1)
    work = _STORE + (problem.epilogue.instructions if problem.epilogue else 0.0)
    finish = config.block_m * config.block_n * work / _LANES
    fill = 0.0 if tma else _FILL

    def turn(programs: int) -> float:
        main = max(programs * multiply, programs * load, wait)
        return main + max(fill + finish, _SHARED * (fill + programs * finish))

    full, rest = divmod(rounds, together)
    busy = full * turn(together) + (turn(rest) if rest else 0.0)
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    moved = ((m * k + k * n) * size + m * n * (out_size + extra)) * batch
    times = {
        "arithmetic": busy if multiply >= load else 0.0,
        "L2": busy if multiply < load else 0.0,
        "DRAM": moved / device.dram_rate,
    }
    worst = max(times, key=lambda name: times[name])
    return times[worst] + _LAUNCH + (_DESCRIPTORS if tma else 0.0), worst


def predict_extern(problem: Problem, device: DeviceInfo) -> tuple[float, str]:
    """The vendor's matmul, and an elementwise kernel for the epilogue: it reads and writes the
    result once more. The library has kernels like these, without the cost of descriptors; exact
    f32 products run at about 0.7 of the peak."""
    m, n, batch = problem.m, problem.n, problem.batch
    if m * n == 0:
        return 0.0, "empty"
    plain = replace(
        problem, epilogue=None, a_stride=None, b_stride=None, out_stride=None,
        batch_strides=None, dynamic=frozenset(), divisors=(), aligned=frozenset({"a", "b", "out"}),
    )  # fmt: skip
    if device.needs_cuda_cores(problem.a_dtype, problem.input_precision):
        tiles = ceil(m / 128) * ceil(n / 64) * batch / device.sms
        rounding = min(2.0, ceil(tiles) / tiles)
        rate = 0.7 * device.rate(problem.a_dtype, problem.input_precision)
        time, why = problem.flops / rate * rounding + _LAUNCH, "arithmetic"
    else:
        # Its split-K is not ours: a few tiles with a long K take no longer than a wait allows.
        configs = [c for c in (*CONFIGS, *tma_configs(device)) if is_legal(plain, c, device)]
        times = [predict(plain, c, device) for c in configs]
        time, why = min(times, default=(problem.flops / device.matrix_rate, "arithmetic"))
        if time > 5 * _DESCRIPTORS:
            time -= 0.5 * _DESCRIPTORS
    if problem.epilogue:
        out_size = ITEMSIZE[problem.out_dtype]
        traffic = m * n * batch * (2 * out_size + problem.epilogue.bytes_per_element)
        work = m * n * batch * (_STORE + problem.epilogue.instructions)
        time += max(traffic / (0.9 * device.dram_rate), work / (device.sms * 1.1 * _LANES))
        time += 0.6 * _LAUNCH  # the second of two launches that follow each other
        why += " + epilogue kernel"
    return time, why


def candidates(
    problem: Problem,
    device: DeviceInfo | torch.device | str = "cuda",
    *,
    limit: int = 8,
    configs: Sequence[Config] | None = None,
) -> list[Candidate]:
    """The `limit` candidates with the least predicted time, best first; the vendor call is
    always among them. Every config is legal for the device. Tiles of different size, or with
    another number of them on a multiprocessor, come before variants of one: the model knows
    these better than stages, and the measurement decides.

    configs: by default `CONFIGS` and `tma_configs(device)`.
    """
    info = device if isinstance(device, DeviceInfo) else device_info(device)
    found = []
    for config in (*CONFIGS, *tma_configs(info)) if configs is None else configs:
        if is_legal(problem, config, info) and not _too_large(problem, config):
            found.append(Candidate(config, *predict(problem, config, info)))
    found.sort(key=lambda c: c.predicted)  # equal ones stay in the order of the lists above
    first: list[Candidate] = []
    rest: list[Candidate] = []
    seen: set[tuple[str, int, int]] = set()
    for candidate in found:
        c = candidate.config
        assert c is not None
        together = _resident(c, shared_memory(problem, c), info)
        kind = (c.template, c.block_m * c.block_n, together)
        (rest if kind in seen else first).append(candidate)
        seen.add(kind)
    near = [c for c in first if c.predicted <= 1.3 * first[0].predicted]
    found = [*near, *rest, *first[len(near) :]]
    found = [*found[: max(0, limit - 1)], Candidate(None, *predict_extern(problem, info))]
    found.sort(key=lambda c: (c.predicted, c.label))
    return found


# Templates that are all predicted to take this many times the vendor's call are not measured: the
# model is not off by as much.
HOPELESS = 1.25


def worth_measuring(found: Sequence[Candidate]) -> bool:
    """Whether some template may be faster than the vendor's call."""
    extern = min((c.predicted for c in found if c.config is None), default=float("inf"))
    return any(c.config is not None and c.predicted <= HOPELESS * extern for c in found)


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


@cache
def model_digest() -> str:
    """Tells the candidates of this model from those of another version."""
    folder = Path(__file__).parent
    data = b"".join((folder / f"{name}.py").read_bytes() for name in ("model", "device", "work"))
    return hashlib.sha256(data).hexdigest()[:12]


def _efficiency(config: Config) -> float:
    """Share of the tensor-core rate that the loop reaches.

    Operands are read from shared memory once per warp group: flops per byte of that grow with
    the tile's harmonic mean.
    """
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    narrow = 0.43 if config.num_warps < 4 or config.block_m < 64 else 1.0  # no warp-group MMA
    deep = min(1.0, 0.6 + config.block_k / 160)
    shallow = 0.76 if config.num_stages < 3 else 1.0
    return 1.05 * mean / (mean + 51) * narrow * deep * shallow


def _exact_efficiency(config: Config, together: int) -> float:
    """Share of the f32 rate that a product on CUDA cores reaches: a third for the best tiles."""
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    alone = 0.6 if together == 1 and config.num_warps <= 4 else 1.0
    return 0.38 * min(1.0, mean / 85) * alone * (0.75 if config.num_warps > 4 else 1.0)


def _resident(config: Config, smem: int, device: DeviceInfo) -> int:
    """Programs on one multiprocessor at a time: a program reserves 1 KiB besides what it asks
    for, and needs about 40 registers a thread beside its accumulators, of 65536."""
    accumulators = config.block_m * config.block_n // (32 * config.num_warps)
    registers = min(255, accumulators + 40) * 32 * config.num_warps
    fits = min((device.smem + 1024) // (smem + 1024), 65536 // registers, 64 // config.num_warps, 8)
    if config.template == "tma":
        fits = min(fits, config.programs // device.sms)
    return max(1, fits)


def _too_large(problem: Problem, config: Config) -> bool:
    """A tile of twice the matrix wastes half of its work."""
    return (config.block_m > 16 and config.block_m >= 2 * problem.m) or (
        config.block_n > 16 and config.block_n >= 2 * problem.n
    )
