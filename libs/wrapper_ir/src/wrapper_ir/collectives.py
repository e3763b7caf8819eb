"""Which storages a communication that is under way still reads or writes.

torch's functional collectives start on a stream of their own and return at once. Their results may
be read after `wait_tensor`, and until then nothing may be written to what they were given:

    r = extern _c10d_functional.all_reduce.default(x, "sum", "0") -> f32[64] cuda:0   # starts
    w = extern _c10d_functional.wait_tensor.default(r) -> f32[64] cuda:0              # waits

So do copies from a host that are begun ahead."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from wrapper_ir import ops as ir
from wrapper_ir.analysis import arg_refs, definitions, uses

FAMILY = "_c10d_functional."
FETCH = "aten_lowering.fetch.default"
WAITS = frozenset({FAMILY + "wait_tensor.default", "aten_lowering.fetched.default"})
SHARED = "aten_lowering.shared_memory.default"


@cache
def as_plain(op: ir.CommAllocate) -> ir.Allocate | ir.ExternCall:
    """What gives the memory: the operator that asks torch for it. The same object each time."""
    if op.type.device.kind == "cpu":
        return ir.Allocate(op.out, op.type, op.comment)
    args = (op.type.size, op.type.dtype, op.type.device, op.group)
    return ir.ExternCall(SHARED, args, (), ((op.out, op.type),), comment=op.comment)


def is_start(op: ir.Op) -> bool:
    """The op starts a communication that another waits for."""
    starts = isinstance(op, ir.ExternCall) and op.target.startswith((FAMILY, FETCH))
    return starts and waited(op) is None


def waited(op: ir.Op) -> str | None:
    """The tensor that the op waits for, if it waits for one."""
    if not isinstance(op, ir.ExternCall) or op.target not in WAITS:
        return None
    return next(iter(arg_refs(op.args)), None)


class Pending:
    """What is under way at an op of a program, whose ops are told in order. storage: of a tensor
    by its name."""

    def __init__(self, storage: Callable[[str], str]) -> None:
        self._storage = storage
        self._taken: dict[str, frozenset[str]] = {}  # by the name of a result

    def taken(self, result: str) -> frozenset[str]:
        """The storages that the communication which makes `result` was given."""
        return self._taken.get(result, frozenset())

    def uses(self, storage: str) -> bool:
        """A communication that is not waited for yet was given the storage."""
        return any(storage in given for given in self._taken.values())

    def run(self, op: ir.Op) -> None:
        """Notes that the op has run."""
        if is_start(op):
            given = frozenset(map(self._storage, uses(op)))
            self._taken.update((name, given) for name, _ in definitions(op))
        elif (result := waited(op)) is not None:
            self._taken.pop(result, None)


def taken_until(ops: Sequence[ir.Op], roots: Mapping[str, str]) -> dict[int, frozenset[str]]:
    """By position of each wait: the storages that are busy until then."""
    pending, out = Pending(roots.__getitem__), {}
    for i, op in enumerate(ops):
        if (result := waited(op)) is not None:
            out[i] = pending.taken(result)
        pending.run(op)
    return out
