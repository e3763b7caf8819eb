"""Products over parts of K, then their sum: what is proposed, and the two launches."""

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import Abilities
from gemm_templates.families.split_k import family as split_k
from gemm_templates.plan import Plan, Workspace
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched

CAN = Abilities(prologues=True, integers=True)

# Fitted on an H200 (`split_k.products`).
_LAUNCHES = 5.3e-6  # two that overlap, as events around them see it
_SECOND = 1.8e-6  # what a second launch takes that does not
_SHORT = 8  # blocks of K: the second kernel is launched at the start of so short a loop
_READ = 0.13  # share of the L2 rate at which sums are written and read


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """Those of `split_k`."""
    offered = split_k.configs(problem, device)
    return tuple(replace(config, template="decompose_k") for config in offered)


def why_not(problem: Problem, config: Config) -> str:
    """Empty for one product, and a tile that suits the warps."""
    return dense.wrong_tile(config) or split_k.not_plain(problem)


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory and registers; a lone part needs no second launch."""
    return config.split_k > 1 and dense.fits(problem, config, device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Seconds: `split_k.products`, then reading what they left."""
    products, why = split_k.products(problem, config, device)
    left = 4 * config.split_k * problem.m * problem.n * problem.batch
    launch = 0.0 if config.overlap else _SECOND
    return products + _LAUNCHES + launch + left / (_READ * device.l2_rate), why


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """The products, and a kernel `<name>_reduce` with tiles of its own."""
    # The second kernel reads what the first one wrote, and no more.
    memory = (Workspace("partials", problem.sums, per_output=config.split_k, batch=problem.batch),)
    early = problem.k <= _SHORT * config.block_k * config.split_k
    share = split_k.sharing(problem, config)
    flags = f"{share}, OVERLAP={config.overlap}, EARLY={early}"
    call = Call("decompose_k", "decompose_k_mm", flags, memory, finishes=False, prologues=True)
    first = launched(problem, config, name, call, splits=config.split_k)
    tile = reduction(problem, config)
    flags = f"{split_k.sharing(problem, tile)}, OVERLAP={config.overlap}"
    call = Call("decompose_k", "reduce_k_mm", flags, memory, multiplies=False)
    (second,) = launched(problem, tile, f"{name}_reduce", call).steps
    second = replace(second, source=replace(second.source, pdl=config.overlap))
    return Plan((*first.steps, second), memory)


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
