"""Writes to memory that is read, or written again, by the same operator.

A functional graph reads everything before it writes. Eager refuses most programs in which that
makes a difference, and gives others an answer that hangs on the order in which elements are
visited, and on the vectors and threads that visit them; both are refused here. So are views that
see memory beside an input that is written: a functional graph has the input's elements only; and
writes to numbers through a view of them as booleans, which a functional graph copies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from aten_lowering import size_hints, storage_key
from compile_cli.errors import BadInput
from compile_cli.torch_compat import FakeTensor

aten = torch.ops.aten

# They give every element one value, whatever the order; so does a copy of one element.
_FILLS = frozenset({aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor})
# They write and read elements at places that are data.
_SCATTERS = ("index_", "_index_put", "scatter", "put_", "masked_scatter")
# What Dynamo's graphs write with: augmented assignments are functions of `operator`.
AUGMENTED = frozenset({
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor",
    "ilshift", "irshift", "imatmul",
})  # fmt: skip
_LAYOUTS = frozenset({
    "t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "resize_", "set_",
    "as_strided_", "detach_", "requires_grad_", "rename_",
})  # fmt: skip
# Steps of the search for a common element; past them, tensors are taken to overlap.
_STEPS = 100_000

_BESIDE = "of an input that is written sees memory that is no element of it"
# A size that torch has no hint of.
_UNBACKED = sympy.Integer(64)

Terms = list[tuple[int, int, int]]  # stride, lowest and highest index


def share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one storage have bytes in common."""
    if _is_empty(a) or _is_empty(b):
        return False
    one, other = a.element_size(), b.element_size()
    terms: Terms = [(s * one, 0, n - 1) for n, s in _layout(a)]
    terms += [(-s * other, 0, n - 1) for n, s in _layout(b)]
    terms += [(1, 0, one - 1), (-1, 0, other - 1)]
    return _reachable(terms, _int(b.storage_offset()) * other - _int(a.storage_offset()) * one)


def overlaps_itself(x: Tensor) -> bool:
    """Whether two elements of a tensor lie in one place."""
    layout = _layout(x)
    if _is_empty(x):
        return False
    span = 0  # strides that exceed what the smaller ones span keep elements apart
    for n, s in sorted(layout, key=lambda ns: ns[1]):
        if s <= span:
            break
        span += (n - 1) * s
    else:
        return False
    for d, (n, s) in enumerate(layout):  # the first dimension in which the two elements differ
        rest: Terms = [(step, 1 - m, m - 1) for m, step in layout[d + 1 :]]
        if _reachable([(s, 1, n - 1), *rest], 0):
            return True
    return False


def refuse_overlaps(graph: GraphModule) -> None:
    """Raises `BadInput` for a write that reads what it writes, that writes one place twice, or that
    goes to an input whose elements share places. `graph` is not functional yet."""
    inputs = [n.meta.get("val") for n in graph.graph.find_nodes(op="placeholder")]
    folded, retyped = _folded(inputs), _as_booleans(graph, "val")
    written: set[int] = set()
    strided: list[Tensor] = []
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
            given = map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
            why = _hangs_on_order(node.target, *given, folded, retyped)
            if why is not None:
                raise BadInput(
                    f"{node.target} writes to memory in an order that its result would hang on\n"
                    f"  why:   {why}\n  to do: clone() the tensor before the write"
                )
            written |= {storage_key(t) for t in _arguments(node.target, *given)[0]}
        elif node.target is aten.as_strided.default:
            strided.append(node.meta["val"])
    if any(_sees_beside(x, view) for x in _of(inputs, written) for view in strided):
        raise BadInput(
            f"as_strided {_BESIDE}\n  to do: clone() the input before the write, or give all of "
            "the tensor that it is a view of"
        )


def order_matters(graph: GraphModule) -> str | None:
    """The same of a graph of Dynamo's, which calls torch's functions: the operator, and why it must
    run as eager runs it. None where a functional graph gives eager's answer."""
    found: list[str] = []
    inputs = [n.meta.get("example_value") for n in graph.graph.find_nodes(op="placeholder")]
    folded, retyped = _folded(inputs), _as_booleans(graph, "example_value")
    written: set[int] = set()

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func._schema.is_mutable:
                why = _hangs_on_order(func, args, kwargs or {}, folded, retyped)
                found.extend([] if why is None else [f"{func}: {why}"])
                written.update(map(storage_key, _arguments(func, args, kwargs or {})[0]))
            return func(*args, **(kwargs or {}))

    for node in graph.graph.nodes:
        if not _writes(node) or found:
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta.get("example_value"))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        fakes = [t for t in tensors if isinstance(t, FakeTensor)]
        if fakes and len(fakes) == len(tensors):  # those inside of a vmap are no fake tensors
            mode = fakes[0].fake_mode
            with mode, Watch(), torch.no_grad():  # type: ignore[no-untyped-call]  # of torch
                try:
                    if node.op == "call_method":
                        getattr(args[0], node.target)(*args[1:], **kwargs)
                    else:
                        node.target(*args, **kwargs)
                except RuntimeError:
                    found.append(f"{node.target}: the layout of what it is given changes later")
    strided = [n.meta.get("example_value") for n in graph.graph.nodes if _name(n) == "as_strided"]
    if any(_sees_beside(x, view) for x in _of(inputs, written) for view in strided):
        found.append(f"as_strided {_BESIDE}")
    return found[0] if found else None


def _of(inputs: Sequence[Any], storages: Set[int]) -> list[Tensor]:
    return [t for t in inputs if isinstance(t, Tensor) and storage_key(t) in storages]


def _sees_beside(x: Tensor, view: Any) -> bool:
    """Whether a view of the memory of `x` may see other elements than those of `x`."""
    if not isinstance(view, Tensor) or storage_key(view) != storage_key(x) or _is_empty(view):
        return False
    start, end = _span(x)
    first, last = _span(view)
    gaps = end - start > math.prod(n for n, _ in _layout(x)) * x.element_size()
    return _placed(view) != _placed(x) and (gaps or first < start or last > end)


def _span(x: Tensor) -> tuple[int, int]:
    """The bytes of the storage in which the elements lie."""
    start = _int(x.storage_offset())
    end = start + 1 + sum((n - 1) * s for n, s in _layout(x))
    return start * x.element_size(), end * x.element_size()


def _name(node: Node) -> str:
    name = node.target if node.op == "call_method" else getattr(node.target, "__name__", "")
    return str(name)


def _writes(node: Node) -> bool:
    """A call of Dynamo's graph that writes to one of several tensors, or to one that may overlap
    itself; those that change no layout."""
    name = _name(node)
    in_place = name == "setitem" or (name in AUGMENTED if node.op != "call_method" else False)
    method = node.op == "call_method" and name.endswith("_") and not name.endswith("__")
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return in_place or (method and name not in _LAYOUTS) or "out" in node.kwargs


def _folded(inputs: Sequence[Any]) -> dict[int, Tensor]:
    """The inputs whose elements share places, by storage."""
    return {storage_key(t): t for t in inputs if isinstance(t, Tensor) and overlaps_itself(t)}


def _as_booleans(graph: GraphModule, key: str) -> set[int]:
    """The storages of numbers that are looked at as booleans (`x.view(torch.bool)`)."""
    nodes = (n for n in graph.graph.nodes if torch.bool in (*n.args, *n.kwargs.values()))
    viewed = (n.args[0].meta.get(key) for n in nodes if _name(n).startswith("view"))
    return {storage_key(v) for v in viewed if isinstance(v, Tensor) and v.dtype is not torch.bool}


def _hangs_on_order(
    op: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    folded: Mapping[int, Tensor],
    retyped: Set[int],
) -> str | None:
    if torch.Tag.inplace_view in op.tags:  # it changes the tensor's layout, no memory
        return None
    written, read = _arguments(op, args, kwargs)
    one_value = op in _FILLS or (
        op is aten.copy_.default and all(s == 0 for x in read[:1] for _, s in _layout(x))
    )
    for i, x in enumerate(written):
        whole = folded.get(storage_key(x))
        if x.dtype is torch.bool and storage_key(x) in retyped:
            return "the elements beside become 0 and 1, as in any copy of booleans, if they are not"
        if one_value and whole is not None and _placed(x) == _placed(whole):
            continue
        if overlaps_itself(x) or whole is not None:
            return "several elements of a tensor that it writes lie in one place"
        if any(_reads(op, x, y) for y in (*written[:i], *read)):
            return "it reads memory that it writes, at other places"
    return None


def refuse_new_layouts(graph: GraphModule) -> None:
    """Raises `BadInput` where the model leaves an input with other sizes or strides, or another
    storage (`x.t_()`, `x.resize_(2)`, `x.set_(y)`): a graph gives values only."""
    for place in graph.graph.find_nodes(op="placeholder"):
        node, changed, moved = place, None, False
        while step := next((u for u in node.users if _changes_layout(u, node)), None):
            node, changed = step, step
            moved |= str(step.target).startswith("aten.set_.")
        if changed is None:
            continue
        before, after = place.meta["val"], changed.meta["val"]
        kept = before.shape == after.shape and before.stride() == after.stride()
        if not kept or moved:
            raise _new_layout(str(changed.target), place.name, before.shape, after.shape)


def refuse_new_ranks(reshaped: Sequence[tuple[str, Sequence[Any], Tensor]]) -> None:
    """Raises `BadInput` where one of these tensors, each after what changed it and the shape that
    it had, is an input of a capture that failed: torch.export fails on it with an `IndexError`."""
    for name, before, x in reshaped:
        shapes = x.fake_mode.shape_env if isinstance(x, FakeTensor) else None
        for place, tracked in enumerate(getattr(shapes, "tracked_fakes", None) or ()):
            if tracked.fake is x:
                raise _new_layout(name, str(place), before, x.shape)


def _new_layout(change: str, name: str, before: Sequence[Any], after: Sequence[Any]) -> BadInput:
    return BadInput(
        f"{change} changes the layout of input {name}\n"
        f"  expected: {list(before)}, as the caller passes it\n"
        f"  got:      {list(after)}\n"
        "  to do: use the operator that gives a new tensor"
    )


def _changes_layout(user: Node, node: Node) -> bool:
    op = user.target
    if not isinstance(op, OpOverload) or not op._schema.is_mutable or user.args[0] is not node:
        return False
    results = op._schema.returns  # an operator may write to a tensor and give another
    return len(results) == 1 and results[0].alias_info is not None


def _reads(op: OpOverload, written: Tensor, read: Tensor) -> bool:
    if storage_key(written) != storage_key(read):
        return False
    if _placed(written) == _placed(read) and written.shape == read.shape:
        return op._schema.name.removeprefix("aten::").startswith(_SCATTERS)
    return share_elements(written, read) and not _reads_ahead(op, written, read)


def _placed(x: Tensor) -> Any:
    """Where a tensor's elements lie."""
    return x.dtype, _layout(x), _int(x.storage_offset())


def _reads_ahead(op: OpOverload, written: Tensor, read: Tensor) -> bool:
    """`x[:, :-1] = x[:, 1:]`: in the order of memory, each element is read before it is written.
    (Of tensors without gaps, eager refuses this too.)"""
    (dtype, layout, start), (other, same, later) = _placed(written), _placed(read)
    by_element = op is aten.copy_.default or torch.Tag.pointwise in op.tags
    alike = dtype == other and layout == same and start < later and all(s > 0 for _, s in layout)
    gaps = sum((n - 1) * s for n, s in layout) + 1 > math.prod(n for n, _ in layout)
    return by_element and alike and gaps


def _arguments(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors that a call writes, and those that it only reads."""
    written: list[Tensor] = []
    read: list[Tensor] = []
    for i, a in enumerate(op._schema.arguments):
        given = args[i] if i < len(args) else kwargs.get(a.name)
        is_written = a.alias_info is not None and a.alias_info.is_write
        found = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        (written if is_written else read).extend(found)
    return written, read


def _layout(x: Tensor) -> list[tuple[int, int]]:
    """Size and stride of each dimension with more than one element, those of the hints."""
    pairs = zip(map(_int, x.shape), map(_int, x.stride()), strict=True)
    return [(n, s) for n, s in pairs if n != 1]


def _is_empty(x: Tensor) -> bool:
    return 0 in map(_int, x.shape)


def _int(n: int | torch.SymInt) -> int:
    if isinstance(n, int):
        return n
    if n.node.has_hint():  # of a ragged dimension it is no number
        return int(n.node.hint if isinstance(n.node.hint, int) else _UNBACKED)
    env, size = n.node.shape_env, n.node.expr  # of `mark_unbacked`: any size stands for all
    return int(size.xreplace({s: size_hints(env).get(s, _UNBACKED) for s in size.free_symbols}))


def _reachable(terms: Sequence[tuple[int, int, int]], target: int) -> bool:
    """Whether `sum(stride * k) == target` for some `k`, each between its bounds."""
    ordered = sorted(terms, key=lambda t: -abs(t[0]))
    low, high = [0], [0]
    for s, a, b in reversed(ordered):
        low.append(low[-1] + min(s * a, s * b))
        high.append(high[-1] + max(s * a, s * b))
    left = _STEPS

    def search(i: int, rest: int) -> bool:
        nonlocal left
        left -= 1
        if left < 0 or i == len(ordered):
            return left < 0 or rest == 0
        s, a, b = ordered[i]
        below, above = low[len(ordered) - 1 - i], high[len(ordered) - 1 - i]
        if s == 0:
            return search(i + 1, rest)
        # below <= rest - s * k <= above
        first, last = (
            sorted((rest - above, rest - below)) if s > 0 else (rest - below, rest - above)
        )
        start = max(a, -(-first // s))
        stop = min(b, last // s)
        return any(search(i + 1, rest - s * k) for k in range(start, stop + 1))

    return search(0, target)
