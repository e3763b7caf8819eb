"""The user's own Triton kernels: a launch of the host program, its config chosen by measuring.

`UserKernel` (kernel, grids, arguments) -> `DefineKernel` with the kernel's source + `Launch`, and
a `Describe` for each tensor and block that it takes as a TMA descriptor.
An autotuned kernel whose `key` names a dynamic size is measured at two sizes; where they want
different configs the nearest is picked at run time, by integer comparison.

What a `Launch` cannot say becomes a call of an operator made for it, and is reported: a launch
option, or a kernel whose text does not stand alone, goes to the user's object, and Triton; a store
at an edge where Triton's own launch would write too much, through triton_rt."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import sympy
import torch

import triton_rt
import tuning
from aten_lowering import Fallback, KernelObject, run_captured
from loop_ir import Extern, Graph, GraphArg, TensorRef, UserKernel
from loop_ir.ir import hints_of
from multikernel import compare_chain
from planner.errors import UserKernelFailed
from planner.kernels import Kernels
from planner.plan import Blocks, LaunchArg, LaunchPlan, NodePlan
from planner.select import HINT_RATIO
from planner.settings import Settings
from planner.tensors import Buffers
from planner.torch_compat import unset_fake_temporarily
from planner.user_kernels.calls import Call, call_of
from planner.user_kernels.operators import launching_operator
from planner.user_kernels.sources import Unsaid, alias
from symexpr import Mod, Ranges, evaluate, known, parse, symbol
from triton_rt.errors import TritonRTError, WorkerFailed
from wrapper_ir import DefineKernel


@dataclass
class UserKernelPlanner:
    """Plans of the `UserKernel` nodes of one graph.

    chosen: for an autotuned kernel, by node (and the size, where it is measured at two), the index
    of its config and the milliseconds of all (nothing where they were not measured)."""

    options: Settings
    kernels: Kernels
    graph: Graph
    table: Mapping[str, KernelObject]
    chosen: dict[str, tuple[int, tuple[float, ...]]] = field(default_factory=dict)
    _notes: list[Fallback] = field(default_factory=list)

    def __call__(self, node: UserKernel, hints: Mapping[str, int]) -> NodePlan:
        """The plan of a launch. Raises `UserKernelFailed` where none of its forms can run here."""
        self._notes = []
        plan = self._plan(node, hints)
        return replace(plan, fallbacks=tuple(self._notes))

    def _plan(self, node: UserKernel, hints: Mapping[str, int]) -> NodePlan:
        kernel = self.table[node.kernel]
        try:
            count = range(len(node.grids))
            calls = [call_of(node, kernel, i, hints, self._ranges) for i in count]
            choices = self._choices(node, calls, hints)
        except Unsaid as why:
            return self._through_triton(node, kernel, str(why))
        edge = self._edge(calls[0])
        if self.options.emit == "hop" and edge is not None:
            at = choices[-1][1]
            return self._through_operator(node, calls[at], node.grids[at], edge)
        plans = tuple(
            (condition, LaunchPlan(self._define(calls[i].define), node.grids[i], calls[i].args))
            for condition, i in choices
        )
        return NodePlan(node.outs, None, plans, node.origins, calls[0].checks)

    def _define(self, define: DefineKernel) -> DefineKernel:
        """The definition of the first launch, in the graph or in its subgraphs, that has the same
        but for its name."""
        text = define.source.removesuffix(alias(define.name))
        key = replace(define, name="", source=text)
        return self.kernels.defined.setdefault(key, define)

    @property
    def _ranges(self) -> Ranges:
        return {symbol(s.name): (s.low, s.high) for s in self.graph.symbols}

    def _edge(self, call: Call) -> str | None:
        """A descriptor that is written and whose rows are not proven to be multiples of 16 bytes:
        TMA clips a store there, and not at the last element."""
        for param, arg in zip(call.define.params, call.args, strict=True):
            if param.mutated and isinstance(arg, Blocks):
                type = arg.tensor.type
                over = Mod(type.size[-1] * type.dtype.itemsize, 16)
                if known(sympy.Eq(over, 0), self._ranges) is not True:
                    return param.name
        return None

    # -- configs

    def _choices(
        self, node: UserKernel, calls: list[Call], hints: Mapping[str, int]
    ) -> list[tuple[sympy.logic.boolalg.Boolean | None, int]]:
        """The config to run, measured on a GPU, the first one on CPU; or two, the first with the
        condition under which it is the one, where the kernel asks to be tuned by a dynamic size."""
        first = calls[0].define.params
        if any(call.define.params != first or call.args != calls[0].args for call in calls):
            raise Unsaid("its configs change the run-time arguments")
        if len(calls) == 1:
            return [(None, 0)]
        if not _on_cuda(calls[0].args):
            self.chosen[node.name] = (0, ())
            return [(None, 0)]
        low = self._choose(node, node.name, calls, hints)
        name = self._tuned_by(node)
        high = 0 if name is None else self._far(name, calls[0].args, hints)
        if name is None or high <= max(hints[name], 1):
            return [(None, low)]
        far = self._choose(node, f"{node.name} {name}={high}", calls, {**hints, name: high})
        if far == low:
            return [(None, low)]
        return [
            (parse(b.text([name])) if b.comparisons else None, (low, far)[b.variant])
            for b in compare_chain((max(hints[name], 1), high))
        ]

    def _tuned_by(self, node: UserKernel) -> str | None:
        """The dynamic size that the arguments in the kernel's `key` depend on, if it is one."""
        tuner: Any = self.table[node.kernel].called
        while not hasattr(tuner, "keys") and hasattr(tuner, "fn"):
            tuner = tuner.fn
        values = dict(node.args)
        keys = [values.get(name) for name in getattr(tuner, "keys", ())]
        names = {str(s) for k in keys if isinstance(k, sympy.Expr) for s in k.free_symbols}
        return names.pop() if len(names) == 1 else None

    def _far(self, name: str, args: Sequence[LaunchArg], hints: Mapping[str, int]) -> int:
        """The hint of a size, times up to `HINT_RATIO`, in its range, and as large as a quarter of
        the free memory holds the tensors of."""
        top = next(s.high for s in self.graph.symbols if s.name == name)
        types = [a.type for a in map(_tensor, args) if a is not None]
        room, high = _free_memory() // 4, hints[name] * HINT_RATIO
        while high > hints[name]:
            size = high if top is None else min(high, top)
            env = {**hints, name: size}
            if (
                sum(int(evaluate(t.offset + t.extent, env)) * t.dtype.itemsize for t in types)
                < room
            ):
                return size
            high //= 2
        return hints[name]

    def _choose(
        self, node: UserKernel, label: str, calls: list[Call], hints: Mapping[str, int]
    ) -> int:
        """The fastest config at these sizes, measured in a worker process: what crashes or hangs
        there is one config. On what a call gave, integers are its own; other numbers are drawn."""
        grids = [tuple(int(evaluate(g, hints)) for g in grid) for grid in node.grids]
        cache, pool = self.kernels.cache, self.kernels.pool
        kernels = [triton_rt.LazyKernel(call.source, cache=cache, pool=pool) for call in calls]
        candidates = list(zip(kernels, grids, strict=True))
        at = next((i for i, grid in enumerate(grids) if math.prod(grid) > 0), None)
        if at is None:
            return 0
        # Under torch.compile fake tensors are in force; what is measured is real.
        with unset_fake_temporarily():
            # Integers may be indices or addresses: zeros are the best guess.
            refs = [ref for ref in map(_tensor, calls[0].args) if ref is not None]
            written = {name for name, _ in node.outs} | set(node.mutates)
            here = self.kernels.given if hints == hints_of(self.graph.symbols) else {}
            given = {n: t for n, t in here.items() if n not in written}
            risky = any(ref.type.dtype.is_int and ref.buffer not in given for ref in refs)
            zeros = {ref.buffer: 1 for ref in refs}
            made = Buffers(((ref.buffer, ref.type) for ref in refs), hints, zeros, given)
            args = [_example(a, made) for a in calls[0].args]
            store = tuning.TuningStore(self.options.cache_path / "user_kernels")
            name = self.table[node.kernel].name
            tune = partial(tuning.autotune, candidates, args, store=store, name=name)
            try:
                try:
                    tuned = tune(pool=self.kernels.apart)
                except WorkerFailed:  # it has no room for all of this a second time
                    if risky:
                        raise
                    tuned = tune()
            except TritonRTError as error:
                if not risky:
                    why = f"none of its configs runs: {error}"
                    hint = "run it in eager with these sizes first"
                    raise UserKernelFailed(name, _where(node), why, hint) from error
                self._note(node, f"its configs cannot be measured on made-up integers: {error}")
                return 0
        self.chosen[label] = (tuned.winner, tuned.times)
        return tuned.winner

    # -- operators

    def _through_operator(
        self,
        node: UserKernel,
        call: Call,
        grid: tuple[sympy.Expr, sympy.Expr, sympy.Expr],
        edge: str,
    ) -> NodePlan:
        """The definition, launched through triton_rt, which knows what TMA cannot do."""
        self._note(
            node, f"rows of {edge} may be no multiple of 16 bytes: launched through an operator"
        )
        launch = self.kernels.launcher(call.define)
        blocks = [a.block if isinstance(a, Blocks) else None for a in call.args]

        def run(values: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> None:
            pairs = zip(values, blocks, strict=True)
            launch(grids[0], *(triton_rt.TensorMap(v, b) if b is not None else v for v, b in pairs))

        args = tuple(_tensor(a) or a for a in call.args)
        named = tuple(zip((p.name for p in call.define.params), args, strict=True))
        written = {name for name, _ in node.outs} | set(node.mutates)
        target = launching_operator(self.table[node.kernel].name, named, written, run)
        extern = Extern(
            target, (*args, tuple(grid)), (), (), False, tuple(written), True, node.origins
        )
        return NodePlan(node.outs, extern, (), node.origins, call.checks)

    def _through_triton(self, node: UserKernel, kernel: KernelObject, why: str) -> NodePlan:
        """The user's kernel object is called as torch would call it: by an operator of its own,
        which every emitter takes for any other."""
        if not _on_cuda([v for _, v in node.args]):
            why = f"{why}, so it must be launched by Triton itself"
            hint = "run on a CUDA device, or write the kernel without it"
            raise UserKernelFailed(kernel.name, _where(node), why, hint)
        self._note(node, f"{why}: launched by Triton")
        written = {name for name, _ in node.outs} | set(node.mutates)
        names = [name for name, _ in node.args]
        blocks = {name: [int(n) for n in block] for name, block in node.descriptors}

        def run(values: Sequence[Any], grids: Sequence[tuple[int, ...]]) -> None:
            run_captured(kernel, grids, dict(zip(names, values, strict=True)), blocks)

        target = launching_operator(kernel.name, node.args, written, run)
        grids = tuple(g for grid in node.grids for g in grid)
        args = (*(v for _, v in node.args), grids)
        call = Extern(target, args, (), (), False, tuple(written), True, node.origins)
        return NodePlan(node.outs, call, (), node.origins)

    def _note(self, node: UserKernel, why: str) -> None:
        self._notes.append(Fallback(f"triton.{self.table[node.kernel].name}", _where(node), why))


def _where(node: UserKernel) -> str:
    return next((o.source for o in node.origins if o.source), "")


def _tensor(arg: LaunchArg | GraphArg) -> TensorRef | None:
    if isinstance(arg, Blocks):
        return arg.tensor
    return arg if isinstance(arg, TensorRef) else None


def _on_cuda(args: Sequence[LaunchArg | GraphArg]) -> bool:
    devices = {a.type.device.kind for a in map(_tensor, args) if a is not None}
    return devices == {"cuda"}


def _free_memory() -> int:
    """Bytes of the current GPU."""
    with unset_fake_temporarily():
        return int(torch.cuda.mem_get_info()[0])


def _example(value: LaunchArg, made: Buffers) -> Any:
    """An argument to measure with: memory shared as in the program, descriptors of it, sizes at the
    hints."""
    if isinstance(value, Blocks):
        return triton_rt.TensorMap(_example(value.tensor, made), value.block)
    if isinstance(value, TensorRef):
        return made.view(value.buffer, value.type)
    return made.argument(value) if isinstance(value, sympy.Expr) else value
