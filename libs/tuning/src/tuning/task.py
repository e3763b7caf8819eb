"""One tuning: what is measured, and the tensors that it touches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from triton_rt import Binary, LazyKernel, flatten
from triton_rt.errors import TritonRTError
from tuning.options import Grid, Options

#: Candidates as their compilation ends, of those with the indices given.
Ready: TypeAlias = Callable[[Sequence[int]], Iterator[tuple[int, Binary | TritonRTError]]]


@dataclass(frozen=True)
class Task:
    """The candidates of one call, and the arguments, on `device`, that all of them take."""

    candidates: Sequence[tuple[LazyKernel, Grid]]
    args: Sequence[Any]
    device: torch.device
    options: Options

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments."""
        return tensors_of(self.args)

    def outputs(self, only: Sequence[str] | None = None) -> list[torch.Tensor]:
        """The tensors of parameters that some candidate mutates, each once; of parameters named in
        `only`, if given."""
        found: dict[int, torch.Tensor] = {}
        flat = flatten(self.args)
        for kernel, _ in self.candidates:
            for i, (param, arg) in enumerate(zip(kernel.source.params, flat, strict=True)):
                tensor = _tensor_of(arg)
                if param.mutated and tensor is not None and (only is None or param.name in only):
                    found[i] = tensor
        return list(found.values())


def tensors_of(args: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among the arguments of a launch, those under descriptors included."""
    return [t for t in map(_tensor_of, flatten(args)) if t is not None]


def _tensor_of(arg: Any) -> torch.Tensor | None:
    """The tensor of an argument: itself, or the one under a descriptor (its `base`, or that one's
    `owner`)."""
    for _ in range(3):
        if isinstance(arg, torch.Tensor):
            return arg
        arg = getattr(arg, "base", getattr(arg, "owner", None))
    return None
