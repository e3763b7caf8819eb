"""Products over parts of K, and a second launch that adds them up."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.split_k import chunk_of
from gemm_templates.plan import Plan, TemplateKernel, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, check_tile, edges, render


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    return ()


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    if config.overlap and device.capability < (9, 0):
        return False
    return config.split_k > 1 and dense.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return dense.predict(problem, config, device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(config)
    partials = Workspace(
        "partials", "f32", per_output=config.split_k, batch=problem.batch
    )  # the second kernel reads what the first one wrote, and no more
    even = problem.is_multiple("K", config.block_k * config.split_k)
    flags = (
        f"SPLIT_K={config.split_k}, EVEN_SPLIT={even}, OVERLAP={config.overlap}, {edges(problem, config)}, "
        f"EVEN_K={problem.is_multiple('K', config.block_k)}"
    )
    call = Call("decompose_k", "decompose_k_mm", flags, (partials,), finishes=False)
    first = TemplateKernel(
        render(problem, config, name, call), config.block_m, config.block_n, problem.batch,
        splits=config.split_k,
    )  # fmt: skip
    tile = reduction(problem, config)
    chunk = chunk_of(config.split_k, tile.block_m * tile.block_n, tile.num_warps)
    flags = (
        f"SPLIT_K={config.split_k}, CHUNK={chunk}, OVERLAP={config.overlap}, {edges(problem, tile)}"
    )
    call = Call("decompose_k", "reduce_k_mm", flags, (partials,), multiplies=False)
    source = replace(render(problem, tile, f"{name}_reduce", call), pdl=config.overlap)
    second = TemplateKernel(source, tile.block_m, tile.block_n, problem.batch)
    return Plan((first, second), (partials,))


def reduction(problem: Problem, config: Config) -> Config:
    """The second kernel's tile: of as many outputs as give each of some 128 programs its share."""
    area = 16
    while area < 1024 and 2 * area * 128 <= problem.m * problem.n * problem.batch:
        area *= 2
    width = 16
    while width < 64 and 2 * width <= min(problem.n, area):
        width *= 2
    return replace(
        config, block_m=area // width, block_n=width, num_warps=4, num_stages=1, group_m=1
    )
