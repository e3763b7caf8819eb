"""What the families of one output tile a program share: the model of their time and memory."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TypeAlias

from gemm_templates.device import DeviceInfo
from gemm_templates.epilogue_cost import instructions
from gemm_templates.problem import ITEMSIZE, Config, Problem

# The constants below were fitted to the times of 64 configs on 18 problems on an H200 (bf16 and
# tf32, from 16 to 16384 rows); in seconds where not said otherwise.
LAUNCH = 5.9e-6  # a launch, as events around it see it
DESCRIPTORS = 3.9e-6  # to make the tensor descriptors, at the start of every program
_MAPS = 2.4e-6  # what of that the host's save: the median of 15 pairs on 5 problems
_FILL = 1.4e-6  # to fill the pipeline of one program and drain it
_LATENCY = 0.87e-6  # of a load
LANES = 128 * 1.24e9  # f32 instructions/s of a multiprocessor, beside waits
_SHARED = 0.67  # what is left of an epilogue's time where another program multiplies meanwhile
STORE = 3.8  # instructions to store an element
# What of the shorter of loads and products on one side and prologues on the other does not hide.
_MEANWHILE = 0.35
WIDEN = 4  # beside a prologue's own, to widen an element and for its share of the product


Table: TypeAlias = tuple[tuple[int, ...], ...]


def table(text: str) -> Table:
    """Rows of numbers: `1 2 3, 4 5 6`."""
    return tuple(tuple(map(int, row.split())) for row in text.split(","))


def persistent_configs(template: str, shapes: Table, device: DeviceInfo) -> tuple[Config, ...]:
    """The configs of a table of the families of persistent programs, with as many programs as the
    device is to have. A row: block_m, block_n, block_k, group_m, num_warps, num_stages, split_n,
    programs a multiprocessor."""
    return tuple(
        Config(m, n, k, group, warps, stages, template, device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in shapes
    )


def wrong_tile(config: Config) -> str:
    """Empty if a tile of accumulators suits the warps, else what was expected."""
    elements = config.block_m * config.block_n
    if min(config.block_m, config.block_n, config.block_k) < 16:
        return "expected blocks of at least 16"
    if elements > 1024 * 64 or elements < 32 * config.num_warps:
        return (
            f"a tile of {elements} accumulators for {config.num_warps} warps; expected at least "
            "one per thread and at most 65536"
        )
    return ""


def wrong_schedule(config: Config) -> str:
    """`wrong_tile`, and a persistent kernel's number of programs."""
    return wrong_tile(config) or ("" if config.programs else "expected at least one program")


def shared_memory(problem: Problem, config: Config, *, persistent: bool = False) -> int:
    """Bytes that the pipelined loop keeps in shared memory, an upper bound of what the compiler
    takes; the store of the tile reuses them, unless a persistent program stores it while the next
    one is loaded."""
    size_a, size_b = _staged(problem, "a"), _staged(problem, "b")
    stage = (config.block_m * size_a + config.block_n * size_b) * config.block_k
    out = config.block_m * config.block_n * ITEMSIZE[problem.out_dtype]
    if persistent:
        part = out // config.parts
        if problem.epilogue and problem.epilogue.operands:  # they change layout on the way
            part += min(part, 4096 * config.num_warps)
        return stage * config.num_stages + part + converted(problem, config) + 2048
    return max(stage * config.num_stages + converted(problem, config), out + out // 16)


def _staged(problem: Problem, tensor: str) -> int:
    """Bytes in shared memory for each element of "a" or "b": what a prologue reads besides waits
    there if it has 4 bytes, else in registers (as sm_90 code has it)."""
    stored = problem.stored(tensor)
    besides = problem.loaded(tensor) - stored
    return stored + (int(besides) if besides >= 4 else 0)


def converted(problem: Problem, config: Config) -> int:
    """Bytes of the operands that a prologue made, which the tensor cores read."""
    size = 0
    if problem.prologue_a:
        size += config.block_m * ITEMSIZE[problem.operand("a")]
    if problem.prologue_b:
        size += config.block_n * ITEMSIZE[problem.operand("b")]
    return size * config.block_k


def fits(problem: Problem, config: Config, device: DeviceInfo, *, persistent: bool = False) -> bool:
    """In shared memory and registers, and the accumulators give each thread work."""
    accumulators = config.block_m * config.block_n / (32 * config.num_warps)
    # Sums that are added to others in f32 are there twice.
    exact_fp8 = problem.multiplies_fp8 and not problem.fast_accum
    if (problem.block_scale or exact_fp8) and accumulators > 64:
        return False
    if not 1 <= accumulators <= 128 or min(config.block_m, config.block_n, config.block_k) < 16:
        return False
    return shared_memory(problem, config, persistent=persistent) <= device.smem


def deepen(problem: Problem, configs: tuple[Config, ...]) -> tuple[Config, ...]:
    """For operands of 8 bits, as many bytes along K as for those of 16, as far as they share a
    scale."""
    if not problem.multiplies_bytes:
        return configs
    most = problem.block_scale.block_k if problem.block_scale else 2**31
    deep = (replace(c, block_k=min(2 * c.block_k, most)) for c in configs)
    return tuple(dict.fromkeys(deep))


def predict(
    problem: Problem, config: Config, device: DeviceInfo, *, persistent: bool = False
) -> tuple[float, str]:
    """Seconds, and what bounds them.

    The multiprocessor with the most tiles sets the time. Programs that share it (`_resident`)
    share its tensor cores and its way to the L2 cache, and hide part of each other's epilogues;
    a lone one shows all of its own. DRAM sees each tensor once."""
    size_a, size_b = problem.loaded("a"), problem.loaded("b")
    out_size = ITEMSIZE[problem.out_dtype]
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    tiles = ceil(m / config.block_m) * ceil(n / config.block_n) * batch
    if tiles == 0:
        return 0.0, "empty"
    steps = max(1, ceil(k / config.block_k))
    rounds = ceil(tiles / device.sms)
    together = min(resident(problem, config, device, persistent=persistent), rounds)

    dtype = problem.operand("a")
    rate = device.rate(dtype, problem.input_precision) / device.sms
    if device.needs_cuda_cores(dtype, problem.input_precision):
        rate *= _exact_efficiency(config, together)
    else:
        rate *= _efficiency(config, min(2, ITEMSIZE[dtype]))
    multiply = 2 * config.block_m * config.block_n * config.block_k * steps / rate
    tile_bytes = (config.block_m * size_a + config.block_n * size_b) * config.block_k * steps
    load = tile_bytes / (device.l2_rate / device.sms)
    wait = steps * _LATENCY / max(1, config.num_stages - 1)
    if problem.block_scale or (problem.multiplies_fp8 and not problem.fast_accum):
        multiply *= 1.3  # the products wait for the sums
    work = STORE + (problem.epilogue.instructions if problem.epilogue else 0.0)
    finish = config.block_m * config.block_n * work / LANES
    fill = 0.0 if persistent else _FILL

    def turn(programs: int) -> float:
        main = max(programs * multiply, programs * load, wait)
        return main + max(fill + finish, _SHARED * (fill + programs * finish))

    full, rest = divmod(rounds, together)
    busy = full * turn(together) + (turn(rest) if rest else 0.0)
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    moved = (m * k * size_a + k * n * size_b + m * n * (out_size + extra)) * batch
    times = {
        "arithmetic": busy if multiply >= load else 0.0,
        "L2": busy if multiply < load else 0.0,
        "DRAM": moved / device.dram_rate,
    }
    worst = max(times, key=lambda name: times[name])
    seconds, worst = with_prologues(problem, config, device, times[worst], worst)
    return seconds + LAUNCH + (descriptors(config) if persistent else 0.0), worst


def with_prologues(
    problem: Problem, config: Config, device: DeviceInfo, seconds: float, worst: str
) -> tuple[float, str]:
    """Of a product that takes so long by itself, with prologues: that of `a` runs once for each
    column of tiles, that of `b` for each row of them, and part of the shorter time shows."""
    of_a = problem.m * -(-problem.n // config.block_n)
    of_b = problem.n * -(-problem.m // config.block_m)
    count = sum(
        elements * problem.k * problem.batch * (WIDEN + instructions(prologue.text))
        for elements, prologue in ((of_a, problem.prologue_a), (of_b, problem.prologue_b))
        if prologue
    )
    work = count / (device.sms * LANES)
    both = max(seconds, work) + _MEANWHILE * min(seconds, work)
    return both, worst if seconds >= work else "arithmetic"


def descriptors(config: Config) -> float:
    """Seconds that tensor descriptors take at the start of a kernel."""
    return DESCRIPTORS - (_MAPS if config.maps else 0.0)


def _efficiency(config: Config, size: int) -> float:
    """Share of the tensor-core rate that the loop reaches.

    Operands are read from shared memory once per warp group: flops per byte of that grow with
    the tile's harmonic mean."""
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    narrow = 0.43 if config.num_warps < 4 or config.block_m < 64 else 1.0  # no warp-group MMA
    deep = min(1.0, 0.6 + config.block_k * size / 320)
    shallow = 0.76 if config.num_stages < 3 else 1.0
    return 1.05 * mean / (mean + 51) * narrow * deep * shallow


def _exact_efficiency(config: Config, together: int) -> float:
    """Share of the f32 rate that a product on CUDA cores reaches: a third for the best tiles."""
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    alone = 0.6 if together == 1 and config.num_warps <= 4 else 1.0
    return 0.38 * min(1.0, mean / 85) * alone * (0.75 if config.num_warps > 4 else 1.0)


def resident(
    problem: Problem, config: Config, device: DeviceInfo, *, persistent: bool = False
) -> int:
    """Programs on one multiprocessor at a time: a program reserves 1 KiB besides what it asks
    for, and needs about 40 registers a thread beside its accumulators, of 65536."""
    smem = shared_memory(problem, config, persistent=persistent)
    accumulators = config.block_m * config.block_n // (32 * config.num_warps)
    registers = min(255, accumulators + 40) * 32 * config.num_warps
    fits = min((device.smem + 1024) // (smem + 1024), 65536 // registers, 64 // config.num_warps, 8)
    if persistent:
        fits = min(fits, config.programs // device.sms)
    return max(1, fits)
