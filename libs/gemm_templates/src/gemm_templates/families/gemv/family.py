"""One to 64 rows: what is proposed, and the launch. The time is that of reading `b` once."""

from gemm_templates.device import DeviceInfo
from gemm_templates.epilogue_cost import instructions
from gemm_templates.families import dense
from gemm_templates.families.abilities import Abilities
from gemm_templates.families.split_k import family as split_k
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched

CAN = Abilities(prologues=True, integers=True)

# Measured best on an H200: (block_n, block_k, num_warps, num_stages, programs a multiprocessor).
# The first ones are taken that are not longer than K.
_BY_COLUMNS = dense.table(
    "1 4096 8 1 8, 4 2048 8 1 4, 1 2048 8 1 8, 2 2048 8 1 4, 4 512 2 3 6, 2 1024 2 4 8, "
    "4 1024 4 4 6, 8 512 2 3 6"
)
_BY_ROWS = dense.table("64 64 2 1 4, 64 32 2 1 14, 512 8 2 3 4, 64 128 4 1 2, 512 4 2 3 7")
_FEW = dense.table("64 128 4 6 1, 64 128 4 4 1, 128 128 8 3 2, 64 128 4 3 2, 64 64 4 8 1")
_MANY = dense.table("64 64 4 8 1, 64 128 4 4 1, 64 128 4 3 2, 128 128 8 4 1, 128 128 4 3 1")
# Elements of `b` of 8 bits, by whether K is contiguous: twice as many a load. Tensor cores get them
# widened, so that more warps a multiprocessor have work; two warps on 32 columns share none of it.
# Where N is contiguous a stage is kept in registers. programs = 0: no shares of K.
_NARROW_ONE = {
    True: dense.table("4 4096 8 1 4, 2 2048 2 4 8, 2 4096 4 3 8, 4 2048 4 4 6"),
    False: dense.table("128 32 2 1 14, 128 64 4 1 4, 256 32 4 3 4, 256 16 2 3 7"),
}
_NARROW_FEW = {
    True: dense.table(
        "32 256 2 4 4, 64 128 4 4 4, 32 128 2 6 6, 64 128 2 4 4, 32 256 4 6 0, 16 512 2 4 0"
    ),
    False: dense.table("64 128 4 2 4, 64 64 4 3 6, 32 128 2 2 8, 32 128 2 2 0"),
}
_NARROW_MANY = {
    True: dense.table("32 128 2 4 4, 64 128 4 4 2, 32 128 2 3 6, 64 128 4 3 3, 32 128 4 4 0"),
    False: dense.table("64 128 4 2 3, 64 64 4 3 4, 32 128 2 2 4, 32 128 2 2 0"),
}

# Seconds: a launch, and a share of K's sums; bytes under way that hide the memory's latency.
_LAUNCH, _SHARE, _UNDER_WAY = 4.5e-6, 0.8e-6, 32 << 10
# Warps of a multiprocessor that hide each other's waits: 4 took 16.5 us for 4096 x 4096 elements of
# 8 bits on an H200.
_WARPS = 10


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """K is shared where the columns alone give too few programs."""
    if problem.m > 64 or problem.m == 0:
        return ()
    d = problem.dims()
    columns = "stride_bk" not in problem.dynamic and d["stride_bk"] in (0, 1)
    narrow = split_k.narrow(problem)
    offered = []
    if problem.m == 1:
        fitting = [s for s in _BY_COLUMNS if s[1] <= max(problem.k, 512)][:5]
        offered = [(1, *shape) for shape in (fitting if columns else _BY_ROWS)]
        if narrow:
            offered += [(1, *shape) for shape in _NARROW_ONE[columns]]
    block_m = 16
    while block_m < problem.m:
        block_m *= 2
    if narrow:
        shapes = (_NARROW_MANY if problem.m > 16 else _NARROW_FEW)[columns]
    else:
        shapes = _MANY if problem.m > 16 else _FEW
    offered += [(block_m, *shape) for shape in (shapes[:1] if problem.m == 1 else shapes)]
    found = []
    for rows, block_n, block_k, warps, stages, programs in offered:
        tiles = -(-problem.n // block_n) * -(-problem.m // rows) * problem.batch
        parts = 1
        while 4 * tiles * parts < 3 * programs * device.sms and problem.k >= 4 * parts * block_k:
            parts *= 2
        found.append(Config(rows, block_n, block_k, 1, warps, stages, "gemv", split_k=parts))
    return tuple(found)


def why_not(problem: Problem, config: Config) -> str:
    """Empty for one product whose tiles can be counted, of few rows."""
    if not _sound(config):
        return (
            "expected block_m 1, without `programs`, or 8 to 64 with block_n and block_k of at "
            "least 16"
        )
    return split_k.not_counted(problem, config)


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory, and where one row is multiplied in registers."""
    if not split_k.is_readable(config):
        return False
    if config.block_m == 1:
        tile = config.block_n * config.block_k
        staged = split_k.stage_bytes(problem, config) * config.num_stages
        return tile <= 64 * 32 * config.num_warps and (
            config.num_stages == 1 or staged <= device.smem
        )
    return dense.shared_memory(problem, config) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds to read `b`, with as many bytes under way as there are programs to ask for them, or
    to run its prologue on as many warps."""
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    rows = -(-m // config.block_m)
    programs = rows * -(-n // config.block_n) * batch * config.split_k
    stage = split_k.stage_bytes(problem, config)
    kept = stage * config.num_stages
    if config.block_m > 1:
        kept += dense.converted(problem, config)
    resident = max(1, min(16, 64 // config.num_warps, device.smem // kept))
    at_once = min(resident, -(-programs // device.sms)) * max(1, config.num_stages - 1) * stage
    size_a, size_b = problem.loaded("a"), problem.loaded("b")
    moved = (k * n * rows * size_b + m * k * size_a) * batch
    rate = device.dram_rate * min(1.0, at_once / _UNDER_WAY, programs / device.sms)
    share = 0.0
    if config.split_k > 1:
        left = 4 * config.split_k * config.block_m * config.block_n
        share = _SHARE + left / split_k.READ
    read, work = moved / max(rate, 1.0), 0.0
    if problem.prologue_b:
        warps = config.num_warps * min(resident, programs / device.sms)
        # A warp of the tensor cores has at least 16 columns; others do the same for other rows.
        again = max(1.0, 16 * config.num_warps / config.block_n) if config.block_m > 1 else 1.0
        count = k * n * rows * batch * again * (dense.WIDEN + instructions(problem.prologue_b.text))
        work = count / (device.sms * dense.LANES * min(1.0, warps / _WARPS))
    return _LAUNCH + share + max(read, work), "arithmetic" if work > read else "DRAM"


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """block_m = 1: products on CUDA cores; else on tensor cores, `b` first."""
    if config.block_m > 1:
        return split_k.shared_plan(problem, config, name, swap=True)
    flags = f"{split_k.sharing(problem, config)}, STAGES={config.num_stages}"
    memory = split_k.workspaces(problem, config)
    call = Call("gemv", "gemv_mm", flags, memory, prologues=True)
    return launched(problem, config, name, call, splits=config.split_k)


def _sound(config: Config) -> bool:
    if config.block_m == 1:
        return not config.programs
    elements = config.block_m * config.block_n
    return (
        8 <= config.block_m <= 64
        and min(config.block_n, config.block_k) >= 16
        and 32 * config.num_warps <= elements <= 128 * 32 * config.num_warps
    )
