"""`standalone_compile`: a graph that is called, saved, and loaded elsewhere."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from aten_lowering.passes import sums_at_once
from compile_cli import CompiledArtifact, standalone_compile
from compile_cli.errors import BadArtifact, BadInput, NoArtifact, NotLoaded
from triton_rt.errors import CudaError

X = torch.linspace(-1.0, 2.0, 12).reshape(3, 4)


@pytest.fixture(autouse=True)
def own_folder(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPILE_CLI_CACHE_DIR", str(own_cache))


def captured(
    f: Callable[..., Any], *args: Any, dynamic: bool = False
) -> tuple[fx.GraphModule, Any]:
    """The graph that Dynamo makes of a function, and the inputs that it gives a backend."""
    found: list[Any] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        found.append((gm, inputs))
        return gm

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(f, backend=backend, dynamic=dynamic)(*args)
    return found[0]


def block(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    sine = x.sin()  # Dynamo numbers inputs as they are met
    y.add_(sine)
    return (x * torch.tensor([0.5, 1.0, 1.5, 2.0])).softmax(-1), x.t() @ y


def test_weights_that_require_a_gradient(tmp_path: Path) -> None:
    """It is for inference: no result hangs on them, and calls with `out=` would refuse them."""
    weight = torch.nn.Parameter(torch.ones(4, 4))
    made = standalone_compile(*captured(lambda x, w: (x @ w).relu() @ w, X, weight))
    made.save(path=tmp_path / "a")
    for artifact in (made, CompiledArtifact.load(path=tmp_path / "a")):
        (result,) = artifact(X, weight)
        assert not result.requires_grad


def expected(x: Tensor, y: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
    y = y.clone()
    return block(x, y), y


@pytest.mark.parametrize("format", ["binary", "unpacked"])
def test_a_loaded_artifact_is_the_saved_one(format: Any, tmp_path: Path) -> None:
    gm, inputs = captured(block, X, X.clone())
    before = gm.print_readable(print_output=False)
    made = standalone_compile(gm, inputs)
    assert gm.print_readable(print_output=False) == before
    made.save(path=tmp_path / "block", format=format)
    moved = (tmp_path / "block").rename(tmp_path / "elsewhere")
    for artifact in (made, CompiledArtifact.load(path=moved, format=format)):
        y = X.clone()
        got = artifact(X, y)
        torch.testing.assert_close((got, y), expected(X, X))
    CompiledArtifact.load(path=moved, format=format).save(path=tmp_path / "again", format=format)
    if format == "binary":
        assert (tmp_path / "again").read_bytes() == moved.read_bytes()


def test_sizes_are_inputs(tmp_path: Path) -> None:
    gm, inputs = captured(lambda x: (x * x.shape[0]).sum(0), X, dynamic=True)
    made = standalone_compile(gm, inputs)
    made.save(path=tmp_path / "sum")
    for n in (1, 2, 5):
        x = torch.ones(n, 7)
        for artifact in (made, CompiledArtifact.load(path=tmp_path / "sum")):
            torch.testing.assert_close(artifact(n, 7, x), (x.sum(0) * n,))


def test_static_sizes_and_a_tracing_context() -> None:
    gm, inputs = captured(lambda x: x.cumsum(-1), X)
    for node in gm.graph.nodes:
        node.meta.clear()
    with pytest.raises(BadInput, match="from_example_inputs"):
        standalone_compile(gm, inputs)
    with pytest.raises(BadInput, match="nothing is being traced"):
        standalone_compile(gm, inputs, dynamic_shapes="from_tracing_context")
    with pytest.raises(BadInput, match="takes 1 inputs, got 0"):
        standalone_compile(gm, [])
    with pytest.raises(BadInput, match="'anything' is not known"):
        standalone_compile(gm, inputs, dynamic_shapes="anything")  # type: ignore[arg-type]  # refused
    made = standalone_compile(gm, inputs, dynamic_shapes="from_example_inputs")
    torch.testing.assert_close(made(X), (X.cumsum(-1),))


def test_a_graph_of_make_fx() -> None:
    """In whose placeholders each tensor is of a fake mode of its own."""
    y = X.t().contiguous()
    gm = make_fx(lambda a, b: [(a @ b).softmax(-1)])(X, y)
    torch.testing.assert_close(standalone_compile(gm, [X, y])(X, y), [(X @ y).softmax(-1)])


def test_inside_of_a_backend() -> None:
    made: list[CompiledArtifact] = []

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        made.append(standalone_compile(gm, inputs, dynamic_shapes="from_tracing_context"))
        return made[0]

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(lambda x: x.exp() - 1, backend=backend, dynamic=True)
        for n in (3, 5):
            torch.testing.assert_close(compiled(torch.ones(n, 2)), torch.ones(n, 2).exp() - 1)
    assert len(made) == 1


def test_what_a_file_cannot_hold(tmp_path: Path) -> None:
    gm, inputs = captured(lambda x: (x.sin(), x[1:]), X)
    made = standalone_compile(gm, inputs)
    torch.testing.assert_close(made(X)[0], X.sin())
    with pytest.raises(NoArtifact, match="a view of input 0"):
        made.save(path=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_file_holds_branches(tmp_path: Path) -> None:
    gm, inputs = captured(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), X)
    standalone_compile(gm, inputs).save(path=tmp_path / "branches")
    loaded = CompiledArtifact.load(path=tmp_path / "branches")
    for x, want in ((X.abs(), X.abs().sin()), (-X.abs(), X.abs().cos())):
        torch.testing.assert_close(loaded(x)[0], want)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    gm, inputs = captured(lambda x: x.sin(), X)
    standalone_compile(gm, inputs).save(path=tmp_path / "sin", format="unpacked")
    return tmp_path / "sin"


def _edit(folder: Path, **changes: Any) -> None:
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | changes))


def test_damaged_and_foreign_files_are_refused(saved: Path, tmp_path: Path) -> None:
    def refused(why: str, format: Any = "unpacked", path: Path = saved) -> None:
        with pytest.raises(BadArtifact, match=why):
            CompiledArtifact.load(path=path, format=format)

    good = (saved / "manifest.json").read_text(), (saved / "program.txt").read_text()
    (saved / "manifest.json").write_text("[" * 100_000)
    refused("RecursionError")
    (saved / "manifest.json").write_text(good[0])
    for why, changes in {
        "format 7": {"format": 7},
        "made by": {"versions": {"torch": "1.0"}},
        "sm_90": {"target": 90},
        "no file of an artifact": {"files": {"../../program.txt": ""}},
        "KeyError: 'aligned'": {"aligned": None},
        "unknown option": {"options": {"fast": True}},
    }.items():
        _edit(saved, **changes)
        if "aligned" in why:
            manifest = json.loads((saved / "manifest.json").read_text())
            del manifest["aligned"]
            (saved / "manifest.json").write_text(json.dumps(manifest))
        refused(why)
        (saved / "manifest.json").write_text(good[0])
    (saved / "program.txt").write_text(good[1].replace("sin", "cos"))
    refused("program.txt is damaged")
    (saved / "program.txt").unlink()
    refused("FileNotFoundError")
    refused("", "binary", tmp_path / "nothing")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("readme", "")
    refused("KeyError", "binary", tmp_path / "other.zip")


def test_files_of_others_are_refused_with_the_reason(saved: Path, tmp_path: Path) -> None:
    """What is hostile in a manifest, a program, constants and a zip, its digests being right."""
    files = {name: (saved / name).read_bytes() for name in ("manifest.json", "program.txt")}

    def refused(why: str, compression: int = zipfile.ZIP_STORED, **changes: Any) -> None:
        program = changes.pop("program", files["program.txt"])
        manifest = json.loads(files["manifest.json"]) | changes
        manifest["files"] = {"program.txt": hashlib.sha256(program).hexdigest()}
        text = changes.get("manifest", json.dumps(manifest))
        with zipfile.ZipFile(tmp_path / "x.zip", "w", compression) as out:
            out.writestr("manifest.json", text)
            out.writestr("program.txt", program)
        with pytest.raises(BadArtifact, match=why):
            CompiledArtifact.load(path=tmp_path / "x.zip")

    refused("not compressed", zipfile.ZIP_DEFLATED)
    refused("RecursionError", manifest="[" * 100_000)
    refused("TypeError", lazy=7)
    refused("ParseError", program=files["program.txt"].replace(b"return", b"retrun"))
    text = files["program.txt"].replace(b"int64_t", b"int65_t")
    if text != files["program.txt"]:  # kernels in C++
        refused("refused the text", program=text)
    layout = {"size": [-1], "stride": [1], "device": "cpu"}
    refused("KeyError", constants={"c": layout})
    whole = (tmp_path / "x.zip").read_bytes()
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        (tmp_path / "x.zip").write_bytes(damaged)
        with pytest.raises(BadArtifact):
            CompiledArtifact.load(path=tmp_path / "x.zip")


def raising(error: BaseException) -> Callable[..., Any]:
    def fault(*_: Any, **__: Any) -> Any:
        raise error

    return fault


FAULTS: dict[str, tuple[str, Any, type[BaseException], str]] = {
    "disk": ("pathlib.Path.read_bytes", OSError(errno.EIO, "broken"), NotLoaded, "broken"),
    "rights": ("zipfile.ZipFile", PermissionError(errno.EACCES, "no"), NotLoaded, "Permission"),
    "files": ("zipfile.ZipFile", OSError(errno.EMFILE, "too many"), NotLoaded, "too many"),
    "memory of the file": ("zipfile.ZipFile", MemoryError("all"), MemoryError, "all"),
    "full disk": ("tempfile.TemporaryDirectory", OSError(errno.ENOSPC, "full"), NotLoaded, "full"),
    "memory": ("torch.Tensor.copy_", MemoryError("all"), MemoryError, "all"),
    "memory of a GPU": ("torch.Tensor.copy_", torch.OutOfMemoryError("GPU"), RuntimeError, "GPU"),
    "a GPU": ("torch.Tensor.copy_", torch.AcceleratorError("illegal"), NotLoaded, "illegal"),
    "a driver": ("torch.Tensor.copy_", CudaError("cuInit"), NotLoaded, "cuInit"),
    "memory of torch": (
        "torch.Tensor.copy_",
        RuntimeError(f"DefaultCPUAllocator: Error code 12 ({os.strerror(errno.ENOMEM)})"),
        NotLoaded,
        "Allocator",
    ),
}


@pytest.mark.parametrize("fault", [*FAULTS, "no compiler", "a compiler that is killed"])
def test_a_machine_that_fails_is_no_damage(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the file loads once it does not."""
    gm, inputs = captured(lambda x: x.sin() + torch.tensor([0.5, 1.0, 1.5, 2.0]), X)
    format: Any = "unpacked" if fault == "disk" else "binary"
    made = standalone_compile(gm, inputs, options={"cpu_kernels": "cpp"})
    made.save(path=tmp_path / "sin", format=format)
    with monkeypatch.context() as broken:
        broken.setenv("COMPILE_CLI_CACHE_DIR", str(tmp_path / "empty"))
        if fault in FAULTS:
            where, error, kind, why = FAULTS[fault]
            broken.setattr(where, raising(error))
        else:
            kind, why = NotLoaded, "LoopsNotBuilt"
            script = tmp_path / "bin" / "g++"
            script.parent.mkdir()
            if "killed" in fault:
                script.write_text("#!/bin/sh\nkill -KILL $$\n")
                script.chmod(0o700)
            broken.setenv("PATH", f"{script.parent}{os.pathsep}/bin" if "killed" in fault else "")
        with pytest.raises(kind, match=why) as caught:
            CompiledArtifact.load(path=tmp_path / "sin", format=format)
        assert not isinstance(caught.value, BadArtifact)
    loaded = CompiledArtifact.load(path=tmp_path / "sin", format=format)
    assert torch.allclose(loaded(X)[0], X.sin() + torch.tensor([0.5, 1.0, 1.5, 2.0]))


def test_a_file_says_no_folder_to_write_to(saved: Path, tmp_path: Path) -> None:
    options = json.loads((saved / "manifest.json").read_text())["options"]
    _edit(saved, options=options | {"cache_dir": str(tmp_path / "elsewhere")})
    loaded = CompiledArtifact.load(path=saved, format="unpacked")
    assert torch.allclose(loaded(X)[0], X.sin()) and not (tmp_path / "elsewhere").exists()


def test_another_process_loads_it_without_tracing(saved: Path, tmp_path: Path) -> None:
    """And operators of ours, if it calls some."""
    assert sums_at_once  # it describes the operator
    sums = torch.ops.aten_lowering.sum_at_once
    graph = make_fx(lambda x: (sums(x, x, "none"),), tracing_mode="fake")(X)
    standalone_compile(graph, [X]).save(path=tmp_path / "calls")
    code = f"""
import sys
import compile_cli.artifact, compile_cli.undecided
for_planning = "loop_ir", "triton_emit", "tuning"
assert not [name for name in for_planning if name in sys.modules], sys.modules.keys()
from compile_cli import CompiledArtifact
CompiledArtifact.load(path={str(saved)!r}, format="unpacked")
slow = "torch._dynamo", "torch._functorch.aot_autograd", "aten_lowering", "triton"
assert not [name for name in slow if name in sys.modules], sys.modules.keys()
CompiledArtifact.load(path={str(tmp_path / "calls")!r})
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
