# mypy: disable-error-code="no-untyped-call"
# torch.library is not typed.
"""The custom ops `gemm_templates::<name>`: what runs, and shapes for fake tensors."""

from typing import Any

import torch
from torch import Tensor

from gemm_templates.ops import grouped, linear, matmul, scaled
from gemm_templates.ops.operation import Operation, Options, Tensors, parse_config
from gemm_templates.ops.run import run

LIBRARY = torch.library.Library("gemm_templates", "DEF")
OPERATIONS = (
    matmul.MM,
    matmul.BMM,
    matmul.ADDMM,
    matmul.BADDBMM,
    linear.LINEAR_ACT,
    linear.LINEAR_ACT_KEEP,
    linear.GATED_LINEAR,
    grouped.GROUPED_MM,
    scaled.SCALED_MM,
    scaled.MIXED_MM,
)


class _CustomOp:
    """An operation as the implementation of a custom op; `writes`: of `<name>_out`."""

    def __init__(self, operation: Operation, writes: bool) -> None:
        self.operation, self.writes = operation, writes
        name = f"{operation.name}_out" if writes else operation.name
        schema = operation.out_schema if writes else operation.schema
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        arguments = getattr(torch.ops.gemm_templates, name).default._schema.arguments
        self.tensors = sum("Tensor" in str(argument.type) for argument in arguments)
        # The dispatcher leaves out what has its default at the end.
        self.defaults = tuple(argument.default_value for argument in arguments)
        LIBRARY.impl(name, self.run, "CPU")
        LIBRARY.impl(name, self.run, "CUDA")
        qualified = f"gemm_templates::{name}"
        torch.library.register_fake(qualified, self.fake, lib=LIBRARY)
        if operation.gradient is not None and not writes:
            backward, setup = operation.gradient.backward, operation.gradient.setup
            torch.library.register_autograd(qualified, backward, setup_context=setup, lib=LIBRARY)

    def run(self, *given: Any) -> Any:
        """What the op returns."""
        tensors, options, out, config = self._parts(given)
        more = self._besides(tensors, options)
        result = run(self.operation, (*tensors, *more), options, out, parse_config(config))
        return None if self.writes else (result, *more) if more else result

    def fake(self, *given: Any) -> Any:
        """The same without values. Raises InvalidArguments."""
        tensors, options, out, _ = self._parts(given)
        self.operation.check(tensors, options, out)
        if self.writes:
            return None
        result = self.operation.result(tensors, options)
        more = self._besides(tensors, options)
        return (result, *more) if more else result

    def _besides(self, tensors: Tensors, options: Options) -> tuple[Tensor, ...]:
        more = self.operation.besides
        return () if more is None else more(tensors, options)

    def _parts(self, given: tuple[Any, ...]) -> tuple[Tensors, Options, Tensor | None, str]:
        """The tensors that are read, the options, what is written, the config."""
        given = (*given, *self.defaults[len(given) :])
        tensors, options, config = given[: self.tensors], given[self.tensors : -1], given[-1]
        if not self.writes:
            return tensors, options, None, config
        *read, out = tensors
        return tuple(read), (*options, matmul.wanted(read[-1], out, None)), out, config


for _operation in OPERATIONS:
    _CustomOp(_operation, writes=False)
    if _operation.out_schema:
        _CustomOp(_operation, writes=True)
