"""What a compilation is refused for: an error of its own kind each, none of them a bug."""

from __future__ import annotations

import copy
import errno
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import compile_cli
import planner.kernels
from compile_cli import CompileCliError
from compile_cli.errors import (
    DataDependent,
    NoCompiler,
    UnknownOption,
    UnsupportedModel,
)

NOT_A_BUG = ["bug", "Traceback"]


def test_results_that_depend_on_data(cli: Callable[..., Any], model: Callable[[str], str]) -> None:
    target = model("def M(x):\n    return x.sum().item()\n")
    outcome = cli("run", target, "--input", "f32[4]", "--device", "cpu")
    assert outcome.code == 5
    assert "depends on" in outcome.err and "to do:" in outcome.err
    assert not any(word in outcome.err for word in NOT_A_BUG)


def test_classes_of_what_depends_on_data() -> None:
    with pytest.raises(DataDependent) as caught:
        compile_cli.compile(lambda x: x.sum().item(), (torch.ones(3),))
    assert isinstance(caught.value, CompileCliError)


def test_results_as_large_as_data_says() -> None:
    compiled = compile_cli.compile(lambda x: x[x > 0] * 2, (torch.ones(3),))
    for x in (torch.tensor([1.0, -1.0, 3.0]), torch.zeros(3)):
        torch.testing.assert_close(compiled(x), x[x > 0] * 2)


def test_no_compiler(
    cli: Callable[..., Any], model: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model("def M(x):\n    return x + 1\n")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    outcome = cli("run", target, "--input", "f32[4]", "--device", "cpu", "--emit", "cpp")
    assert outcome.code == 6 and "g++" in outcome.err and "emit" in outcome.err
    assert NoCompiler.exit_code == 6


def test_a_cache_that_cannot_be_written_is_said_once_and_done_without(
    tmp_path: Path, share_parts: Callable[[Path], None]
) -> None:
    share_parts(planner.kernels.folder_of_process())
    (tmp_path / "file").write_text("")
    options = {"cache_dir": str(tmp_path / "file" / "cache"), "emit": "cpp"}
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        compiled = compile_cli.compile(lambda x: x + 1, (x,), options=options)
    torch.testing.assert_close(compiled(x), x + 1)
    loops = options | {"emit": "fx", "cpu_kernels": "cpp"}
    with pytest.warns(planner.CacheNotWritten, match="not kept"):
        compiled = compile_cli.compile(lambda x: x + 1, (x,), options=loops)
    torch.testing.assert_close(compiled(x), x + 1)
    assert [w.category for w in said].count(planner.CacheNotWritten) == 1


@pytest.mark.parametrize("who", ["python", "compiler"])
def test_a_full_cache_is_said_and_done_without(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, full, write = tmp_path / "cache", os.strerror(errno.ENOSPC), Path.write_text

    def refused(file: Path, *args: Any, **kwargs: Any) -> int:
        if file.is_relative_to(cache):
            raise OSError(errno.ENOSPC, full)
        return write(file, *args, **kwargs)

    if who == "python":
        monkeypatch.setattr(Path, "write_text", refused)
    else:
        script, real = tmp_path / "bin" / "g++", shutil.which("g++")
        script.parent.mkdir()
        said = f'case "$*" in *{cache}*) echo "ld: {full}" >&2; exit 1;; esac'
        script.write_text(f'#!/bin/sh\n{said}\nexec {real} "$@"\n')
        script.chmod(0o700)
        monkeypatch.setenv("PATH", str(script.parent), prepend=os.pathsep)
    x = torch.randn(3)
    options = {"cache_dir": str(cache), "cpu_kernels": "cpp"}
    with pytest.warns(planner.CacheNotWritten, match=f"{full}.*not kept"):
        compiled = compile_cli.compile(lambda x: x + 1, (x,), options=options)
    torch.testing.assert_close(compiled(x), x + 1)
    assert not list(cache.glob("cpp/*.so"))


def test_options_that_do_nothing_on_cpu() -> None:
    with pytest.raises(UnknownOption, match="does nothing on CPU"):
        compile_cli.compile(lambda x: x + 1, (torch.ones(3),), options={"cuda_graphs": True})


def test_modes_of_torch_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(tmp_path))
    x = torch.randn(3)
    for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
        torch._dynamo.reset()
        f = torch.compile(lambda x: x.sin() + 1, backend="compile_cli", mode=mode)
        torch.testing.assert_close(f(x), x.sin() + 1)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="mode='fast' is not known"):
        torch.compile(lambda x: x + 1, backend="compile_cli", mode="fast")(x)


def test_random_numbers_and_buffers_begin_the_same(
    cli: Callable[..., Any], model: Callable[[str], str]
) -> None:
    target = model(
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('n', torch.zeros(()))\n"
        "        self.norm = nn.BatchNorm1d(3)\n"
        "    def forward(self, x):\n"
        "        self.n = self.n + 1\n"
        "        y = F.dropout(self.norm(x), 0.5, self.training)\n"
        "        return y * self.n + torch.rand_like(x)\n"
    )
    for mode in ("eval", "train"):
        command = ("run", target, "--input", "f32[4, 3]", "--device", "cpu", f"--{mode}", "--json")
        outcome = cli(*command)
        assert outcome.code == 0, outcome.err
        assert outcome.json()["mode"] == mode


def test_the_report_says_the_mode(cli: Callable[..., Any], model: Callable[[str], str]) -> None:
    target = model("class M(nn.Dropout):\n    pass\n")
    plain = cli("run", target, "--input", "f32[4]", "--device", "cpu")
    assert "mode         eval (--train" in plain.out


def test_a_wrong_buffer_is_seen(
    cli: Callable[..., Any], model: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = model(
        "class M(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('n', torch.zeros(3))\n"
        "    def forward(self, x):\n"
        "        self.n.add_(1 if torch.compiler.is_exporting() else 2)\n"
        "        return x + 1\n"
    )
    outcome = cli("run", target, "--input", "f32[3]", "--device", "cpu")
    assert outcome.code == 3 and "buffer 0" in outcome.err


def test_a_model_file_does_not_stand_in_for_a_module(
    cli: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "helper.py").write_text("two = 2\n")
    (tmp_path / "copy.py").write_text("import helper\ndef M(x):\n    return x * helper.two\n")
    outcome = cli("run", "copy.py:M", "--input", "f32[3]", "--device", "cpu")
    assert outcome.code == 0, outcome.err
    import sys

    assert sys.modules["copy"] is copy and hasattr(copy, "deepcopy")


@pytest.mark.parametrize("more", [("--train",), ("--dtype", "bf16"), ("--dynamic", "0")])
def test_options_that_do_nothing_to_an_exported_program(
    more: tuple[str, ...], cli: Callable[..., Any], tmp_path: Path
) -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "m.pt2")
    outcome = cli("run", "m.pt2", "--device", "cpu", *more)
    assert outcome.code == 2 and f"{more[0]} does nothing" in outcome.err


class Plain(torch.Tensor):
    pass


def unsupported_inputs() -> dict[str, Any]:
    x = torch.ones(2, 3)
    return {
        "meta": x.to("meta"), "sparse": x.to_sparse(), "sparse_csr": x.to_sparse_csr(),
        "Plain": x.as_subclass(Plain), "quantized": torch.quantize_per_tensor(x, 1, 0, torch.qint8),
        "nested": torch.nested.nested_tensor([x, x[:1]]),
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(unsupported_inputs()))
def test_inputs_and_parameters_that_no_kernel_takes(kind: str) -> None:
    value = unsupported_inputs()[kind]
    with pytest.raises(UnsupportedModel, match=rf"args\[1\]\['k'\] is .*{kind}"):
        compile_cli.compile(lambda x, d: x, (torch.ones(2), {"k": value}))
    if kind != "nested":
        model = nn.Module()
        model.register_buffer("weight", value)
        with pytest.raises(UnsupportedModel, match=f"buffer weight is .*{kind}"):
            compile_cli.compile(model, (torch.ones(2),))


@pytest.mark.parametrize(
    ("model", "args", "message"),
    [
        (nn.Linear, (torch.ones(2),), "the class Linear"),
        (3, (torch.ones(2),), "got:      int"),
        (torch.sin, torch.ones(2), "no tuple"),
        (lambda x, t: x.to(t), (torch.ones(2), torch.float64), r"args\[1\] is a torch.dtype"),
        (torch.jit.trace(torch.sin, torch.ones(2)), (torch.ones(2),), "TorchScript"),
    ],
)
def test_what_is_no_model_or_no_input(model: Any, args: Any, message: str) -> None:
    with pytest.raises(CompileCliError, match=message):
        compile_cli.compile(model, args)
