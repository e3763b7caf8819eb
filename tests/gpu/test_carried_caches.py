"""What `torch.compiler.save_cache_artifacts` takes from one machine to another: kernels, too."""

from pathlib import Path

import pytest
import torch
import torch._functorch.config as functorch_config
from torch import Tensor
from torch._dynamo.utils import counters

import compile_cli  # noqa: F401  # registers the backend
import triton_rt.launch.lazy as lazy


def f(x: Tensor) -> Tensor:
    return (x @ x).softmax(-1).cumsum(0) * x.shape[0]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_machine_whose_caches_are_empty_compiles_nothing(
    dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(256, 256, device="cuda")

    def on_machine(name: str) -> Tensor:
        for variable in ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            monkeypatch.setenv(variable, str(tmp_path / name / variable))
        torch._dynamo.reset()
        counters.clear()
        if name == "there":
            torch.compiler.load_cache_artifacts(saved)
        with torch.no_grad(), functorch_config.patch(enable_autograd_cache=True):
            result: Tensor = torch.compile(f, backend="compile_cli", dynamic=dynamic)(x)
        return result

    def compiles(*_: object, **__: object) -> None:
        raise AssertionError("the kernel was carried")

    here = on_machine("here")
    found = torch.compiler.save_cache_artifacts()
    assert found is not None
    saved = found[0]
    monkeypatch.setattr(lazy, "submit", compiles)
    torch.testing.assert_close(on_machine("there"), here)
    assert counters["aot_autograd"]["autograd_cache_hit"] == 1
    torch.testing.assert_close(here, f(x), rtol=1e-3, atol=1e-3)
