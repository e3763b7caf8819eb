"""What a schedule must keep to so that a kernel can be written under it."""

import sympy

import loop_ir as ir
from loop_ir.ir import ranges_of
from symexpr import bounds
from triton_emit import schedule as schedules
from triton_emit.errors import BadSchedule


def check(kernel: ir.Kernel, schedule: schedules.Schedule) -> None:
    """Raises BadSchedule, which names the field, where the two do not fit."""

    def require(holds: bool, field: str, value: object, expected: str) -> None:
        if not holds:
            raise BadSchedule(kernel.name, field, value, expected)

    s, spaces = schedule, schedules.inner_spaces(kernel)
    for field in ("xblock", "yblock", "rblock", "num_warps", "steps"):
        block = getattr(s, field)
        require(block >= 1 and not block & (block - 1), field, block, "a power of two")
    kinds = ("flat", "tiled", "persistent", "looped")
    require(s.kind in kinds, "kind", s.kind, "flat, tiled, persistent or looped")
    require(s.index_bits in (32, 64), "index_bits", s.index_bits, "32 or 64")
    lanes = s.kind in ("flat", "tiled")
    fitting = "persistent or looped: the kernel has" if spaces else "flat: the kernel has no"
    alike = lanes and schedules.folds_alike(kernel)
    require(alike or lanes != bool(spaces), "kind", s.kind, f"{fitting} inner axes")
    vector = s.vector >= 0 and not s.vector & (s.vector - 1) and (lanes or not s.vector)
    expected = "0, or a power of two in a flat or tiled schedule"
    require(vector, "vector", s.vector, expected)
    require(s.kind == "flat" or not s.pairs, "pairs", 1, "False in a schedule that is not flat")
    stepping = s.kind == "looped" and s.steps <= s.rblock and schedules.may_step(kernel)
    require(s.steps == 1 or stepping, "steps", s.steps, "1: no scans in steps of several rows")
    fits = not s.lookback & (s.lookback - 1) and s.lookback >= 32 * s.num_warps and s.xblock == 1
    sharing = s.kind == "looped" and ir.can_split_scans(kernel) and fits
    expected = "0, or a power of two with one number a thread, of a looped kernel that scans a row"
    require(not s.lookback or sharing, "lookback", s.lookback, expected)
    expected = "1, or programs that each hold a piece of a row, of a persistent kernel"
    require(s.share == 1 or _shares(kernel, s), "share", s.share, expected)
    several = len(kernel.axes) > 1
    require(s.kind != "tiled" or several, "kind", s.kind, "flat: the kernel has one axis")
    held = s.kind == "persistent"
    require(
        held or not schedules.walks(kernel), "kind", s.kind, "persistent: the kernel sums over rows"
    )
    whole = held and s.share == 1 and not ir.row_of_pieces(kernel)
    for space in spaces if whole else ():
        inner = sympy.Mul(*(a.extent for a in space))
        high = bounds(inner, dict(ranges_of(kernel)))[1]
        fits = high is not None and schedules.next_power_of_two(high) <= s.rblock
        require(fits, "rblock", s.rblock, f"at least the inner extent {high}")


def _shares(kernel: ir.Kernel, s: schedules.Schedule) -> bool:
    """Whether programs can hold rows together, each a piece that is not empty."""
    if s.kind != "persistent" or s.xblock != 1 or s.share < 1 or not ir.can_hold_together(kernel):
        return False
    extent = int(sympy.Mul(*(a.extent for a in schedules.inner_spaces(kernel)[0])))
    piece = schedules.piece_of(extent, s.share)
    return piece <= s.rblock and piece * (s.share - 1) < extent
