"""Grouped products (`Problem.jagged`), persistent over tensor descriptors: Hopper and later."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import batched_tma, dense, maps
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, check_tile, render, stores_out

CAN = Abilities(jagged=True, descriptors="made")

# (block_m, block_n, block_k, group_m, num_warps, num_stages, split_n, programs a multiprocessor)
_SHAPES = (
    (128, 256, 64, 8, 8, 4, 4, 1), (128, 128, 64, 8, 4, 3, 4, 2), (128, 128, 64, 8, 8, 4, 2, 1),
    (64, 128, 64, 8, 4, 4, 2, 2), (64, 256, 64, 8, 4, 4, 4, 1), (64, 64, 64, 8, 4, 4, 0, 2),
)  # fmt: skip
# Along which the operands may be contiguous: not the size that has the groups.
_MAJORS = {
    "M": ("stride_ak", "stride_bk", "stride_bn"),
    "N": ("stride_am", "stride_ak", "stride_bk"),
    "K": ("stride_am", "stride_bn"),
}
_MOST_GROUPS = 4096  # one block of them is in registers


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if device.capability < (9, 0) or problem.jagged is None:
        return ()
    return tuple(
        Config(m, n, k, group, warps, stages, "grouped", device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address both operands: a block begins at a multiple of 16
    bytes of a row, so a group must not begin inside of one."""
    return (
        {"a", "b"} <= problem.aligned
        and problem.jagged is not None
        and problem.batch <= _MOST_GROUPS
        and min(problem.m, problem.n, problem.k) > 0
        and problem.major("a") in _MAJORS[problem.jagged]
        and problem.major("b") in _MAJORS[problem.jagged]
        and (problem.jagged != "N" or batched_tma.strided(problem, "a"))
        and (problem.jagged != "M" or batched_tma.strided(problem, "b"))
    )


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability >= (9, 0)
        and allows(problem)
        and not device.needs_cuda_cores(problem.a_dtype, problem.input_precision)
        and dense.fits(problem, batched_tma.as_tma(config), device)
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As a batch of equal groups: the sizes are not known. It makes its own descriptors."""
    return dense.predict(problem.even, replace(batched_tma.as_tma(config), maps=False), device)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(config)
    if config.programs < 1:
        raise InvalidConfig(f"{config}: expected at least one program")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: expected `jagged`, operands that are contiguous along one "
            "dimension, not the one with the groups, and 16-byte aligned (say so in `aligned`), no "
            f"empty size, and at most {_MOST_GROUPS} groups"
        )
    call = Call(
        "grouped", "grouped_mm",
        f'groups=Groups(offs, {1 << (problem.batch - 1).bit_length()}), JAGGED="{problem.jagged}", '
        f"PARTS={config.parts}", batches=True,
        described=maps.described(problem, stores_by_descriptor(problem)), shared=whole(problem),
    )  # fmt: skip
    source = render(problem, config, name, call)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, problem.batch, config.programs, flat=True
    )
    return Plan((kernel,))


def whole(problem: Problem) -> frozenset[str]:
    """The matrices that are cut into groups, and so are no batch."""
    batched = {"M": "b", "N": "a", "K": "out"}[problem.jagged or "M"]
    return frozenset({"a", "b", "out"} - {batched})


def stores_by_descriptor(problem: Problem) -> bool:
    """As in `batched_tma`; a group that ends inside of a row has no descriptor."""
    return (
        stores_out(problem)
        and problem.jagged != "N"
        and "out" in problem.aligned
        and problem.major("out") == "stride_on"
        and problem.is_multiple("N", 16 // ITEMSIZE[problem.out_dtype])
        and (problem.jagged != "K" or batched_tma.strided(problem, "out"))
    )
