"""Persistent programs over tensor descriptors: what is proposed, and the launch."""

from functools import partial

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched, stores_out
from gemm_templates.tensor_maps import Moves, is_writable, moves_of

CAN = Abilities(
    HOPPER,
    prologues=True,
    block_scale=True,
    fp8="all",
    integers=True,
    descriptors="given",
    vendor=True,
    persistent=True,
)

_SHAPES = dense.table(
    "128 256 64 8 8 4 2 1, 128 256 64 8 8 3 2 1, 128 256 64 8 8 4 4 1, 256 128 64 8 8 4 2 1, "
    "256 128 64 8 8 4 4 1, 128 128 64 4 8 3 4 2, 128 128 64 4 4 3 4 2, 128 128 64 8 4 3 4 2, "
    "128 128 64 8 4 4 0 1, 128 128 64 8 8 5 2 1, 128 128 32 8 8 5 2 2, 128 64 64 8 4 4 0 2, "
    "64 128 64 8 4 4 0 2, 64 64 64 8 4 4 0 2"
)


def tma_configs(device: DeviceInfo) -> tuple[Config, ...]:
    """With one or two programs a multiprocessor: two multiply on beside each other's epilogues.
    None on a device before Hopper."""
    return dense.persistent_configs("tma", _SHAPES, device) if CAN.runs_on(device) else ()


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """`tma_configs`, deeper along K for fp8."""
    return dense.deepen(problem, tma_configs(device))


def why_not(problem: Problem, config: Config) -> str:
    """Empty if descriptors can address the operands, and the tile suits the warps."""
    if not allows(problem):
        return (
            "tensor descriptors need operands that are contiguous along one dimension, 16-byte "
            "aligned (say so in `aligned`), no batch, and no empty size"
        )
    return dense.wrong_schedule(config)


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address both operands."""
    rows = problem.pick_b is not None and problem.major("b") != "stride_bk"
    return problem.batch == 1 and not rows and None not in (problem.major("a"), problem.major("b"))


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """Exact products of f32 were measured 25 to 80 times slower than those of `tiled`."""
    exact = device.needs_cuda_cores(problem.operand("a"), problem.input_precision)
    return not exact and dense.fits(problem, config, device, persistent=True)


predict = partial(dense.predict, persistent=True)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    moves = moves_of(problem, config, config.block_m, stores_out(problem) and is_writable(problem))
    return launch(problem, config, name, moves)


def launch(
    problem: Problem, config: Config, name: str, moves: Moves, batches: bool = False
) -> Plan:
    """One launch of the kernel, which walks over the batch if `batches`."""
    flags = f"PARTS={config.parts}"
    call = Call("tma", "tma_mm", flags, prologues=True, batches=batches, moves=moves)
    return launched(problem, config, name, call)
