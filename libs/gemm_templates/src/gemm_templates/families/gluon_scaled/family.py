"""fp8 with block scales, or summed in f32, by warps that have roles: what is proposed, and the
launch."""

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.gluon import family as gluon
from gemm_templates.families.tma import family as tma
from gemm_templates.plan import Plan
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, launched, stores_out
from gemm_templates.tensor_maps import is_writable, moves_of

CAN = Abilities(HOPPER, HOPPER, block_scale=True, fp8="all", descriptors="given", gluon=True)

_SHAPES = dense.table("128 128 128 8 8 6 2 1, 128 128 128 16 8 6 2 1, 128 64 128 8 8 8 2 1")
_WAITS = 1.1  # of `gluon`'s time: products that wait for sums


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """For what it takes."""
    return dense.persistent_configs("gluon_scaled", _SHAPES, device) if allows(problem) else ()


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


def why_not(problem: Problem, config: Config) -> str:
    """Empty if the kernel takes the operands and the epilogue, and has this schedule."""
    if config.num_warps != gluon.WARPS or config.programs < 1 or config.num_stages < 2:
        return f"expected num_warps={gluon.WARPS}, at least one program and two stages"
    if config.block_m != 128 or config.block_n not in (64, 128) or config.block_k != 128:
        return "expected tiles of 128 x 128 or 128 x 64, and 128 along K"
    if config.block_n // config.parts < 16:
        return "expected parts of at least 16 columns"
    if not allows(problem):
        return (
            "expected fp8 operands contiguous along K, 16-byte aligned (say so in `aligned`), "
            "block scales or sums in f32, no prologue, no batch, no empty size, and an epilogue of "
            "elementwise operations"
        )
    return ""


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory."""
    return shared_memory(problem, config) <= device.smem


def shared_memory(problem: Problem, config: Config) -> int:
    """Bytes of the ring, of the part that waits to be stored, and (an upper bound) of barriers."""
    ring = (config.block_m + config.block_n) * config.block_k * config.num_stages
    part = config.block_m * config.block_n // config.parts * ITEMSIZE[problem.out_dtype]
    return ring + part + 1024


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As `gluon`, and the sums."""
    seconds, why = gluon.predict(problem, config, device)
    return seconds * _WAITS, why


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    stored = stores_out(problem) and is_writable(problem)
    flags = (
        f"pipeline=Pipeline(STAGES={config.num_stages}, PARTS={config.parts}), "
        f"OVERLAP={config.overlap}"
    )
    moves = moves_of(problem, config, config.block_m // 2, stored)
    call = Call("gluon_scaled", "gluon_scaled_mm", flags, roles=True, prologues=True, moves=moves)
    return launched(problem, config, name, call)
