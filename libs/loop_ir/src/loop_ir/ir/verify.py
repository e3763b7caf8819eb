"""The rules of loop IR, checked. Those of a kernel are in `verify_kernel.py`."""

import operator
from dataclasses import dataclass, field
from typing import TypeAlias

import sympy

from loop_ir import errors
from loop_ir.ir import analysis
from loop_ir.ir import nodes as ir
from loop_ir.ir.affine import product, same, span
from loop_ir.ir.alike import Structure, form
from loop_ir.ir.verify_kernel import NAME, KernelVerifier, first_twice, listed
from symexpr import CeilDiv, free_symbols
from tensor_ir import DType, TensorType, once

_Types: TypeAlias = tuple[TensorType | None, ...]


@dataclass
class Checked:
    """What was found valid before: what kernels do, and by `id` kernels; nodes of `graph`, with the
    types that their buffers had then, and those of the buffers that they define. In another graph
    with the same inputs, constants and symbols a node is as valid among buffers of those very
    types."""

    structures: set[Structure] = field(default_factory=set)
    kernels: dict[int, ir.Kernel] = field(default_factory=dict)
    nodes: dict[int, tuple[ir.Node, _Types, dict[str, TensorType]]] = field(default_factory=dict)
    graph: ir.Graph | None = None


def verify(item: ir.Graph | ir.Kernel, checked: Checked | None = None) -> None:
    """Raises the `VerifyError` of the first rule that a graph or a kernel breaks.

    checked: what is not checked again. What this graph holds is added."""
    if isinstance(item, ir.Kernel):
        KernelVerifier(item).run()
    else:
        _GraphVerifier(item, checked or Checked()).run()


@once
def _buffers(node: ir.Node) -> tuple[str, ...]:
    """All that a node calls by name."""
    names = [*analysis.reads(node), *analysis.writes(node)]
    kernels = [node] if isinstance(node, ir.Kernel) else []
    if isinstance(node, ir.Matmul):
        kernels = [*node.prologues, *([] if node.epilogue is None else [node.epilogue])]
        names += [node.out, *(o.ref.buffer for o in node.operands), *analysis.reads(node.extern)]
    names += [b.name for kernel in kernels for b in kernel.buffers]
    return tuple(dict.fromkeys(names))


class _GraphVerifier:
    def __init__(self, graph: ir.Graph, checked: Checked) -> None:
        self.graph = graph
        self.checked = checked
        before = checked.graph
        if before is None or any(
            getattr(before, part) != getattr(graph, part)
            for part in ("inputs", "constants", "symbols")
        ):
            checked.nodes.clear()
        checked.graph = graph
        self.types: dict[str, TensorType] = {}
        self.constants = {name for name, _ in graph.constants}
        self.names: set[str] = set()
        self.symbols = {sympy.Symbol(s.name, integer=True): s for s in graph.symbols}

    def run(self) -> None:
        graph = self.graph
        for item in graph.inputs:
            if item.type is not None:
                self._define(item.name, item.type, graph.name)
        for name, type in graph.constants:
            self._define(name, type, graph.name)
        for node in graph.nodes:
            self._node(node)
        for out in graph.outputs:
            for ref in analysis.tensor_refs(out):
                self._ref(ref, graph.name, bits=True, lazy=True, result=True)

    def _define(self, name: str, type: TensorType, node: str) -> None:
        if not NAME.fullmatch(name):
            raise errors.InvalidName(f"{name!r} is no identifier", node)
        if name in self.types:
            raise errors.DuplicateDefinition(f"buffer {name}", node)
        unknown = frozenset().union(*map(free_symbols, (*type.size, *type.stride)))
        if unknown - self.symbols.keys():
            raise errors.UndefinedSymbol(f"the layout of {name} uses {listed(unknown)}", node)
        self.types[name] = type

    def _node(self, node: ir.Node) -> None:
        name = analysis.node_name(node)
        if isinstance(node, ir.Kernel | ir.UserKernel):
            if name in self.names:
                raise errors.DuplicateDefinition(f"two nodes are named {name}", name)
            self.names.add(name)
        buffers = _buffers(node)
        types = tuple(map(self.types.get, buffers))
        _, known, made = self.checked.nodes.get(id(node), (node, None, {}))
        if known is not None and all(map(operator.is_, known, types)):
            self.types.update(made)
            return
        self._check(node, name)
        new = [n for n, t in zip(buffers, types, strict=True) if t is None and n in self.types]
        made = {n: self.types[n] for n in new}
        self.checked.nodes[id(node)] = (node, types, made)

    def _check(self, node: ir.Node, name: str) -> None:
        match node:
            case ir.Kernel():
                self._kernel(node, frozenset())
            case ir.Extern():
                self._extern(node, name)
                for out in node.outs:
                    if out is not None:
                        self._define(out[0], out[1], name)
            case ir.UserKernel():
                self._user_kernel(node)
            case ir.Matmul():
                self._matmul(node)
            case ir.CopyBack():
                self._copy(node, name)

    def _kernel(self, kernel: ir.Kernel, made: frozenset[str]) -> None:
        """`made`: buffers that exist only here, such as the result of a matmul."""
        if id(kernel) not in self.checked.kernels:
            names = (kernel.name, *(b.name for b in kernel.buffers))
            structure = form(kernel).structure
            if structure not in self.checked.structures or not all(map(NAME.fullmatch, names)):
                verify(kernel)
                self.checked.structures.add(structure)
            self.checked.kernels[id(kernel)] = kernel
        for symbol in kernel.symbols:
            if symbol not in self.graph.symbols:
                raise errors.UndefinedSymbol(f"{symbol} is no symbol of the graph", kernel.name)
        read = set(analysis.reads(kernel))
        for buffer in kernel.buffers:
            if buffer.name in made:
                continue
            known = self.types.get(buffer.name)
            if known is None:
                if not buffer.written or buffer.name in read:
                    raise errors.UndefinedBuffer(
                        f"{buffer.name} is not defined before", kernel.name
                    )
                self._define(buffer.name, buffer.type, kernel.name)
                continue
            known = known.parts
            if buffer.written and buffer.name in self.constants:
                raise errors.WriterConflict(f"{buffer.name} is a constant", kernel.name)
            if known is not buffer.type and (
                (known.dtype, known.device) != (buffer.type.dtype, buffer.type.device)
                or not same(span(known), span(buffer.type))
            ):
                raise errors.LayoutMismatch(
                    f"{buffer.name} is {known}, not {buffer.type}", kernel.name
                )

    def _ref(
        self,
        ref: ir.TensorRef,
        node: str,
        bits: bool = False,
        lazy: bool = False,
        result: bool = False,
    ) -> None:
        """bits: the node may see the memory at another element type. lazy: and conjugated or
        negated. result: and again."""
        storage = self.types.get(ref.buffer)
        if storage is None:
            raise errors.UndefinedBuffer(f"{ref.buffer} is not defined before", node)
        same_dtype = storage.dtype == ref.type.dtype
        if storage.device != ref.type.device or not (bits or same_dtype):
            raise errors.ElementType(
                f"{ref.buffer} holds {storage.dtype.value} {storage.device}", node
            )
        if not lazy and (ref.conj or ref.neg):
            raise errors.ElementType(f"a lazily conjugated or negated view of {ref.buffer}", node)
        if ref.again and not result:
            raise errors.LayoutMismatch(f"{ref.buffer} again, which is no result", node)
        last, end = span(ref.type), span(storage)
        if not same_dtype:
            last, end = last * ref.type.dtype.itemsize, end * storage.dtype.itemsize
        if same(last, end):
            return
        hints = analysis.hints_of(self.graph.symbols)
        if any(analysis.at_hints(n, hints) == 0 for n in ref.type.size):
            return
        if analysis.at_hints(last, hints) > analysis.at_hints(end, hints):
            raise errors.LayoutMismatch(
                f"a view of {ref.buffer} ends at {last}, the storage at {end}", node
            )

    def _extern(self, node: ir.Extern, name: str) -> None:
        for arg in (*node.args, *(v for _, v in node.kwargs)):
            for ref in analysis.tensor_refs(arg):
                self._ref(ref, name, bits=True, lazy=True)
        self._mutates(node.mutates, name)

    def _mutates(self, buffers: tuple[str, ...], name: str) -> None:
        for buffer in buffers:
            if buffer not in self.types:
                raise errors.UndefinedBuffer(f"{buffer} is not defined before", name)
            if buffer in self.constants:
                raise errors.WriterConflict(f"{buffer} is a constant", name)

    def _user_kernel(self, node: ir.UserKernel) -> None:
        """Grids are there, what it writes is among its tensors, and made or defined before."""
        if not node.grids:
            raise errors.LayoutMismatch("a launch needs a grid", node.name)
        parameters = [k for k, _ in (*node.args, *node.constants)]
        if len(set(parameters)) != len(parameters):
            raise errors.DuplicateDefinition(f"parameter {first_twice(parameters)}", node.name)
        numbers = [e for grid in node.grids for e in grid]
        numbers += [v for _, v in node.args if isinstance(v, sympy.Expr)]
        numbers += [e for _, block in node.descriptors for e in block]
        unknown = set().union(*(e.free_symbols for e in numbers)) - self.symbols.keys()
        if unknown:
            raise errors.UndefinedSymbol(f"the launch uses {listed(unknown)}", node.name)
        tensors = {k: v for k, v in node.args if isinstance(v, ir.TensorRef)}
        for name, block in node.descriptors:
            if name not in tensors:
                raise errors.UndefinedBuffer(
                    f"descriptor {name} is of no tensor argument", node.name
                )
            if len(block) != len(tensors[name].type.size):
                raise errors.LayoutMismatch(
                    f"block {block} of {name}, a tensor of another rank", node.name
                )
        self._mutates(node.mutates, node.name)
        for out, type in node.outs:
            self._define(out, type, node.name)
        given = {r.buffer for r in tensors.values()}
        for buffer in analysis.writes(node):
            if buffer not in given:
                raise errors.UndefinedBuffer(f"{buffer} is written and no argument", node.name)
        for ref in tensors.values():
            self._ref(ref, node.name, bits=True)

    def _matmul(self, node: ir.Matmul) -> None:
        for operand in node.operands:
            kernel, buffer = operand.prologue, operand.ref.buffer
            if kernel is None:
                continue
            if not analysis.is_pointwise(kernel) or analysis.writes(kernel) != (buffer,):
                raise errors.InvalidPrologue(f"{kernel.name} does not make {buffer}", node.out)
            self._kernel(kernel, frozenset())
        for ref in (node.a, node.b, *node.added):
            self._ref(ref, node.out)
        self._extern(node.extern, node.out)
        a, b, out = node.a.type.size, node.b.type.size, node.type.size
        if node.groups is not None:
            a, b, out = self._grouped(node, node.groups)
        if len(a) != len(b) or len(a) != len(out) or len(a) not in (2, 3):
            raise errors.LayoutMismatch(
                f"ranks of operands and result: {a} @ {b} -> {out}", node.out
            )
        expected = (*out[:-2], a[-2], b[-1])
        pairs = [*zip(expected, out, strict=True), (a[-1], b[-2])]
        pairs += [*zip(a[:-2], b[:-2], strict=True), *zip(a[:-2], out[:-2], strict=True)]
        if not all(same(x, y) for x, y in pairs):
            raise errors.LayoutMismatch(f"sizes do not match: {a} @ {b} -> {out}", node.out)
        if node.scales is not None:
            factors = (node.scales.a.type.size, node.scales.b.type.size)
            wanted: tuple[tuple[sympy.Expr, ...], ...] = tuple((n,) for n in out[-2:])
            if (blocks := node.scales.blocks) is not None:
                m, k, n = map(CeilDiv, (out[-2], a[-1], out[-1]), blocks)
                wanted = (m, k), (k, n)
            elif node.jagged == "M":
                wanted = (out[-2],), (node.b.type.size[0], out[-1])
            fitting = (
                len(x) == len(y) and all(map(same, x, y))
                for x, y in zip(factors, wanted, strict=True)
            )
            if len(out) != 2 or not all(fitting):
                raise errors.LayoutMismatch(f"scales of {factors} for a result of {out}", node.out)
        if node.bias is not None:
            bias = node.bias.type.size
            if len(bias) not in (1, len(out)) or not all(map(same, bias, out[-len(bias) :])):
                raise errors.LayoutMismatch(f"a bias of {bias} for a result of {out}", node.out)
        made = {name for kernel in node.prologues for name in analysis.writes(kernel)}
        if node.epilogue is None:
            self._define(node.out, node.type, node.out)
        else:
            if made & set(analysis.reads(node.epilogue)):
                raise errors.InvalidPrologue("the epilogue reads what a prologue makes", node.out)
            self._epilogue(node, node.epilogue)
        for name in made:
            del self.types[name]

    def _grouped(self, node: ir.Matmul, groups: ir.TensorRef) -> tuple[tuple[sympy.Expr, ...], ...]:
        """The sizes of the operands and the result without the groups: two matrices, and one."""
        sizes = [node.a.type.size, node.b.type.size, node.type.size]
        ranks = tuple(map(len, sizes))
        if ranks not in ((2, 3, 2), (3, 2, 2), (2, 2, 3)) or groups.type.dtype is not DType.i32:
            raise errors.LayoutMismatch(f"groups of operands and a result of {sizes}", node.out)
        batch = next(size for size in sizes if len(size) == 3)
        if len(groups.type.size) != 1 or not same(groups.type.size[0], batch[0]):
            raise errors.LayoutMismatch(f"ends {groups.type.size} of {batch[0]} groups", node.out)
        if node.bias is not None or node.prologues:
            raise errors.LayoutMismatch("groups with a bias or a prologue", node.out)
        if node.scales is not None and (node.jagged != "M" or node.scales.blocks is not None):
            raise errors.LayoutMismatch("groups with scales that are not of rows", node.out)
        return tuple(size[-2:] for size in sizes)

    def _epilogue(self, node: ir.Matmul, epilogue: ir.Kernel) -> None:
        out = node.type.size
        if not analysis.is_pointwise(epilogue) or len(epilogue.axes) != len(out):
            raise errors.InvalidEpilogue(f"{epilogue.name} does not run over {out}", node.out)
        if not all(same(x.extent, n) for x, n in zip(epilogue.axes, out, strict=True)):
            raise errors.InvalidEpilogue(f"{epilogue.name} does not run over {out}", node.out)
        self._kernel(epilogue, frozenset((node.out,)))

    def _copy(self, node: ir.CopyBack, name: str) -> None:
        self._ref(node.src, name, bits=True, lazy=True)
        self._ref(node.dst, name, bits=True, lazy=True)
        if not same(product(node.src.type.size), product(node.dst.type.size)):
            raise errors.LayoutMismatch(f"{node.src.type.size} into {node.dst.type.size}", name)
        if node.dst.buffer in self.constants:
            raise errors.WriterConflict(f"{node.dst.buffer} is a constant", name)
