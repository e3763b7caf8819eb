"""Launches of the user's Triton kernels: the one place that reads torch's operator for them.

torch captures `kernel[grid](x, out, n, BLOCK=64)` as `triton_kernel_wrapper_mutation`, and
AOTAutograd makes that functional: `triton_kernel_wrapper_functional(..., tensors_to_clone=["out"])`
gives a dictionary of the tensors as the kernel leaves them. Kernels and constants are in a table
of torch's, by number. Heuristics and `prune_configs_by` have run by then; the grid has been
computed, once for each config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx

from aten_lowering.builder import Operand
from aten_lowering.errors import CannotLower
from aten_lowering.extern import UNFILLED
from aten_lowering.meta import expr, source_line
from aten_lowering.placement import Placement, moved
from aten_lowering.symbols import used_buffers
from aten_lowering.torch_compat import (
    get_mutated_tensors,
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from loop_ir import Extern, GraphArg, Node, Origin, Ref, TensorRef, TensorType, UserKernel
from tensor_ir import BY_TRITON_SHORT

# The smallest integer that Triton no longer types as i32.
_WIDE = 1 << 31


@dataclass(frozen=True)
class KernelObject:
    """What a `UserKernel` launches.

    function: Triton's `JITFunction`. configs: those of an autotuned kernel, one for each grid of
    the launch. called: the object that the user called (the `JITFunction`, or an `Autotuner`).
    objects: constants that the IR has no word for (functions), by the name that a `Ref` gives.
    index, constants_index: where torch's tables have them."""

    function: Any
    configs: tuple[Any, ...]
    called: Any
    objects: dict[str, Any] = field(compare=False)
    index: int
    constants_index: int

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(self.function.__name__)


def run_captured(
    kernel: KernelObject,
    grids: Sequence[tuple[int, ...]],
    arguments: Mapping[str, Any],
    blocks: Mapping[str, Sequence[int]],
) -> None:
    """Runs a captured launch through Triton, as torch does in eager: an autotuned kernel tunes
    itself, and the tensors of `blocks` are passed as descriptors with these blocks."""
    constants = kernel_side_table.get_constant_args(kernel.constants_index)
    metadata = {name: ("stable", (list(block),)) for name, block in blocks.items()}
    triton_kernel_wrapper_mutation(
        kernel_idx=kernel.index,
        constant_args_idx=kernel.constants_index,
        grid=list(grids),
        tma_descriptor_metadata=metadata,  # type: ignore[arg-type]  # of torch
        kwargs={k: v for k, v in arguments.items() if k not in constants},
    )


def is_launch(node: fx.Node) -> bool:
    """The node runs a user's Triton kernel."""
    return node.target in (triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation)


def writes_in_place(node: fx.Node) -> bool:
    """The node runs a user's Triton kernel on its very arguments."""
    return node.target is triton_kernel_wrapper_mutation


@dataclass
class Scope:
    """What lowering a launch needs of the graph around it.

    env: what the FX nodes so far mean. nodes: the loop IR so far. placement: which buffers may be
    written. fresh: a new name. kernels: the table of kernels. plain: a tensor, copied if it is
    lazily conjugated or negated."""

    env: Mapping[fx.Node, Any]
    nodes: list[Node]
    placement: Placement
    fresh: Callable[[str], str]
    kernels: dict[str, KernelObject]
    plain: Callable[[Operand], Operand]


def lower_launch(node: fx.Node, scope: Scope) -> dict[str, Operand]:
    """Appends the launch, and the copies that it needs; gives the tensors as it leaves them.

    `functional(x, out) -> {out: tensor}` becomes a launch that writes to
    - the buffer of `out` itself, when nothing looks at its old content afterwards, or when it is
      an input that is overwritten later in any case (the model changes its argument);
    - a new buffer without content, when that of `out` has none (`torch.empty`);
    - a new buffer with a copy of the old content, else.
    Arguments that share a buffer with one that is written move along: to the kernel, they are
    the same memory, as in eager."""
    return _Launch(node, scope).run()


class _Launch:
    def __init__(self, node: fx.Node, scope: Scope) -> None:
        self.node = node
        self.scope = scope
        kwargs: Any = node.kwargs
        self.tensors_and_numbers: dict[str, Any] = dict(kwargs["kwargs"])
        self.functional = node.target is triton_kernel_wrapper_functional
        self.kernel = _kernel_object(kwargs["kernel_idx"], kwargs["constant_args_idx"])
        self.constants = kernel_side_table.get_constant_args(kwargs["constant_args_idx"])
        self.grids: Any = kwargs["grid"]
        self.descriptors: dict[str, Any] = dict(kwargs["tma_descriptor_metadata"] or {})
        self.origin = Origin(f"triton.{self.kernel.name}", source_line(node))
        self.outs: list[tuple[str, TensorType]] = []
        self.mutates: list[str] = []

    def run(self) -> dict[str, Operand]:
        kernel = self.kernel
        values = {k: self._value(v) for k, v in self.tensors_and_numbers.items()}
        operands = {k: v for k, v in values.items() if isinstance(v, Operand)}
        written = self._written(operands)
        for buffer in dict.fromkeys(operands[k].ref.buffer for k in written):
            group = {k: v for k, v in operands.items() if v.ref.buffer == buffer}
            operands.update(self._place(buffer, group))
        key = self.scope.fresh(kernel.name)
        run_time = {p.name for p in kernel.function.params if not p.is_constexpr}
        constants: list[tuple[str, GraphArg]] = []
        args: list[tuple[str, GraphArg]] = []
        for name, value in _in_order(values | self.constants, kernel.function.arg_names).items():
            if name in operands:
                args.append((name, operands[name].ref))
            elif isinstance(value, sympy.Expr) and not value.is_Integer:
                args.append((name, value))
            elif name in run_time and isinstance(value, bool | int | float | sympy.Integer):
                args.append((name, int(value) if isinstance(value, sympy.Integer) else value))
            else:
                constants.append((name, self._constant(key, value)))
        self.scope.kernels[key] = kernel
        node = UserKernel(
            name=key,
            kernel=key,
            grids=tuple(self._grid(g) for g in self.grids),
            args=tuple(args),
            constants=tuple(constants),
            outs=tuple(self.outs),
            mutates=tuple(self.mutates),
            descriptors=tuple((k, self._block(k, v)) for k, v in self.descriptors.items()),
            origins=(self.origin,),
        )
        self.scope.nodes.append(node)
        return {k: operands[k] for k in written}

    # -- arguments

    def _value(self, value: Any) -> Any:
        """An argument as an operand, an expression or a number."""
        if isinstance(value, fx.Node):
            found = self.scope.env[value]
            if isinstance(found, Operand) and (found.ref.conj or found.ref.neg):
                found = self.scope.plain(found)
            fake = value.meta.get("val")
            if isinstance(fake, torch.SymInt):
                # Triton types an integer by its value: what holds now must hold in later calls.
                _ = bool(fake < _WIDE)
            if isinstance(found, torch.SymFloat | torch.SymBool):
                raise CannotLower(
                    f"the argument {value} of the Triton kernel {self.kernel.name} is a "
                    f"{type(found).__name__}, a number that is known only when the model runs"
                )
            return found
        return value

    def _constant(self, key: str, value: Any) -> GraphArg:
        """A value that is fixed before the launch, in the IR's terms."""
        if isinstance(value, sympy.Integer):
            return int(value)
        if type(value).__name__ == "constexpr":
            value = value.value
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if type(value).__name__ == "dtype" and getattr(value, "name", None) in BY_TRITON_SHORT:
            return BY_TRITON_SHORT[value.name]
        name = self.scope.fresh(f"{key}_{getattr(value, '__name__', type(value).__name__)}")
        self.kernel.objects[name] = value
        return Ref(name)

    def _grid(self, grid: Any) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
        if len(grid) != 3:
            raise CannotLower(f"a grid of {len(grid)} sizes of the kernel {self.kernel.name}")
        x, y, z = (expr(self._size(n)) for n in grid)
        return x, y, z

    def _size(self, n: Any) -> Any:
        return n.meta["val"] if isinstance(n, fx.Node) else n

    def _block(self, name: str, metadata: Any) -> tuple[sympy.Expr, ...]:
        """The block of a descriptor. The older `create_1d_tma_descriptor` gives its sizes too,
        which have to be the tensor's."""
        kind, details = metadata
        if kind == "stable":
            return tuple(expr(self._size(n)) for n in details[0])
        sizes, block = ([self._size(n) for n in x] for x in details[:2])
        fake = self.tensors_and_numbers[name].meta["val"]
        if [expr(n) for n in sizes] != [expr(n) for n in fake.shape] or not fake.is_contiguous():
            raise CannotLower(
                f"the TMA descriptor `{name}` of the Triton kernel {self.kernel.name} has sizes "
                f"{sizes}, its tensor {list(fake.shape)}: use TensorDescriptor.from_tensor"
            )
        return tuple(expr(n) for n in block)

    # -- what it writes

    def _written(self, operands: Mapping[str, Operand]) -> list[str]:
        if self.functional:
            names: Any = self.node.kwargs["tensors_to_clone"]
        else:
            kwargs: Any = self.node.kwargs
            fakes = {
                k: v.meta["val"] if isinstance(v, fx.Node) else v
                for k, v in self.tensors_and_numbers.items()
            }
            names = get_mutated_tensors(
                kwargs["kernel_idx"], kwargs["constant_args_idx"], fakes, self.descriptors
            )
        return [name for name in names if name in operands]

    def _place(self, buffer: str, group: dict[str, Operand]) -> dict[str, Operand]:
        """The arguments of one buffer, in the memory that the kernel writes to."""
        scope = self.scope
        maker = self._uninitialised(buffer)
        if not self.functional or scope.placement.takes_over(self.node, buffer):
            if maker is not None and self._is_only_user(buffer, maker):
                scope.nodes.remove(maker)
                (out,) = maker.outs
                assert out is not None
                self.outs.append(out)
            else:
                self.mutates.append(buffer)
            return group
        new = scope.fresh(f"{buffer}_new")
        if maker is None:
            self.mutates.append(new)
            return moved(group, new, scope.nodes, self.origin)
        (out,) = maker.outs
        assert out is not None
        self.outs.append((new, out[1]))
        return {k: Operand(TensorRef(new, v.ref.type), out[1]) for k, v in group.items()}

    def _uninitialised(self, buffer: str) -> Extern | None:
        """The call that made the buffer without content, if no node has used it since."""
        for node in self.scope.nodes:
            if isinstance(node, Extern) and node.target.startswith(UNFILLED):
                (out,) = node.outs
                if out is not None and out[0] == buffer:
                    return node if self._is_untouched(buffer, node) else None
        return None

    def _is_untouched(self, buffer: str, maker: Extern) -> bool:
        return not any(
            buffer in node.mutates
            for node in self.scope.nodes
            if isinstance(node, Extern | UserKernel) and node is not maker
        )

    def _is_only_user(self, buffer: str, maker: Extern) -> bool:
        others = tuple(n for n in self.scope.nodes if n is not maker)
        return buffer not in used_buffers(others)


def _kernel_object(index: int, constants_index: int) -> KernelObject:
    called: Any = kernel_side_table.get_kernel(index)
    function, configs = called, ()
    while not hasattr(function, "arg_names") or not hasattr(function, "params"):
        configs = configs or tuple(getattr(function, "configs", ()))
        function = function.fn
    return KernelObject(function, configs, called, {}, index, constants_index)


def _in_order(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """By the order of the function's parameters; what is none of them comes last."""
    first = {n: values[n] for n in names if n in values}
    return first | {n: v for n, v in values.items() if n not in first}
