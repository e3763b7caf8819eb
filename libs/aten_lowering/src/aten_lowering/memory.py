"""What is asked of tensors, and of torch's sizes, before anything is lowered."""

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from aten_lowering.torch_compat import is_batch, negative


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, without the bits that say to conjugate or negate what is in it."""
    if tensor.is_neg():
        tensor = negative(tensor)
    return tensor.conj() if tensor.is_conj() else tensor


def lazy_memory(tensor: torch.Tensor, conj: bool, neg: bool) -> torch.Tensor:
    """What memory holds where `tensor` is lazily conjugated, or negated, or neither: a view of
    its own if it is so already, a copy if not."""
    tensor = tensor.conj() if conj else tensor
    tensor = negative(tensor) if neg else tensor
    return tensor.resolve_conj().resolve_neg()


def storage_key(fake: torch.Tensor) -> int:
    """Identity of the storage: views share it. Only for comparing tensors that are alive.
    Tensors without a storage (sparse ones, batches of `vmap`) share with none."""
    if fake.layout != torch.strided or is_batch(fake):
        return id(fake)
    return int(fake.untyped_storage()._cdata)


def size_hints(env: ShapeEnv) -> dict[Any, Any]:
    """What torch traced with in place of each symbol; those of `mark_unbacked`, and those that
    depend on data, have none."""
    new = hasattr(env, "backed_var_to_val")
    return dict(env.backed_var_to_val if new else env.var_to_val)
