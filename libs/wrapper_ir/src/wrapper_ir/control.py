"""What a `DefineControl` means, for tensors of any kind: the one statement of it, which the
interpreter and the emitters share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wrapper_ir.ops import DefineControl

Function = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Steps:
    """What a `scan` does with tensors. at: a view of one step of the first dimension. new: memory
    for so many tensors like one, along a new first dimension. copy: from a tensor to another."""

    at: Callable[[Any, int], Any]
    new: Callable[[Any, int], Any]
    copy: Callable[[Any, Any], Any]

    def put(self, parts: Sequence[Any], stacks: Sequence[Any], i: int) -> None:
        """Copies a part to a step of each stack."""
        for part, stack in zip(parts, stacks, strict=True):
            self.copy(part, self.at(stack, i))

    def clone(self, tensor: Any) -> Any:
        """The same in memory of its own."""
        out = self.at(self.new(tensor, 1), 0)
        self.copy(tensor, out)
        return out


def run_control(
    op: DefineControl, functions: Sequence[Function], args: Sequence[Any], steps: Steps
) -> tuple[Any, ...]:
    """The results of a call. functions: the subgraphs of `op`, each of which gives tensors of its
    own. A predicate is asked for its truth, what a scan runs over for its `shape`."""
    if op.form == "if":
        return tuple(functions[0 if args[0] else 1](*args[1:]))
    given, rest = args[: op.carries], args[op.carries :]
    carried, stacks = given, list[Any]()
    if op.form in ("while", "trace"):
        seen = []
        while functions[0](*carried, *rest)[0]:
            carried = functions[1](*carried, *rest)
            seen.append(carried if op.form == "trace" else ())
        if op.form == "trace":
            stacks = [steps.new(x, len(seen)) for x in given]
            for i, parts in enumerate(seen):
                steps.put(parts, stacks, i)
            return tuple(stacks)
    else:
        over, rest = rest[: op.over], rest[op.over :]
        count = over[0].shape[0]
        for i in range(count):
            results = functions[0](*carried, *(steps.at(x, i) for x in over), *rest)
            carried, parts = results[: op.carries], results[op.carries :]
            stacks = stacks or [steps.new(part, count) for part in parts]
            steps.put(parts, stacks, i)
    if carried is given:  # nothing ran: these belong to the caller
        carried = [steps.clone(x) for x in carried]
    return (*carried, *stacks)
