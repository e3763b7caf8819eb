"""A compiled graph to call, and its file: loaded without Dynamo, lowering or Triton's compiler."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from torch import Tensor

import compile_cli.artifact_file as artifact_file
import planner
import triton_rt.errors
from compile_cli.artifact import Artifact
from compile_cli.artifact_file import Format
from compile_cli.errors import BadArtifact, MachineError, NoArtifact, NotLoaded
from compile_cli.options import Options

Source = tuple[Literal["result", "input"], int]
"""Where a result of the graph is from: the host program's results, or the caller's inputs."""

_PROGRAM, _CONSTANTS = "program.txt", "constants.safetensors"
_VERSIONS = ("compile-cli", "wrapper-ir", "triton-rt", "torch", "triton")


@dataclass(frozen=True)
class CompiledArtifact:
    """A compiled graph: `artifact(*inputs)` gives its results, a tuple, in the graph's order.

    Inputs are the graph's placeholders, sizes among them. kept: what a file holds of it; a
    `NoArtifact` says why there can be none."""

    call: Callable[..., Sequence[Any]]
    kept: tuple[Artifact, tuple[Source, ...]] | NoArtifact

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):  # it runs as it was compiled
                with torch.autocast(device, enabled=False):
                    return self(*inputs)
        with torch.no_grad():
            return tuple(self.call(*inputs))

    def save(self, *, path: str | Path, format: Format = "binary") -> None:
        """Writes one zip file, or (`unpacked`) a folder: the host program's text, its kernels'
        binaries, its constants, and a manifest with versions, target and digests. Raises
        `NoArtifact`."""
        if isinstance(self.kept, NoArtifact):
            raise self.kept
        artifact, sources = self.kept
        files = {_PROGRAM: artifact.text.encode()}
        layouts = {}
        if artifact.constants:
            flat = {name: _elements(t).cpu() for name, t in artifact.constants.items()}
            files[_CONSTANTS] = safetensors.torch.save(flat)
            layouts = {
                name: {"size": list(t.shape), "stride": list(t.stride()), "device": str(t.device)}
                for name, t in artifact.constants.items()
            }
        target = None
        for i, binary in enumerate(artifact.binaries):
            files[f"kernels/{i}.bin"] = binary.to_bytes()
            target = binary.target.arch
        options = asdict(replace(artifact.options, cache_dir=None, jobs=0))
        record = {
            "versions": _versions(),
            "target": target,
            "options": options,
            "aligned": artifact.aligned,
            "lazy": artifact.lazy,
            "results": sources,
            "constants": layouts,
        }
        artifact_file.write(Path(path), format, record, files)

    @staticmethod
    def load(*, path: str | Path, format: Format = "binary") -> CompiledArtifact:
        """What `save` wrote, in this process or another, wherever the file is now. Raises
        `BadArtifact`: damaged, or made by other versions or for another GPU. Where the machine
        fails, a `MachineError` (`NotLoaded`), or what Python and torch raise for want of memory."""
        path = Path(path)
        manifest, files = artifact_file.read(path, format)
        if manifest.get("versions") != (here := _versions()):
            raise BadArtifact(path, f"made by {manifest.get('versions')}, this is {here}")
        if (arch := manifest.get("target")) is not None:
            if not torch.cuda.is_available():
                raise BadArtifact(path, f"made for an sm_{arch} GPU, and here is none")
            if not triton_rt.Target(arch).runs_on(triton_rt.Target.current().arch):
                raise BadArtifact(path, f"made for sm_{arch}, here is {triton_rt.Target.current()}")
        try:
            kernels = (data for name, data in files.items() if name.startswith("kernels/"))
            artifact = Artifact(
                files[_PROGRAM].decode(),
                _constants(manifest["constants"], files),
                tuple(manifest["aligned"]),
                tuple((int(i), bool(conj), bool(neg)) for i, conj, neg in manifest["lazy"]),
                Options.from_mapping(manifest["options"] | {"cache_dir": None, "jobs": 0}),
                tuple(map(triton_rt.Binary.from_bytes, kernels)),
            )
            sources = tuple((str(kind), int(i)) for kind, i in manifest["results"])
            run = artifact.load()
        except (torch.OutOfMemoryError, MemoryError, MachineError):
            raise
        except Exception as error:  # whatever a manifest, a program or constants make of it
            kind = NotLoaded if _of_machine(error) else BadArtifact
            raise kind(path, f"{type(error).__name__}: {error}") from error
        return CompiledArtifact(_mapped(run, sources), (artifact, sources))  # type: ignore[arg-type]  # kinds are checked as they are used


def _of_machine(error: BaseException) -> bool:
    """Whether data could not have brought about an error, or one that it comes from."""
    from cpp_emit.errors import CompilerKilled, CompilerNotFound, TorchNotFound

    broken = OSError, MemoryError, torch.AcceleratorError, planner.UnsafeCache
    no_compiler = CompilerKilled, CompilerNotFound, TorchNotFound
    no_gpu = triton_rt.errors.NoGPU, triton_rt.errors.CudaError
    full = os.strerror(errno.ENOMEM) in str(error)  # which torch raises as a `RuntimeError`
    return (
        isinstance(error, (*broken, *no_compiler, *no_gpu))
        or full
        or (error.__cause__ is not None and _of_machine(error.__cause__))
    )


def _mapped(run: Callable[..., Sequence[Any]], sources: Sequence[Source]) -> Callable[..., Any]:
    if all(kind == "result" for kind, _ in sources):
        return run

    def call(*inputs: Any) -> tuple[Any, ...]:
        results = run(*inputs)
        return tuple(inputs[i] if kind == "input" else results[i] for kind, i in sources)

    return call


def _elements(x: Tensor) -> Tensor:
    """All elements, in the order of their indices, as one row."""
    return x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)


def _constants(layouts: Any, files: Mapping[str, bytes]) -> dict[str, Tensor]:
    if not layouts:
        return {}
    flat = safetensors.torch.load(files[_CONSTANTS])
    constants = {}
    for name, layout in layouts.items():
        like = flat[name].to(layout["device"])
        out = torch.empty_strided(
            layout["size"], layout["stride"], dtype=like.dtype, device=like.device
        )
        constants[name] = out.copy_(like.reshape(layout["size"]))
    return constants


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _VERSIONS}
