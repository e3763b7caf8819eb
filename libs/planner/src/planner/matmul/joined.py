"""Products of one matrix with several others, as of queries, keys and values, in one launch.

q = x @ wq          one product of x with the columns of all: a tile reads the matrix that it is of,
k = x @ wk    ->    an epilogue stores it in the result that it is of
v = x @ wv

Alone, the narrow ones leave most of a GPU idle. No matrix is copied. Where the number of rows is
dynamic, each rung of `planner.matmul.ladder` has a problem of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate

import sympy
from torch import Tensor

import gemm_templates
from loop_ir import Extern, Graph, Matmul, TensorRef, is_plain
from loop_ir.ir import writes
from planner.matmul.problem import Hints, template_steps
from planner.plan import LaunchArg, Steps
from planner.tensors import Buffers, random_tensor
from symexpr import parse, symbol
from tensor_ir import DType, TensorType

# Multiply-adds of all, up to which one launch is worth measuring: 1024 rows of 4096 by 6144 columns
# took an H100 86 us in three products and 75 in one, 2048 rows 147 and 141.
_WORTH = 3e10
# Of columns: tiles lie in one matrix.
_EACH = 128
_MOST = 4


def joinable(graph: Graph) -> dict[str, tuple[Matmul, ...]]:
    """Sets of products, by the result of their first, whose place is that of all."""
    found: dict[str, tuple[Matmul, ...]] = {}
    sets: dict[tuple[TensorRef, DType, bool], list[int]] = {}
    for at, node in enumerate(graph.nodes):
        if isinstance(node, Matmul) and _is_alone(node):
            sets.setdefault((node.a, node.type.dtype, node.bias is None), []).append(at)
    for places in sets.values():
        nodes = [n for at in places[:_MOST] if isinstance(n := graph.nodes[at], Matmul)]
        between = graph.nodes[places[0] : places[len(nodes) - 1]]
        changed = {name for node in between for name in writes(node)}
        if any(isinstance(node, Extern) and not writes(node) for node in between):
            continue  # what has no results may wait for what writes to an operand
        if len(nodes) > 1 and changed.isdisjoint(ref.buffer for ref in _read(nodes)):
            found[nodes[0].out] = tuple(nodes)
    return found


def _read(nodes: Sequence[Matmul]) -> list[TensorRef]:
    """The one matrix, those that it is multiplied by, and their biases."""
    biases = (n.bias for n in nodes if n.bias is not None)
    return [nodes[0].a, *(n.b for n in nodes), *biases]


def _is_alone(node: Matmul) -> bool:
    """A plain product of so many rows with a transposed weight, with or without a bias, stored as
    it is."""
    plain = is_plain(node) and node.groups is None and not node.prologues
    types = [node.a.type, node.b.type, node.type]
    if not plain or node.epilogue is not None or any(len(t.size) != 2 for t in types):
        return False
    if node.bias is not None:
        if node.bias.type.stride != (1,):
            return False
        types.append(node.bias.type)
    numbers = [n for t in types for n in (*t.size, *t.stride, t.offset)]
    if not all(n.is_Integer or n == node.a.type.size[0] for n in numbers):
        return False
    kinds = {t.dtype for t in types}
    inner, columns = node.b.type.size
    rows = node.type.stride == (columns, 1)
    whole = node.b.type.stride == (1, inner) and columns % _EACH == 0 and inner % _EACH == 0
    return rows and whole and len(kinds) == 1 and kinds <= {DType.bf16, DType.f16}


@dataclass(frozen=True)
class JoinedTask:
    """`nodes`, each of `rows`, as one problem for templates; what `MatmulTask` is of one."""

    nodes: tuple[Matmul, ...]
    problem: gemm_templates.Problem
    rows: sympy.Expr
    batch: sympy.Expr = sympy.S.One

    @property
    def key(self) -> str:
        """Tells problems from each other."""
        return f"{self.problem.key} joined"

    def inputs(self, hints: Hints, given: Mapping[str, Tensor]) -> gemm_templates.Inputs:
        """Given tensors, or random ones with the layouts of the nodes'."""
        refs, count = _read(self.nodes), len(self.nodes)
        made = Buffers([(ref.buffer, ref.type) for ref in refs], hints, given=given)
        a, *others = (made.view(ref.buffer, ref.type) for ref in refs)
        results = (random_tensor(n.type, hints) for n in self.nodes)
        operands, matrices = (*results, *others[count:]), tuple(others[:count])
        return gemm_templates.Inputs(a, matrices[0], None, None, operands, before=matrices)

    def named(self, inputs: gemm_templates.Inputs) -> dict[str, Tensor]:
        """What was given, by buffer, from where that starts."""
        given = (inputs.a, *inputs.before, *inputs.operands[len(self.nodes) :])
        both = zip(_read(self.nodes), given, strict=True)
        return {ref.buffer: x.as_strided(x.size(), x.stride(), 0) for ref, x in both}

    def outputs(self, tensors: Mapping[str, Tensor], hints: Hints) -> list[Tensor]:
        """What it is to give, of tensors by buffer."""
        return [tensors[node.out] for node in self.nodes]

    def steps(self, config: gemm_templates.Config, name: str) -> Steps:
        """The template's launches, and its workspaces, as of `MatmulTask.steps`."""
        plan = gemm_templates.make_plan(self.problem, config, None)
        first = self.nodes[0]
        values: dict[str, LaunchArg] = {"a": _start(first.a), "b": _start(first.b)}
        for i, node in enumerate(self.nodes):
            values |= {f"matrix{i}": _start(node.b), f"result{i}": node.out}
            if node.bias is not None:
                values[f"bias{i}"] = _start(node.bias)
        dims = {**self.problem.dims(), "M": self.rows}
        sizes = {symbol(name): sympy.sympify(dims[name]) for name in "MN"}

        def expression(text: str) -> sympy.Expr:
            return parse(text).xreplace(sizes)

        return template_steps(
            plan, name, {**values, "M": self.rows}, {"a": first.a}, expression, dims
        )

    @property
    def reads(self) -> frozenset[str]:
        """The buffers of what it reads."""
        return frozenset(ref.buffer for ref in _read(self.nodes))

    @property
    def results(self) -> Iterator[tuple[str, TensorType]]:
        """The results of all but the first."""
        return ((node.out, node.type) for node in self.nodes[1:])


def _start(ref: TensorRef) -> TensorRef | str:
    """Where a matrix begins: its buffer, or a view."""
    return ref.buffer if ref.type.offset == 0 else ref


def join(
    nodes: tuple[Matmul, ...], aligned: Set[str], count: int, exact: bool
) -> JoinedTask | None:
    """One product of the columns of all, of `count` rows, and those alone where that is exact; None
    where that is too much. aligned: buffers that start at multiples of 16 bytes."""
    first = nodes[0]
    rows, inner = first.a.type.size[0], int(first.a.type.size[1])
    rows = sympy.Integer(count) if exact else rows
    columns = [int(n.type.size[1]) for n in nodes]
    ends = list(accumulate(columns))
    if count * ends[-1] * inner > _WORTH:
        return None
    dtype = first.type.dtype.value

    def param(name: str, ref: TensorRef, mutated: bool = False) -> gemm_templates.Param:
        even = ref.buffer in aligned and int(ref.type.offset) % 8 == 0
        return gemm_templates.Param(name, f"*{dtype}", mutated, even)

    outs = [TensorRef(n.out, n.type) for n in nodes]
    matrices = tuple(param(f"matrix{i}", n.b) for i, n in enumerate(nodes))
    results = tuple(param(f"result{i}", ref, True) for i, ref in enumerate(outs))
    biases = tuple(param(f"bias{i}", n.bias) for i, n in enumerate(nodes) if n.bias is not None)
    problem = gemm_templates.Problem(
        count,
        ends[-1],
        inner,
        dtype,
        dtype,
        dtype,
        (int(first.a.type.stride[0]), int(first.a.type.stride[1])),
        (1, inner),
        epilogue=gemm_templates.Epilogue(
            "store_columns",
            _stores(columns, ends, bool(biases)),
            (*results, *biases),
            stores=True,
            work=4.0,
        ),
        pick_b=gemm_templates.Pick("matrix_of", _picks(ends), matrices, _EACH),
        aligned=frozenset(
            name
            for name, refs in (("a", [first.a]), ("b", [n.b for n in nodes]))
            if all(param(name, ref).aligned for ref in refs)
        ),
    )
    if rows.free_symbols:
        problem = replace(problem, dynamic=frozenset("M"), wide=problem.is_wide)
    return JoinedTask(nodes, problem, rows)


def _picks(ends: list[int]) -> str:
    lines = _chosen("start, first", [(f"operands[{i}]", str(n)) for i, n in _starts(ends)], ends)
    text = "\n".join(lines).replace("place", "first_n")
    return f"@triton.jit\ndef matrix_of(first_n, operands):\n{text}\n    return start, first"


def _stores(columns: list[int], ends: list[int], biased: bool) -> str:
    """All of a tile's columns go to one result."""
    count = len(columns)
    values = [(f"operands[{i}]", str(n), str(columns[i])) for i, n in _starts(ends)]
    lines = ["    place = tl.min(rn)", *_chosen("start, first, count", values, ends)]
    if biased:
        lines += _chosen("bias", [(f"operands[{count + i}]",) for i in range(count)], ends)
        lines.append("    acc += tl.load(bias + (rn - first)).to(tl.float32)")
    lines.append("    value = acc.to(start.dtype.element_ty)")
    lines.append("    tl.store(start + (rm * count + (rn - first)), value, mask=mask)")
    signature = "def store_columns(acc, rm, rn, mask, operands):"
    return "\n".join(["@triton.jit", signature, *lines, "    return value"])


def _starts(ends: list[int]) -> list[tuple[int, int]]:
    """The numbers of the matrices, each with that of its first column."""
    return list(enumerate([0, *ends[:-1]]))


def _chosen(names: str, values: Sequence[tuple[str, ...]], ends: list[int]) -> list[str]:
    """Statements that give names what is said for the matrix in which column `place` lies."""
    lines = [f"    {names} = {', '.join(values[0])}"]
    for value, end in zip(values[1:], ends, strict=False):
        for name, other in zip(names.split(", "), value, strict=True):
            lines.append(f"    {name} = tl.where(place < {end}, {name}, {other})")
    return lines
