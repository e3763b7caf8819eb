"""Host time of an emitted wrapper, with launchers that do nothing: `python overhead.py`."""

from __future__ import annotations

import timeit
from collections.abc import Callable

import torch

from fx_emit import emit
from wrapper_ir import parse_program

LAYERS = 60
WEIGHTS = 40
KERNEL = "  kernel k(a: *f32, b: *f32, n: i32) warps 4 stages 3:\n    def k(a, b, n): ...\n  end\n"
LAYER = """  b{i} = alloc f32[s0, 8] cpu
  launch k grid (s0*8, 1, 1) (x, b{i}, s0*8)
  v{i} = view b{i} f32[8, s0] cpu stride (1, 8)
  launch k grid (1, 1, 1) (v{i}, w{w}, 3)
  free b{i}
"""


def microseconds(function: Callable[[], object]) -> float:
    return min(timeit.repeat(function, number=200, repeat=5)) / 200 * 1e6


def main() -> None:
    weights = ", ".join(f"w{i}: f32[8] cpu" for i in range(WEIGHTS))
    text = f"program p(x: f32[s0, 8] cpu, {weights}):\n  symbol s0 = x.size(0)\n" + KERNEL
    text += "".join(LAYER.format(i=i, w=i % WEIGHTS) for i in range(LAYERS)) + "  return ()\n"
    inputs = [torch.zeros(4, 8), *(torch.zeros(8) for _ in range(WEIGHTS))]
    for checks in (True, False):
        gm = emit(
            parse_program(text), "direct", checks=checks,
            load_kernel=lambda kernel: lambda grid, *args: None,
        )  # fmt: skip
        gm(*inputs)
        print(f"checks {checks!s:5} {microseconds(lambda gm=gm: gm(*inputs)):6.1f} us")
    device = torch.device("cpu")
    alloc = microseconds(
        lambda: torch.empty_strided((4, 8), (8, 1), dtype=torch.float32, device=device)
    )
    view = microseconds(lambda: torch.as_strided(inputs[0], (8, 4), (1, 8), 0))
    print(f"of which {LAYERS} x empty_strided {LAYERS * alloc:6.1f} us")
    print(f"         {LAYERS} x as_strided    {LAYERS * view:6.1f} us")


if __name__ == "__main__":
    main()
