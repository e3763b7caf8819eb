"""A matmul node of loop IR as a problem of gemm_templates, and back as launches; what that asks of
the node and its graph."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

import gemm_templates
import loop_ir as ir
from gemm_templates import family_of
from loop_ir.ir import reads, statements, writes
from planner.plan import Blocks, LaunchArg, LaunchPlan, Steps, Zeroed, define_source
from planner.program import kernel_nodes
from planner.tensors import Buffers, layout_at, random_tensor
from symexpr import FloorDiv, evaluate, parse, symbol
from triton_emit import EpilogueSource, PrologueSource, emit_epilogue, emit_prologue

Hints = Mapping[str, int]


@dataclass(frozen=True)
class GraphFacts:
    """The facts about one graph, computed on first use."""

    graph: ir.Graph

    @functools.cached_property
    def inputs(self) -> frozenset[str]:
        """The names of the graph's inputs."""
        return frozenset(i.name for i in self.graph.inputs)

    @functools.cached_property
    def aligned(self) -> frozenset[str]:
        """Buffers that are, or can be made, 16-byte aligned: what kernels write (the program
        allocates it), and inputs that nobody writes (a caller's odd one is copied first)."""
        written = {name for node in self.graph.nodes for name in writes(node)}
        made: set[str] = set()
        for node in self.graph.nodes:
            if isinstance(node, ir.Kernel):
                made.update(writes(node))
            elif isinstance(node, ir.Matmul):
                made.update(writes(node))
                made.update(ref.buffer for _, _, ref in produced(node))
        return frozenset((made | self.inputs) - (written & self.inputs))

    def ending(self, text: str) -> str:
        """`text`, or more of it, such that no name of the graph ends so: what it is added to is no
        other buffer or kernel, as `linear_1` would be."""
        whole = self._endings.get(text, text)
        while text not in self._endings and any(name.endswith(whole) for name in self._names):
            whole += "_"
        return self._endings.setdefault(text, whole)

    @functools.cached_property
    def _endings(self) -> dict[str, str]:
        """What `ending` said."""
        return {}

    @functools.cached_property
    def _names(self) -> set[str]:
        """Of all buffers and kernels of the graph."""
        kernels = kernel_nodes(self.graph)
        names = {name for node in self.graph.nodes for name in (*reads(node), *writes(node))}
        names |= {node.out for node in self.graph.nodes if isinstance(node, ir.Matmul)}
        names |= {b.name for kernel in kernels for b in kernel.buffers}
        return names | {kernel.name for kernel in kernels} | self.inputs


def produced(node: ir.Matmul) -> list[tuple[str, ir.Kernel, ir.TensorRef]]:
    """The operands that prologues make: "a" or "b", how, and as what they are read."""
    both = zip("ab", node.operands, strict=True)
    return [(name, o.prologue, o.ref) for name, o in both if o.prologue is not None]


def bytes_of(node: ir.Matmul, hints: Mapping[str, int]) -> int:
    """The bytes of all tensors of a matmul and its epilogue."""
    types = [node.a.type, node.b.type, node.type]
    if node.epilogue is not None:
        types += [b.type for b in node.epilogue.buffers]
    return sum(int(evaluate(t.extent, hints)) * t.dtype.itemsize for t in types)


@dataclass(frozen=True)
class MatmulTask:
    """node, and what templates need to know of it. a, b: what the template loads: operands, or the
    tensors that `prologues` make them from; b2: that of a gated pair's other factor. finish: what
    the epilogue was emitted from. buffers: which buffer each pointer of the template is; dims: the
    template's integers as expressions of sizes; batch: how many products. scales: what the
    problem's `block_scale` takes."""

    node: ir.Matmul
    problem: gemm_templates.Problem
    a: ir.TensorRef
    b: ir.TensorRef
    prologues: tuple[tuple[ir.Kernel, PrologueSource], ...]
    finish: ir.Kernel | None
    epilogue: EpilogueSource | None
    out_type: ir.TensorType
    buffers: dict[str, str]
    dims: dict[str, sympy.Expr]
    batch: sympy.Expr
    b2: ir.TensorRef | None = None
    scales: tuple[ir.TensorRef | sympy.Expr, ...] = ()

    @property
    def kind(self) -> str:
        """Which of its node's tasks: "plain", "fused" with prologues, or "gated"."""
        return "gated" if self.b2 is not None else "fused" if self.prologues else "plain"

    def inputs(self, hints: Hints, given: Mapping[str, torch.Tensor]) -> gemm_templates.Inputs:
        """Random tensors with the layouts of the node's; those of one buffer share its memory, that
        of `given` ones where they are only read."""
        bias = self.node.bias if self.problem.bias else None
        kernels = [kernel for kernel, _ in self.prologues]
        if self.finish is not None:
            kernels.append(self.finish)
        refs = (self.a, self.b, self.b2, bias, *self.scales, self.node.groups)
        uses = [(ref.buffer, ref.type) for ref in refs if isinstance(ref, ir.TensorRef)]
        uses += [(b.name, b.type) for kernel in kernels for b in kernel.buffers]
        written = {b.name for kernel in kernels for b in kernel.buffers if b.written}
        made = Buffers(uses, hints, given={n: t for n, t in given.items() if n not in written})
        offs = None
        if self.node.groups is not None:  # groups of one size: what they are no one knows
            offs = made.view(self.node.groups.buffer, self.node.groups.type)
            whole = getattr(self.problem, str(self.problem.jagged).lower())
            ends = [whole * (i + 1) // len(offs) for i in range(len(offs))]
            offs.copy_(torch.tensor(ends))
        return gemm_templates.Inputs(
            made.view(self.a.buffer, self.a.type),
            made.view(self.b.buffer, self.b.type),
            random_tensor(self.out_type, hints),
            made.view(bias.buffer, bias.type) if bias is not None else None,
            tuple(map(made.argument, self.epilogue.args)) if self.epilogue else (),
            made.view(self.b2.buffer, self.b2.type) if self.b2 is not None else None,
            before=(
                *(made.argument(a) for _, source in self.prologues for a in source.args),
                *(
                    made.view(s.buffer, s.type) if isinstance(s, ir.TensorRef) else made.argument(s)
                    for s in self.scales
                ),
            ),
            offs=offs,
        )

    def named(self, inputs: gemm_templates.Inputs) -> dict[str, Any]:
        """What was given, by buffer, from where that starts."""
        refs = (
            (self.a, inputs.a),
            (self.b, inputs.b),
            (self.b2, inputs.b2),
            (self.node.bias, inputs.bias),
            (self.node.groups, inputs.offs),
            *zip(self.scales, inputs.before[len(inputs.before) - len(self.scales) :], strict=True),
        )
        found = {
            ref.buffer: x.as_strided(x.size(), x.stride(), 0)
            for ref, x in refs
            if isinstance(ref, ir.TensorRef) and isinstance(x, torch.Tensor)
        }
        sources = [source for _, source in self.prologues]
        args = [
            *(self.epilogue.args if self.epilogue else ()),
            *(a for s in sources for a in s.args),
        ]
        values = (*inputs.operands, *inputs.before)
        return {str(a): x for a, x in zip(args, values, strict=False)} | found

    def outputs(self, tensors: Mapping[str, torch.Tensor], hints: Hints) -> torch.Tensor:
        """What it is to give, of tensors by buffer."""
        return tensors[self.buffers["out"]].as_strided(*layout_at(self.out_type, hints))

    @property
    def key(self) -> str:
        """Tells problems, and whether their batch is a hint."""
        return self.problem.key + (" any batch" if self.batch.free_symbols else "")

    def steps(self, config: gemm_templates.Config, name: str) -> Steps:
        """The template's launches, of the very kernels that were measured, and its workspaces, the
        names of which begin with `name`, but for zeroed memory: that is the program's."""
        plan = gemm_templates.make_plan(self.problem, config, None)
        values: dict[str, LaunchArg] = {**self.buffers, **self.dims}
        if self.node.groups is not None:
            values["offs"] = self.node.groups
        refs = {"a": self.a, "b": self.b, "b2": self.b2, "bias": self.node.bias}
        for pointer, ref in refs.items():
            if ref is not None and ref.type.offset != 0:
                values[pointer] = ref
        if self.epilogue is not None:
            names = [p for p, _ in self.epilogue.operands]
            values.update(zip(names, self.epilogue.args, strict=True))
        for _, source in self.prologues:
            values.update(zip((p for p, _ in source.operands), source.args, strict=True))
        if self.problem.block_scale is not None:
            operands = self.problem.block_scale.operands
            values.update(zip((p.name for p in operands), self.scales, strict=True))
        types = {"a": self.a.type, "b": self.b.type, "b2": self.b.type, "out": self.out_type}
        if self.b2 is not None:
            types["b2"] = replace(self.b.type, offset=self.b2.type.offset)
        given = {n: ir.TensorRef(b, types[n]) for n, b in self.buffers.items() if n in types}
        steps = template_steps(plan, name, values, given, self._expression, self.dims)
        if not self.batch.free_symbols:
            return steps
        launches = []  # one program a tile, and the batch beside them
        for step in steps.steps:
            assert isinstance(step, LaunchPlan)
            launches.append(replace(step, grid=(step.grid[0], self.batch, step.grid[2])))
        return replace(steps, steps=tuple(launches))

    def _expression(self, text: str) -> sympy.Expr:
        """Of the problem's M and N, in sizes of the program."""
        expression: sympy.Expr = parse(text)
        return expression.xreplace({symbol(name): self.dims[name] for name in ("M", "N")})


def template_steps(
    plan: gemm_templates.Plan,
    name: str,
    values: Mapping[str, LaunchArg],
    described: Mapping[str, ir.TensorRef],
    expression: Callable[[str], sympy.Expr],
    dims: Mapping[str, Any],
) -> Steps:
    """The launches of a template, and its workspaces, the names of which begin with `name`, but for
    zeroed memory. values: the kernels' arguments by parameter. described: what descriptors may be
    of, by parameter. expression: what a size's text is in sizes of the program; dims: likewise of
    the template's integers."""
    device = next(iter(described.values())).type.device
    given, allocate, launches = dict(values), [], []
    for memory in plan.workspaces:
        size = (expression(memory.elements_text),)
        type_ = ir.TensorType(ir.DType(memory.dtype), size, (sympy.S.One,), device)
        if memory.zeroed:
            given[memory.name] = Zeroed(memory.name, type_)
            continue
        given[memory.name] = f"{name}_{memory.name}"
        allocate.append((f"{name}_{memory.name}", type_))
    for kernel in plan.steps:
        for parameter, map_plan in kernel.maps:
            assert map_plan.shape is not None and map_plan.strides is not None
            size, stride = (
                tuple(sympy.sympify(dims[n] if isinstance(n, str) else n) for n in layout)
                for layout in (map_plan.shape, map_plan.strides)
            )
            ref = described[parameter]
            whole = replace(ref, type=replace(ref.type, size=size, stride=stride))
            given[parameter] = Blocks(whole, map_plan.block)
        x, y, z = map(expression, kernel.grid_text)
        args = tuple(given[p.name] for p in kernel.source.params)
        launches.append(LaunchPlan(define_source(kernel.source), (x, y, z), args))
    return Steps(tuple(launches), tuple(allocate))


# The programs of a grid along its second dimension, which a batch is.
MOST_PRODUCTS = 65535


def is_launchable(
    problem: gemm_templates.Problem, config: gemm_templates.Config, emit: str
) -> bool:
    """Whether a host program can say the launches of a config: what launches the higher-order
    operator for Triton kernels gives kernels no memory for descriptors, has none for Gluon, and
    describes no empty tensors."""
    can = family_of(config).CAN
    made = "M" in problem.dynamic or problem.pick_b is not None
    given = config.maps and can.descriptors == "given" and not made
    if emit == "hop" and can.descriptors and (can.gluon or not given):
        return False
    plan = gemm_templates.make_plan(problem, config, "matmul")
    return not any(step.source.cooperative or not step.source.tma for step in plan.steps)


def make_task(
    node: ir.Matmul,
    hints: Hints,
    aligned: frozenset[str],
    known: Mapping[sympy.Symbol, sympy.Integer] | None = None,
    symbols: tuple[ir.Symbol, ...] = (),
    fused: bool = False,
) -> MatmulTask:
    """`aligned`: buffers that start at a multiple of 16 bytes. known: sizes that are what the
    hints say wherever this task is used. symbols: of the graph. fused: with the node's prologues;
    else its operands have been made.

    Raises UnsupportedProblem or a TritonEmitError where templates cannot do this node."""
    epilogue, out_type, out = None, node.type, node.out
    finish, products = ir.whole_epilogue(node, symbols)
    if finish is not None:
        rank = len(node.type.size)
        stride = (*(sympy.S.Zero for _ in finish.axes[rank:]), *node.type.stride)
        epilogue = emit_epilogue(finish, products, "epilogue", stride)
        out = epilogue.out
        kept = next(b.type for b in finish.buffers if b.name == out)
        out_type = ir.TensorType(
            kept.dtype, node.type.size, epilogue.out_stride[-rank:], kept.device
        )
    loaded = {"a": node.a, "b": node.b}
    prologues: dict[str, tuple[ir.Kernel, PrologueSource]] = {}
    for operand, given in zip("ab", node.operands, strict=True):
        if fused and given.prologue is not None:
            found = ir.over_operand(given.prologue, given.ref)
            if not isinstance(found, ir.Prologue):
                raise gemm_templates.UnsupportedProblem(found.reason)
            name = f"prologue_{operand}"
            source = emit_prologue(found.kernel, found.source, operand, name)
            prologues[operand] = found.kernel, source
            loaded[operand] = found.source
    a, b = loaded["a"], loaded["b"]
    buffers = {"a": a.buffer, "b": b.buffer, "out": out}
    bias = node.bias if ir.is_plain(node) else None
    if bias is not None:
        buffers["bias"] = bias.buffer
    all_dims = _dims(node, a.type, b.type, out_type)
    dims = {name: e.xreplace(known or {}) for name, e in all_dims.items()}
    at = {name: int(evaluate(e, hints)) for name, e in dims.items()}
    dynamic = {name: e for name, e in dims.items() if e.free_symbols}
    divisors = tuple(
        (name, int(factor))
        for name, e in dynamic.items()
        if (factor := sympy.expand(e).as_coeff_Mul()[0]) > 1 and factor.is_Integer
    )
    batch = node.type.size[0] if len(node.type.size) == 3 else sympy.S.One
    if node.groups is not None:
        batch = node.groups.type.size[0]
    products_at = int(evaluate(batch, hints))
    if batch.free_symbols:  # the text of a kernel tells one product from several
        products_at = max(2, products_at)
    block_scale, scales = _block_scale(node)
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32" and node.type.device.kind == "cuda"
    problem = gemm_templates.Problem(
        at["M"],
        at["N"],
        at["K"],
        a.type.dtype.value,
        b.type.dtype.value,
        out_type.dtype.value,
        (at["stride_am"], at["stride_ak"]),
        (at["stride_bk"], at["stride_bn"]),
        (at["stride_om"], at["stride_on"]),
        bias.type.dtype.value if bias is not None else None,
        at["stride_bias"],
        _epilogue(finish, products, epilogue, node.type, hints),
        batch=products_at,
        batch_strides=(at["stride_ab"], at["stride_bb"], at["stride_ob"]) if batch != 1 else None,
        jagged=node.jagged,
        dynamic=frozenset(dynamic),
        aligned=frozenset(
            p
            for p, buffer in buffers.items()
            if buffer in aligned and _starts_aligned({"a": a, "b": b, "bias": bias}.get(p))
        ),
        divisors=divisors,
        wide=True if epilogue is not None and epilogue.bits == 64 else None,
        input_precision="tf32" if tf32 else "ieee",
        prologue_a=_prologue(prologues.get("a")),
        prologue_b=_prologue(prologues.get("b")),
        block_scale=block_scale,
        fast_accum=node.scales is not None
        and node.scales.fast
        and block_scale is None
        and "K" not in dynamic
        and at["K"] <= gemm_templates.FAST_K,
    )
    kernels = tuple(prologues.values())
    parts = (kernels, finish, epilogue, out_type, buffers, dims, batch)
    return MatmulTask(node, problem, a, b, *parts, scales=scales)


def make_gated_task(
    node: ir.Matmul,
    pair: ir.GatedPair,
    hints: Hints,
    aligned: frozenset[str],
    known: Mapping[sympy.Symbol, sympy.Integer] | None = None,
    symbols: tuple[ir.Symbol, ...] = (),
) -> MatmulTask:
    """Both products of a pair, of which `node` has the epilogue, as one problem. Raises like
    `make_task`."""
    a, b = node.operands
    alone = replace(node, operands=(a, replace(b, ref=pair.b)), epilogue=pair.left)
    task = make_task(alone, hints, aligned, known, symbols)
    source = emit_epilogue(pair.gate, node.out, "gate", node.type.stride)
    gate = gemm_templates.Epilogue(source.name, source.text)
    even = {"b2"} if pair.b2.buffer in aligned and _starts_aligned(pair.b2) else set()
    problem = replace(task.problem, gate=gate, aligned=task.problem.aligned | even)
    return replace(
        task, problem=problem, b2=pair.b2, buffers={**task.buffers, "b2": pair.b2.buffer}
    )


def _prologue(found: tuple[ir.Kernel, PrologueSource] | None) -> gemm_templates.Prologue | None:
    if found is None:
        return None
    kernel, source = found
    params = tuple(gemm_templates.Param(name, kind) for name, kind in source.operands)
    axes = {axis.symbol for axis in kernel.axes[-2:] if axis.extent != 1}
    besides = sum(
        s.dtype.itemsize / _shared(s.index)
        for s in statements(kernel)
        if isinstance(s, ir.Load) and s.buffer in source.args and axes <= s.index.free_symbols
    )
    return gemm_templates.Prologue(
        source.name, source.text, params, source.dtype, besides, source.batched
    )


def _block_scale(
    node: ir.Matmul,
) -> tuple[gemm_templates.BlockScale | None, tuple[ir.TensorRef | sympy.Expr, ...]]:
    """The factors of blocks along K, and what they take: the tensors, and strides that are no
    numbers."""
    scales = node.scales
    if scales is None or scales.blocks is None:
        return None, ()
    rows, inner, columns = scales.blocks
    strides = (*scales.a.type.stride, *scales.b.type.stride)
    names = [int(s) if s.is_Integer else f"scale_stride{i}" for i, s in enumerate(strides)]
    found = gemm_templates.block_scale_of(
        a=(rows, names[0], names[1]), b=(columns, names[2], names[3]), block_k=inner
    )
    return found, (scales.a, scales.b, *(s for s in strides if not s.is_Integer))


def _shared(index: sympy.Expr) -> int:
    """How many elements read one place, such as 128 of `64*i0 + i1//128`."""
    return max([1, *(int(d.args[1]) for d in index.atoms(FloorDiv) if d.args[1].is_Integer)])


def _starts_aligned(ref: ir.TensorRef | None) -> bool:
    """Whether it starts at a multiple of 16 bytes of its buffer."""
    start = ref.type.offset * ref.type.dtype.itemsize if ref is not None else sympy.S.Zero
    return start == 0 or all(
        term.as_coeff_Mul()[0] % 16 == 0 for term in sympy.Add.make_args(sympy.expand(start))
    )


def _dims(
    node: ir.Matmul, a: ir.TensorType, b: ir.TensorType, out: ir.TensorType
) -> dict[str, sympy.Expr]:
    bias = node.bias
    dims = {"M": a.size[-2], "N": b.size[-1], "K": a.size[-1]}
    for axes, type in (("am ak", a), ("bk bn", b), ("om on", out)):
        dims |= zip((f"stride_{axis}" for axis in axes.split()), type.stride[-2:], strict=True)
    dims["stride_bias"] = bias.type.stride[0] if bias and ir.is_plain(node) else sympy.S.One
    if node.groups is not None or (len(a.size) == 3 and a.size[0] != 1):
        for of, type in (("a", a), ("b", b), ("o", out)):
            dims[f"stride_{of}b"] = type.stride[0] if len(type.size) == 3 else sympy.S.Zero
    return dims


def _epilogue(
    kernel: ir.Kernel | None,
    products: str,
    source: EpilogueSource | None,
    type: ir.TensorType,
    hints: Hints,
) -> gemm_templates.Epilogue | None:
    if kernel is None or source is None:
        return None
    operands = [b.type for b in kernel.buffers if not b.written and b.name != products]
    read = sum(int(evaluate(t.extent, hints)) * t.dtype.itemsize for t in operands)
    return gemm_templates.Epilogue(
        source.name,
        source.text,
        tuple(gemm_templates.Param(name, kind) for name, kind in source.operands),
        bytes_per_element=read / max(1, int(evaluate(type.numel, hints))),
        batched=source.batched,
    )
