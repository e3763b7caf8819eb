"""The buffers of a graph while it is lowered: their names, the inputs, the constants."""

import keyword
import re
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from aten_lowering.builder import Operand
from aten_lowering.errors import CannotLower
from aten_lowering.memory import in_memory
from aten_lowering.meta import expr, tensor_type
from aten_lowering.opaque import attribute
from aten_lowering.torch_compat import FakeTensor, unset_fake_temporarily
from loop_ir import GraphInput, TensorRef


class Buffers:
    """inputs: those of the graph, in order. constants, tensors: by name, what holds a constant and
    its value. constant_values: no op writes to a constant, which has the value that it has now.
    names: those that are taken, which all graphs of a program share."""

    def __init__(self, gm: fx.GraphModule, constant_values: bool, names: set[str]) -> None:
        self.gm = gm
        self.constant_values = constant_values
        self.inputs: list[GraphInput] = []
        self.constants: dict[str, Operand] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.names = names

    def fresh(self, name: str) -> str:
        """A buffer name: an identifier that is no axis, value or size symbol (`i0`, `v1`, `s2`)."""
        name = re.sub(r"\W", "_", name)
        if keyword.iskeyword(name) or re.fullmatch(r"[a-z]{1,3}\d+", name):
            name = f"{name}_"
        candidate, count = name, 0
        while candidate in self.names:
            count += 1
            candidate = f"{name}_{count}"
        self.names.add(candidate)
        return candidate

    def declare(self, name: str, fake: torch.Tensor) -> Operand:
        """Declares a buffer that starts at the first element of `fake`. It holds the elements
        before they are conjugated or negated."""
        type = tensor_type(fake)
        return Operand(TensorRef(self.fresh(name), type, fake.is_conj(), fake.is_neg()), type)

    def placeholder(self, node: fx.Node) -> Any:
        """Declares an input: an `Operand`, or the expression of an integer. Raises `CannotLower`
        for other types."""
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor):
            operand = self.declare(node.name, fake)
            self.inputs.append(GraphInput(operand.ref.buffer, operand.type))
            return operand
        if isinstance(fake, int | torch.SymInt) and not isinstance(fake, bool):
            value = expr(fake)
            bound = {i.name for i in self.inputs if i.type is None}
            fits = value.is_Symbol and str(value) not in bound
            self.inputs.append(GraphInput(str(value) if fits else self.fresh(node.name), None))
            return value
        raise CannotLower(f"a placeholder of type {type(fake).__name__}")

    def constant(self, node: fx.Node) -> Operand:
        """Declares the tensor that a `get_attr` node names, once for each tensor. Raises
        `CannotLower` for what is no tensor."""
        value = attribute(self.gm, node)
        if not isinstance(value, torch.Tensor):
            raise CannotLower(f"an attribute of type {type(value).__name__}")
        for name, tensor in self.tensors.items():
            if tensor is value:
                return self.constants[name]
        operand = self.declare(str(node.target), node.meta.get("val", value))
        plain = value.dim() == 0 and value.device.type == "cpu" and not value.is_complex()
        if plain and self.constant_values and not isinstance(value, FakeTensor):
            with unset_fake_temporarily():  # AOTAutograd compiles inside of its fake mode
                operand = replace(operand, constant=value.item())
        self.tensors[operand.ref.buffer] = in_memory(value)
        self.constants[operand.ref.buffer] = operand
        return operand
