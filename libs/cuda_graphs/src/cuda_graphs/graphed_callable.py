"""CUDA graphs of a callable: one for each layout of its arguments, or each bucket of sizes.

A graph replays launches with the addresses that were captured. So an argument is either captured
in place, and then must come at the same address each time, or is copied into a buffer of the
graph's own before every replay. Which one is decided by looking: what stays at its address is
captured in place, what moves is copied. `GraphedCallable.explain()` says what was decided, and why.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch

from cuda_graphs.arguments import (
    addresses_of,
    global_state,
    is_counted,
    label_of,
    name_arguments,
    same_tensors,
    share_memory,
    why_attached,
    why_unhashable,
    why_unusable,
)
from cuda_graphs.buckets import Buckets
from cuda_graphs.errors import GraphError
from cuda_graphs.graph_pool import GraphPool, Recorder
from cuda_graphs.results import Lending, Results
from cuda_graphs.slots import Again, Places, SameTensors, Slot

# How often a graph is captured again because a later one lends what it may not write to.
MOST = 8


class GraphedCallable:
    """`graphed(*args)`: as `fn(*args)`, replayed from a CUDA graph from the second call on.

    Arguments are tensors of one GPU, captured in place or copied (see the module), and other
    hashable values, for each combination of which there is a graph. With `buckets`, sizes of a
    dimension share graphs. The first call of a layout runs `fn` itself and watches: which inputs it
    mutates (also named by `mutated`, which kernels outside of torch need), and where they lie; with
    buckets a call on padded copies comes instead. At most `max_graphs` are kept, the least recently
    used goes first; their memory is that of `pool`.

    Results are copies. With `lending` some lie in the graphs' memory, and a call while the caller
    holds one of these, or a view of it, runs `fn` itself. `fn` must do the same GPU work each time
    and not wait for the GPU; what cannot be captured runs as it is, and `explain()` says why. `fn`
    and tensors that it closes over must stay alive and in place.

    Without gradients, a call like one before it is found so by one call of what `same` gives for
    tensors and the positions of those that must not move; `triton_rt.same_tensors` does it in C."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        buckets: Buckets | None = None,
        pool: GraphPool | None = None,
        mutated: Sequence[int] = (),
        lending: Lending | None = None,
        max_graphs: int = 16,
        recorder: Recorder | None = None,
        same: SameTensors = same_tensors,
    ) -> None:
        self.fn = fn
        self.buckets = buckets
        self.lending = lending or Lending()
        if self.lending.positions and pool is not None:
            raise GraphError(
                "results are lent from the pool of the loans: others would write to it"
            )
        self.pool = pool or self.lending.loans.pool
        self.mutated = frozenset(mutated)
        self.max_graphs = max_graphs
        self._recorder: Recorder = recorder or self.pool
        self._same = same
        self._slots: OrderedDict[tuple[Hashable, Places], Slot] = OrderedDict()
        self._known: list[Slot] = []  # in the same order: to look at a key costs more than a call
        self._eager: dict[str, int] = {}
        self._evicted = 0

    def __call__(self, *args: Any) -> Any:
        """One call. Raises what `fn` does, and `GraphError` for arguments against the buckets."""
        return self._call(args)

    def boxed(self, args: list[Any]) -> Any:
        """The results for a list, which is emptied."""
        try:
            return self._call(args)
        finally:
            args.clear()

    def _call(self, args: Sequence[Any]) -> Any:
        with self.pool.lock:
            for slot in reversed(self._known):
                if slot.again is not None and slot.again.fits(args) and not self._recorder.busy():
                    if slot.results is None or self.lending.loans.held(slot.results):
                        break
                    return self._replayed(slot, slot.again, args)
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            why = self._recorder.refuses(tensors)
            size = bucket = None
            if why is None and self.buckets is not None:
                size = self.buckets.size_of(args)
                bucket = self.buckets.bucket(size)
                if bucket is None:
                    why = f"size {size} is past the last bucket, {self.buckets.sizes[-1]}"
                elif size == 0:
                    why = "size 0 is empty"
            if why is None and self.mutated and share_memory(args):
                why = "two arguments share memory, and one is mutated"
            if why is None:
                why = why_unhashable(args)
            if why is not None:
                self._eager[why] = self._eager.get(why, 0) + 1
                return self.fn(*args)
            slot = self._slot(args, bucket)
            return self._run(slot, args, size)

    def explain(self) -> str:
        """What was captured, what is copied and why, what was captured again, what has no graph."""
        lines = []
        for slot in self._slots.values():
            state = f"no graph: {slot.eager}" if slot.eager else f"{slot.replays} replays"
            if not slot.eager and slot.recording is None:
                state = "called once; captured at the next call"
            lines.append(f"{slot.label}: {state}")
            if slot.recording is not None:
                tensors = [i for i, a in enumerate(slot.addresses) if a is not None]
                place = [i for i in tensors if i not in slot.copied]
                if place:
                    lines.append(f"  in place: {', '.join(f'argument {i}' for i in place)}")
                for i, why in sorted(slot.copied.items()):
                    size = slot.statics[i].nbytes
                    lines.append(f"  argument {i} is copied, {size} bytes: {why}")
                if slot.mutated:
                    names = ", ".join(f"argument {i}" for i in sorted(slot.mutated))
                    lines.append(f"  mutated: {names}")
                lines.append(f"  {slot.copies} copies made in all")
            lines += [f"  {event}" for event in slot.history]
        lines += [f"{count} calls without a graph: {why}" for why, count in self._eager.items()]
        if self._evicted:
            lines.append(f"{self._evicted} graphs dropped: more than {self.max_graphs} layouts")
        return "\n".join(lines) or "not called yet"

    def clear(self) -> None:
        """Drops all graphs and their buffers."""
        with self.pool.lock:
            for slot in self._slots.values():
                self._release(slot)
            self._slots.clear()

    def _slot(self, args: Sequence[Any], bucket: int | None) -> Slot:
        key = self._key(args, bucket)
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= self.max_graphs:
                self._release(self._slots.popitem(last=False)[1])
                self._evicted += 1
            slot = self._slots[key] = Slot(
                key, label_of(args, bucket), bucket, addresses_of(args), set(self.mutated)
            )
            self._follow(slot)
        self._slots.move_to_end(key)
        return slot

    def _follow(self, slot: Slot) -> None:
        """A layout that was seen before, with other arguments lent, needs no other look: what a
        graph lends to the next is captured there in the call in which it is captured itself."""
        seen = next(
            (s for s in self._slots.values() if s.key[0] == slot.key[0] and s is not slot), None
        )
        if seen is None or not seen.warm or seen.recording is not None:
            return
        slot.warm, slot.mutated, slot.eager = True, seen.mutated, seen.eager
        both = zip(slot.addresses, seen.addresses, slot.key[1], strict=True)
        slot.addresses = [now if lent is not None else known for now, known, lent in both]
        del self._slots[seen.key]

    def _key(self, args: Sequence[Any], bucket: int | None) -> tuple[Hashable, Places]:
        padded = {} if self.buckets is None else self.buckets.inputs
        out: list[Hashable] = [bucket, *global_state()]
        for i, a in enumerate(args):
            if not isinstance(a, torch.Tensor):
                out.append((type(a), a))
            elif i in padded:
                shape = list(a.shape)
                shape[padded[i]] = -1
                out.append((tuple(shape), a.dtype, a.device))
            else:
                out.append((a.shape, a.stride(), a.dtype, a.device))
        known = addresses_of(args)
        return tuple(out), tuple(a if a in self.lending.loans else None for a in known)

    def _run(self, slot: Slot, args: Sequence[Any], size: int | None) -> Any:
        if slot.eager:
            return self.fn(*args)
        if slot.recording is None and not slot.warm and slot.bucket is None:
            slot.warm = True
            return self._watch(slot, args)
        if slot.mutated and share_memory(args):
            slot.history.append("a call ran without the graph: arguments share memory")
            return self.fn(*args)
        self._recorder.order(next(a.device for a in args if isinstance(a, torch.Tensor)))
        self._decide(slot, args)
        if slot.results is not None and self.lending.loans.held(slot.results):
            if slot.results.held() or slot.overtaken == MOST:
                why = "results that an earlier call lent are held"
                self._eager[why] = self._eager.get(why, 0) + 1
                return self.fn(*args)
            slot.overtaken += 1
            slot.history.append("captured again: what a later graph lent was held")
            self._release(slot)
        if slot.recording is None and not self._capture(slot, args, size):
            return self.fn(*args)
        assert slot.recording is not None
        self._copy_in(slot, args, size)
        slot.recording.replay()
        slot.replays += 1
        if slot.again is None:
            slot.again = Again.of(slot, args, self._same)
            self._known = [s for s in self._slots.values() if s.again is not None]
        for i in slot.mutated & slot.copied.keys():
            args[i].copy_(self._cut(slot.statics[i], i, size))
        return self._results(slot, args, size)

    def _replayed(self, slot: Slot, again: Again, args: Sequence[Any]) -> Any:
        """A call like the last one of this layout."""
        assert slot.recording is not None
        if self._known[-1] is not slot:
            self._known.append(self._known.pop(self._known.index(slot)))
            self._slots.move_to_end(slot.key)
        self._recorder.order(args[again.tensors[0]].device)
        if again.moved:
            torch._foreach_copy_(again.buffers, [args[i] for i in again.moved])
            slot.copies += len(again.moved)
        assert slot.results is not None
        slot.recording.replay()
        slot.replays += 1
        return slot.results.give(args)

    def _watch(self, slot: Slot, args: Sequence[Any]) -> Any:
        """The first call: eager; notes which arguments it mutates."""
        versions = [a._version if is_counted(a) else None for a in args]
        out = self.fn(*args)
        slot.mutated |= {
            i for i, v in enumerate(versions) if v is not None and args[i]._version != v
        }
        slot.eager = why_attached(out)
        return out

    def _decide(self, slot: Slot, args: Sequence[Any]) -> None:
        """Copies from now on what is no longer where it was captured."""
        padded = {} if self.buckets is None else self.buckets.inputs
        for i, (known, now) in enumerate(zip(slot.addresses, addresses_of(args), strict=True)):
            if i in slot.copied or now is None:
                continue
            if i in padded:
                slot.copied[i] = f"it is padded to {slot.bucket}"
            elif known != now:
                slot.copied[i] = f"it moved from {known:#x} to {now:#x}"
                if slot.recording is not None:
                    slot.history.append(f"captured again: argument {i} moved; copied from now on")
                    self._release(slot)

    def _capture(self, slot: Slot, args: Sequence[Any], size: int | None) -> bool:
        slot.statics = [
            self._buffer(a, i, slot.bucket) if i in slot.copied else a for i, a in enumerate(args)
        ]
        try:
            if not slot.warm:
                self._warm_up(slot, args, size)
            if not slot.eager:
                recording = self._recorder.record(self.fn, slot.statics)
                outputs = name_arguments(recording.outputs, slot.statics)
                slot.recording = replace(recording, outputs=outputs)
                slot.eager = why_unusable(outputs, slot.statics)
        except RuntimeError as error:
            # Torch and CUDA say in many ways that something cannot be captured: none is fatal,
            # since the call can run without a graph.
            slot.eager = f"capture failed: {str(error).splitlines()[0]}"
        if slot.eager or slot.recording is None:
            self._release(slot)
            return False
        cut = self.buckets is not None
        slot.results = Results.of(slot.recording.outputs, self.lending.positions, cut)
        self.lending.loans.begin(slot.results)
        # What is captured in place is known by its address alone: this must not keep it alive.
        slot.statics = [
            a if i in slot.copied or not isinstance(a, torch.Tensor) else None
            for i, a in enumerate(slot.statics)
        ]
        return True

    def _warm_up(self, slot: Slot, args: Sequence[Any], size: int | None) -> None:
        """One call on the padded buffers, so that nothing is compiled or tuned while capturing."""
        self._copy_in(slot, args, size)
        place = [i for i, a in enumerate(slot.addresses) if a is not None and i not in slot.copied]
        saved = {i: slot.statics[i].clone() for i in place if i in slot.mutated}
        versions = [a._version if is_counted(a) else None for a in slot.statics]
        slot.eager = why_attached(self.fn(*slot.statics))
        changed = {
            i for i, v in enumerate(versions) if v is not None and slot.statics[i]._version != v
        }
        for i, value in saved.items():
            slot.statics[i].copy_(value)
        unsaved = changed & set(place) - saved.keys()
        if unsaved:
            raise GraphError(
                f"argument {min(unsaved)} is mutated, which must be said when there are buckets: "
                f"GraphedCallable(..., mutated={tuple(sorted(changed | slot.mutated))})"
            )
        slot.mutated |= changed
        slot.warm = True

    def _buffer(self, arg: torch.Tensor, position: int, bucket: int | None) -> torch.Tensor:
        if bucket is None or self.buckets is None or position not in self.buckets.inputs:
            return torch.empty_like(arg)
        shape = list(arg.shape)
        shape[self.buckets.inputs[position]] = bucket
        return torch.zeros(shape, dtype=arg.dtype, device=arg.device)

    def _copy_in(self, slot: Slot, args: Sequence[Any], size: int | None) -> None:
        for i in slot.copied:
            buffer = self._cut(slot.statics[i], i, size)
            if buffer.data_ptr() != args[i].data_ptr():
                buffer.copy_(args[i])
                slot.copies += 1

    def _cut(self, buffer: torch.Tensor, position: int, size: int | None) -> torch.Tensor:
        if self.buckets is None or size is None or position not in self.buckets.inputs:
            return buffer
        return buffer.narrow(self.buckets.inputs[position], 0, size)

    def _results(self, slot: Slot, args: Sequence[Any], size: int | None) -> Any:
        assert slot.results is not None
        if self.buckets is None:
            return slot.results.give(args)
        dims = self.buckets.outputs

        def cut(position: int, value: torch.Tensor) -> torch.Tensor:
            return value.narrow(dims[position], 0, size or 0) if position in dims else value

        return slot.results.give(args, cut)

    def _release(self, slot: Slot) -> None:
        if slot.results is not None:
            self.lending.loans.end(slot.results)
        slot.release()
