"""What is run: operators of `op_db` and modules of `module_db`, with their sample inputs."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor

if importlib.util.find_spec("expecttest") is None:
    # torch's test utilities derive a class from this package's, and use nothing else of it here.
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]

SAMPLES_LOOKED_AT = 48


@dataclass(frozen=True)
class Case:
    """One call. `fn(*args, **kwargs)`; `fn` may be a module. process: what torch's own tests put
    between an operator's results and their gradient (the sign of an eigenvector is arbitrary)."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any]

    def text(self) -> str:
        shapes = pytree.tree_map(_brief, (self.args, self.kwargs))
        return f"{shapes[0]} {shapes[1] or ''}".strip().replace("'", "")


def _brief(value: Any) -> Any:
    return f"{list(value.shape)}" if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Subject:
    """An entry of a database: `samples(dtype, requires_grad)` are its cases. variant: `function`,
    `inplace`, `train` or `eval`."""

    name: str
    variant: str
    dtypes: frozenset[torch.dtype]
    backward_dtypes: frozenset[torch.dtype]
    samples: Callable[[torch.dtype, bool], Iterator[Case]]


def _operators(device: str, inplace: bool) -> Iterator[Subject]:
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

    common_utils.extract_test_fn = lambda: None  # else it looks through the stack for each sample
    for op in op_db:
        fn = op.get_inplace() if inplace else op.get_op()
        if fn is None:
            continue

        def samples(dtype: torch.dtype, grad: bool, op: Any = op, fn: Any = fn) -> Iterator[Case]:
            def call(*args: Any, **kwargs: Any) -> Any:
                return fn(*args, **kwargs)

            for sample in op.sample_inputs(device, dtype, requires_grad=grad):
                if not (inplace and sample.broadcasts_input):
                    args = (sample.input, *sample.args)
                    yield Case(call, args, sample.kwargs, sample.output_process_fn_grad)

        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        gradients = op.supported_backward_dtypes(device) if op.supports_autograd else ()
        if inplace and not op.supports_inplace_autograd:
            gradients = ()
        yield Subject(
            name, "inplace" if inplace else "function",
            frozenset(op.supported_dtypes(device)), frozenset(gradients), samples,
        )  # fmt: skip


def _modules(device: str) -> Iterator[Subject]:
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        for training in (True, False) if info.train_and_eval_differ else (False,):

            def samples(
                dtype: torch.dtype, grad: bool, info: Any = info, training: bool = training
            ) -> Iterator[Case]:
                for each in info.module_inputs_func(
                    info, device=device, dtype=dtype, requires_grad=grad, training=training
                ):
                    if each.forward_input is None:
                        continue
                    made, given = each.constructor_input, each.forward_input
                    module = info.module_cls(*made.args, **made.kwargs)
                    module = module.to(device).to(dtype).train(training)
                    yield Case(module, tuple(given.args), dict(given.kwargs), lambda out: out)

            dtypes = frozenset(info.supported_dtypes(torch.device(device).type))
            gradients = dtypes
            variant = "train" if training else "eval"
            yield Subject(info.name, variant, dtypes, gradients, samples)


@cache
def subjects(device: str) -> dict[tuple[str, str], Subject]:
    """Every entry, by name and variant."""
    found = [*_operators(device, False), *_operators(device, True), *_modules(device)]
    return {(s.name, s.variant): s for s in found}


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def elements(case: Case) -> int:
    return sum(t.numel() for t in tensors_of((case.args, case.kwargs)))


def choose(
    subject: Subject, dtype: torch.dtype, grad: bool, count: int, most: int
) -> list[tuple[int, Case]]:
    """`count` samples spread over those of the entry, the same each time, with their positions.
    most: samples of more elements are left out, unless none has fewer."""
    seed(0)
    found = list(enumerate(islice(subject.samples(dtype, grad), SAMPLES_LOOKED_AT)))
    small = [each for each in found if elements(each[1]) <= most]
    found = small or sorted(found, key=lambda each: elements(each[1]))[:1]
    if len(found) <= count:
        return found
    return [found[round(i * (len(found) - 1) / max(count - 1, 1))] for i in range(count)]


def tensors_of(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


class Copies:
    """Copies of tensors that share storage where the originals do, with the same strides; as
    float64 (and complex128) if `wide`."""

    def __init__(self, wide: bool = False) -> None:
        self.wide = wide
        self.storages: dict[int, Any] = {}

    def tensor(self, t: Tensor) -> Tensor:
        with torch.no_grad():
            if t.layout != torch.strided or (self.wide and t.is_floating_point()):
                copy = t.detach().clone()
            elif t.is_conj():
                return torch._conj(self.tensor(t.conj())).requires_grad_(t.requires_grad)
            else:
                storage = t.untyped_storage()
                if storage._cdata not in self.storages:
                    self.storages[storage._cdata] = storage.clone()
                copy = torch.empty(0, dtype=t.dtype, device=t.device).set_(
                    self.storages[storage._cdata], t.storage_offset(), t.shape, t.stride()
                )
            if self.wide and t.is_floating_point():
                copy = copy.double()
            elif self.wide and t.is_complex():
                copy = copy.to(torch.complex128)
        return copy.requires_grad_(t.requires_grad)

    def tree(self, tree: Any) -> Any:
        def copy(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return self.tensor(leaf)
            if self.wide and isinstance(leaf, torch.dtype) and leaf.is_floating_point:
                return torch.float64
            return leaf

        return pytree.tree_map(copy, tree)
