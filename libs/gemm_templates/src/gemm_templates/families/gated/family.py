"""`gate(a @ b) * (a @ b2)` over tensor descriptors: what is proposed, and the launch."""

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.tma import family as tma
from gemm_templates.problem import Config, Problem

CAN = Abilities(HOPPER, gate=True, descriptors="given")

_SHAPES = dense.table(
    "128 128 64 8 8 4 2 1, 128 128 64 8 8 3 0 1, 64 128 64 8 8 4 2 1, 64 64 64 8 4 4 0 2"
)


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """For problems with a gate."""
    return dense.persistent_configs("gated", _SHAPES, device) if problem.gate else ()


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address the three operands."""
    return problem.gate is not None and "b2" in problem.aligned and tma.allows(problem)


def why_not(problem: Problem, config: Config) -> str:
    """Empty if descriptors can address the operands, and both tiles suit the warps."""
    if not allows(problem):
        return (
            "expected a gate, and operands that are contiguous along one dimension, 16-byte "
            "aligned (say so in `aligned`, `b2` too), no batch, no empty size"
        )
    if config.split_n > 2:
        return "expected split_n 0 or 2"
    return dense.wrong_schedule(wide(config))


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """As the one product that takes about as long."""
    return tma.fits(side_by_side(problem), wide(config), device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As the one product that takes about as long."""
    return tma.predict(side_by_side(problem), wide(config), device)


plan = tma.plan


def side_by_side(problem: Problem) -> Problem:
    """The one product of twice the columns that takes about as long."""
    assert problem.gate is not None
    work = problem.gate.instructions + 1
    if problem.epilogue:
        work += problem.epilogue.instructions
    return replace(
        problem,
        gate=None,
        n=2 * problem.n,
        epilogue=replace(problem.gate, work=work / 2),
        divisors=(),
        dynamic=frozenset(),
        out_stride=None,
    )


def wide(config: Config) -> Config:
    """The config with a tile as wide as the columns of both products."""
    return replace(config, block_n=2 * config.block_n)
