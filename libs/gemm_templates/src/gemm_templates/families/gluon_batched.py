"""Batches, and groups of rows, by persistent programs whose warps have roles: Hopper."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import H200, DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import batched_tma, gluon, grouped, maps
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, render

CAN = Abilities(jagged=True, descriptors="given", gluon=True)

# (block_m, block_n, block_k, group_m, num_stages, split_n)
_SHAPES = (
    (128, 128, 64, 4, 6, 4), (64, 256, 64, 16, 5, 4), (128, 256, 64, 8, 4, 4),
    (64, 128, 64, 8, 8, 0),
)  # fmt: skip
_REGISTERS = 168  # as `gluon`


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if device.capability != (9, 0) or (problem.batch == 1 and problem.jagged is None):
        return ()
    return tuple(
        Config(m, n, k, group, gluon.WARPS, stages, "gluon_batched", device.sms, split)
        for m, n, k, group, stages, split in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """Operands that TMA can address, elements of 16 bits, and an elementwise epilogue."""
    if problem.jagged == "M":
        addressed = grouped.allows(problem)
    else:
        addressed = problem.jagged is None and batched_tma.allows(problem)
    return (
        addressed
        and ITEMSIZE[problem.a_dtype] == 2
        and (problem.epilogue is None or gluon.is_elementwise(problem.epilogue))
    )


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability == (9, 0)
        and allows(problem)
        and not gluon.why_not(config, ITEMSIZE[problem.a_dtype])
        and gluon.shared_memory(problem, config, 1) <= device.smem
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As one product with the rows of all; groups make their own descriptors."""
    even = problem.even
    config = replace(config, maps=config.maps and problem.jagged is None)
    rows = -(-even.m // config.block_m) * config.block_m * even.batch
    time, why = gluon.predict(replace(even, batch=1, m=rows, batch_strides=None), config, device)
    dram, _ = batched_tma.written(even, config, device)
    return max((time, why), (dram, "DRAM"))


def plan(problem: Problem, config: Config, name: str) -> Plan:
    if wrong := gluon.why_not(config, ITEMSIZE[problem.a_dtype]):
        raise InvalidConfig(f"{config}: {wrong}")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: expected a batch or groups of rows, operands of 16 bits that "
            "are contiguous along one dimension, 16-byte aligned (say so in `aligned`), no empty "
            "size, and an epilogue of elementwise operations"
        )
    jagged = problem.jagged is not None
    stored = (grouped if jagged else batched_tma).stores_by_descriptor(problem)
    turns = gluon.takes_turns(config)
    if jagged:
        alone = grouped.whole(problem)
    else:
        alone = frozenset(tensor for tensor in ("a", "b") if batched_tma.shared(problem, tensor))
    span = max(32, 1 << (problem.batch - 1).bit_length())
    flags = (
        f"groups=Groups({f'offs, {span}' if jagged else ''}), "
        f"pipeline=Pipeline(STAGES={config.num_stages}, TURNS={turns}, PARTS={config.parts}, "
        f"BUFFERS={_buffers(problem, config)}, BY_LINES={gluon.by_lines(problem, config)}), "
        f"OVERLAP={config.overlap}"
    )
    # Groups store their last rows by address, too: both forms of `out` would be parameters.
    rows = config.block_m // (1 if turns else 2)
    described = () if jagged else maps.of_batches(problem, config, rows, stored, alone)
    call = Call(
        "gluon_batched", "gluon_batched_mm", flags, decorator="gluon.jit", batches=True,
        described=maps.described(problem, stored), maps=described, shared=alone,
    )  # fmt: skip
    source = render(problem, config, name, call)
    source = replace(source, num_warps=4, max_registers=_REGISTERS, pdl=config.overlap)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, problem.batch, config.programs, flat=True,
        maps=described,
    )  # fmt: skip
    return Plan((kernel,))


def _buffers(problem: Problem, config: Config) -> int:
    """Parts of a tile that wait to be stored, for each group of warps. Where the groups take
    turns, one stores while the other multiplies, and a second part only costs time (measured)."""
    twice = not gluon.takes_turns(config) and gluon.shared_memory(problem, config, 2) <= H200.smem
    return 2 if twice else 1
