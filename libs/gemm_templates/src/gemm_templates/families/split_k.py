"""K shared among programs, one launch: few tiles and a long K."""

from __future__ import annotations

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense
from gemm_templates.plan import Plan, TemplateKernel, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, check_tile, edges, render


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    return ()


def allows(problem: Problem, config: Config) -> bool:
    """The counters are zeroed once, for a number of tiles that is known."""
    return not {"M", "N"} & problem.dynamic and not (config.programs and problem.batch > 1)


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return allows(problem, config) and dense.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return dense.predict(problem, config, device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """With `config.programs` it is stream-K: min(tiles, programs) * split_k programs."""
    check_tile(config)
    return shared_plan(problem, config, name, swap=False)


def shared_plan(problem: Problem, config: Config, name: str, *, swap: bool) -> Plan:
    if not allows(problem, config):
        raise InvalidConfig(
            f"{config} for {problem}: programs that share tiles are counted in memory that is "
            "zeroed once, which needs M and N known; stream-K has no batches"
        )
    even = problem.is_multiple("K", config.block_k)
    flags = f"SWAP={swap}, {edges(problem, config)}, EVEN_K={even}"
    if config.programs:
        area = config.block_m * config.block_n
        memory = workspaces(
            problem, config, fixed=2 * area * config.programs * config.split_k, per_tile=0
        )
        function = "stream_k_mm"
    else:
        memory = workspaces(problem, config) if config.split_k > 1 else ()
        function = "split_k_mm"
        flags = f"{sharing(problem, config)}, {flags}"
        if not memory:
            flags = f"partials=None, counters=None, {flags}"
    source = render(problem, config, name, Call("split_k", function, flags, memory))
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, problem.batch, config.programs, config.split_k
    )
    return Plan((kernel,), memory)


def workspaces(
    problem: Problem, config: Config, *, fixed: int = 0, per_tile: int | None = None
) -> tuple[Workspace, ...]:
    """Partial sums, and who has stored his."""
    m, n, batch = config.block_m, config.block_n, problem.batch
    each = config.split_k * m * n if per_tile is None else per_tile
    return (
        Workspace("partials", "f32", each, m, n, fixed=fixed, batch=batch),
        Workspace("counters", "i32", 1, m, n, batch=batch, zeroed=True),
    )


def sharing(problem: Problem, config: Config) -> str:
    """SPLIT_K, CHUNK and EVEN_SPLIT as keyword arguments."""
    even = problem.is_multiple("K", config.block_k * config.split_k)
    chunk = chunk_of(config.split_k, config.block_m * config.block_n, config.num_warps)
    return f"SPLIT_K={config.split_k}, CHUNK={chunk}, EVEN_SPLIT={even}"


def chunk_of(parts: int, area: int, num_warps: int) -> int:
    """How many partial sums are read at once: at most 32 numbers a thread."""
    room = max(1, 32 * 32 * num_warps // area)
    chunk = 1
    while chunk < parts and 2 * chunk <= room:
        chunk *= 2
    return chunk
