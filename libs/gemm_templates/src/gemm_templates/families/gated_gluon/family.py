"""`gate(a @ b) * (a @ b2)` by warps that have roles: what is proposed, and the launch."""

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.gated import family as gated
from gemm_templates.families.gated.family import wide
from gemm_templates.families.gluon import family as gluon
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem

CAN = Abilities(HOPPER, HOPPER, gate=True, shares_last=True, descriptors="given", gluon=True)

_SHAPES = dense.table(
    "128 128 64 8 8 4 2 1, 64 128 64 16 8 5 2 1, 128 64 64 8 8 6 2 1, 256 64 64 8 8 4 2 1, "
    "64 64 64 8 8 8 2 1"
)


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """For problems with a gate."""
    return dense.persistent_configs("gated_gluon", _SHAPES, device) if problem.gate else ()


def why_not(problem: Problem, config: Config) -> str:
    """As of `gluon`, for both products and the gate."""
    gate = problem.gate
    if not (
        gate is not None
        and gated.allows(problem)
        and gluon.allows(replace(problem, gate=None))
        and gluon.is_elementwise(gate)
    ):
        return (
            "expected a gate, 16-bit operands that are contiguous along one dimension, 16-byte "
            "aligned (say so in `aligned`, `b2` too), no batch, no empty size, and elementwise "
            "functions"
        )
    return gluon.wrong_schedule(wide(config), 2) or gluon.wrong_shares(problem, config)


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory, with twice as many accumulators in each part."""
    return gluon.shared_memory(problem, wide(config), 1, config.block_n) <= device.smem


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As the one product that takes about as long."""
    return gluon.predict(gated.side_by_side(problem), wide(config), device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch of the kernel of `gluon`."""
    return gluon.plan_of(problem, config, wide(config), name)
