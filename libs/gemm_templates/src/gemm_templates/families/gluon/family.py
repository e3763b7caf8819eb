"""Persistent programs whose warps have roles: what is proposed, and the launch."""

import re
from dataclasses import replace
from math import ceil

from gemm_templates.device import H200, DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.tma import family as tma
from gemm_templates.fused import Epilogue
from gemm_templates.plan import Plan, Workspace
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, launched, stores_out
from gemm_templates.tensor_maps import is_writable, moves_of

CAN = Abilities(
    HOPPER, HOPPER, fp8="fast", integers=True, shares_last=True, descriptors="given", gluon=True
)

_SHAPES = dense.table(
    "128 128 64 8 8 6 2 1, 64 256 64 16 8 5 4 1, 128 256 64 8 8 4 4 1, 256 128 64 8 8 4 4 1, "
    "64 128 64 8 8 8 2 1"
)
WARPS = 8  # that multiply: two groups
_GROUP_TILE = 64 * 256  # accumulators in the registers of a group, 128 a thread
_INTEGER_COLUMNS = 128  # of a `wgmma`: Triton 3.6 has none of 256 columns of integers

# Fitted to the times of six tiles on ten problems on an H200; times in seconds.
_DESCRIPTORS = 2.0e-6  # made by all roles at once
_MAPS = 1.2e-6  # what of that the host's save: the median of 20 pairs on 5 problems
_FILL = 1.5e-6
_RATE = 0.83  # of the tensor cores' peak, in the loop
_HIDDEN = 0.5  # what is left of an epilogue's time beside the products of the other group
_L2 = 1.15  # of the rate that the kernels of one role reach
_SHARED_TILE = 1.5e-6  # more for tiles that programs share
_PIECE_RATE = 73e9  # bytes/s at which one program reads the pieces of others, waits included
_FLOPS = 4096  # of a multiprocessor in a cycle
_SHARED = 128  # bytes of shared memory, read or written, in a cycle

# What values that have a layout do not allow, or that looks at more than its own element.
_NOT_ELEMENTWISE = re.compile(
    r"\btl\.(arange|zeros|full|dot|dot_scaled|sum|max|min|reduce|argmax|argmin|xor_sum|cumsum|"
    r"cumprod|associative_scan|reshape|view|ravel|trans|permute|join|interleave|split|cat|gather|"
    r"sort|topk|flip|histogram|zeros_like|full_like|program_id|num_programs|rand\w*|"
    r"make_block_ptr|make_tensor_descriptor|debug_barrier)\b"
)


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """Each tile whole, and the first with its last tiles shared where that is predicted to pay."""
    offered = dense.deepen(problem, dense.persistent_configs("gluon", _SHAPES, device))
    shared = [shares for config in offered[:1] for shares in _shared(problem, config, device)]
    return (*offered, *shared)


def _shared(problem: Problem, config: Config, device: DeviceInfo) -> list[Config]:
    """The config with the tiles that fill no round shared by as many programs as the model finds
    best; none if that is one."""
    if not allows_shares(problem):
        return []
    among = [replace(config, split_k=n) for n in (1, 2, 3, 4, 6, 8)]
    best = min(among, key=lambda c: predict(problem, c, device)[0])
    return [best] if best.split_k > 1 else []


def allows_shares(problem: Problem) -> bool:
    """Whether tiles may be shared: they are counted in memory that is zeroed once. Pieces are sums
    of floats."""
    return problem.sums == "f32" and not {"M", "N", "K"} & problem.dynamic


def allows(problem: Problem) -> bool:
    """Operands that TMA can address, elements of 16 or 8 bits, and an elementwise epilogue."""
    return (
        tma.allows(problem)
        and (ITEMSIZE[problem.a_dtype] == 2 or _is_bytes(problem))
        and (problem.epilogue is None or is_elementwise(problem.epilogue))
    )


def _is_bytes(problem: Problem) -> bool:
    """Of one type, contiguous along K as tensor cores take 8 bits, and summed by them alone."""
    along = (problem.major("a"), problem.major("b"))
    summed = problem.fast_accum or problem.sums == "i32"
    return summed and problem.a_dtype == problem.b_dtype and along == ("stride_ak", "stride_bk")


def is_elementwise(epilogue: Epilogue) -> bool:
    """Whether an epilogue is elementwise, by its own text; what it imports is not looked at."""
    return _NOT_ELEMENTWISE.search(epilogue.text) is None


def why_not(problem: Problem, config: Config) -> str:
    """Empty if the kernel takes the operands and the epilogue, and has this schedule."""
    if not allows(problem):
        return (
            "expected operands of 16 bits that are contiguous along one dimension (i8, and fp8 "
            "with fast_accum: along K), 16-byte aligned (say so in `aligned`), no batch, no empty "
            "size, and an epilogue of elementwise operations"
        )
    if problem.sums == "i32" and config.block_n > _INTEGER_COLUMNS:
        return f"expected at most {_INTEGER_COLUMNS} columns of integers"
    return wrong_schedule(config, ITEMSIZE[problem.a_dtype]) or wrong_shares(problem, config)


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory, with one part of a tile that waits to be stored."""
    return shared_memory(problem, config, 1) <= device.smem


def takes_turns(config: Config) -> bool:
    """Whether each tile belongs to one of the two groups."""
    return config.block_m * config.block_n <= _GROUP_TILE


def shared_memory(problem: Problem, config: Config, buffers: int, columns: int = 0) -> int:
    """Bytes of the ring, and of the parts that wait to be stored, of a tile of that many columns
    (0: of all). An upper bound; barriers and descriptors in the making take 632 bytes."""
    stage = (config.block_m + config.block_n) * config.block_k * ITEMSIZE[problem.a_dtype]
    rows = config.block_m * (2 if takes_turns(config) else 1)
    part = rows * (columns or config.block_n) // config.parts * ITEMSIZE[problem.out_dtype]
    return stage * config.num_stages + part * buffers + 1024


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """A multiprocessor's tiles one after the other: with turns, part of an epilogue shows, else
    all of it."""
    size, out_size = ITEMSIZE[problem.a_dtype], ITEMSIZE[problem.out_dtype]
    m, n, k = problem.m, problem.n, problem.k
    tiles = ceil(m / config.block_m) * ceil(n / config.block_n)
    if tiles == 0:
        return 0.0, "empty"
    steps = max(1, ceil(k / config.block_k))
    rounds, together = _rounds(tiles, steps, config, device)
    area = config.block_m * config.block_n
    # Shared memory takes the tile in, and gives a group's rows and all columns to each wgmma.
    peak = device.rate(problem.a_dtype, problem.input_precision)
    cycles = 2 * area * config.block_k / (_FLOPS * peak / device.matrix_rate)
    taken = (config.block_m + config.block_n + config.block_m // 64 * (64 + config.block_n)) * size
    fed = _SHARED * cycles / (taken * config.block_k)
    rate = min(_RATE, fed) * peak / device.sms
    multiply = 2 * area * config.block_k * steps / rate
    tile_bytes = (config.block_m + config.block_n) * config.block_k * steps * size
    load = tile_bytes / (_L2 * device.l2_rate / device.sms)
    work = dense.STORE + (problem.epilogue.instructions if problem.epilogue else 0.0)
    finish = area * work / dense.LANES
    shown = _HIDDEN if takes_turns(config) else 1.0
    busy = rounds * (max(multiply, load) + shown * finish) + (1 - shown) * finish
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    dram = ((m * k + k * n) * size + m * n * (out_size + extra)) / device.dram_rate
    time, why = max((busy, "L2" if load > multiply else "arithmetic"), (dram, "DRAM"))
    start = _DESCRIPTORS - (_MAPS if config.maps else 0.0)
    return time + dense.LAUNCH + start + _FILL + together, why


def _rounds(tiles: int, steps: int, config: Config, device: DeviceInfo) -> tuple[float, float]:
    """How many tiles a multiprocessor multiplies, and the seconds to add up pieces of tiles."""
    programs = min(tiles * config.split_k, device.sms)
    whole, rest = divmod(tiles, programs)
    if config.split_k == 1 or rest == 0 or rest * config.split_k > programs:
        return ceil(tiles / device.sms), 0.0
    pieces = 4 * config.block_m * config.block_n * config.split_k
    return whole + ceil(steps / config.split_k) / steps, _SHARED_TILE + pieces / _PIECE_RATE


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch, and the memory of tiles that programs share."""
    return plan_of(problem, config, config, name)


def plan_of(problem: Problem, config: Config, multiplied: Config, name: str) -> Plan:
    """multiplied: the tile of accumulators, where it is not the one that is stored."""
    stored = stores_out(problem) and is_writable(problem)
    by_rows = "stride_on" not in problem.dynamic and problem.dims()["stride_on"] == 1
    lines = by_rows and stores_out(problem) and not stored
    twice = shared_memory(problem, multiplied, 2, config.block_n) <= H200.smem and config.parts > 1
    flags = (
        f"pipeline=Pipeline(STAGES={config.num_stages}, TURNS={takes_turns(multiplied)}, "
        f"PARTS={config.parts}, BUFFERS={2 if twice else 1}, "
        f"BY_LINES={by_lines(problem, config)}, LINES={lines}, "
        f"SHARES={config.split_k if config.split_k > 1 else 0}), OVERLAP={config.overlap}"
    )
    halves = 1 if takes_turns(multiplied) else 2
    memory: tuple[Workspace, ...] = ()
    if config.split_k > 1:
        sums = config.programs * multiplied.block_m * multiplied.block_n
        memory = (
            Workspace("partials", "f32", fixed=sums),
            Workspace("counters", "i32", halves, config.block_m, config.block_n, zeroed=True),
        )
    moves = moves_of(problem, config, config.block_m // halves, stored)
    call = Call("gluon", "gluon_mm", flags, memory, roles=True, moves=moves)
    return launched(problem, config, name, call, shares=config.split_k)


def by_lines(problem: Problem, config: Config) -> bool:
    """Whether the epilogue gets eight columns side by side in a thread: the shuffles cost less than
    to read or write another matrix two columns at a time."""
    moves = problem.epilogue is not None and problem.epilogue.bytes_per_element > 0
    return moves and config.block_n // config.parts >= 32


def wrong_shares(problem: Problem, config: Config) -> str:
    """Empty if so many programs may share a tile."""
    if config.split_k == 1:
        return ""
    if not allows_shares(problem):
        return "programs that share tiles are counted in memory that is zeroed once: M, N, K known"
    if ceil(problem.k / config.block_k) < config.split_k:
        return f"K={problem.k} has fewer blocks than programs that share a tile"
    return ""


def wrong_schedule(config: Config, itemsize: int) -> str:
    """Empty if the kernel has this schedule, else what was expected."""
    rows = config.block_m // (1 if takes_turns(config) else 2)
    if config.num_warps != WARPS or config.programs < 1:
        return f"expected num_warps={WARPS} and at least one program"
    if rows not in (64, 128) or not 64 <= config.block_n <= 256:
        return "expected 64 or 128 rows for each group of four warps, and 64 to 256 columns"
    if rows * config.block_n > _GROUP_TILE:
        return f"expected at most {_GROUP_TILE} accumulators for each group of four warps"
    if config.block_k * itemsize != 128 or config.num_stages < 2:
        return "expected 128 bytes along K, as a swizzle has, and at least two stages"
    if config.block_n // config.parts < 16:
        return "expected parts of at least 16 columns"
    return ""
