"""A compiled model: checks each call's inputs, finds what serves their sizes, runs it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from compile_cli import torch_compat as compat
from compile_cli.capture import Captured
from compile_cli.errors import BadInput, CompileFailed
from compile_cli.result.compiled import CompiledGraph
from compile_cli.result.recapture import CAPTURING, Source, unchanged
from compile_cli.result.regimes import Regime, check_kinds, check_lazy_bits, check_strides, sizes_of
from symexpr import sstr

# Compilations of one model for different sizes, at most: what needs more is not dynamic.
MAX_REGIMES = 8


@dataclass
class CompiledModel:
    """What `compile_cli.compile` returns: call it like the model.

    Inputs must fit what was compiled: same nesting, constants, dtypes, ranks, devices, strides
    and static sizes. Dynamic sizes may be any that the model takes: those that the compilation
    covers, or is proven to be right for, run it; for others the model is compiled again, up to
    `MAX_REGIMES` times. Anything else is a `BadInput` with the name of the input, never a wrong
    result. In `torch.autocast` it runs as it was compiled. Parameters and buffers are those that
    the model had: values written into them are seen, a tensor put in their place (`weight.data =
    ...`, `model.half()`) is not."""

    regimes: list[Regime]
    source: Source
    _seen: dict[tuple[Any, ...], Regime] = field(default_factory=dict)
    _plain_inputs: int = -1  # how many tensors, and nothing else, it takes

    def __post_init__(self) -> None:
        captured = self.captured
        leaves = captured.in_spec.num_leaves
        if not captured.constants and captured.in_spec == _spec_of_tensors(leaves):
            self._plain_inputs = leaves

    @property
    def captured(self) -> Captured:
        """The graph for the example inputs."""
        return self.regimes[0].captured

    @property
    def graph(self) -> CompiledGraph:
        """What it was compiled to."""
        return self.regimes[0].graph

    @property
    def fixed(self) -> tuple[str, ...]:
        """Dimensions that were to be dynamic (`x.0`) and whose values the model itself needs."""
        first = self.regimes[0]
        asked = (self.source.dynamic.get(i, set()) for i in self.captured.tensor_inputs)
        found = zip(first.names, asked, first.dynamic, strict=True)
        return tuple(f"{name}.{d}" for name, dims, own in found for d in sorted(dims - own))

    def __call__(self, *args: Any) -> Any:
        if (compat.dual_level() or compat.in_transform()) and any(
            map(compat.is_transformed, pytree.tree_leaves(args))
        ):
            raise BadInput(
                "a compiled model has no derivatives and takes no batches of vmap\n"
                "  to do: compile the function that calls the transform (torch.func.jvp, grad, "
                'vmap) of the model, or use torch.compile(model, backend="compile_cli")'
            )
        if compat.in_transform():  # of other tensors
            with compat.without_transforms():
                return self(*args)
        if compat.fakes_on():
            raise BadInput("a compiled model runs on memory, and fake tensors have none")
        if compat.autocast_on():
            with compat.without_autocast():
                return self(*args)
        captured = self.captured
        if len(args) == self._plain_inputs and all(isinstance(a, Tensor) for a in args):
            # what flattening would find: most models take a few tensors
            flat, spec, tensors = args, captured.in_spec, args
        else:
            leaves, spec = pytree.tree_flatten((args, {}))
            flat = tuple(leaves)
            tensors = tuple(flat[i] for i in captured.tensor_inputs if i < len(flat))
        key = tuple(
            [
                (type(t), t.dtype, t.shape, t.stride(), t.device, t.is_conj(), t.is_neg())
                if isinstance(t, Tensor)
                else type(t)
                for t in tensors
            ]
        )
        regime = self._seen.get(key)
        other = spec is not captured.in_spec and spec != captured.in_spec
        if regime is None or captured.constants or other:
            self._check(flat, spec, tensors)
            if regime is None:
                regime = self._seen[key] = self._serving(args, tensors)
        if torch.is_grad_enabled():
            with torch.no_grad():
                return regime.call(tensors)
        return regime.call(tensors)

    def _check(self, flat: Sequence[Any], spec: pytree.TreeSpec, tensors: Sequence[Any]) -> None:
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
        first = self.regimes[0]
        check_kinds(first.params, first.names, tensors, self._dynamic)
        check_lazy_bits(first.captured.tensors[len(first.lifted) :], first.names, tensors)

    @property
    def _dynamic(self) -> list[set[int]]:
        """The dimensions of each tensor that may differ between calls."""
        asked = (self.source.dynamic.get(i, set()) for i in self.captured.tensor_inputs)
        return [own | also for own, also in zip(self.regimes[0].dynamic, asked, strict=True)]

    def _serving(self, args: tuple[Any, ...], tensors: Sequence[Tensor]) -> Regime:
        """The regime for these inputs, which have the kinds it was compiled for."""
        regime = self._covering(tensors)
        if regime is not None:
            return regime
        with CAPTURING:
            regime = self._covering(tensors)  # another thread may have compiled it
            if regime is not None:
                return regime
            try:
                exact = self.source.exact(args)
            except CompileFailed as error:
                lines = [n for n in str(error).splitlines() if not n.startswith("  to do")]
                raise self._refused(tensors, "\n  ".join(lines)) from error
            why = None
            for regime in self.regimes:
                sizes = sizes_of(regime, tensors)
                if sizes is not None and regime.runs(sizes):
                    why = unchanged(regime.captured, exact, sizes)
                    if why is None:
                        return regime
            if len(self.regimes) > MAX_REGIMES:
                why = f"it was compiled for {len(self.regimes)} ranges of sizes already; {why}"
                raise self._refused(tensors, why)
            self.regimes.append(self.source.regime(args))
            return self.regimes[-1]

    def _covering(self, tensors: Sequence[Tensor]) -> Regime | None:
        for regime in self.regimes:
            sizes = sizes_of(regime, tensors)
            if sizes is not None:
                check_strides(regime.params, regime.names, tensors, sizes)
                if regime.covers(sizes):
                    return regime
        return None

    def _refused(self, tensors: Sequence[Tensor], why: str) -> BadInput:
        first = self.regimes[0]
        got = []
        for param, name, tensor in zip(first.params, first.names, tensors, strict=True):
            assert param.type is not None
            declared = ", ".join(sstr(n) for n in param.type.size)
            got.append(f"{name}[{declared}] = {list(tensor.shape)}")
        return BadInput(
            "a size of these inputs is not covered by what was compiled\n"
            f"  got:   {'; '.join(got)}\n  why:   {why}\n"
            "  to do: compile for these inputs"
        )


def _spec_of_tensors(count: int) -> pytree.TreeSpec:
    """The nesting of `count` positional tensors."""
    return pytree.tree_structure(((0,) * count, {}))


def _describe(spec: pytree.TreeSpec) -> str:
    return f"{spec.num_leaves} leaves, {spec}"
