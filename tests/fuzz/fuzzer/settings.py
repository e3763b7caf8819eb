"""How a program is compiled and called."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

# Elements of a tensor that an interpreted kernel takes no time for. Schedules for many rows, long
# rows and large tensors are met from some ten thousands on.
FEW = 160


@dataclass(frozen=True)
class Setting:
    """entry: `compile` (`compile_cli.compile`) or `backend` (`torch.compile`). grad: gradients of
    the results by the arguments are compared too; dynamic: the names of sizes that differ from call
    to call (some of n, m, k);
    elements: of the largest tensor, at first call. These three change what programs are made; the
    others are options of the compiler."""

    entry: str = "backend"
    emit: str = "fx"
    fuse: bool = True
    plan_memory: bool = True
    dynamic: str = ""
    grad: bool = False
    elements: int = FEW
    tune: str = "off"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def options(self, cache_dir: str) -> dict[str, Any]:
        return {
            "emit": self.emit,
            "fuse": self.fuse,
            "plan_memory": self.plan_memory,
            "cache_dir": cache_dir,
            "tune": self.tune,
            "jobs": 1,
        }


def draw_setting(
    rng: random.Random,
    emit: str | None = None,
    dynamic: bool | None = None,
    grad: bool | None = None,
    entry: str | None = None,
    cpp: float = 0.02,
    elements: int = FEW,
) -> Setting:
    """A random setting; what is given is not drawn. cpp: the share of C++ host programs."""
    drawn_grad, drawn_dynamic = rng.random() < 0.2, rng.random() < 0.3
    names = rng.choice(["n", "m", "nm", "mk", "nmk"])
    drawn_entry = "compile" if rng.random() < 0.5 else "backend"
    drawn_emit = "cpp" if rng.random() < cpp else "hop" if rng.random() < 0.25 else "fx"
    fuse, plan_memory = rng.random() < 0.85, rng.random() < 0.9
    grad = drawn_grad if grad is None else grad
    return Setting(
        entry="backend" if grad else entry or drawn_entry,
        emit=emit or drawn_emit,
        fuse=fuse,
        plan_memory=plan_memory,
        dynamic=names if (drawn_dynamic if dynamic is None else dynamic) else "",
        grad=grad,
        elements=elements,
        tune="auto" if rng.random() < 0.1 else "off",
    )
