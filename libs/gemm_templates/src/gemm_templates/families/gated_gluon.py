"""`gate(a @ b) * (a @ b2)`: persistent programs whose warps have roles, Hopper."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import gated, gluon
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem

CAN = Abilities(gate=True, shares_last=True, descriptors="given", gluon=True)

# (block_m, block_n, block_k, group_m, num_stages, split_n)
_SHAPES = (
    (128, 128, 64, 8, 4, 2), (64, 128, 64, 16, 5, 2), (128, 64, 64, 8, 6, 2),
    (256, 64, 64, 8, 4, 2), (64, 64, 64, 8, 8, 2),
)  # fmt: skip


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if problem.gate is None or device.capability != (9, 0):
        return ()
    return tuple(
        Config(m, n, k, group, gluon.WARPS, stages, "gated_gluon", device.sms, split)
        for m, n, k, group, stages, split in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """As `gluon.allows`, of both products and the gate."""
    if problem.gate is None or not gated.allows(problem):
        return False
    return gluon.allows(replace(problem, gate=None)) and gluon.is_elementwise(problem.gate)


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability == (9, 0)
        and allows(problem)
        and gluon.why_not(wide(config), 2) == ""
        and gluon.why_not_shared(problem, config) == ""
        and gluon.shared_memory(problem, wide(config), 1, config.block_n) <= device.smem
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return gluon.predict(gated.side_by_side(problem), wide(config), device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: expected a gate, 16-bit operands that are contiguous along "
            "one dimension, 16-byte aligned (say so in `aligned`, `b2` too), no batch, no empty "
            "size, and elementwise functions"
        )
    return gluon.plan_of(problem, config, wide(config), name)


def wide(config: Config) -> Config:
    """Its tile with the columns of both products, twice as many accumulators in each part."""
    return replace(config, block_n=2 * config.block_n, template="gluon")
