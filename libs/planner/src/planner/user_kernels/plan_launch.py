"""The user's own Triton kernels: a launch of the host program, its config chosen by measuring.

`UserKernel` (kernel, grids, arguments) -> `DefineKernel` with the kernel's source + `Launch`, and
a `Describe` for each tensor and block that it takes as a TMA descriptor.
Integers are typed as Triton types them, by value: a size that is not proven to fit in i32 is
checked before the launch. An integer 1, None and the `tl.constexpr` parameters are constants.
An autotuned kernel whose `key` names a dynamic size is measured at two sizes; where they want
different configs the nearest is picked at run time, by integer comparison.

What a `Launch` cannot say becomes a call of an operator made for it, and is reported: a launch
option, or a kernel whose text does not stand alone, goes to the user's object, and Triton; a store
at an edge where Triton's own launch would write too much, through triton_rt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

import triton_rt
import tuning
from aten_lowering import Fallback, KernelObject, run_captured
from loop_ir import Extern, Graph, GraphArg, TensorRef, UserKernel
from multikernel import compare_chain
from planner.errors import UserKernelFailed
from planner.kernels import Kernels, kernel_source
from planner.plan import Blocks, LaunchArg, LaunchPlan, NodePlan
from planner.select import HINT_RATIO
from planner.settings import Settings
from planner.tensors import Buffers
from planner.torch_compat import unset_fake_temporarily
from planner.user_kernels.operators import launching_operator
from planner.user_kernels.sources import Unsaid, alias, definition
from symexpr import Mod, Ranges, bounds, evaluate, known, parse, symbol
from triton_rt.errors import TritonRTError
from wrapper_ir import Assert, DefineKernel, KernelParam

# How parameters may be annotated (`n: tl.int64`, as Triton spells it in a signature).
_ANNOTATED = {name: name for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")}
_ANNOTATED |= {"i1": "bool", "u1": "bool", "fp32": "f32", "fp64": "f64"}
# Options of a config, as Triton names them and as a `DefineKernel` does.
_OPTIONS = {
    "num_warps": "num_warps",
    "num_stages": "num_stages",
    "num_ctas": "num_ctas",
    "maxnreg": "max_registers",
}


@dataclass(frozen=True)
class _Call:
    """One config of a launch: the kernel's definition and its arguments."""

    define: DefineKernel
    args: tuple[LaunchArg, ...]
    checks: tuple[Assert, ...]

    @property
    def source(self) -> triton_rt.KernelSource:
        return kernel_source(self.define)


@dataclass
class UserKernelPlanner:
    """Plans of the `UserKernel` nodes of one graph.

    chosen: for an autotuned kernel, by node (and the size, where it is measured at two), the index
    of its config and the milliseconds of all (nothing where they were not measured).
    """

    options: Settings
    kernels: Kernels
    graph: Graph
    table: Mapping[str, KernelObject]
    chosen: dict[str, tuple[int, tuple[float, ...]]] = field(default_factory=dict)
    _notes: list[Fallback] = field(default_factory=list)
    _defined: dict[DefineKernel, DefineKernel] = field(default_factory=dict)

    def __call__(self, node: UserKernel, hints: Mapping[str, int]) -> NodePlan:
        """The plan of a launch. Raises `UserKernelFailed` where none of its forms can run here."""
        self._notes = []
        plan = self._plan(node, hints)
        return replace(plan, fallbacks=tuple(self._notes))

    def _plan(self, node: UserKernel, hints: Mapping[str, int]) -> NodePlan:
        kernel = self.table[node.kernel]
        try:
            count = range(len(node.grids))
            calls = [self._call(node, kernel, i, hints) for i in count]
            choices = self._choices(node, calls, hints)
        except Unsaid as why:
            return self._through_triton(node, kernel, str(why))
        edge = self._edge(calls[0])
        if self.options.emit == "hop" and edge is not None:
            at = choices[-1][1]
            return self._through_operator(node, calls[at], node.grids[at], edge)
        plans = tuple(
            (
                condition,
                LaunchPlan(self._define(calls[i].define), node.grids[i], calls[i].args),
            )
            for condition, i in choices
        )
        return NodePlan(node.outs, None, plans, node.origins, calls[0].checks)

    def _define(self, define: DefineKernel) -> DefineKernel:
        """The definition of the first launch that has the same but for its name."""
        text = define.source.removesuffix(alias(define.name))
        key = replace(define, name="", source=text)
        return self._defined.setdefault(key, define)

    # -- one config

    def _call(
        self, node: UserKernel, kernel: KernelObject, index: int, hints: Mapping[str, int]
    ) -> _Call:
        config = kernel.configs[index] if kernel.configs else None
        for option in ("ir_override", "pre_hook"):
            if config is not None and getattr(config, option, None) is not None:
                raise Unsaid(f"its config has {option}={getattr(config, option)!r}")
        blocks = dict(node.descriptors)
        values: dict[str, GraphArg] = dict(node.args) | dict(node.constants)
        tuned: dict[str, Any] = dict(config.kwargs) if config is not None else {}
        names = set(kernel.function.arg_names)
        extra = [n for n in (*values, *tuned) if n not in names]
        if extra:
            raise Unsaid(f"{extra[0]} is a launch option that this host program does not have")
        params: list[KernelParam] = []
        args: list[Any] = []
        constants: dict[str, Any] = {}
        checks: list[Assert] = []
        written = {name for name, _ in node.outs} | set(node.mutates)
        for param in kernel.function.params:
            value = tuned.get(param.name, values.get(param.name))
            if param.name not in tuned and param.name not in values:
                if not param.has_default:
                    raise Unsaid(f"its parameter {param.name} has no value")
                continue
            arg: Any = value
            if param.name in blocks and isinstance(value, TensorRef):
                arg = _blocks(param.name, value, blocks[param.name])
                kind: str | None = _descriptor_kind(arg)
            elif param.is_constexpr:
                kind = None
            else:
                kind = self._kind(param, value, kernel, hints, checks)
            if kind is None:
                constants[param.name] = value
                continue
            mutated = isinstance(value, TensorRef) and value.buffer in written
            params.append(KernelParam(param.name, kind, mutated))
            args.append(arg)
        asked = {ours: getattr(config, theirs, None) for theirs, ours in _OPTIONS.items()}
        options = {k: v for k, v in asked.items() if v is not None}
        name = node.name if len(node.grids) == 1 else f"{node.name}_config{index}"
        define = definition(name, kernel, tuple(params), constants, options)
        return _Call(define, tuple(args), tuple(checks))

    def _kind(
        self,
        param: Any,
        value: GraphArg,
        kernel: KernelObject,
        hints: Mapping[str, int],
        checks: list[Assert],
    ) -> str | None:
        """The parameter's kind as Triton types this argument; None if it makes it a constant."""
        if isinstance(value, TensorRef):
            return f"*{value.type.dtype.value}"
        if value is None:
            return None
        annotated = _ANNOTATED.get(getattr(param, "annotation_type", None) or "")
        if isinstance(value, bool):
            return annotated or "bool"
        if isinstance(value, float):
            return annotated or "f32"
        if isinstance(value, int):
            if value == 1 and not param.do_not_specialize and annotated is None:
                return None
            if annotated is not None:
                return annotated
            small = -(2**31) <= value < 2**31
            return "i32" if small else "i64" if value < 2**63 else "u64"
        if isinstance(value, sympy.Expr):
            return annotated or self._int_kind(param.name, value, kernel, hints, checks)
        raise Unsaid(f"its argument {param.name} is a {type(value).__name__}")

    def _int_kind(
        self,
        name: str,
        value: sympy.Expr,
        kernel: KernelObject,
        hints: Mapping[str, int],
        checks: list[Assert],
    ) -> str:
        """i32 where the hint fits, with a check at run time unless it is proven to fit."""
        limit = 2**31
        low, high = bounds(value, self._ranges)
        if low is not None and high is not None and -limit <= low and high < limit:
            return "i32"
        if not -limit <= int(evaluate(value, hints)) < limit:
            return "i64"
        message = f"{kernel.name} was compiled for {name} as a 32-bit integer"
        checks.append(Assert(sympy.And(value < limit, value >= -limit), message))
        return "i32"

    @property
    def _ranges(self) -> Ranges:
        return {symbol(s.name): (s.low, s.high) for s in self.graph.symbols}

    def _edge(self, call: _Call) -> str | None:
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
        self, node: UserKernel, calls: list[_Call], hints: Mapping[str, int]
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
        self, node: UserKernel, label: str, calls: list[_Call], hints: Mapping[str, int]
    ) -> int:
        """The fastest config at these sizes."""
        grids = [tuple(int(evaluate(g, hints)) for g in grid) for grid in node.grids]
        cache, pool = self.kernels.cache, self.kernels.pool
        kernels = [triton_rt.LazyKernel(call.source, cache=cache, pool=pool) for call in calls]
        candidates = list(zip(kernels, grids, strict=True))
        at = next((i for i, grid in enumerate(grids) if math.prod(grid) > 0), None)
        if at is None:
            return 0
        # Under torch.compile fake tensors are in force; what is measured is real.
        with unset_fake_temporarily():
            # Integers may be indices or addresses: zeros are the best guess, and a crash of a
            # worker harms nobody.
            refs = [ref for ref in map(_tensor, calls[0].args) if ref is not None]
            risky = any(ref.type.dtype.is_int for ref in refs)
            zeros = {ref.buffer: 1 for ref in refs}
            made = Buffers(((ref.buffer, ref.type) for ref in refs), hints, zeros)
            args = [_example(a, made) for a in calls[0].args]
            store = tuning.TuningStore(self.options.cache_path / "user_kernels")
            name = self.table[node.kernel].name
            try:
                with tuning.TuningPool() if risky else nullcontext() as apart:
                    tuned = tuning.autotune(candidates, args, store=store, name=name, pool=apart)
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
        call: _Call,
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


def _blocks(name: str, value: TensorRef, block: tuple[sympy.Expr, ...]) -> Blocks:
    if not all(n.is_Integer for n in block):
        raise Unsaid(f"the block of its descriptor {name} is a size of the model")
    return Blocks(value, tuple(map(int, block)))


def _descriptor_kind(value: Blocks) -> str:
    block = ",".join(map(str, value.block))
    return f"tensordesc<{value.tensor.type.dtype.value}[{block}]>"
