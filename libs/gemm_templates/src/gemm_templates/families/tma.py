"""Persistent programs over tensor descriptors: Hopper and later."""

from __future__ import annotations

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense, maps
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, check_tile, render, stores_out

CAN = Abilities(prologues=True, block_scale=True, fp8="all", columns=True, descriptors="given")

# (block_m, block_n, block_k, group_m, num_warps, num_stages, split_n, programs a multiprocessor)
_SHAPES = (
    (128, 256, 64, 8, 8, 4, 2, 1), (128, 256, 64, 8, 8, 3, 2, 1), (128, 256, 64, 8, 8, 4, 4, 1),
    (256, 128, 64, 8, 8, 4, 2, 1), (256, 128, 64, 8, 8, 4, 4, 1), (128, 128, 64, 4, 8, 3, 4, 2),
    (128, 128, 64, 4, 4, 3, 4, 2), (128, 128, 64, 8, 4, 3, 4, 2), (128, 128, 64, 8, 4, 4, 0, 1),
    (128, 128, 64, 8, 8, 5, 2, 1), (128, 128, 32, 8, 8, 5, 2, 2), (128, 64, 64, 8, 4, 4, 0, 2),
    (64, 128, 64, 8, 4, 4, 0, 2), (64, 64, 64, 8, 4, 4, 0, 2),
)  # fmt: skip


def tma_configs(device: DeviceInfo) -> tuple[Config, ...]:
    """With one or two programs a multiprocessor: two multiply on beside each other's epilogues."""
    if device.capability < (9, 0):
        return ()
    return tuple(
        Config(m, n, k, group, warps, stages, "tma", device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in _SHAPES
    )


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    return dense.deepen(problem, tma_configs(device))


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address both operands."""
    return (
        {"a", "b"} <= problem.aligned
        and problem.batch == 1
        and min(problem.m, problem.n, problem.k) > 0
        and problem.major("a") is not None
        and problem.major("b") is not None
    )


def stores_rows(problem: Problem) -> bool:
    """Whether a descriptor may write `out`. A TMA store clips rows at the next 16 bytes, not at
    their last element: it would write past the end of rows that end in between
    (triton-lang/triton issue 11583)."""
    whole = problem.is_multiple("N", 16 // ITEMSIZE[problem.out_dtype])
    return whole and "out" in problem.aligned and problem.major("out") == "stride_on"


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability >= (9, 0)
        and allows(problem)
        # measured: 25 to 80 times slower than `tiled`
        and not device.needs_cuda_cores(problem.operand("a"), problem.input_precision)
        and dense.fits(problem, config, device)
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return dense.predict(problem, config, device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(config)
    if config.programs < 1:
        raise InvalidConfig(f"{config}: expected at least one program")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: tensor descriptors need operands that are contiguous along "
            "one dimension, 16-byte aligned (say so in `aligned`), no batch, and no empty size"
        )
    stored = stores_out(problem) and stores_rows(problem)
    call = Call(
        "tma", "tma_mm", f"PARTS={config.parts}", prologues=True,
        described=maps.described(problem, stored),
        maps=maps.of_matrices(problem, config, config.block_m, stored),
    )  # fmt: skip
    source = render(problem, config, name, call)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, programs=config.programs, maps=call.maps
    )
    return Plan((kernel,))
