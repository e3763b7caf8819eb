"""One to 64 rows: the time is that of reading `b` once."""

from __future__ import annotations

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense, split_k
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, edges, render


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    return ()


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    if not split_k.allows(problem, config) or not _sound(config):
        return False
    if config.block_m == 1:
        tile = config.block_n * config.block_k
        staged = (
            tile * ITEMSIZE[problem.a_dtype] * (config.num_stages if config.num_stages > 1 else 0)
        )
        return tile <= 64 * 32 * config.num_warps and staged <= device.smem
    return dense.shared_memory(problem, config) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return dense.predict(problem, config, device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """block_m = 1: products on CUDA cores; else on tensor cores, `b` first."""
    if not _sound(config):
        raise InvalidConfig(
            f"{config}: expected block_m 1, without `programs`, or 8 to 64 with block_n and "
            "block_k of at least 16"
        )
    if config.block_m > 1:
        return split_k.shared_plan(problem, config, name, swap=True)
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
