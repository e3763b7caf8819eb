"""What ranks tell each other of a graph that all of them compile: the first measures and plans, and
others run the program that it made.

    rank 0: number of this digest = 3; begun 3 ... compiled: graph 3 = artifact
    rank 1: waits for begun 3; a number of its digest: waits for that graph, loads it, on a device
            of its own

All of it goes through the store of torch's default group: nothing is exchanged that all must take
part in, and who waits in vain compiles for itself. Ranks count the graphs that concern others; that
the first has begun with as many tells those which have another graph that it may not come."""

from __future__ import annotations

import pickle
import re
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, fx

from compile_cli.artifact import Artifact
from compile_cli.options import Options
from compile_cli.torch_compat import default_store, sharing_groups, unset_fake_temporarily

T = TypeVar("T")

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
            store.set(f"compile_cli/number of {digest}", str(number))
            store.set(f"compile_cli/begun{number}", b"")
        return cls(digest, number, rank)

    def tell(self, made: Any) -> None:
        """The first rank is done; None: what no other can run."""
        with unset_fake_temporarily():
            message = zlib.compress(pickle.dumps(made), 1)
            if len(message) > _MOST:
                self.tell(replace(made, binaries=()) if made.binaries else None)
                return
        default_store().set(f"compile_cli/graph{self.number}", message)

    def told(self) -> Any:
        """What the first rank has made of the same graph; None where it did not."""
        store, key = default_store(), f"compile_cli/number of {self.digest}"
        try:
            store.wait([f"compile_cli/begun{self.number}"], _BEGUN)
            if not store.check([key]):
                return None  # the first may wait for this rank, in what comes before its graph
            made = f"compile_cli/graph{store.get(key).decode()}"
            store.wait([made], _MADE)
        except dist.DistError as error:
            store.set("compile_cli/alone", b"")
            warnings.warn(f"ranks compile apart from now on: {error}", stacklevel=2)
            return None
        with unset_fake_temporarily():
            return pickle.loads(zlib.decompress(store.get(made)))


def agreed(digest: str, make: Callable[[], T]) -> T:
    """What the first rank makes of the graph of a digest, or this one where nothing is told."""
    ranks = Ranks.of(digest)
    if ranks is not None and ranks.rank > 0 and (told := ranks.told()) is not None:
        found: T = told
        return found
    made: T | None = None
    try:
        made = make()
    finally:
        if ranks is not None and ranks.rank == 0:
            ranks.tell(made)
    return made


def here(artifact: Artifact, options: Options) -> Artifact:
    """What another rank has made, with these options, on the current device."""
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
    from aten_lowering.symbols import shape_envs  # with all of lowering: one rank needs none

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    lines = [f"{replace(options, cache_dir=None)} {gpu} {torch.__version__} {sharing_groups()}"]
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
