"""One tile a program: what is proposed, and its launch."""

from gemm_templates.device import DeviceInfo
from gemm_templates.families import dense
from gemm_templates.families.abilities import Abilities
from gemm_templates.plan import Plan
from gemm_templates.problem import Config, Problem
from gemm_templates.render import Call, launched

CAN = Abilities(prologues=True, block_scale=True, fp8="all", integers=True, vendor=True)

# (block_m, block_n, block_k, num_warps, num_stages)
_SHAPES = dense.table(
    "128 256 64 8 3, 128 256 64 8 4, 256 128 64 8 3, 256 128 64 8 4, 128 128 64 4 3, "
    "128 128 64 4 4, 128 128 64 8 3, 128 128 64 8 4, 128 64 64 4 4, 64 128 64 4 4, "
    "64 64 64 4 4, 64 256 64 4 4, 128 128 128 8 3, 64 64 128 4 4, 64 128 128 4 3, "
    "128 64 32 4 4, 64 64 32 4 4, 64 32 64 4 4, 32 64 64 4 4, 32 32 64 4 4, 16 64 128 4 4, "
    "64 16 128 4 4, 16 32 128 2 4, 16 16 128 2 4, 128 128 32 8 3, 128 128 32 4 4, "
    "128 64 16 8 3, 64 64 16 4 3"
)
CONFIGS = tuple(Config(m, n, k, 8, warps, stages) for m, n, k, warps, stages in _SHAPES)
# For elements of 8 bits and few rows: many loads under way.
_DEEP = tuple(
    Config(64, n, k, 8, 4, stages)
    for n, k, stages in ((32, 128, 8), (32, 256, 5), (64, 128, 5), (64, 128, 8))
)


def configs(problem: Problem, device: DeviceInfo) -> tuple[Config, ...]:
    """All tiles, and for few rows of fp8 those with many loads under way."""
    deep = _DEEP if problem.multiplies_bytes and problem.m <= 256 else ()
    return (*deep, *dense.deepen(problem, CONFIGS))


def why_not(problem: Problem, config: Config) -> str:
    """Empty for any problem, with a tile that suits the warps."""
    return dense.wrong_tile(config)


fits = dense.fits
predict = dense.predict


def plan(problem: Problem, config: Config, name: str) -> Plan:
    """One launch."""
    return launched(problem, config, name, Call("tiled", "tiled_mm", prologues=True))
