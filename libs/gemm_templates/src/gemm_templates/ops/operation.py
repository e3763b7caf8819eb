"""What an operation is, as a problem and as torch's own call, and what is decided about one."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gemm_templates.launch import Bound, Inputs
from gemm_templates.problem import Config, Problem

# Of an operation, in the order of its schema; None for one that is optional and not given.
Tensors = tuple[Any, ...]
Options = tuple[Any, ...]


@dataclass(frozen=True)
class Gradient:
    """Derivatives of a custom op, as `torch.library.register_autograd` takes them."""

    backward: Callable[..., Any]
    setup: Callable[..., None]


@dataclass(frozen=True)
class Operation:
    """One operation: a row of the public operators.

    schema: of the custom op `gemm_templates::<name>`: the tensors, then the options in their order,
    then `config`. out_schema: of `<name>_out`, whose last tensor is written and says what the last
    option, `out_dtype`, does; "" if there is none.
    check: raises InvalidArguments; asked once for each kind of arguments.
    problem: None where the templates do not compute it. inputs: with `out` to be written.
    extern: torch's way; writes to `out` where there is one. result: a new tensor to be written.
    gradient: of the custom op.
    rows: which of the tensors have M rows in their first dimension, those first that always have;
    empty where decisions are not shared among numbers of rows.
    padded: torch's way on copies with aligned rows, tried where `is_odd`.
    operands: which of the tensors are multiplied; where `is_odd`, templates on copies of them with
    aligned rows are tried.
    besides: new tensors that the custom op writes and returns, too; they follow the tensors.
    examples: the tensors to measure on, where those of the call will not do.
    worth: operations below which a product is not worth measuring: the launch is the cost."""

    name: str
    schema: str
    check: Callable[[Tensors, Options, Tensor | None], object]
    problem: Callable[[Tensors, Options, Tensor], Problem | None]
    inputs: Callable[[Tensors, Options, Tensor], Inputs]
    extern: Callable[[Tensors, Options, Tensor | None], Tensor]
    result: Callable[[Tensors, Options], Tensor]
    gradient: Gradient | None = None
    out_schema: str = ""
    rows: tuple[int, ...] = ()
    padded: Callable[[Tensors, Options], Tensor] | None = None
    operands: tuple[int, ...] = ()
    besides: Callable[[Tensors, Options], tuple[Tensor, ...]] | None = None
    examples: Callable[[Tensors], Tensors] | None = None
    worth: int = 2 * 64**3


@dataclass(frozen=True)
class Decision:
    """bound: a template, or None for torch's call. ranged: it gets the number of rows. padded:
    torch's call on padded copies. copied: the template gets copies of the operands."""

    bound: Bound | None = None
    ranged: bool = False
    padded: bool = False
    copied: bool = False


EXTERN = Decision()
PADDED = Decision(padded=True)


def signature(tensor: Tensor | None) -> tuple[Any, ...] | None:
    """All that a decision depends on, but for the values."""
    if tensor is None:
        return None
    at = tensor.data_ptr() % 16 == 0
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, at


_CONFIG_FIELDS = tuple(f.name for f in fields(Config))


def config_text(config: Config | None) -> str:
    """A config as an argument of a custom op; "" for None."""
    if config is None:
        return ""
    return ";".join([str(getattr(config, name)) for name in _CONFIG_FIELDS])


@lru_cache(maxsize=256)
def parse_config(text: str) -> Config | None:
    """The inverse of `config_text`."""
    if not text:
        return None
    default = Config()
    values: dict[str, Any] = {}
    for name, word in zip(_CONFIG_FIELDS, text.split(";"), strict=True):
        kind = type(getattr(default, name))
        values[name] = word == "True" if kind is bool else kind(word)
    return Config(**values)


def is_writable(out: Tensor, tensors: Tensors) -> bool:
    """Whether `out` has a place for each element, and no memory of what is read."""
    memory = out.untyped_storage().data_ptr()
    if any(t is not None and t.untyped_storage().data_ptr() == memory for t in tensors):
        return False
    reach = 1
    for stride, size in sorted(zip(out.stride(), out.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return False
            reach = stride * size
    return True


def records(tensors: Tensors) -> bool:
    """Whether gradients are recorded of any of them."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
