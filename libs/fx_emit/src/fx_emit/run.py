"""A graph module as a function of a list, which it empties."""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from fx_emit import host
from fx_emit.torch_compat import triton_kernel_wrapper_mutation

_HEAD = re.compile(r"^def forward\(self(?:, (?P<names>[^)]*))?\)[^:\n]*:", re.MULTILINE)


class Run:
    """`run(*args)` is `gm(*args)`. `run.boxed([...])` is the same for a list that it empties: an
    argument that nobody else holds lives until the program has used it. Both follow an edit of the
    graph. Where an operator raises, the device and the stream of the call are current again, and
    this waits for the others: what they still use is freed. Torch's operator launches kernels on
    the current device, which is then that of the program."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        graphs = (m.graph for m in gm.modules() if isinstance(m, GraphModule))
        nodes = [n for graph in graphs for n in graph.nodes]  # those of subgraphs, too
        # of its streams, if it has any beside that of the call
        self._devices = {n.args[0] for n in nodes if n.target is host.side_streams}
        self._moves = any(n.target is host.switch_device for n in nodes)
        launches = any(n.target is triton_kernel_wrapper_mutation for n in nodes)
        self._own = device.index if launches and (device := gm.meta.get("device")) else None
        self._code = ""
        self._boxed: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        return self._kept(self.gm.forward, *args)

    def boxed(self, args: list[Any]) -> Any:
        """The program's results."""
        if self._boxed is None or self._code is not self.gm.code:
            self._boxed, self._code = _boxed(self.gm), self.gm.code
        return self._kept(self._boxed, self.gm, args)

    def _kept(self, run: Callable[..., Any], *args: Any) -> Any:
        if not (self._devices or self._moves or self._own is not None):
            return run(*args)
        device = torch.cuda.current_device()
        if self._own not in (None, device):
            host.switch_device(self._own)
        streams: list[Any] = [torch.cuda.current_stream(index) for index in self._devices]
        try:
            return run(*args)
        except BaseException:
            for own in streams:
                host.leave_streams(own)
            if self._moves:
                host.switch_device(device)
            raise
        finally:
            if self._own not in (None, device):
                host.switch_device(device)


def _boxed(gm: GraphModule) -> Callable[..., Any]:
    """`forward(self, a, b)` of the module as `forward(self, args)`."""
    found = _HEAD.search(gm.code)
    if found is None:  # code of another hand
        return lambda self, args: self.forward(*args)
    names = found["names"] or ""
    head = "def forward(self, args):\n"
    head += f"    [{names}] = args\n    args.clear()" if names else "    args.clear()"
    text = gm.code[: found.start()] + head + gm.code[found.end() :]
    space = {**gm.forward.__globals__}
    exec(compile(text, f"<{type(gm).__name__}, boxed>", "exec"), space)
    function: Callable[..., Any] = space["forward"]
    return function
