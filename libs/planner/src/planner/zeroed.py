"""Memory that kernels find all zero and leave all zero: one buffer a call, made before its first
user, for all that want one.

launch a (..., 8 counters)                counters = alloc i32[12]
launch b (..., 12 counters)       ->      extern aten.zero_.default(counters) mutates (counters,)
                                          launch a (..., counters); launch b (..., counters)
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import sympy

from planner.plan import Condition, Key, Zeroed
from symexpr import Max
from wrapper_ir import Allocate, ExternCall, If, Op, Ref, TensorType


@dataclass(frozen=True)
class Shared:
    """One buffer of a program. condition: what holds where some kernel uses it; None: nothing
    does, or need."""

    type: TensorType
    condition: Condition

    def ops(self, name: str) -> tuple[Op, ...]:
        """Makes it, and fills it where it is used."""
        fill = ExternCall(
            "aten.zero_.default", (Ref(name),), mutates=(name,), comment="kernels leave it zero"
        )
        guarded = fill if self.condition is None else If(self.condition, (fill,))
        return Allocate(name, self.type), guarded


def shared(uses: Iterable[tuple[Condition, Zeroed]]) -> dict[Key, Shared]:
    """The buffers of all uses, each as large as the largest wants it. A use has a condition that
    holds wherever it is launched."""
    sizes: dict[Key, list[sympy.Expr]] = {}
    conditions: dict[Key, list[Condition]] = {}
    types: dict[Key, TensorType] = {}
    for condition, use in uses:
        types.setdefault(use.key, use.type)
        sizes.setdefault(use.key, []).append(use.type.size[0])
        conditions.setdefault(use.key, []).append(condition)
    return {
        key: Shared(replace(types[key], size=(Max(*sizes[key]),)), _any(conditions[key]))
        for key in types
    }


def _any(conditions: list[Condition]) -> Condition:
    given = [c for c in conditions if c is not None]
    return sympy.Or(*given) if len(given) == len(conditions) else None
