"""The beginning of a module: parameters, symbols of their sizes, checks of both."""

import operator
from collections.abc import Sequence

import torch

from fx_emit import host
from fx_emit.builder import Builder
from wrapper_ir import TensorType, analysis, print_symbol, print_type
from wrapper_ir import ops as ir


class Head(Builder):
    """The nodes before those of the ops."""

    def head(self, program: ir.Program) -> None:
        """Parameters, then symbols, then the checks that were asked for."""
        for param in program.params:
            node = self.graph.placeholder(param.name)
            if param.type is None:
                self.symbols[param.name] = self.note(node, self.shared.env[param.name])
            else:
                self.define(param.name, param.type, self.note(node, self.fake(param.type)), None)
        bound = analysis.sizes_of_params(program)
        if self.shared.check_inputs:
            for name in dict.fromkeys(op.tensor for op in bound):
                self.call(host.check_rank, (self.nodes[name], name, len(self.types[name].size)))
        for op in bound:
            self.bind(op)
        if self.shared.checks:
            self.check_head(program)

    def bind(self, op: ir.SymbolDef) -> None:
        """A symbol by a size or stride of a parameter, or by what a tensor holds."""
        if op.of == "item":
            held, target = (self.tensor(op.tensor),), torch.ops.aten.item.default
            node = self.graph.create_node("call_function", target, held, {}, op.symbol)
            self.symbols[op.symbol] = self.note(node, self.shared.env[op.symbol], op.comment)
            return
        args = (self.nodes[op.tensor], op.dim)
        plain = op.factor == 1 and op.plus == 0
        name = op.symbol if plain else f"{op.tensor}_{op.of}{op.dim}"
        if self.shared.launch == "hop":
            target = getattr(torch.ops.aten, f"sym_{op.of}").int
            node = self.graph.create_node("call_function", target, args, {}, name)
        else:  # the same, a microsecond faster
            node = self.graph.create_node("call_method", op.of, args, {}, name)
        value = self.shared.env[op.symbol]
        self.note(node, value * op.factor + op.plus, op.comment)
        if not plain:
            less = self.graph.call_function(operator.sub, (node, op.plus))
            self.note(less, value * op.factor)
            node = self.graph.create_node(
                "call_function", operator.floordiv, (less, op.factor), {}, op.symbol
            )
            self.note(node, value)
        self.symbols[op.symbol] = node

    def check_head(self, program: ir.Program) -> None:
        """Ranges of symbols, and inputs as declared."""
        declared = {s.name: s for s in program.symbols}
        integers = {p.name for p in program.params if p.type is None}
        for name in analysis.bound_symbols(program):
            symbol = declared.get(name)
            ranged = symbol is not None and ((symbol.low or 0) > 0 or symbol.high is not None)
            if name in self.symbols and (ranged or name in integers):
                text = print_symbol(symbol) if symbol else name
                low, high = (symbol.low, symbol.high) if symbol else (None, None)
                self.call(host.check_range, (self.symbols[name], text, low, high))
        if self.shared.check_inputs:
            self.check_inputs([(p.name, p.type) for p in program.params if p.type is not None])

    def check_inputs(self, inputs: Sequence[tuple[str, TensorType]]) -> None:
        """In the "direct" form those without symbols are compared at once."""
        fixed = []
        for name, type in inputs:
            given = (self.nodes[name], f"{name}: {print_type(type)}", *self.layout(type))
            if self.shared.launch == "direct" and not analysis.free_symbols(
                analysis.type_expressions(type)
            ):
                fixed.append(given)
            else:
                self.call(host.check_input, given)
        if fixed:
            nodes, texts, *layout = zip(*fixed, strict=True)
            check = host.InputCheck(tuple(zip(*layout, strict=True)), self.shared.same)
            self.call(check, (nodes, texts))
