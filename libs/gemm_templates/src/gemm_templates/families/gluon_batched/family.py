"""Batches, and groups of rows, by warps that have roles: what is proposed, and the launch."""

from dataclasses import replace

from gemm_templates.device import H200, DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.batched_tma import family as batched_tma
from gemm_templates.families.gluon import family as gluon
from gemm_templates.families.grouped import family as grouped
from gemm_templates.plan import Plan
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import Call, launched

CAN = Abilities(HOPPER, HOPPER, jagged=True, descriptors="given", gluon=True)

_SHAPES = dense.table(
    "128 128 64 4 8 6 4 1, 64 256 64 16 8 5 4 1, 128 256 64 8 8 4 4 1, 64 128 64 8 8 8 0 1"
)


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """For batches and groups."""
    if problem.batch == 1 and problem.jagged is None:
        return ()
    return dense.persistent_configs("gluon_batched", _SHAPES, device)


def why_not(problem: Problem, config: Config) -> str:
    """Empty if the kernel takes the operands and the epilogue, and has this schedule."""
    if problem.jagged == "M":
        addressed = grouped.allows(problem)
    else:
        addressed = problem.jagged is None and batched_tma.allows(problem)
    itemsize = ITEMSIZE[problem.a_dtype]
    elementwise = problem.epilogue is None or gluon.is_elementwise(problem.epilogue)
    if not (addressed and itemsize == 2 and elementwise):
        return (
            "expected a batch or groups of rows, operands of 16 bits that are contiguous along one "
            "dimension, 16-byte aligned (say so in `aligned`), no empty size, and an epilogue of "
            "elementwise operations"
        )
    return gluon.wrong_schedule(config, itemsize)


fits = gluon.fits


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As one product with the rows of all; groups make their own descriptors."""
    even = problem.even
    config = replace(config, maps=config.maps and problem.jagged is None)
    rows = -(-even.m // config.block_m) * config.block_m * even.batch
    time, why = gluon.predict(replace(even, batch=1, m=rows, batch_strides=None), config, device)
    dram, _ = batched_tma.written(even, config, device)
    return max((time, why), (dram, "DRAM"))


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    jagged = problem.jagged is not None
    turns = gluon.takes_turns(config)
    # Groups store their last rows by address, too: both forms of `out` would be parameters.
    if jagged:
        moves = grouped.moves_in_groups(problem, config)
    else:
        moves = batched_tma.moves_in_batches(problem, config, config.block_m // (1 if turns else 2))
    span = max(32, 1 << (problem.batch - 1).bit_length())
    flags = (
        f"groups=Groups({f'offs, {span}' if jagged else ''}), "
        f"pipeline=Pipeline(STAGES={config.num_stages}, TURNS={turns}, PARTS={config.parts}, "
        f"BUFFERS={_buffers(problem, config)}, BY_LINES={gluon.by_lines(problem, config)}), "
        f"OVERLAP={config.overlap}"
    )
    call = Call("gluon", "gluon_mm", flags, roles=True, batches=True, moves=moves)
    return launched(problem, config, name, call)


def _buffers(problem: Problem, config: Config) -> int:
    """Parts of a tile that wait to be stored, for each group of warps. Where the groups take
    turns, one stores while the other multiplies, and a second part only costs time (measured)."""
    twice = not gluon.takes_turns(config) and gluon.shared_memory(problem, config, 2) <= H200.smem
    return 2 if twice else 1
