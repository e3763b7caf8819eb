"""Grouped products (`Problem.jagged`) over tensor descriptors: what is proposed, and the launch."""

from dataclasses import replace

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import HOPPER, Abilities
from gemm_templates.families.gated import family as gated
from gemm_templates.families.tma import family as tma
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched, stores_out
from gemm_templates.tensor_maps import Moves, is_strided, is_writable, moves_of

CAN = Abilities(HOPPER, jagged=True, gate=True, fp8="all", descriptors="made")

_SHAPES = dense.table(
    "128 256 64 8 8 4 4 1, 128 128 64 8 4 3 4 2, 128 128 64 8 8 4 2 1, 64 128 64 8 4 4 2 2, "
    "64 256 64 8 4 4 4 1, 64 64 64 8 4 4 0 2, 32 128 64 8 4 4 0 2, 16 128 64 8 4 5 0 2, "
    "16 128 128 8 4 4 0 1, 16 64 128 8 4 4 0 2"
)
# Along which the operands may be contiguous: not the size that has the groups.
_MAJORS = {
    "M": ("stride_ak", "stride_bk", "stride_bn"),
    "N": ("stride_am", "stride_ak", "stride_bk"),
    "K": ("stride_am", "stride_bn"),
}
# The matrix of each that is a batch; the others are cut into groups.
_BATCHED = {"M": "b", "N": "a", "K": "out"}
_MOST_GROUPS = 4096  # one block of them is in registers


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """For jagged problems."""
    if problem.jagged is None:
        return ()
    found = dense.deepen(problem, dense.persistent_configs("grouped", _SHAPES, device))
    return found if problem.gate is None else tuple(c for c in found if c.block_n <= 128)


def allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address both operands: a block begins at a multiple of 16
    bytes of a row, so a group must not begin inside of one."""
    jagged = problem.jagged
    return (
        jagged is not None
        and problem.batch <= _MOST_GROUPS
        and problem.major("a") in _MAJORS[jagged]
        and problem.major("b") in _MAJORS[jagged]
        and (jagged == "K" or is_strided(problem, _BATCHED[jagged]))
        and (problem.gate is None or "b2" in problem.aligned)
    )


def why_not(problem: Problem, config: Config) -> str:
    """Empty if descriptors can address the operands, and the tile suits the warps."""
    if not allows(problem):
        return (
            "expected `jagged`, operands that are contiguous along one dimension, not the one with "
            "the groups, and 16-byte aligned (say so in `aligned`), no empty size, and at most "
            f"{_MOST_GROUPS} groups"
        )
    return dense.wrong_schedule(_as_one(problem, config)[1])


def fits(problem: Problem, config: Config, device: DeviceInfo) -> bool:
    """In shared memory and registers."""
    return tma.fits(*_as_one(problem, config), device)


def predict(problem: Problem, config: Config, device: DeviceInfo) -> tuple[float, str]:
    """As a batch of equal groups: the sizes are not known. It makes its own descriptors."""
    problem, config = _as_one(problem, config)
    return tma.predict(problem.even, replace(config, maps=False), device)


def _as_one(problem: Problem, config: Config) -> tuple[Problem, Config]:
    """Two products as the one that takes about as long."""
    if problem.gate is None:
        return problem, config
    return gated.side_by_side(problem), gated.wide(config)


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    flags = (
        f"groups=Groups(offs, {1 << (problem.batch - 1).bit_length()}), "
        f'JAGGED="{problem.jagged}", PARTS={config.parts}'
        + ", STAGES=1"
        * (problem.jagged != "K" and problem.k <= config.block_k)
    )
    moves = moves_in_groups(problem, config)
    call = Call("grouped", "grouped_mm", flags, batches=True, moves=moves)
    return launched(problem, config, name, call)


def moves_in_groups(problem: Problem, config: Config) -> Moves:
    """What goes through descriptors; a group that ends inside of a row has none to be stored by."""
    jagged = problem.jagged or "M"
    stored = (
        stores_out(problem)
        and jagged != "N"
        and is_writable(problem)
        and (jagged != "K" or is_strided(problem, "out"))
    )
    whole = frozenset({"a", "b", "out"} - {_BATCHED[jagged]})
    return moves_of(problem, replace(config, maps=False), config.block_m, stored, whole)
