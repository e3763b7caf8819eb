"""`gate(a @ b) * (a @ b2)`: persistent programs over tensor descriptors, Hopper and later."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense, maps, tma
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, check_tile, render, stores_out

CAN = Abilities(gate=True, descriptors="given")

# (block_m, block_n, block_k, group_m, num_warps, num_stages, split_n, programs a multiprocessor)
_SHAPES = (
    (128, 128, 64, 8, 8, 4, 2, 1), (128, 128, 64, 8, 8, 3, 0, 1), (64, 128, 64, 8, 8, 4, 2, 1),
    (64, 64, 64, 8, 4, 4, 0, 2),
)  # fmt: skip


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if problem.gate is None or device.capability < (9, 0):
        return ()
    return tuple(
        Config(m, n, k, group, warps, stages, "gated", device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address the three operands."""
    return problem.gate is not None and "b2" in problem.aligned and tma.allows(problem)


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        config.split_n <= 2
        and allows(problem)
        and tma.legal(side_by_side(problem), wide(config), device)
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return dense.predict(side_by_side(problem), wide(config), device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(wide(config))
    if config.programs < 1 or config.split_n > 2:
        raise InvalidConfig(f"{config}: expected at least one program, and split_n 0 or 2")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: expected a gate, and operands that are contiguous along one "
            "dimension, 16-byte aligned (say so in `aligned`, `b2` too), no batch, no empty size"
        )
    stored = stores_out(problem) and tma.stores_rows(problem)
    call = Call(
        "gated", "gated_mm", f"PARTS={config.parts}", described=maps.described(problem, stored),
        maps=maps.of_matrices(problem, config, config.block_m, stored),
    )  # fmt: skip
    source = render(problem, config, name, call)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, programs=config.programs, maps=call.maps
    )
    return Plan((kernel,))


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
    """Its tile with the columns of both products."""
    return replace(config, block_n=2 * config.block_n, template="tma")
