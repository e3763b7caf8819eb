"""`nan_asserts`: the first kernel that makes a NaN or an infinity of finite numbers is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import compile_cli
from compile_cli.errors import NotFinite, UnknownOption

EMITTERS = ("fx", "hop", "cpp")


def model(x: Tensor, w: Tensor) -> Tensor:
    a = (x @ w).relu()
    b = a.log().sum(1)  # -inf where relu gave 0
    return b @ w[:3]


def compiled(
    fn: Callable[..., Tensor], *args: Tensor, cache: Path, emit: str = "fx"
) -> compile_cli.CompiledModel:
    options = {"cache_dir": str(cache), "nan_asserts": True, "emit": emit}
    return compile_cli.compile(fn, args, options=options)


@pytest.mark.parametrize("emit", EMITTERS)
def test_the_kernel_is_named(emit: str, own_cache: Path) -> None:
    x, w = torch.rand(3, 4), torch.rand(4, 4)
    run = compiled(model, x, w, cache=own_cache, emit=emit)
    torch.testing.assert_close(run(x, w), model(x, w))
    with pytest.raises(NotFinite) as caught:
        run(-x, w)
    text = str(caught.value)
    kernel = next(n for n in run.graph.program.ops if "log" in getattr(n, "kernel", ""))
    assert f"kernel {kernel.kernel} made an infinity" in text
    assert "3 infinite of 3 elements" in text and "float32[3], the first at [0]" in text
    assert "aten.log.default" in text and "test_nan_asserts.py:20" in text
    assert "all that it read is finite" in text
    x[1, 2] = torch.nan
    with pytest.raises(NotFinite, match=r"the input \w+ holds a NaN\n.*1 NaN of 12 .*\[1, 2\]"):
        run(x, w)


def test_an_operator_is_named(tmp_path: Path) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.linalg.inv_ex(x).inverse * 2

    x = torch.eye(3)
    run = compiled(fn, x, cache=tmp_path)
    torch.testing.assert_close(run(x), x * 2)
    with pytest.raises(NotFinite, match=r"^operator aten.linalg_inv_ex.\w+ made .*"):
        run(torch.zeros(3, 3))


def test_memory_that_several_kernels_fill(tmp_path: Path) -> None:
    """What no kernel has written yet is no NaN of anybody's, also in `torch.empty`."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        out = torch.empty(8, 6)
        out[:4] = x.sum(1, keepdim=True) * x
        out[4:] = torch.cat([y.cumsum(0), y.softmax(0)])
        return out

    x, y = torch.rand(4, 6), torch.rand(2, 6)
    junk = torch.full((64, 64), torch.nan)  # what the allocator may give again
    del junk
    run = compiled(fn, x, y, cache=tmp_path)
    torch.testing.assert_close(run(x, y), fn(x, y))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.complex64])
def test_other_types_and_writes_into_inputs(dtype: torch.dtype, tmp_path: Path) -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        y.copy_((x / 2).to(dtype))
        return x + 1

    x, y = torch.ones(4), torch.ones(4).to(dtype)
    run = compiled(fn, x, y, cache=tmp_path)
    torch.testing.assert_close(run(x, y), x + 1)
    big = torch.full((4,), 3e38 if dtype == torch.float8_e4m3fn else 3.4e38)
    if dtype == torch.float8_e4m3fn:  # no infinity there
        with pytest.raises(NotFinite, match=r"kernel .* made a NaN\n.*4 NaN of 4 elements"):
            run(big, y)
    else:
        run(big, y)
    with pytest.raises(NotFinite, match=r"the input .* holds an infinity"):
        run(big * 2, y)


def test_gradients(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))
    fn = torch.compile(
        lambda x: x.sqrt().sum(), backend="compile_cli", options={"nan_asserts": True}
    )
    x = torch.zeros(3, requires_grad=True)
    loss = fn(x)
    with pytest.raises(NotFinite, match=r"(?s)made an infinity.*aten.div"):
        loss.backward()


def test_not_with_cuda_graphs() -> None:
    with pytest.raises(UnknownOption, match="exclude each other"):
        compile_cli.Options(nan_asserts=True, cuda_graphs=True)
    with pytest.raises(UnknownOption, match="True or False"):
        compile_cli.Options(nan_asserts=1)  # type: ignore[arg-type]  # what is refused
