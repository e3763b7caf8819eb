"""The backward half of a graph as autograd calls it: for batches of gradients, and for gradients
that are to be differentiated, and in `torch.autocast`."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from compile_cli import torch_compat as compat
from compile_cli.errors import NoSecondDerivative

Boxed = Callable[[list[Any]], Sequence[Any]]


class Backward:
    """`run`, of a list of what forward kept and of gradients, which are at `tangents`.

    It is called once for each of a batch of gradients (`torch.autograd.grad` with
    `is_grads_batched=True`), which no kernel could read, and its results are a batch, too.
    `create_graph=True` is refused: torch would take the results for constants, and what is summed
    with their derivatives would silently lack these. (Where forward kept an input that requires a
    gradient, torch refuses itself, once a result is differentiated.)"""

    def __init__(self, run: Boxed, tangents: Sequence[int]) -> None:
        self._run, self._tangents = run, tangents

    def __call__(self, *args: Any) -> Sequence[Any]:
        return self.boxed(list(args))

    def boxed(self, args: list[Any]) -> Sequence[Any]:
        """The results for a list, which is emptied."""
        if torch.is_grad_enabled() and self._depends(args):
            raise NoSecondDerivative
        if compat.autocast_on():  # forward was not compiled for it, else AOTAutograd turns it off
            with compat.without_autocast():
                return self.boxed(args)
        batches = [i for i in self._tangents if not compat.has_memory(args[i])]
        return self._each(args, batches) if batches else self._run(args)

    def _depends(self, args: Sequence[Any]) -> bool:
        """Whether gradients depend on numbers that forward kept: else they are linear, and have no
        derivative by what they are gradients by."""
        kept = (x for i, x in enumerate(args) if i not in self._tangents)
        tensors = (x for x in kept if isinstance(x, torch.Tensor))
        return any(x.is_floating_point() or x.is_complex() for x in tensors)

    def _each(self, args: list[Any], batches: Sequence[int]) -> list[Any]:
        rows = []
        for gradients in zip(*(compat.of_batch(args[i]) for i in batches), strict=True):
            given = list(args)  # both hold what forward kept, so that it is not written to
            for i, gradient in zip(batches, gradients, strict=True):
                given[i] = gradient
            with compat.outside_of_batches():
                made = self._run(given)
            rows.append([x.clone() if isinstance(x, torch.Tensor) else x for x in made])
        args.clear()
        return [
            compat.as_batch(torch.stack(made)) if isinstance(made[0], torch.Tensor) else made[0]
            for made in zip(*rows, strict=True)
        ]
