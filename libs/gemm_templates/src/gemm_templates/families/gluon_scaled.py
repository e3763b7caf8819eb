"""fp8 with block scales, or summed in f32: persistent programs whose warps have roles, Hopper."""

from __future__ import annotations

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.errors import InvalidConfig
from gemm_templates.families import gluon, maps, tma
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan, TemplateKernel
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, render, stores_out

CAN = Abilities(block_scale=True, fp8="all", descriptors="given", gluon=True)

# (block_m, block_n, group_m, num_stages, split_n)
_SHAPES = ((128, 128, 8, 6, 2), (128, 128, 16, 6, 2), (128, 64, 8, 8, 2))
_BLOCK_K = 128
_REGISTERS = 168  # a thread's share as the kernel starts, as in `gluon`
_WAITS = 1.1  # of `gluon`'s time: products that wait for sums


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    if device.capability != (9, 0) or not allows(problem):
        return ()
    return tuple(
        Config(m, n, _BLOCK_K, group, gluon.WARPS, stages, "gluon_scaled", device.sms, split)
        for m, n, group, stages, split in _SHAPES
    )


def allows(problem: Problem) -> bool:
    """fp8 that TMA can address, contiguous along K, and an elementwise epilogue."""
    return (
        tma.allows(problem)
        and problem.multiplies_fp8
        and not (problem.prologue_a or problem.prologue_b)
        and (not problem.fast_accum or problem.block_scale is not None)
        and (problem.major("a"), problem.major("b")) == ("stride_ak", "stride_bk")
        and (problem.epilogue is None or gluon.is_elementwise(problem.epilogue))
    )


def legal(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    return (
        device.capability == (9, 0)
        and allows(problem)
        and _why_not(config) == ""
        and shared_memory(problem, config) <= device.smem
    )


def shared_memory(problem: Problem, config: Config) -> int:
    """Bytes of the ring, of the part that waits to be stored, and (an upper bound) of barriers."""
    ring = (config.block_m + config.block_n) * config.block_k * config.num_stages
    part = config.block_m * config.block_n // config.parts * ITEMSIZE[problem.out_dtype]
    return ring + part + 1024


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As `gluon`, and the sums."""
    seconds, why = gluon.predict(problem, replace(config, template="gluon"), device)
    return seconds * _WAITS, why


def plan(problem: Problem, config: Config, name: str) -> Plan:
    if wrong := _why_not(config):
        raise InvalidConfig(f"{config}: {wrong}")
    if not allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: expected fp8 operands contiguous along K, 16-byte aligned "
            "(say so in `aligned`), block scales or sums in f32, no prologue, no batch, no empty "
            "size, and an epilogue of elementwise operations"
        )
    stored = stores_out(problem) and tma.stores_rows(problem)
    flags = (
        f"pipeline=Pipeline(STAGES={config.num_stages}, PARTS={config.parts}), "
        f"OVERLAP={config.overlap}"
    )
    call = Call(
        "gluon_scaled", "gluon_scaled_mm", flags, decorator="gluon.jit", prologues=True,
        described=maps.described(problem, stored),
        maps=maps.of_matrices(problem, config, config.block_m // 2, stored),
    )  # fmt: skip
    source = render(problem, config, name, call)
    source = replace(source, num_warps=4, max_registers=_REGISTERS, pdl=config.overlap)
    kernel = TemplateKernel(
        source, config.block_m, config.block_n, programs=config.programs, maps=call.maps
    )
    return Plan((kernel,))


def _why_not(config: Config) -> str:
    """Empty if the template has this schedule."""
    if config.num_warps != gluon.WARPS or config.programs < 1 or config.num_stages < 2:
        return f"expected num_warps={gluon.WARPS}, at least one program and two stages"
    if config.block_m != 128 or config.block_n not in (64, 128) or config.block_k != _BLOCK_K:
        return "expected tiles of 128 x 128 or 128 x 64, and 128 along K"
    if config.block_n // config.parts < 16:
        return "expected parts of at least 16 columns"
    return ""
