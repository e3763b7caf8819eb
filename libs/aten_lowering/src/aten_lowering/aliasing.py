"""Which results are views: they cost nothing and become a `TensorRef`, not a node."""

from collections.abc import Sequence
from dataclasses import replace

import sympy
import torch
from torch._ops import OpOverload

from aten_lowering.builder import Operand
from aten_lowering.errors import CannotLower
from aten_lowering.memory import storage_key
from aten_lowering.meta import expr, is_unbacked, tensor_type
from aten_lowering.torch_compat import has_kernel
from loop_ir import TensorRef

aten = torch.ops.aten

# Views of a place that is given as a number: capturing a graph with symbolic sizes does not ask
# whether there is such a place.
_PLACED = frozenset({aten.as_strided.default, aten.select.int})

# Views that their schema does not tell of.
_UNDECLARED = frozenset({aten._unsafe_view.default, aten._reshape_alias.default})


def always_view(op: OpOverload) -> bool:
    """The op returns a view whatever its arguments: its schema says `Tensor(a)`, and it is no
    composite such as `reshape`, which may copy, nor one of ours, which waits for its argument."""
    if op in _UNDECLARED:
        return True
    composite = has_kernel(
        op._schema.name + ("." + op._schema.overload_name if op._schema.overload_name else ""),
        "CompositeImplicitAutograd",
    )
    infos = [r.alias_info for r in op._schema.returns]
    if composite or op.namespace == "aten_lowering":
        return False
    return bool(infos) and all(i is not None and not i.is_write for i in infos)


def view_of(base: Operand, base_fake: torch.Tensor, fake: torch.Tensor) -> Operand:
    """`fake`, a view of the storage of `base_fake`, as a view of the buffer of `base`.

    Fake tensors count their offset from the start of the storage, buffers may start later: at
    `base_fake.storage_offset() - base.offset`. Raises `CannotLower` for a view that reaches in
    front of its buffer or, of a buffer of the caller's (`inputs`), past its end; and for one that
    starts between two of its elements: no reference can say that."""
    type = tensor_type(fake)
    held, width = base.type.dtype.itemsize, type.dtype.itemsize
    start = (expr(base_fake.storage_offset()) - base.type.offset) * held
    offset = ((expr(fake.storage_offset()) * width - start) / width).expand()
    if offset.is_negative or offset.is_integer is False:
        raise CannotLower(f"a view that starts {offset} elements from its buffer")
    type = replace(type, offset=offset)
    end = (type.offset + type.extent) * width
    have = (base.storage.offset + base.storage.extent) * base.storage.dtype.itemsize
    if bool((end - have).expand().is_positive) and 0 not in type.size:
        raise CannotLower(f"a view that ends {end - have} bytes past its buffer")
    ref = TensorRef(base.ref.buffer, type, fake.is_conj(), fake.is_neg())
    return Operand(ref, base.storage)


def views(
    op: OpOverload, fakes: Sequence[object], sources: Sequence[tuple[Operand, torch.Tensor]]
) -> tuple[Operand, ...] | None:
    """All results of a call as views of its tensor arguments, or None if any is a new tensor.

    A result is a view if it shares its fake storage with an argument, or if the op always
    returns a view (of its first tensor)."""
    found: list[Operand] = []
    for fake in fakes:
        if not isinstance(fake, torch.Tensor):
            return None
        shared = [s for s in sources if storage_key(s[1]) == storage_key(fake)]
        if not shared and always_view(op):
            shared = list(sources[:1])
        if not shared:
            return None
        base = shared[0][1]
        if op in _PLACED:
            _check_inside(fake, base, shared[0][0])
        found.append(view_of(*shared[0], fake))
    return tuple(found) or None


def _check_inside(fake: torch.Tensor, base: torch.Tensor, held: Operand) -> None:
    """Raises `CannotLower` for a view of symbolic layout that reaches out of its base, or in front
    of it where its buffer is not known to begin there. The answer becomes a guard of the graph."""
    sizes = [n for t in (fake, base) for n in (*t.shape, *t.stride(), t.storage_offset())]
    symbols = [s for n in sizes if isinstance(n, torch.SymInt) for s in n.node.expr.free_symbols]
    if not symbols or any(is_unbacked(s) for s in symbols):
        return
    end, have = _end(fake) * fake.dtype.itemsize, _end(base) * base.dtype.itemsize
    if end > have:
        raise CannotLower(f"a view that ends {end - have} bytes past its tensor")
    if sympy.expand(expr(base.storage_offset()) - held.type.offset) == 0:
        return  # the buffer is the storage from its first element
    ahead = base.storage_offset() * base.itemsize - fake.storage_offset() * fake.itemsize
    if ahead > 0:
        raise CannotLower(f"a view that begins {ahead} bytes in front of its tensor")


def _end(fake: torch.Tensor) -> int | torch.SymInt:
    """Where the last element of a tensor ends, in elements from the start of the storage."""
    steps = zip(fake.shape, fake.stride(), strict=True)
    return fake.storage_offset() + 1 + sum((n - 1) * s for n, s in steps)
