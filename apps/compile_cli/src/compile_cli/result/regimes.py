"""One compilation of a model, and the inputs that it is right for.

Capturing a model decides every question that it asks about a size, for the example's sizes: the
answers are the conditions of the graph. Sizes that meet them all are covered. A size of 0 or 1
never is, since capturing takes a dynamic size to be at least 2: there, and where a condition does
not hold, the graph has to be proven (`compile_cli.result.proof`) or another regime be compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.utils._pytree as pytree
from torch import Tensor

from compile_cli.capture import Captured, share_elements
from compile_cli.errors import BadInput
from compile_cli.result.compiled import CompiledGraph
from compile_cli.torch_compat import FakeTensor
from fx_emit import IR_DTYPE
from symexpr import SymexprError, evaluate, sstr
from wrapper_ir import Param
from wrapper_ir.analysis import sizes_of_params


@dataclass(frozen=True)
class Regime:
    """A captured graph, compiled."""

    captured: Captured
    graph: CompiledGraph
    lifted: tuple[Tensor, ...] = field(init=False)
    plain_result: bool = field(init=False)
    written: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        captured = self.captured
        plain = (
            captured.out_spec.num_leaves == 1
            and captured.out_spec == pytree.tree_structure(0)
            and captured.outputs == ((True, 0),)
            and not captured.windows
        )
        object.__setattr__(self, "lifted", tuple(captured.lifted.values()))
        object.__setattr__(self, "plain_result", plain)
        object.__setattr__(self, "written", captured.written)

    @property
    def params(self) -> tuple[Param, ...]:
        """What the host program says of the caller's tensors."""
        return self.graph.program.params[len(self.lifted) :]

    @property
    def names(self) -> list[str]:
        """The names of the caller's tensors, in the order of the graph's inputs."""
        return [self.captured.input_names[i] for i in self.captured.tensor_inputs]

    @property
    def dynamic(self) -> list[set[int]]:
        """The dimensions of each tensor that may differ between calls."""
        types = [p.type for p in self.params]
        return [
            {d for d, n in enumerate(t.size) if n.free_symbols} if t is not None else set()
            for t in types
        ]

    def runs(self, sizes: dict[str, int]) -> bool:
        """Whether the host program takes these values of its symbols at all."""
        return all(
            (s.low is None or sizes[s.name] >= s.low)
            and (s.high is None or sizes[s.name] <= s.high)
            for s in self.graph.program.symbols
            if s.name in sizes
        )

    def covers(self, sizes: dict[str, int]) -> bool:
        """Whether capturing the model for these sizes is known to give this graph."""
        bound = sizes_of_params(self.graph.program)
        plain = all(sizes.get(op.symbol, 0) >= 2 for op in bound)
        return plain and self.runs(sizes) and self.graph.conditions.hold(sizes)

    def call(self, tensors: Sequence[Any]) -> Any:
        """Runs the host program; results nested as the model's."""
        if self.written:
            self.check_apart((*self.lifted, *tensors))
        results: Any = self.graph.run(*self.lifted, *tensors)
        if self.plain_result:
            return results[0]
        captured = self.captured
        if captured.windows:
            seen = captured.windows.items()
            results = dict(enumerate(results)) | {i: w.of(results[i]) for i, w in seen}
        out = [results[value] if is_result else value for is_result, value in captured.outputs]
        return pytree.tree_unflatten(out, captured.out_spec)

    def check_apart(self, tensors: Sequence[Tensor]) -> None:
        """Raises `BadInput` where memory that the model writes belongs to another input, or
        parameter, too: it was captured with each in memory of its own."""
        starts = [t.untyped_storage().data_ptr() for t in tensors]
        for i in self.written:
            for j, start in enumerate(starts):
                if start == starts[i] and i != j and share_elements(tensors[i], tensors[j]):
                    names = [*self.captured.lifted, *self.names]
                    raise BadInput(
                        f"inputs {names[i]} and {names[j]} share memory, and the model writes to "
                        f"{names[i]}\n  to do: pass a clone() of one of them"
                    )


def check_kinds(
    params: Sequence[Param], names: Sequence[str], tensors: Sequence[Any], dynamic: list[set[int]]
) -> None:
    """Raises `BadInput`, naming the input, for another kind, dtype, rank, device or static size
    than declared. dynamic: the dimensions of each tensor that may differ."""
    if len(params) != len(tensors):
        raise BadInput(f"expected {len(params)} tensor inputs, got {len(tensors)}")
    for param, name, tensor, free in zip(params, names, tensors, dynamic, strict=True):
        expected = param.type
        assert expected is not None
        if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor):
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
        for dim, (size, n) in enumerate(zip(expected.size, tensor.shape, strict=True)):
            if dim not in free and size != n:
                text = f"[{', '.join(sstr(n) for n in expected.size)}]"
                raise _mismatch(name, "size", text, list(tensor.shape))


def check_lazy_bits(
    examples: Sequence[Tensor], names: Sequence[str], tensors: Sequence[Tensor]
) -> None:
    """Raises `BadInput`, naming the input, for one that is lazily conjugated or negated where the
    example was not, or the reverse."""
    for name, example, tensor in zip(names, examples, tensors, strict=True):
        expected, got = (f"conj={t.is_conj()} neg={t.is_neg()}" for t in (example, tensor))
        if expected != got:
            raise _mismatch(name, "lazy conjugation or negation", expected, got)


def sizes_of(regime: Regime, tensors: Sequence[Tensor]) -> dict[str, int] | None:
    """What the symbols stand for in tensors of the declared kinds; None where their sizes are not
    the declared expressions of any values."""
    params = regime.params
    given = {param.name: tensor for param, tensor in zip(params, tensors, strict=True)}
    env: dict[str, int] = {}
    for op in sizes_of_params(regime.graph.program):
        env[op.symbol] = op.value(given[op.tensor].shape, given[op.tensor].stride())
    try:
        for param, tensor in zip(params, tensors, strict=True):
            assert param.type is not None
            if [int(evaluate(n, env)) for n in param.type.size] != list(tensor.shape):
                return None
    except SymexprError:
        return None
    return env


def check_strides(
    params: Sequence[Param], names: Sequence[str], tensors: Sequence[Tensor], env: dict[str, int]
) -> None:
    """Raises `BadInput`, naming the input, for strides other than declared. Those of dimensions of
    at most one element do not count."""
    for param, name, tensor in zip(params, names, tensors, strict=True):
        assert param.type is not None
        strides = [int(evaluate(n, env)) for n in param.type.stride]
        for n, want, got in zip(tensor.shape, strides, tensor.stride(), strict=True):
            if n > 1 and want != got and 0 not in tensor.shape:
                raise _mismatch(name, "stride", strides, list(tensor.stride()))


def _mismatch(name: str, what: str, expected: Any, got: Any) -> BadInput:
    return BadInput(
        f"input {name} has another {what} than it was compiled for\n"
        f"  expected: {expected}\n  got:      {got}\n"
        "  to do: convert the input, or compile for inputs like this one"
    )
