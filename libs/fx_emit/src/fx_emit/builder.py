"""What a graph is made of while it grows: nodes with what they stand for, and views of storages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node, Tracer

from fx_emit import host
from fx_emit.comments import CommentWriter
from fx_emit.expressions import NodeDomain
from fx_emit.hop import ProgramGraph
from fx_emit.torch_compat import FakeTensorMode, imports_of, reinterpret_tensor
from fx_emit.torch_types import TORCH_DTYPE, torch_device, torch_value
from symexpr import evaluate
from wrapper_ir import Arg, DefineKernel, Describe, Ref, TensorType
from wrapper_ir.analysis import extent

HOST_FUNCTIONS = tuple(f for f in vars(host).values() if isinstance(f, FunctionType))


class ProgramModule(GraphModule):
    """A module whose folder imports what its code calls."""

    def to_folder(self, folder: str | PathLike[str], module_name: str = "FxModule") -> None:
        """Writes the module to a folder, with the imports that torch leaves out."""
        super().to_folder(folder, module_name)
        file = Path(folder) / "module.py"
        file.write_text(f"{imports_of(self)}\n{file.read_text()}")


class HostTracer(Tracer):
    """What traces the code of a module that was pickled: functions of the host are calls."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=HOST_FUNCTIONS)


@dataclass
class Shared:
    """What the emitters of a program and of its blocks have in common. exposed: tensors that the
    program returns or lets operators write to, whose views torch must know as such."""

    launch: str
    load_kernel: Callable[[DefineKernel], Any]
    describe: Callable[[torch.Tensor, tuple[int, ...]], Any] | None
    constants: Mapping[str, torch.Tensor]
    operators: Mapping[str, Callable[..., Any]]
    checks: bool
    check_inputs: bool
    env: dict[str, Any]
    mode: FakeTensorMode | None
    exposed: Set[str] = frozenset()
    same: host.SameTensors | None = None
    kernels: dict[str, DefineKernel] = field(default_factory=dict)
    loaded: dict[str, Any] = field(default_factory=dict)
    subgraphs: dict[str, host.Subgraph] = field(default_factory=dict)


class Builder:
    """A graph of one program or block, by the names of the program.

    symbols, nodes, types: what a name is. roots: the tensor whose storage it lies in. views: those
    that nobody asked for yet, with the tensors that lie in the same storage, and a comment."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.shared = shared
        self.name = name
        self.graph = ProgramGraph(tracer_cls=HostTracer)
        self.root = torch.nn.Module()
        self.domain = NodeDomain(self.graph)
        self.symbols: dict[str, Any] = {}
        self.nodes: dict[str, Node] = {}
        self.types: dict[str, TensorType] = {}
        self.roots: dict[str, str] = {}
        self.owners: dict[str, tuple[str, ...]] = {}  # root -> what lay in its storage before it
        self.views: dict[str, tuple[tuple[str, ...], str]] = {}
        self.described: dict[str, Describe] = {}
        self.starts: dict[str, Any] = {}  # root -> element of its storage that is offset 0
        self.headings: list[str] = []
        self.labels: Counter[str] = Counter()  # of submodules
        self.writer = CommentWriter({}, {})

    def module(self, kind: type[GraphModule] = ProgramModule) -> GraphModule:
        """The module of the graph as it is now, with comments in its generated code. kind: a
        `LazyGraphModule` generates it when it is first asked for."""
        if self.writer.comments or self.writer.headings:
            self.graph.on_generate_code(lambda _: self.writer)
        gm = kind(self.root, self.graph, class_name=self.name)
        for name, child in gm.named_children():
            gm.__dict__[name] = child  # found there at once; a module looks for it in vain first
        return gm

    def note(self, node: Node, value: Any, comment: str = "") -> Node:
        """The node, with the value that it has for the hints, and a comment of its line."""
        node.meta["val"] = value
        if comment:
            node.meta["comment"] = comment
            self.writer.comments[node.name] = comment
        if self.headings:
            self.writer.headings[node.name] = self.headings
            self.headings = []
        return node

    def call(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        value: Any = None,
        comment: str = "",
    ) -> Node:
        """A call of `target`; `value` is what it gives for the hints."""
        node = self.graph.create_node(
            "call_function", target, tuple(args), dict(kwargs or {}), name
        )
        return self.note(node, value, comment)

    def define(self, name: str, type: TensorType, node: Node, root: str | None) -> None:
        """`node` is the tensor `name` from here on, in the storage of `root` (None: its own)."""
        self.nodes[name] = node
        self.types[name] = type
        self.roots[name] = name if root is None else root

    def fake(self, type: TensorType) -> torch.Tensor | None:
        """A fake tensor of this layout, at the hints; None where nodes carry no values."""
        if self.shared.mode is None:
            return None
        size, stride = (tuple(map(self.size, ns)) for ns in (type.size, type.stride))
        offset = self.size(type.offset)
        dtype, device = TORCH_DTYPE[type.dtype], torch_device(type.device)
        with self.shared.mode:
            if not offset:
                return torch.empty_strided(size, stride, dtype=dtype, device=device)
            base = torch.empty((offset + extent(size, stride),), dtype=dtype, device=device)
            return base.as_strided(size, stride, offset)

    def size(self, expression: sympy.Expr) -> Any:
        """What an expression of sizes is at the hints: an integer, symbolic where they are."""
        return evaluate(expression, self.shared.env)

    def number(self, expression: Any) -> Any:
        """An expression of sizes as a number or node."""
        return evaluate(expression, self.symbols, self.domain)

    def numbers(self, expressions: Sequence[Any]) -> tuple[Any, ...]:
        """Each expression as a number or node."""
        return tuple(self.number(e) for e in expressions)

    def value(self, arg: Arg) -> Any:
        """An argument of an op as one of a node."""
        if isinstance(arg, Ref):
            return self.tensor(arg.name)
        if isinstance(arg, tuple):
            return tuple(self.value(a) for a in arg)
        if isinstance(arg, sympy.Basic):
            return self.number(arg)
        if isinstance(arg, complex):  # its text has no NaN and infinity, and loses a zero's sign
            return self.call(complex, (arg.real, arg.imag), value=arg)
        return torch_value(arg)

    def layout(self, type: TensorType) -> tuple[torch.dtype, Any, Any]:
        """Element type, sizes and strides, as torch takes them."""
        return TORCH_DTYPE[type.dtype], self.numbers(type.size), self.numbers(type.stride)

    def start(self, root: str) -> Any:
        """Where offset 0 of a storage lies, in elements of its root: a caller may pass a view."""
        if root not in self.starts:
            node = self.call(
                torch.ops.aten.sym_storage_offset.default,
                (self.tensor(root),),
                value=self.size(self.types[root].offset),
            )
            offset = self.number(self.types[root].offset)
            self.starts[root] = node if offset == 0 else self.domain.sub(node, offset)
        return self.starts[root]

    def restride(self, name: str, type: TensorType, owners: tuple[str, ...], comment: str) -> None:
        """`name` is another layout of a storage in which `owners` lie, the last one its root. In
        the "direct" form a view is made where it is first asked for, and none for what is there:
        launches take addresses."""
        self.types[name] = type
        direct = self.shared.launch == "direct"
        same = next((o for o in owners if o in self.nodes and self.types[o] == type), None)
        own = name not in self.shared.exposed or self.roots[name] == name
        if direct and same is not None and own:
            self.nodes[name] = self.nodes[same]
            return
        self.views[name] = (owners, comment)
        if not direct:
            self.tensor(name)

    def tensor(self, name: str) -> Node:
        """The node of a tensor."""
        if name in self.views:
            self.nodes[name] = self._view(name, *self.views.pop(name))
        return self.nodes[name]

    def address(self, name: str) -> Node:
        """The node of a tensor of the same element type that begins where this one does."""
        type = self.types[name]
        for owner in self.views[name][0] if name in self.views else ():
            known = self.types[owner]
            if owner in self.nodes and (known.dtype, known.offset) == (type.dtype, type.offset):
                return self.nodes[owner]
        return self.tensor(name)

    def _view(self, name: str, owners: tuple[str, ...], comment: str) -> Node:
        """`as_strided`, or what costs half as much where nobody asks whether it is a view; over the
        raw storage where no tensor in it has these elements."""
        type, root = self.types[name], owners[-1]
        dtype, size, stride = self.layout(type)
        base = next(
            (o for o in owners if o in self.nodes and self.types[o].dtype == type.dtype), None
        )
        target: Callable[..., Any]
        args: tuple[Any, ...]
        if base is None:
            # The first element of the root lies at its declared offset.
            skipped = self.types[root].offset * self.types[root].dtype.itemsize
            offset = self.number(type.offset - skipped / type.dtype.itemsize)
            target, args = host.reinterpret, (self.tensor(root), dtype, size, stride, offset)
        elif self.shared.launch == "direct" and not (
            name in self.shared.exposed and self.outside(root)
        ):
            skipped = self.number(type.offset - self.types[base].offset)
            target, args = reinterpret_tensor, (self.nodes[base], size, stride, skipped)
        else:
            offset, start = self.number(type.offset), self.start(root)
            if start != 0:
                offset = self.domain.add(start, offset) if offset != 0 else start
            target, args = torch.as_strided, (self.nodes[base], size, stride, offset)
        return self.call(target, args, name=name, value=self.fake(type), comment=comment)

    def outside(self, root: str) -> bool:
        """It is an argument or a constant. A view of another tensor that is returned is no view to
        torch: autograd would refuse writes into what its functions give."""
        return root in self.nodes and self.nodes[root].op in ("placeholder", "get_attr")

    def submodule(self, label: str, module: GraphModule) -> Node:
        """The node that reads `module`, which becomes a child of the root."""
        name = f"{label}_{self.labels[label]}"
        self.labels[label] += 1
        self.root.add_module(name, module)
        return self.note(self.graph.create_node("get_attr", name, name=name), None)
