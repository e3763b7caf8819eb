"""Batches over tensor descriptors of rank 3: what is proposed, and the launch."""

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.tma import family as tma
from gemm_templates.plan import Plan
from gemm_templates.problem import ITEMSIZE, Config, Problem
from gemm_templates.render import stores_out
from gemm_templates.tensor_maps import Moves, is_strided, is_writable, moves_of

CAN = Abilities(HOPPER, descriptors="given")

_SHAPES = dense.table("128 256 64 8 8 4 2 1, 128 128 64 8 4 3 2 2, 128 128 64 8 8 3 2 2")
_DRAM = 0.82  # of the rate, where results are written; fitted on an H200


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """The same for all problems."""
    return dense.persistent_configs("batched_tma", _SHAPES, device)


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors of rank 3 can address both operands."""
    return (
        problem.jagged is None
        and problem.batch > 1
        and all(
            problem.major(tensor) is not None
            and (is_shared(problem, tensor) or is_strided(problem, tensor))
            for tensor in ("a", "b")
        )
    )


def is_shared(problem: Problem, tensor: str) -> bool:
    """Whether all products are known to read the same matrix."""
    stride = f"stride_{tensor[0]}b"
    return stride not in problem.dynamic and problem.dims()[stride] == 0


def why_not(problem: Problem, config: Config) -> str:
    """Empty if descriptors can address the operands, and the tile suits the warps."""
    if not allows(problem):
        return (
            "tensor descriptors need a batch of operands that are contiguous along one dimension, "
            "16-byte aligned (say so in `aligned`), and no empty size"
        )
    return dense.wrong_schedule(config)


fits = tma.fits


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As one product with the same memory and the same loop, or to write the results."""
    return max(tma.predict(problem, config, device), written(problem, config, device))


def written(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """Where DRAM bounds the time: in the last round, too, every multiprocessor has a tile."""
    extra = problem.epilogue.bytes_per_element if problem.epilogue else 0.0
    read = problem.batch * (problem.m + problem.n) * problem.k * ITEMSIZE[problem.a_dtype]
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batch
    outputs = -(-tiles // device.sms) * device.sms * config.block_m * config.block_n
    moved = read + outputs * (ITEMSIZE[problem.out_dtype] + extra)
    start = dense.LAUNCH + dense.descriptors(config)
    return moved / (_DRAM * device.dram_rate) + start, "DRAM"


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    moves = moves_in_batches(problem, config, config.block_m)
    return tma.launch(problem, config, name, moves, batches=True)


def moves_in_batches(problem: Problem, config: Config, rows: int) -> Moves:
    """What goes through descriptors, `rows` rows of `a` and of `out` at a time."""
    stored = stores_out(problem) and is_writable(problem) and is_strided(problem, "out")
    shared = frozenset(tensor for tensor in ("a", "b") if is_shared(problem, tensor))
    return moves_of(problem, config, rows, stored, shared)
