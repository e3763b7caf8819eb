"""Programs for a GPU launch no kernels on the CPU tensors beside."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering import lower_with_report
from loop_ir import Extern, Kernel


def test_cpu_tensors_of_a_gpu_program_stay_with_the_operator() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.exp() + 1, (n + 1) * 2

    with FakeTensorMode(allow_non_fake_inputs=True):
        x, n = torch.empty(8, device="cuda"), torch.empty(3)
        lowered = lower_with_report(make_fx(f)(x, n))
        alone = lower_with_report(make_fx(f)(n, n))
    kernels = [k for k in lowered.graph.nodes if isinstance(k, Kernel)]
    assert {b.type.device.kind for k in kernels for b in k.buffers} == {"cuda"}
    assert sum(isinstance(k, Extern) for k in lowered.graph.nodes) == 2
    assert {f.reason for f in lowered.fallbacks} == {"CPU tensors of a program for a GPU"}
    assert not alone.fallbacks
