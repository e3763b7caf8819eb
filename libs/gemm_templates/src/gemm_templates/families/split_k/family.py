"""K shared among programs: what is proposed, and the launch."""

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched

CAN = Abilities(prologues=True, fp8="fast", integers=True)

# (block_m, block_n, num_warps), and blocks of K.
_TILES = dense.table("16 16 4, 32 32 4, 32 64 4, 64 64 4, 64 128 4, 128 128 8, 128 256 8")
_DEPTHS = (32, 64, 128)
# For elements of `b` of 8 bits: as many bytes of it.
_FLAT = ((16, 64, 4), (16, 128, 4))

# Fitted to the times of 300 configs of `decompose_k` on 13 problems on an H200.
_LAUNCH = 6.2e-6  # one, and the wait for the count
_WAIT = 0.56e-6  # for a block of K, shared by the loads that are under way together
_COLD = 1.35  # operands come from DRAM at this many times the ideal
READ = 0.11e12  # bytes/s at which one program reads the sums of the others


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """Where tiles are few and K is long: about as many programs as there are multiprocessors, and
    as many loads under way as there are blocks of K to load, up to four."""
    found = []
    few, deep = (_FLAT, (256,)) if narrow(problem) else ((), ())
    for block_m, block_n, warps in (*few, *_TILES):
        tiles = -(-problem.m // block_m) * -(-problem.n // block_n) * problem.batch
        parts = 2
        while parts <= 256 and tiles * parts <= 2 * device.sms + 8:
            each = -(-problem.k // parts)
            if 4 * tiles * parts >= device.sms and each >= 32:
                for depth in (*_DEPTHS, *deep):
                    steps = -(-each // depth)
                    if depth < 2 * each and (depth >= 64 or steps <= 8):
                        config = Config(block_m, block_n, depth, 1, warps, 1, "split_k")
                        room = device.smem - dense.converted(problem, config)
                        most = min(5 if warps < 8 else 4, room // stage_bytes(problem, config))
                        stages = 1 if steps == 1 else max(2, min(steps + 1, most))
                        found.append(replace(config, num_stages=stages, split_k=parts))
            parts *= 2
    return tuple(found)


def narrow(problem: Problem) -> bool:
    """Whether elements of `b` are of 8 bits until a prologue widens them, which may read more for
    groups of them."""
    return problem.prologue_b is not None and problem.loaded("b") < 2


def stage_bytes(problem: Problem, config: Config) -> int:
    """Of a block of `a` and one of `b`, as they are loaded."""
    size_a, size_b = problem.loaded("a"), problem.loaded("b")
    return int((config.block_m * size_a + config.block_n * size_b) * config.block_k)


def is_readable(config: Config) -> bool:
    """One program reads the sums of a tile: much more takes longer than a second launch."""
    left = 4 * config.split_k * config.block_m * config.block_n
    return left <= 2**18 or config.split_k == 1


def not_plain(problem: Problem) -> str:
    """Empty for one product of whole matrices, as they are or by prologues, summed as the tensor
    cores do."""
    others = (problem.block_scale, problem.gate, problem.jagged)
    if others == (None,) * 3 and (problem.fast_accum or not problem.multiplies_fp8):
        return ""
    return "expected no scales, gate or groups, and fp8 only with fast_accum"


def not_counted(problem: Problem, config: Config) -> str:
    """Empty where programs that share tiles can be counted, in memory that is zeroed once."""
    if not_plain(problem):
        return not_plain(problem)
    if {"M", "N"} & problem.dynamic or config.programs:
        return (
            "programs that share tiles are counted in memory that is zeroed once, which needs M "
            "and N known; `programs` is for persistent templates"
        )
    return ""


def why_not(problem: Problem, config: Config) -> str:
    """Empty for one product whose tiles can be counted, and a tile that suits the warps."""
    return dense.wrong_tile(config) or not_counted(problem, config)


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory and registers, and what programs leave is read in time."""
    return is_readable(config) and dense.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds: `products`, then one program a tile reads what all left."""
    area = 4 * config.block_m * config.block_n
    seconds, why = products(problem, config, device)
    return seconds + _LAUNCH + config.split_k * area / READ, why


def products(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds for the partial products alone, besides launches, and what bounds them."""
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    tiles = -(-m // config.block_m) * -(-n // config.block_n) * batch
    steps = -(-k // (config.block_k * config.split_k))
    rounds = -(-tiles * config.split_k // device.sms)
    read = 0.0
    for elements, size in ((m * k, problem.loaded("a")), (k * n, problem.loaded("b"))):
        pieces = 1.0
        if steps > config.num_stages:  # rows of an operand come in pieces, one at a time
            pieces += 45 / (config.block_k * size)
        read += _COLD * pieces * elements * size * batch / device.dram_rate
    each = stage_bytes(problem, config)
    inside = rounds * device.sms * steps * each / (0.75 * device.l2_rate)
    rate = device.rate(problem.operand("a"), problem.input_precision) / device.sms
    mean = 2 * config.block_m * config.block_n / (config.block_m + config.block_n)
    flops = 2.0 * config.block_m * config.block_n * config.block_k * steps * rounds
    shallow = 0.6 if 1 < config.num_stages < 3 else 1.0
    multiply = flops / (rate * shallow * mean / (mean + 51))
    waits = steps / max(1, config.num_stages - 1)
    times = {"DRAM": read, "L2": inside, "arithmetic": multiply, "latency": _WAIT * waits}
    worst = max(times, key=lambda name: times[name])
    seconds = times[worst] + _WAIT * min(2.0, waits)
    return dense.with_prologues(problem, config, device, seconds, worst)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch, and the memory that its programs share."""
    return shared_plan(problem, config, name, swap=False)


def shared_plan(problem: Problem, config: Config, name: str, *, swap: bool) -> Plan:
    """swap: the tensor cores take `b` for their first operand (`product_of`)."""
    flags = f"{sharing(problem, config)}, SWAP={swap}"
    memory = workspaces(problem, config)
    call = Call("split_k", "split_k_mm", flags, memory, prologues=True)
    return launched(problem, config, name, call, splits=config.split_k)


def workspaces(problem: Problem, config: Config) -> tuple[Workspace, ...]:
    """Partial sums, and who has stored his; none for a lone program a tile."""
    if config.split_k == 1:
        return ()
    m, n, batch = config.block_m, config.block_n, problem.batch
    return (
        Workspace("partials", problem.sums, config.split_k * m * n, m, n, batch=batch),
        Workspace("counters", "i32", 1, m, n, batch=batch, zeroed=True),
    )


def sharing(problem: Problem, config: Config) -> str:
    """How K is shared, as a keyword argument."""
    even = problem.is_multiple("K", config.block_k * config.split_k)
    chunk = chunk_of(config.split_k, config.block_m * config.block_n, config.num_warps)
    return f"share=Share({config.split_k}, {chunk}, {even})"


def chunk_of(parts: int, area: int, num_warps: int) -> int:
    """How many partial sums are read at once: at most 32 numbers a thread."""
    room = max(1, 32 * 32 * num_warps // area)
    chunk = 1
    while chunk < parts and 2 * chunk <= room:
        chunk *= 2
    return chunk
