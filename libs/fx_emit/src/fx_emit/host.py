"""Functions that the emitted code calls where torch has none.

They are ordinary Python functions, so that `gm.code` runs and reads without the emitter. Those
with an effect are registered with torch.fx, so that dead code elimination keeps them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx.node import has_side_effect

from fx_emit.errors import MisalignedStorage
from fx_emit.torch_compat import current_stream, new_zeros
from fx_emit.torch_types import IR_DTYPE
from wrapper_ir import DefineControl
from wrapper_ir.control import Steps, run_control
from wrapper_ir.errors import AssertionFailed, InputMismatch, ResultMismatch
from wrapper_ir.interpreter import Descriptor, same_addresses

Ints = tuple[int, ...]

SameTensors = Callable[[tuple[torch.Tensor, ...]], Callable[[tuple[torch.Tensor, ...]], bool]]
"""Of tensors: a function that says whether others have their element types, sizes and strides."""


class _Mutable:
    is_mutable = True
    returns = ()
    name = ""


def _describe(tensor: torch.Tensor) -> str:
    dtype = IR_DTYPE.get(tensor.dtype)
    name = dtype.value if dtype else str(tensor.dtype)
    return f"{name}{list(tensor.shape)} stride {tuple(tensor.stride())}"


def _matches(tensor: torch.Tensor, dtype: torch.dtype, size: Ints, stride: Ints) -> bool:
    if tensor.dtype != dtype or tensor.shape != size:
        return False
    actual = tensor.stride()
    return actual == stride or same_addresses(size, stride, actual)


@has_side_effect
def check_input(
    tensor: torch.Tensor, declared: str, dtype: torch.dtype, size: Ints, stride: Ints
) -> None:
    """Raises InputMismatch unless `tensor` has the declared layout; `declared` is the printed
    parameter. Strides of dimensions of at most one element do not count."""
    if not _matches(tensor, dtype, size, stride):
        name, _, type = declared.partition(": ")
        expected = f"{type} = {list(size)} stride {tuple(stride)}"
        raise InputMismatch(name, expected, _describe(tensor))


class InputCheck:
    """`check_input` of many at once, for layouts without symbols: what had them once is compared by
    one call of what `same` gives for it from then on."""

    __name__ = __qualname__ = "check_inputs"
    _schema = _Mutable()  # what torch.fx asks before it removes a call that nothing uses

    def __init__(
        self, layouts: Sequence[tuple[torch.dtype, Ints, Ints]], same: SameTensors | None
    ) -> None:
        self.__module__ = "fx_emit.host"
        self.layouts = layouts
        self.same = same
        self.known: Callable[[tuple[torch.Tensor, ...]], bool] | None = None

    def __call__(self, tensors: tuple[torch.Tensor, ...], declared: tuple[str, ...]) -> None:
        if self.known is not None and self.known(tensors):
            return
        for tensor, text, layout in zip(tensors, declared, self.layouts, strict=True):
            check_input(tensor, text, *layout)
        if self.same is not None and self.known is None:
            self.known = self.same(tensors)

    def __deepcopy__(self, memo: dict[int, Any]) -> InputCheck:
        return self  # it holds nothing of a module


@has_side_effect
def check_rank(tensor: torch.Tensor, name: str, rank: int) -> None:
    """Raises InputMismatch unless `tensor` has `rank` dimensions."""
    if tensor.dim() != rank:
        raise InputMismatch(name, f"rank {rank}", f"rank {tensor.dim()}")


@has_side_effect
def check_range(value: int, declared: str, low: int | None, high: int | None) -> None:
    """Raises InputMismatch unless `value` is an integer in `[low, high]`; None is open."""
    name = declared.split(" ")[0]
    if not isinstance(value, int | torch.SymInt) or isinstance(value, bool):
        raise InputMismatch(name, "an integer", repr(value))
    if (low is not None and value < low) or (high is not None and value > high):
        raise InputMismatch(name, declared, str(value))


def conform_result(
    tensor: torch.Tensor, target: str, declared: str, dtype: torch.dtype, size: Ints, stride: Ints
) -> torch.Tensor:
    """What an operator returned, in the declared layout and element type: itself, or a converted
    copy. Raises ResultMismatch for another size."""
    if _matches(tensor, dtype, size, stride):
        return tensor
    if tensor.shape != size:
        check_result(tensor, target, declared, dtype, size, stride)
    out = torch.empty_strided(size, stride, dtype=dtype, device=tensor.device)
    return out.copy_(tensor)


@has_side_effect
def check_result(
    tensor: torch.Tensor, target: str, declared: str, dtype: torch.dtype, size: Ints, stride: Ints
) -> None:
    """Raises ResultMismatch unless an operator returned the declared layout."""
    if not _matches(tensor, dtype, size, stride):
        name, _, type = declared.partition(": ")
        expected = f"{type} = {list(size)} stride {tuple(stride)}"
        raise ResultMismatch(target, name, expected, _describe(tensor))


@has_side_effect
def assert_that(condition: bool, message: str, **symbols: int) -> None:
    """Raises AssertionFailed, with the values of the symbols, unless `condition` holds."""
    if not condition:
        values = ", ".join(f"{k}={v}" for k, v in symbols.items())
        raise AssertionFailed(f"{message} ({values})" if values else message)


@has_side_effect
def free(tensor: torch.Tensor) -> None:
    """Marks the end of a storage: its last use. The generated code drops its reference on the
    same line (`b0 = None`), `torch.fx.Interpreter` after the node."""


class Workspace:
    """Memory of one kind that launches find all zero and leave all zero: that of a stream is kept,
    since the calls on one follow each other. A graph that is captured takes what was filled for it
    when the stream was called before, else it fills some at each replay. So do those that come
    after many graphs: what one took is not known to be free again."""

    __name__ = __qualname__ = "workspace"
    _schema = _Mutable()  # what torch.fx asks before it removes a call that nothing uses

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.__module__ = "fx_emit.host"
        self._zeros = functools.partial(new_zeros, dtype=dtype, device=device)
        self._index = device.index
        self._kept: dict[tuple[int, int], torch.Tensor] = {}  # by device and stream
        self._spare: dict[int, torch.Tensor] = {}
        self._graphs = 0

    def __call__(self, count: int) -> torch.Tensor:
        index = torch.cuda.current_device() if self._index is None else self._index
        if torch.cuda.is_current_stream_capturing():
            spare = self._spare.pop(index, None)
            if spare is None or spare.numel() < count:
                return self._zeros(count)
            self._graphs += 1
            _CAPTURED.append(spare)
            return spare
        at = index, current_stream(index)
        kept = self._kept.get(at)
        if kept is None or kept.numel() < count:
            kept = self._kept[at] = self._zeros(count)
        spare = self._spare.get(index)
        if self._graphs < _MOST_GRAPHS and (spare is None or spare.numel() < kept.numel()):
            self._spare[index] = self._zeros(kept.numel())
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> Workspace:
        return self  # calls of a copy follow others on a stream, too


_MOST_GRAPHS = 64
_CAPTURED: list[torch.Tensor] = []
"""What graphs use that may outlive their programs."""


@has_side_effect
def switch_device(index: int) -> None:
    """What follows runs there."""
    torch.cuda.set_device(index)


class SideStreams:
    """The stream of a call and others beside it, which are its own: memory that was allocated for
    one of them was last used on that or on the stream of a call that this one follows. Torch may
    give the same stream to others, who would not wait so, but few ask for one that goes first."""

    def __init__(self, own: torch.cuda.Stream) -> None:
        self.streams = [own]

    def at(self, number: int) -> torch.cuda.Stream:
        """The stream of a number, 0 for that of the call."""
        while len(self.streams) <= number:
            device: Any = self.streams[0].device
            self.streams.append(torch.cuda.Stream(device, priority=-1))  # type: ignore[no-untyped-call]  # of torch
        return self.streams[number]


@functools.cache
def _beside(index: int, stream: int) -> SideStreams:
    own = torch.cuda.current_stream(index)
    return SideStreams(own)


def side_streams(index: int | None) -> SideStreams:
    """Those of the current stream of a device."""
    own = torch.cuda.current_stream(index)
    return _beside(own.device_index, own.cuda_stream)


def set_stream(stream: torch.cuda.Stream) -> None:
    """The stream is current on its device; the current device stays, which torch's moves."""
    device = torch.cuda.current_device()
    torch.cuda.set_stream(stream)
    if stream.device_index != device:
        torch.cuda.set_device(device)


def leave_streams(own: torch.cuda.Stream) -> None:
    """The stream of a call is current again, in the middle of a program."""
    set_stream(own)
    if not torch.cuda.is_current_stream_capturing():
        for side in side_streams(own.device_index).streams[1:]:
            own.wait_stream(side)


@has_side_effect
def switch_stream(streams: SideStreams, number: int) -> None:
    """What follows runs there. `fx_emit.Run` goes back where an operator raises."""
    set_stream(streams.at(number))


@has_side_effect
def wait_stream(streams: SideStreams, at: int, number: int) -> None:
    """Stream `at` waits for another."""
    streams.at(at).wait_stream(streams.at(number))


@has_side_effect
def branch(
    conditions: tuple[bool, ...], blocks: tuple[Callable[..., Any], ...], operands: tuple[Any, ...]
) -> None:
    """Runs one of several submodules for its effects: that of the first condition that holds, or
    the last one.

    Stands in for `torch.ops.higher_order.cond`, which forbids that branches mutate operands and
    which dead code elimination removes when nothing uses its results."""
    chosen = blocks[conditions.index(True) if True in conditions else -1]
    getattr(chosen, "forward", chosen)(*operands)  # a module's call costs a microsecond more


STEPS = Steps(
    at=lambda tensor, i: tensor.select(0, i),
    new=lambda tensor, count: tensor.new_empty((count, *tensor.shape)),
    copy=lambda src, dst: dst.copy_(src),
)


class Subgraph(torch.nn.Module):
    """A subgraph of a program, or control of some, as a child of the module that calls it.

    Between that and its own graph: torch's dead code elimination goes into graph modules that are
    children, without the caller's idea of what is impure."""

    _is_impure = True

    def __init__(self, control: DefineControl | None, bodies: tuple[torch.nn.Module, ...]) -> None:
        super().__init__()
        self.control = control
        self.bodies = torch.nn.ModuleList(bodies)

    def forward(self, *args: Any) -> tuple[Any, ...]:
        """The results of a call."""
        if self.control is None:
            results: tuple[Any, ...] = self.bodies[0](*args)
            return results
        return run_control(self.control, tuple(self.bodies), args, STEPS)


def reinterpret(
    root: torch.Tensor, dtype: torch.dtype, size: Ints, stride: Ints, offset: int
) -> torch.Tensor:
    """A tensor of `dtype` over the storage of `root`, `offset` of its elements after the first
    element of `root`. Raises MisalignedStorage."""
    start = int(root.storage_offset()) * root.element_size()
    itemsize = dtype.itemsize
    if start % itemsize:
        raise MisalignedStorage(start, itemsize)
    out = torch.empty(0, dtype=dtype, device=root.device)
    return out.set_(root.untyped_storage(), start // itemsize + offset, size, stride)


def describe(tensor: torch.Tensor, block: Ints) -> Descriptor:
    """A tensor descriptor for launchers that take Triton's `TensorDescriptor` or anything with its
    fields."""
    return Descriptor.of(tensor, block)


def where(condition: bool, a: int, b: int) -> int:
    """`a` if the condition holds, else `b`."""
    return a if condition else b


def ceildiv(a: int, b: int) -> int:
    """Rounds up: `ceildiv(7, 2) == 4`."""
    return -(-a // b)


class KernelCall(functools.partial):  # type: ignore[type-arg]  # of any launcher
    """A launcher with the name of its kernel, so that generated code can print it; to call it costs
    a twentieth of a microsecond more than to call the launcher."""

    _schema = _Mutable()  # what torch.fx asks before it removes a call that nothing uses

    def __init__(self, launcher: Callable[..., Any], name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "kernel"

    def __new__(cls, launcher: Callable[..., Any], name: str) -> KernelCall:
        """Without the name, which a call would get as an argument."""
        return super().__new__(cls, launcher)

    def __deepcopy__(self, memo: dict[int, Any]) -> KernelCall:
        return self  # a loaded kernel is not copied with the module that calls it
