"""What is known at a point of a program that is verified: tensors, storages, and where it is."""

import keyword
from dataclasses import dataclass, field

import sympy

from tensor_ir import NAME, Device, TensorType, print_type
from wrapper_ir import errors
from wrapper_ir import ops as ir
from wrapper_ir.analysis import Env, evaluate_type, layout_bytes
from wrapper_ir.collectives import Pending
from wrapper_ir.printer import print_op
from wrapper_ir.streams import Order

RESERVED = frozenset(keyword.kwlist) | {"_", "inf", "nan", "pass"}


@dataclass(frozen=True)
class At:
    """Where an error is: the op and its position; none for the program's head."""

    op: ir.Op | None = None
    index: str = ""

    def error(self, rule: type[errors.VerifyError], detail: str) -> errors.VerifyError:
        """The error of a broken rule, to be raised."""
        printed = "" if self.op is None else print_op(self.op).split("\n")[0]
        return rule(detail, printed, self.index)


@dataclass
class Storage:
    """`owned`: made by an op of the program. `block`: the block that made it. `died`: the op that
    ended its life. `bytes`: its size for each sample that reaches the op that made it. `written`:
    the samples for which something was written to it, wherever."""

    owner: str
    owned: bool
    block: str
    type: TensorType
    bytes: dict[int, int]
    written: set[int]
    died: str = ""


@dataclass
class State:
    """What is known of a program up to an op of it: of names, and of sizes that are tried."""

    program: ir.Program
    samples: list[dict[str, int]]
    active: list[int]  # samples for which the block that is checked runs
    tensors: dict[str, TensorType] = field(default_factory=dict)
    storage: dict[str, Storage] = field(default_factory=dict)
    kernels: dict[str, ir.DefineKernel] = field(default_factory=dict)
    subgraphs: dict[str, ir.Program | ir.DefineControl] = field(default_factory=dict)
    written: dict[str, set[str]] = field(default_factory=dict)  # by subgraphs, of their parameters
    descriptors: dict[str, ir.Describe] = field(default_factory=dict)
    symbols: set[str] = field(default_factory=set)
    escaped: dict[str, str] = field(default_factory=dict)
    layouts: dict[TensorType, dict[int, int]] = field(default_factory=dict)
    holds: dict[sympy.Basic, dict[int, bool]] = field(default_factory=dict)

    shared: set[str] = field(default_factory=set)
    workspaces: set[str] = field(default_factory=set)
    device: Device | None = None  # that launches run on
    order: Order = field(default_factory=Order)

    def __post_init__(self) -> None:
        self.pending = Pending(lambda name: self.storage[name].owner)


def check_idle(state: State, storage: Storage, at: At) -> None:
    """Raises `BusyStorage` where a communication that is under way was given the storage."""
    if state.pending.uses(storage.owner):
        raise at.error(errors.BusyStorage, f"{storage.owner} is in use until a wait_tensor")


def check_order(wrong: str, at: At) -> None:
    """Raises `UnorderedStreams` with what is wrong, if anything."""
    if wrong:
        raise at.error(errors.UnorderedStreams, wrong)


def check_name(name: str, at: At) -> None:
    """Raises `InvalidName` for what cannot be one."""
    if not NAME.fullmatch(name) or name in RESERVED:
        raise at.error(errors.InvalidName, f"{name!r} cannot be a name")


def check_use(state: State, name: str, at: At) -> None:
    """Raises what is wrong with a tensor that an op uses: undefined here, or dead."""
    if name in state.escaped:
        raise at.error(errors.BlockEscape, f"{name} is defined inside if {state.escaped[name]}")
    if name not in state.tensors:
        raise at.error(errors.UndefinedName, f"no tensor {name} is defined here")
    died = state.storage[name].died
    if died:
        raise at.error(errors.UseAfterFree, f"{name} died with its storage at op {died}")


def define(state: State, name: str, type: TensorType, at: At) -> None:
    """Notes a new tensor, whose name must be free."""
    check_name(name, at)
    if name in state.tensors or name in state.symbols or name in state.escaped:
        raise at.error(errors.DuplicateDefinition, f"{name} is defined before")
    if any(s.name == name for s in state.program.symbols):
        raise at.error(errors.DuplicateDefinition, f"{name} is a symbol")
    check_layout(state, name, type, at)
    state.tensors[name] = type


def check_layout(state: State, name: str, type: TensorType, at: At) -> None:
    """Raises `InvalidLayout` for a size, stride or offset below 0, else notes bytes by sample."""
    known = state.layouts.setdefault(type, {})
    for i in state.active:
        if i in known:
            continue
        env = state.samples[i]
        size, stride, offset = evaluate_type(type, env)
        if min((*size, *stride, offset)) < 0:
            layout = f"size {size} stride {stride} offset {offset}"
            raise at.error(errors.InvalidLayout, f"{name} has {layout}{where_text(env)}")
        known[i] = layout_bytes((size, stride, offset), type.dtype)


def where_text(env: Env) -> str:
    """The sizes of a sample, for the end of a message."""
    return " for " + ", ".join(f"{k}={v}" for k, v in env.items()) if env else ""


def new_storage(
    state: State,
    name: str,
    type: TensorType,
    owned: bool,
    block: str,
    at: At,
    written: bool = True,
) -> None:
    """Notes the storage that a tensor begins."""
    samples = set(state.active) if written else set()
    if owned:
        check_order(state.order.make(name), at)
    state.storage[name] = Storage(name, owned, block, type, state.layouts[type], samples)


def end(state: State, name: str, at: At, prefix: str) -> Storage:
    """Ends the life of a storage that the block has made, of which `name` is the owner."""
    storage = state.storage[name]
    if not storage.owned:
        raise at.error(errors.NotOwned, f"the storage of {name} belongs to the caller")
    if storage.owner != name:
        raise at.error(errors.NotOwned, f"{name} is a view of {storage.owner}")
    if storage.block != prefix:
        raise at.error(errors.NotOwned, f"{name} was made outside of this block")
    check_idle(state, storage, at)
    storage.died = at.index
    return storage


def check_fits(state: State, name: str, type: TensorType, storage: Storage, at: At) -> None:
    """Raises `LayoutOutOfBounds` or `DeviceMismatch` where a layout is none of a storage."""
    if storage.type.device != type.device:
        raise at.error(errors.DeviceMismatch, f"the storage is on {storage.type.device}")
    for i in state.active:
        have, need, env = storage.bytes[i], state.layouts[type][i], state.samples[i]
        if need > have:
            raise at.error(
                errors.LayoutOutOfBounds,
                f"{name} needs {need} bytes, the storage of {storage.owner} "
                f"({print_type(storage.type)}) has {have}{where_text(env)}",
            )


def check_alias(state: State, name: str, type: TensorType, src: str, at: At) -> None:
    """Notes another layout of the storage of `src`."""
    define(state, name, type, at)
    check_fits(state, name, type, state.storage[src], at)
    state.storage[name] = state.storage[src]
