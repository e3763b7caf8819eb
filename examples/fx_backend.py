"""What a hardware vendor does: a backend that gets whole programs as FX graphs, kernels included.

`python examples/fx_backend.py` prints what reaches it of a model: forward and backward passes, with
a batch of any size. Here the "device" is an interpreter that counts what it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.fx import GraphModule, Interpreter, Node

from fx_emit import FxBackend

LAUNCH = torch.ops.higher_order.triton_kernel_wrapper_mutation


class Device(FxBackend):
    """Compiles for a made-up device. programs: what reached it, in order."""

    programs: ClassVar[list[Commands]] = []

    def compile_graph(self, gm: GraphModule) -> Callable[..., Any]:
        """The graph allocates, launches Triton kernels (their sources are `gm.meta["kernels"]`),
        calls operators, and frees: no views of views, no autograd."""
        gm.graph.eliminate_dead_code()
        gm.recompile()
        self.programs.append(Commands(gm))
        return self.programs[-1].run


class Commands(Interpreter):
    """Runs a program node by node, where a vendor would enqueue commands."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__(gm)
        self.ran = Counter[str]()

    def run_node(self, n: Node) -> Any:
        """One command."""
        known = isinstance(n.target, torch._ops.OpOverload)
        self.ran["launch" if n.target is LAUNCH else str(n.target) if known else "host"] += 1
        return super().run_node(n)


def main() -> None:
    """Trains a model with batches of two sizes."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    run = torch.compile(model, backend=Device.as_torch_backend(), dynamic=True)
    for rows in (3, 5):
        run(torch.randn(rows, 8)).square().sum().backward()
    for program in Device.programs:
        print(", ".join(program.module.meta["kernels"]), dict(program.ran))


if __name__ == "__main__":
    main()
