"""One to 64 rows: the time is that of reading `b` once."""

from __future__ import annotations

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense, split_k
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, edges, render

# Measured best on an H200: (block_n, block_k, num_warps, num_stages, programs a multiprocessor).
_BY_COLUMNS = ((4, 2048, 8, 1, 4), (2, 1024, 2, 4, 8), (1, 2048, 4, 3, 16), (4, 1024, 4, 4, 6),
               (8, 512, 2, 3, 6))  # fmt: skip
_BY_ROWS = ((64, 64, 2, 1, 4), (64, 32, 2, 1, 14), (512, 8, 2, 3, 4), (64, 128, 4, 1, 2),
            (512, 4, 2, 3, 7))  # fmt: skip
_FEW = ((64, 128, 4, 6, 1), (64, 128, 4, 4, 1), (128, 128, 8, 3, 2), (64, 128, 4, 3, 2),
        (64, 64, 4, 8, 1))  # fmt: skip
_MANY = ((64, 64, 4, 8, 1), (64, 128, 4, 4, 1), (64, 128, 4, 3, 2), (128, 128, 8, 4, 1),
         (128, 128, 4, 3, 1))  # fmt: skip

# Seconds: a launch, and a share of K's sums; bytes under way that hide the memory's latency.
_LAUNCH, _SHARE, _UNDER_WAY = 4.5e-6, 0.8e-6, 32 << 10


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """K is shared where the columns alone give too few programs."""
    if problem.m > 64 or problem.m == 0:
        return ()
    d = problem.dims()
    columns = "stride_bk" not in problem.dynamic and d["stride_bk"] == 1
    offered = []
    if problem.m == 1:
        offered = [(1, *shape) for shape in (_BY_COLUMNS if columns else _BY_ROWS)]
    block_m = 16
    while block_m < problem.m:
        block_m *= 2
    shapes = _MANY if problem.m > 16 else _FEW[:1] if problem.m == 1 else _FEW
    offered += [(block_m, *shape) for shape in shapes]
    found = []
    for rows, block_n, block_k, warps, stages, programs in offered:
        tiles = -(-problem.n // block_n) * -(-problem.m // rows) * problem.batch
        parts = 1
        while 4 * tiles * parts < 3 * programs * device.sms and problem.k >= 4 * parts * block_k:
            parts *= 2
        found.append(Config(rows, block_n, block_k, 1, warps, stages, "gemv", split_k=parts))
    return tuple(found)


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    if not (split_k.allows(problem, config) and split_k.is_readable(config) and _sound(config)):
        return False
    if config.block_m == 1:
        tile = config.block_n * config.block_k
        staged = (
            tile * ITEMSIZE[problem.a_dtype] * (config.num_stages if config.num_stages > 1 else 0)
        )
        return tile <= 64 * 32 * config.num_warps and staged <= device.smem
    return dense.shared_memory(problem, config) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds to read `b`, with as many bytes under way as there are programs to ask for them."""
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    size = ITEMSIZE[problem.a_dtype]
    rows = -(-m // config.block_m)
    programs = rows * -(-n // config.block_n) * batch * config.split_k
    stage = (config.block_n + config.block_m) * config.block_k * size
    resident = max(1, min(16, 64 // config.num_warps, device.smem // (stage * config.num_stages)))
    at_once = min(resident, -(-programs // device.sms)) * max(1, config.num_stages - 1) * stage
    moved = (k * n * rows + m * k) * size * batch
    rate = device.dram_rate * min(1.0, at_once / _UNDER_WAY, programs / device.sms)
    share = 0.0
    if config.split_k > 1:
        left = 4 * config.split_k * config.block_m * config.block_n
        share = _SHARE + left / split_k.READ
    return _LAUNCH + share + moved / max(rate, 1.0), "DRAM"


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """block_m = 1: products on CUDA cores; else on tensor cores, `b` first."""
    if not _sound(config):
        raise InvalidConfig(
            f"{config}: expected block_m 1, without `programs`, or 8 to 64 with block_n and "
            "block_k of at least 16"
        )
    if config.block_m > 1:
        return split_k.shared_plan(problem, config, name, swap=True)
    split_k.check_plain(problem, config)
    if not split_k.allows(problem, config):
        raise InvalidConfig(f"{config} for {problem}: the kernel needs M and N known")
    edge = edges(problem, config).partition(", ")[2]
    flags = (
        f"{split_k.sharing(problem, config)}, STAGES={config.num_stages}, {edge}, "
        f"EVEN_K={problem.is_multiple('K', config.block_k)}"
    )
    memory = split_k.workspaces(problem, config) if config.split_k > 1 else ()
    if not memory:
        flags = f"partials=None, counters=None, {flags}"
    source = render(problem, config, name, Call("gemv", "gemv_mm", flags, memory))
    kernel = TemplateKernel(source, 1, config.block_n, problem.batch, splits=config.split_k)
    return Plan((kernel,), memory)


def _sound(config: Config) -> bool:
    if config.block_m == 1:
        return not config.programs
    elements = config.block_m * config.block_n
    return (
        8 <= config.block_m <= 64
        and min(config.block_n, config.block_k) >= 16
        and 32 * config.num_warps <= elements <= 128 * 32 * config.num_warps
    )
