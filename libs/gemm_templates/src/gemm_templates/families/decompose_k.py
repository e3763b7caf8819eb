"""Products over parts of K, and a second launch that adds them up."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense, split_k
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, check_tile, render

CAN = Abilities(prologues=True)

# Fitted on an H200 (`split_k.products`).
_LAUNCHES = 5.3e-6  # two that overlap, as events around them see it
_SECOND = 1.8e-6  # what a second launch takes that does not
_SHORT = 8  # blocks of K: the second kernel is launched at the start of so short a loop
_READ = 0.13  # share of the L2 rate at which sums are written and read


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    return tuple(
        replace(config, template="decompose_k") for config in split_k.splits(problem, device)
    )


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return config.split_k > 1 and split_k.is_plain(problem) and dense.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds: `split_k.products`, then reading what they left."""
    products, why = split_k.products(problem, config, device)
    left = 4 * config.split_k * problem.m * problem.n * problem.batch
    launch = 0.0 if config.overlap else _SECOND
    return products + _LAUNCHES + launch + left / (_READ * device.l2_rate), why


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(config)
    split_k.check_plain(problem, config)
    partials = Workspace(
        "partials", "f32", per_output=config.split_k, batch=problem.batch
    )  # the second kernel reads what the first one wrote, and no more
    early = problem.k <= _SHORT * config.block_k * config.split_k
    share = split_k.sharing(problem, config)
    flags = f"{share}, OVERLAP={config.overlap}, EARLY={early}"
    call = Call(
        "decompose_k", "decompose_k_mm", flags, (partials,), finishes=False, prologues=True
    )  # fmt: skip
    first = TemplateKernel(
        render(problem, config, name, call), config.block_m, config.block_n, problem.batch,
        splits=config.split_k,
    )  # fmt: skip
    tile = reduction(problem, config)
    flags = f"{split_k.sharing(problem, tile)}, OVERLAP={config.overlap}"
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
