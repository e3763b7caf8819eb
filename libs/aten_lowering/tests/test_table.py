"""The table of lowerings and decompositions as a whole."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from aten_lowering import decompose, decompositions, own_composites
from aten_lowering.antialias import ANTIALIAS
from aten_lowering.complexes import COMPLEX
from aten_lowering.distances import DISTANCES
from aten_lowering.elementwise import Elementwise, elementwise
from aten_lowering.extern import by_design
from aten_lowering.lowerings import TABLE
from aten_lowering.registry import NAMES, SHOWN, Table
from aten_lowering.rules import RULES

aten = torch.ops.aten


def test_no_argument_is_ignored() -> None:
    """Every lowering takes exactly the arguments of the schemas that it serves; what has a default
    is in some of them, `**shown` are what the result shows, `**windows`
    these and what windows are like, `**scales` is `scales`, or `scales_h` and `scales_w`,
    `**scaling` what is said of the scales of two operands."""
    windows = SHOWN | {"kernel_size", "stride", "padding", "dilation"}
    for op, lowering in TABLE:
        if isinstance(lowering, Elementwise):
            continue  # it takes all arguments, whose number is compared when it is entered
        expected = {NAMES.get(a.name, a.name) for a in op._schema.arguments}
        _, *parameters = inspect.signature(lowering).parameters.values()
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        rest = expected - {p.name for p in named}
        for more in (p.name for p in parameters if p.kind is p.VAR_KEYWORD):
            begins = ("scale_", "recipe_", "swizzle_") if more == "scaling" else more
            begun = {n for n in rest if n.startswith(begins)}
            rest -= {"shown": SHOWN, "windows": windows}.get(more, begun)
        assert not rest, op
        assert {p.name for p in named if p.default is p.empty} <= expected, op


def test_a_function_of_elements_takes_all_arguments() -> None:
    with pytest.raises(ValueError, match=r"add\.Tensor has 3 arguments, not 2"):
        elementwise(Table(), aten.add.Tensor)(lambda x, y: x + y)


def test_two_lowerings_of_one_op_are_refused() -> None:
    table = Table()
    table.add(aten.relu.default, lambda call, input: None)
    with pytest.raises(ValueError, match=r"relu\.default has two lowerings"):
        table.add(aten.relu.default, lambda call, input: None)


def test_what_is_lowered_or_whole_is_not_decomposed() -> None:
    table = decompositions()
    plain = torch.ones(2, 3)
    decomposed = RULES | DISTANCES | COMPLEX | ANTIALIAS
    of_some = decomposed.keys() | {  # of some tensors, or of others
        aten.index.Tensor, aten.pow.Scalar, aten._softmax.default, aten._fused_rms_norm.default,
    }  # fmt: skip
    for op in (op for op, _ in TABLE if op in table and op not in of_some):
        assert table[op](plain, plain, 0, 1) is NotImplemented
    for op in (
        aten.scaled_dot_product_attention.default, aten.linear.default, aten.bmm.default,
        aten.baddbmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten.gelu.default,
    ):  # fmt: skip
        assert op not in table
        assert op in TABLE or by_design(op)
    image, how = torch.ones(2, 3, 4, 4), ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert table[aten.convolution.default](image, image, None, *how) is NotImplemented
    assert aten.layer_norm.default in table
    assert aten.matmul.default in table


def test_the_table_of_decompositions_is_made_once_and_is_the_callers() -> None:
    table = decompositions()
    first = next(iter(table))
    del table[first]
    library = torch.library.Library("aten_lowering_more_tests", "DEF")
    library.define("run(Tensor x) -> Tensor")  # as of each compiled host program
    library.impl("run", lambda x: x.sin() + 1, "CompositeImplicitAutograd")
    again = decompositions()
    of_torch = {op: fn for op, fn in table.items() if op.namespace == "aten"}
    assert first in again and all(again[op] is fn for op, fn in of_torch.items())


def test_operators_registered_meanwhile_are_in_the_table() -> None:
    before = decompositions()
    library = torch.library.Library("aten_lowering_tests", "DEF")
    library.define("composite(Tensor x) -> Tensor")
    library.impl("composite", lambda x: x.sin() + 1, "CompositeImplicitAutograd")
    added = decompositions().keys() - before.keys()
    assert added == {torch.ops.aten_lowering_tests.composite.default}


class Composites(torch.nn.Module):
    """Operators that stay whole, that decompose by rules in Python and in C++, and a mutation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.rms = torch.nn.RMSNorm(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = self.rms(self.linear(x))
        y = torch.where(x != 0, 7.3, F.scaled_dot_product_attention(q, q, q)).square()
        x.add_(1)
        z = torch.einsum("bij,bkj->bik", y, x).clamp(-1, 1) @ q
        up = F.interpolate(x[None], scale_factor=2.0)
        return F.silu(F.layer_norm(z, (8,))), self.norm(y.mT), up, F.dropout(x, 0.5), x.std()


def described(graph: torch.fx.Graph) -> list[Any]:
    """What is computed, and how it lies; where a size is read has no meaning."""
    size = re.compile(r"sym_size_int\w*|, \[num_users=\d+\]")
    return [
        (size.sub("n", str(n.format_node())), type(v), *(
            (v.dtype, v.shape, v.stride()) if isinstance(v, torch.Tensor) else ()
        ))
        for n in graph.nodes
        if not isinstance(v := n.meta.get("val"), torch.SymInt)
    ]  # fmt: skip


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_decompose_does_what_run_decompositions_does(dynamic: bool) -> None:
    shapes = ({0: torch.export.Dim.DYNAMIC},) if dynamic else None
    program = torch.export.export(Composites(), (torch.randn(3, 8, 8),), dynamic_shapes=shapes)
    with own_composites():
        expected = program.run_decompositions(decompositions())
    got = decompose(program)
    copies = got.graph.find_nodes(op="call_function", target=aten.copy_.default)
    values = [*(c.args[1] for c in copies), *got.graph.output_node().args[0]]
    assert str(values) == str(list(expected.graph.output_node().args[0]))
    signature = expected.graph_signature
    names = {**signature.inputs_to_buffers, **{n: n for n in signature.user_inputs}}
    written = {**signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    assert [names[c.args[0].name] for c in copies] == list(written.values())
    for node in (*copies, got.graph.output_node(), expected.graph.output_node()):
        node.graph.erase_node(node)
    assert described(got.graph) == described(expected.graph)
