"""A compiled model: checks each call's inputs, runs the host program, rebuilds the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

import gemm_templates
from aten_lowering import Fallback
from compile_cli.capture import Captured
from compile_cli.errors import BadInput
from compile_cli.gemm import Decided
from compile_cli.stages import Record
from fx_emit import IR_DTYPE
from loop_ir import FusionReport, Graph
from symexpr import evaluate, sstr
from triton_rt import GraphedCallable
from wrapper_ir.ops import Param, Program

Runner = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class CompiledGraph:
    """One flat graph, compiled: every stage's artifact, and `run(*flat inputs)`.

    loop, fused: loop IR before and after fusion. program: the host program. host: what the
    emitter made of it (a GraphModule, or the text of a C++ library). run: calls it. fallbacks:
    operators without a lowering, and why. matmuls: what was measured for each; decided: what came
    of it. explain: decisions on fusion and matmuls in words. graphs: the CUDA graphs of `run`, if
    asked for.
    """

    loop: Graph
    fused: Graph
    program: Program
    host: Any
    run: Runner
    fusion: FusionReport
    fallbacks: tuple[Fallback, ...]
    matmuls: Mapping[str, gemm_templates.Choice]
    decided: Mapping[str, tuple[Decided, ...]]
    explain: Callable[[], str]
    record: Record
    graphs: GraphedCallable | None = None


def aligned_run(run: Runner, positions: list[int]) -> Runner:
    """`run`, with a copy in place of each argument at `positions` (which are only read) whose
    first element does not lie at a multiple of 16 bytes: tensor maps take no other address."""
    if not positions:
        return run

    def checked(*args: Any) -> Sequence[Any]:
        if any(args[i].data_ptr() % 16 for i in positions):
            fixed = list(args)
            for i in positions:
                if args[i].data_ptr() % 16:
                    like = args[i]
                    fixed[i] = torch.empty_strided(
                        like.shape, like.stride(), dtype=like.dtype, device=like.device
                    ).copy_(like)
            return run(*fixed)
        return run(*args)

    return checked


@dataclass
class CompiledModel:
    """What `compile_cli.compile` returns: call it like the model.

    Inputs must fit what was compiled: same nesting, constants, dtypes, ranks, devices, strides
    and static sizes; a dynamic size may be any that was proven. Anything else is a `BadInput`
    with the name of the input, never a wrong result. Parameters and buffers are those that the
    model had: values written into them are seen, a tensor put in their place (`weight.data = ...`,
    `model.half()`) is not.
    """

    captured: Captured
    graph: CompiledGraph
    prove: Callable[[tuple[Any, ...], dict[str, int]], str | None]
    _lifted: tuple[Tensor, ...] = ()
    _seen: set[tuple[Any, ...]] = field(default_factory=set)
    _plain_inputs: int = -1  # how many tensors, and nothing else, it takes
    _plain_result: bool = False

    def __post_init__(self) -> None:
        self._lifted = tuple(self.captured.lifted.values())
        captured = self.captured
        leaves = captured.in_spec.num_leaves
        if not captured.constants and captured.in_spec == _spec_of_tensors(leaves):
            self._plain_inputs = leaves
        self._plain_result = (
            captured.out_spec.num_leaves == 1
            and captured.out_spec == pytree.tree_structure(0)
            and captured.outputs == ((True, 0),)
        )

    def __call__(self, *args: Any) -> Any:
        if len(args) == self._plain_inputs and all(isinstance(a, Tensor) for a in args):
            # what flattening would find: most models take a few tensors
            flat, spec, tensors = args, self.captured.in_spec, args
        else:
            leaves, spec = pytree.tree_flatten((args, {}))
            flat = tuple(leaves)
            tensors = tuple(flat[i] for i in self.captured.tensor_inputs if i < len(flat))
        key = tuple(
            [
                (t.dtype, t.shape, t.stride(), t.device) if isinstance(t, Tensor) else type(t)
                for t in tensors
            ]
        )
        other = spec is not self.captured.in_spec and spec != self.captured.in_spec
        if key not in self._seen or self.captured.constants or other:
            self._check(args, flat, spec, tensors)
            self._seen.add(key)
        if torch.is_grad_enabled():
            with torch.no_grad():
                results = self.graph.run(*self._lifted, *tensors)
        else:
            results = self.graph.run(*self._lifted, *tensors)
        if self._plain_result:
            return results[0]
        captured = self.captured
        out = [results[value] if is_result else value for is_result, value in captured.outputs]
        return pytree.tree_unflatten(out, captured.out_spec)

    def _check(
        self,
        args: tuple[Any, ...],
        flat: Sequence[Any],
        spec: pytree.TreeSpec,
        tensors: Sequence[Any],
    ) -> None:
        if spec != self.captured.in_spec:
            raise BadInput(
                "the inputs are nested differently from those it was compiled for\n"
                f"  expected: {_describe(self.captured.in_spec)}\n  got:      {_describe(spec)}"
            )
        for position, value in self.captured.constants.items():
            if type(flat[position]) is not type(value) or flat[position] != value:
                raise BadInput(
                    f"input {self.captured.input_names[position]} is not the constant it was "
                    f"compiled for\n  expected: {value!r}\n  got:      {flat[position]!r}"
                )
        params = self.graph.program.params[len(self._lifted) :]
        names = [self.captured.input_names[i] for i in self.captured.tensor_inputs]
        sizes = check_tensors(params, names, tensors)
        unproven = {
            s.name: sizes[s.name]
            for s in self.graph.program.symbols
            if s.name in sizes
            and (sizes[s.name] < 2 or (s.high is not None and sizes[s.name] > s.high))
        }
        if unproven:
            problem = self.prove(args, unproven)
            if problem is not None:
                raise BadInput(
                    "a size of these inputs is not covered by what was compiled\n"
                    f"  got:   {', '.join(f'{k} = {v}' for k, v in unproven.items())}\n"
                    f"  why:   {problem}\n  to do: compile for these inputs"
                )


def _spec_of_tensors(count: int) -> pytree.TreeSpec:
    """The nesting of `count` positional tensors."""
    return pytree.tree_structure(((0,) * count, {}))


def _describe(spec: pytree.TreeSpec) -> str:
    return f"{spec.num_leaves} leaves, {spec}"


def check_tensors(
    params: Sequence[Param], names: Sequence[str], tensors: Sequence[Any]
) -> dict[str, int]:
    """Checks tensors against the declared parameters; returns the sizes that symbols stand for.

    Raises `BadInput` naming the input: dtype, rank, device, size, stride, alias of one symbol.
    """
    if len(params) != len(tensors):
        raise BadInput(f"expected {len(params)} tensor inputs, got {len(tensors)}")
    env: dict[str, int] = {}
    for param, name, tensor in zip(params, names, tensors, strict=True):
        expected = param.type
        assert expected is not None
        if not isinstance(tensor, Tensor):
            raise _mismatch(name, "kind", "a tensor", type(tensor).__name__)
        dtype = IR_DTYPE.get(tensor.dtype)
        if dtype != expected.dtype:
            got = tensor.dtype if dtype is None else dtype.value
            raise _mismatch(name, "dtype", expected.dtype.value, got)
        if tensor.dim() != len(expected.size):
            shape = f"rank {len(expected.size)}"
            raise _mismatch(name, "rank", shape, f"rank {tensor.dim()} {list(tensor.shape)}")
        device = str(expected.device)
        if str(tensor.device) != device:
            raise _mismatch(name, "device", device, tensor.device)
        for size, n in zip(expected.size, tensor.shape, strict=True):
            if size.is_Symbol:
                env.setdefault(str(size), int(n))
    for param, name, tensor in zip(params, names, tensors, strict=True):
        expected = param.type
        assert expected is not None
        sizes = [int(evaluate(n, env)) for n in expected.size]
        if sizes != list(tensor.shape):
            text = f"[{', '.join(sstr(n) for n in expected.size)}]"
            where = f" = {sizes}" if any(n.free_symbols for n in expected.size) else ""
            raise _mismatch(name, "size", text + where, list(tensor.shape))
        strides = [int(evaluate(n, env)) for n in expected.stride]
        for n, want, got in zip(sizes, strides, tensor.stride(), strict=True):
            if n > 1 and want != got and 0 not in sizes:
                raise _mismatch(name, "stride", strides, list(tensor.stride()))
    return env


def _mismatch(name: str, what: str, expected: Any, got: Any) -> BadInput:
    return BadInput(
        f"input {name} has another {what} than it was compiled for\n"
        f"  expected: {expected}\n  got:      {got}\n"
        "  to do: convert the input, or compile for inputs like this one"
    )
