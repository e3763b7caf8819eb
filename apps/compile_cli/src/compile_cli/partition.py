"""The graphs forward and backward of a joint graph: what is kept between them, and what is computed
again because our fusion makes it free."""

import functools
import threading
from collections.abc import Sequence
from dataclasses import replace
from operator import getitem
from typing import Any
from unittest import mock

import torch
from torch._ops import OpOverload
from torch.utils.checkpoint import CheckpointPolicy

from aten_lowering.drawn import DRAWN
from aten_lowering.passes.common_subexpressions import common_subexpressions
from aten_lowering.passes.dead_code import dead_code
from aten_lowering.passes.diagonal_products import diagonal_products
from aten_lowering.passes.drawn_masks import drawn_masks
from aten_lowering.passes.forget_blocks import forget_blocks
from aten_lowering.passes.known_masks import known_masks
from aten_lowering.passes.no_ops import one_result
from aten_lowering.passes.regular_bags import regular_bags
from aten_lowering.passes.results_again import results_again
from aten_lowering.passes.window_offsets import window_offsets
from compile_cli.narrow_saved import narrow_saved
from compile_cli.options import Options
from compile_cli.torch_compat import detect_fake_mode, functorch_config, partitioners, rng_prims
from planner import ChannelsLast

aten = torch.ops.aten

SAVED = "saved results begin at"
"""In `meta` of a forward graph: the position of the first of the results for the backward graph."""

_LOCK = threading.RLock()
# Elements of a sum that are written out: as many as `UnrollShortRows` of loop_ir takes.
_FEW = 4

# Kernels that compute an element from few of the operand's, or reduce rows that a gradient's own
# kernel reads: torch's list has pointwise operators and those that its own compiler fuses. Masks
# are drawn again, too (NVIDIA H100, layer norms of dropout and their gradients of 65536 x 3072 in
# bf16: 1149 us, where masks are stored and read 1398; in f32, 2334 and 2396).
_AGAIN = """
_log_softmax _softmax _unsafe_index amin cat constant_pad_nd flip index_select prod repeat roll
scatter select_scatter slice_scatter tril ones_like new_ones new_full
reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
_upsample_nearest_exact2d _upsample_nearest_exact3d
"""
_VIEWS = "detach diagonal split_with_sizes transpose unbind unfold"
# Not computed again, but one kernel with what makes their operands and what reads their results.
_FUSED = """
_log_softmax_backward_data _softmax_backward_data _fused_rms_norm _fused_rms_norm_backward
_native_batch_norm_legit _native_batch_norm_legit_functional native_layer_norm
native_layer_norm_backward native_group_norm native_group_norm_backward native_dropout_backward
_unsafe_index_put _unsafe_masked_index_put_accumulate index_put index_reduce scatter_add
scatter_reduce linalg_vector_norm
"""

# What they give is elements of their operands, as those are, or of another type.
_MOVES = "_to_copy cat clone constant_pad_nd flip repeat"
_MOVED = {getattr(aten, name) for name in _MOVES.split()}

# Operators that draw from a state that is given, and where the operator is that draws.
_REPEATS = {rng_prims.run_with_rng_state: 1, rng_prims.graphsafe_run_with_rng_state: 0}
_SEEDED = torch.Tag.nondeterministic_seeded
_LEAST = 1e-6  # of a budget, of which 0 is another thing to torch

_torchs_operators = partitioners.get_default_op_list
_torchs_choice = partitioners.choose_saved_values_set


def partition(
    last: ChannelsLast,
    options: Options,
    joint: torch.fx.GraphModule,
    inputs: Sequence[Any],
    **more: Any,
) -> Any:
    """The graphs forward and backward, of which what lies between them is small, and lies in the
    order that convolutions and their gradients both want."""
    if options.channels_last != "off":
        last.run(joint.graph)
    known_masks(joint.graph)
    window_offsets(joint.graph)
    diagonal_products(joint.graph)
    regular_bags(joint.graph)
    if options.random != "eager":
        drawn_masks(joint.graph)
    results_again(joint.graph, more["num_fwd_outputs"])
    if forget_blocks(joint.graph):
        dead_code(joint.graph)
    _save_compared(joint.graph)
    _save_before_writes(joint.graph)
    _save_draws(joint.graph)
    common_subexpressions(joint.graph)
    joint.recompile()
    # For its own pass that merges them, torch imports its compiler: longer than a small partition.
    merged = functorch_config.patch(cse=False)
    # torch's partition takes no list of operators, but asks a function of its module for it.
    operators = mock.patch.object(partitioners, "get_default_op_list", _operators)
    chosen = mock.patch.object(partitioners, "choose_saved_values_set", _chosen)
    with _LOCK, merged, operators, chosen:
        graphs = partitioners.min_cut_rematerialization_partition(joint, inputs, **more)
    for graph in graphs:
        _tell_draws(graph.graph)
    if options.saved != "exact":
        narrow_saved(*graphs, more["num_fwd_outputs"], options)
    for graph, first in zip(graphs, (more["num_fwd_outputs"], 0), strict=True):
        one_result(graph.graph, first)
    graphs[0].meta[SAVED] = more["num_fwd_outputs"]
    return graphs


def _save_compared(graph: torch.fx.Graph) -> None:
    """What is compared for equality is kept, such as `x` of `x.amax()`, whose gradient goes where
    `x == x.amax()`: computed again, none would be equal, where kernels add in another order, or
    round to 16 bits at other steps. Not what is computed alike everywhere."""
    for node in graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        for compared in map(_viewed, node.all_input_nodes):
            if _is_float(compared) and not _alike(compared):
                compared.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _save_before_writes(graph: torch.fx.Graph) -> None:
    """What is computed from an input that the forward pass writes is kept: computed again, it would
    be of the new value, such as `n + 1` of a buffer `n += 1` by which a result is multiplied. Where
    that is larger than the input, which a row of many subtracts, the old value is kept."""
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        given: Any = write.args[0]
        if 0 < 4 * _bytes(given) <= max(map(_bytes, given.users)):
            first = next(node for node in graph.nodes if node.op != "placeholder")
            with graph.inserting_before(first):
                old = graph.call_function(aten.clone.default, (given,))
            old.meta |= {"val": given.meta["val"].clone(), "recompute": CheckpointPolicy.MUST_SAVE}
            given.replace_all_uses_with(old, {*given.users}.difference((write, old)).__contains__)
        left = [given]
        while left:
            for user in left.pop().users:
                if user.op == "call_function" and _operators().is_view(user):
                    left.append(user)
                elif user.op == "call_function" and user is not write:
                    user.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _save_draws(graph: torch.fx.Graph) -> None:
    """What is drawn outside of checkpoints is kept: a budget of memory would draw it anew, not from
    the state that it was drawn from."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and _SEEDED in node.target.tags:
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)


def _chosen(graph: torch.fx.Graph, info: Any, memory_budget: float = 1) -> list[torch.fx.Node]:
    """What torch chooses to keep. Without any budget it would keep nothing, not even what must be,
    and of an operator of several results it would keep all as one. Torch takes what is nearer to
    the backward pass for cheaper. What is in memory anyway, inputs and results, is only read again,
    however far it is; masks of these, which are written and read byte by byte, are a step further
    than that. Those of other tensors are smaller than what would be kept in their place.
    """
    near = {*info.inputs, *filter(info.is_required_fw, graph.output_node().all_input_nodes)}
    of_near = set(near)
    for node in graph.nodes:
        value = node.meta.get("val")
        if node not in near:
            again = node.target is getitem or _operators().is_recomputable(node)
            if not again or not of_near.issuperset(node.all_input_nodes):
                continue
            of_near.add(node)
            if isinstance(value, torch.Tensor) and value.dtype.itemsize == 1:
                node.dist_from_bw = max(node.dist_from_bw, 1) + 1
        elif node.dist_from_bw < 10**9:  # of what backward does not need that is asked, too
            node.dist_from_bw = 1
    must = any(n.meta.get("recompute") is CheckpointPolicy.MUST_SAVE for n in graph.nodes)
    budget = _LEAST if must and memory_budget == 0 else memory_budget
    found: list[torch.fx.Node] = []
    for node in _torchs_choice(graph, info, budget):
        found += node.users if isinstance(node.meta.get("val"), tuple | list) else [node]
    return found


def _tell_draws(graph: torch.fx.Graph) -> None:
    """Draws of one result that a checkpoint repeats get the fake tensors that torch leaves out."""
    for node in graph.nodes:
        if node.target not in _REPEATS or "val" in node.meta:
            continue
        operator, *args = node.args[_REPEATS[node.target] :]
        more = {name: value for name, value in node.kwargs.items() if name != "rng_state"}
        args, more = torch.fx.map_arg((args, more), lambda n: n.meta["val"])
        mode = detect_fake_mode()
        assert mode is not None
        with mode:
            made = operator(*args, **more)
        if isinstance(made, torch.Tensor):
            node.meta["val"] = made


def _alike(node: torch.fx.Node) -> bool:
    """Pointwise from what is kept or made of numbers, moved, or sums of so few that kernels write
    them out, in 32 bits or more; or rounded to fewer by one operator."""
    operators = _operators()
    left, seen = [node], {node}
    while left:
        made = left.pop()
        if not operators.is_recomputable(made):
            continue
        operator = made.target if isinstance(made.target, OpOverload) else None
        operands = [_viewed(n) for n in made.all_input_nodes]
        alike = operator and (
            torch.Tag.pointwise in operator.tags
            or operator.overloadpacket in _MOVED
            or not (operands or _SEEDED in operator.tags)
        )
        if not (alike or _sums_few(made)):
            return False
        kept = not any(map(operators.is_recomputable, operands))
        if _is_float(made) and made.meta["val"].dtype.itemsize < 4 and not (made is node and kept):
            return False
        left += [n for n in operands if n not in seen]
        seen.update(operands)
    return True


def _sums_few(node: torch.fx.Node) -> bool:
    """Whether kernels write the sum out wherever it is computed."""
    if node.target is not aten.sum.dim_IntList:
        return False
    summed, out = node.all_input_nodes[0].meta["val"].numel(), node.meta["val"].numel()
    known = isinstance(summed, int) and isinstance(out, int)
    return known and summed <= _FEW * out


def _bytes(node: torch.fx.Node) -> int:
    """Of a tensor of known size, else 0."""
    value = node.meta.get("val")
    size = value.numel() if isinstance(value, torch.Tensor) else None
    return size * value.dtype.itemsize if value is not None and isinstance(size, int) else 0


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The tensor that `node` is a view of."""
    while node.op == "call_function" and _operators().is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_float(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@functools.cache
def _operators() -> Any:
    """torch's list of operators by what a partition may do with them, and ours."""
    known = _torchs_operators()
    more, views, fused = (
        {getattr(aten, name) for name in names.split()} for names in (_AGAIN, _VIEWS, _FUSED)
    )
    again = known.recomputable_ops | more | views | {DRAWN.overloadpacket}
    return replace(
        known,
        fusible_ops=known.fusible_ops | again | fused,
        recomputable_ops=again,
        view_ops=known.view_ops | views,
    )
