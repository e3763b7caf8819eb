"""Persistent programs over a batch, with tensor descriptors of rank 3: Hopper and later."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import dense, maps
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, check_tile, render, stores_out

CAN = Abilities(descriptors="given")

# (block_m, block_n, block_k, group_m, num_warps, num_stages, split_n, programs a multiprocessor)
_SHAPES = (
    (128, 256, 64, 8, 8, 4, 2, 1), (128, 128, 64, 8, 4, 3, 2, 2), (128, 128, 64, 8, 8, 3, 2, 2),
)  # fmt: skip
_DRAM = 0.82  # of the rate, where results are written; fitted on an H200


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if device.capability < (9, 0):
        return ()
    return tuple(
        Config(m, n, k, group, warps, stages, "batched_tma", device.sms * programs, split)
        for m, n, k, group, warps, stages, split, programs in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors of rank 3 can address both operands."""
    return (
        {"a", "b"} <= problem.aligned
        and problem.jagged is None
        and problem.batch > 1
        and min(problem.m, problem.n, problem.k) > 0
        and all(
            problem.major(tensor) is not None
            and (shared(problem, tensor) or strided(problem, tensor))
            for tensor in ("a", "b")
        )
    )


def shared(problem: Problem, tensor: str) -> bool:
    """Whether all products are known to read the same matrix."""
    stride = f"stride_{tensor[0]}b"
    return stride not in problem.dynamic and problem.dims()[stride] == 0


def strided(problem: Problem, tensor: str) -> bool:
    """Whether the batch stride of "a", "b" or "out" is one that a descriptor takes."""
    stride = f"stride_{tensor[0]}b"
    kind = {"a": problem.a_dtype, "b": problem.b_dtype, "out": problem.out_dtype}[tensor]
    return problem.dims()[stride] > 0 and problem.is_multiple(stride, 16 // ITEMSIZE[kind])


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability >= (9, 0)
        and allows(problem)
        and not device.needs_cuda_cores(problem.a_dtype, problem.input_precision)
        and dense.fits(problem, as_tma(config), device)
    )


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    return max(dense.predict(problem, as_tma(config), device), written(problem, config, device))


def written(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Where DRAM bounds the time: in the last round, too, every multiprocessor has a tile."""
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    read = problem.batch * (problem.m + problem.n) * problem.k * ITEMSIZE[problem.a_dtype]
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batch
    outputs = -(-tiles // device.sms) * device.sms * config.block_m * config.block_n
    moved = read + outputs * (ITEMSIZE[problem.out_dtype] + extra)
    start = dense.LAUNCH + dense.descriptors(config)
    return moved / (_DRAM * device.dram_rate) + start, "DRAM"


def as_tma(config: Config) -> Config:
    """The config of one product with the same memory and the same loop, for the shared model."""
    return replace(config, template="tma")


def plan(problem: Problem, config: Config, name: str) -> Plan:
    check_tile(config)
    if config.programs < 1:
        raise InvalidConfig(f"{config}: expected at least one program")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: tensor descriptors need a batch of operands that are "
            "contiguous along one dimension, 16-byte aligned (say so in `aligned`), and no empty "
            "size"
        )
    stored = stores_by_descriptor(problem)
    alone = frozenset(tensor for tensor in ("a", "b") if shared(problem, tensor))
    described = maps.of_batches(problem, config, config.block_m, stored, alone)
    call = Call(
        "batched_tma", "batched_tma_mm", f"PARTS={config.parts}", batches=True, maps=described,
        described=maps.described(problem, stored), shared=alone,
    )  # fmt: skip
    source = render(problem, config, name, call)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, problem.batch, config.programs, flat=True,
        maps=described,
    )  # fmt: skip
    return Plan((kernel,))


def stores_by_descriptor(problem: Problem) -> bool:
    """A TMA store clips rows at the next 16 bytes, not at their last element: it would write past
    the end of rows that end in between (triton-lang/triton issue 11583)."""
    return (
        stores_out(problem)
        and "out" in problem.aligned
        and problem.major("out") == "stride_on"
        and problem.is_multiple("N", 16 // ITEMSIZE[problem.out_dtype])
        and strided(problem, "out")
    )
