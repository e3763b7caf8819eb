"""What ranks tell each other of a graph that all of them compile: the first measures and plans, and
others run the program that it made.

    rank 0: begun 3 = digest ... compiled: graph 3 = artifact
    rank 1: waits for begun 3; the same digest: waits for graph 3, loads it, on a device of its own

All of it goes through the store of torch's default group: nothing is exchanged that all must take
part in, and who waits in vain compiles for itself. Ranks count the graphs that concern others."""

from __future__ import annotations

import pickle
import re
import warnings
import zlib
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

from aten_lowering.symbols import shape_envs
from compile_cli.artifact import Artifact
from compile_cli.options import Options
from compile_cli.torch_compat import default_store, unset_fake_temporarily

# Until the first rank is where this one is, and until it has compiled.
_BEGUN, _MADE = timedelta(seconds=30), timedelta(minutes=10)
_MOST = 4 << 20  # bytes that a store takes at once
_DEVICE = re.compile(r"\bcuda:\d+|(?<=type='cuda', index=)\d+")


@dataclass(frozen=True)
class Ranks:
    """One graph among ranks: its digest, and the number that this rank has for it."""

    digest: str
    number: int
    rank: int

    @classmethod
    def of(cls, digest: str) -> Ranks | None:
        """The next graph of this rank; None where nothing is exchanged."""
        store = default_store()
        if not digest or store is None or store.check(["compile_cli/alone"]):
            return None
        rank = dist.get_rank()
        number = store.add(f"compile_cli/rank{rank}", 1)
        if rank == 0:
            store.set(f"compile_cli/begun{number}", digest)
        return cls(digest, number, rank)

    def tell(self, artifact: Artifact | None) -> None:
        """The first rank has compiled; None: what no other can run."""
        with unset_fake_temporarily():
            message = zlib.compress(pickle.dumps(artifact), 1)
            if len(message) > _MOST and artifact is not None:
                self.tell(replace(artifact, binaries=()) if artifact.binaries else None)
                return
        default_store().set(f"compile_cli/graph{self.number}", message)

    def told(self, options: Options) -> Artifact | None:
        """What the first rank has made of the same graph, with these options, for the device of
        this rank; None where it did not."""
        store = default_store()
        try:
            store.wait([f"compile_cli/begun{self.number}"], _BEGUN)
            if store.get(f"compile_cli/begun{self.number}") != self.digest.encode():
                return None  # the first may wait for this rank, in what comes before its graph
            store.wait([f"compile_cli/graph{self.number}"], _MADE)
        except dist.DistError as error:
            store.set("compile_cli/alone", b"")
            warnings.warn(f"ranks compile apart from now on: {error}", stacklevel=2)
            return None
        with unset_fake_temporarily():
            text = zlib.decompress(store.get(f"compile_cli/graph{self.number}"))
            artifact = pickle.loads(text)
            return None if artifact is None else _here(artifact, options)


def _here(artifact: Artifact, options: Options) -> Artifact:
    """On the current device."""
    if not torch.cuda.is_available():
        return replace(artifact, options=options)
    device = f"cuda:{torch.cuda.current_device()}"
    text = _DEVICE.sub(device, artifact.text)
    held = artifact.constants.items()
    constants = {name: t.to(device) if t.is_cuda else t for name, t in held}
    return replace(artifact, text=text, constants=constants, options=options)


def digest(gm: fx.GraphModule, options: Options, data_parallel: bool) -> str:
    """Equal for graphs of ranks that one program runs, whatever their devices, if as much is known
    of their sizes; empty where a graph has nothing to do with other ranks, or holds what none but
    this process has."""
    if default_store() is None:
        return ""
    targets = [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]
    if not data_parallel and not any("c10d" in target for target in targets):
        return ""
    if any(n.op in ("get_attr", "call_module") for n in gm.graph.nodes):
        return ""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    lines = [f"{replace(options, cache_dir=None)} {gpu} {torch.__version__}"]
    for env in shape_envs(gm):
        lines.append(f"{env.var_to_range} {[guard.expr for guard in env.guards]}")
    devices: set[torch.device] = set()
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        layouts = [_layout(v) for v in (value if isinstance(value, list | tuple) else [value])]
        devices |= {v.device for v in [value] if isinstance(v, Tensor) and v.is_cuda}
        lines.append(f"{node.name} {node.target} {node.args} {node.kwargs} {layouts}")
    if len(devices) > 1:
        return ""
    return sha256(_DEVICE.sub("cuda", "\n".join(lines)).encode()).hexdigest()


def _layout(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.device.type}"
    return str(value)
