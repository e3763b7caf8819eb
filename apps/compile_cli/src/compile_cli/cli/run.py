"""`compile-cli run`: compile a target, run it, and hold it against eager."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from aten_lowering import module_of
from compile_cli.api import compile
from compile_cli.capture import export, input_names, where
from compile_cli.cli.inputs import parse_dynamic
from compile_cli.cli.loading import Target
from compile_cli.cli.measure import compare, peak_mb, require_equal
from compile_cli.cli.report import Report, fused_groups, matmul_lines
from compile_cli.errors import UsageError, UserModelError
from compile_cli.options import Options
from compile_cli.record import Record
from compile_cli.result import CompiledModel
from tuning import time_ms
from wrapper_ir.memory import peak_bytes

_MODES = {
    "eval": "eval (--train compiles the model in training mode)",
    "train": "train: dropout, statistics of the batch",
    "exported": "as it was exported",
}
_BOTH = ("compiled", "eager")
_FIXED = "the model needs these sizes' values, and is compiled for each"


def run_target(target: Target, dynamic: list[str], options: Options, record: Record) -> Report:
    """Compiles, checks against eager, measures. Raises `NumbersDiffer` if they disagree. Random
    numbers are eager's, so that the results can be compared."""
    options = replace(options, random="eager")
    eager = _eager(target)
    with record.stage("eager"):
        try:
            expected = _observe(target, eager)
        except Exception as error:
            raise UserModelError("in eager", where(error), error) from error
    compiled = compile_target(target, dynamic, options, record)
    with record.stage("check"):
        observed = _observe(target, compiled)
    comparison = compare(observed[0], expected[0])
    require_equal(comparison)
    for what, got, want in zip(("input", "buffer"), observed[1:], expected[1:], strict=True):
        require_equal(compare(got, want, what))
    with record.stage("time"), _buffers_restored(target):
        args, device = target.args, target.device
        calls = [partial(compiled, *args), partial(eager, *args)]
        ms = [time_ms(call, device) for call in calls]
        peaks = [peak_mb(call, device) for call in calls]
        if options.emit == "cpp" and device.type == "cpu":
            # C++ allocates out of sight of torch's dispatcher: what its plan says.
            peaks[0] = peak_bytes(compiled.graph.program) / 1e6
    graph, fixed = compiled.graph, list(compiled.fixed)
    before, after = graph.fusion.bytes_before, graph.fusion.bytes_after
    saved = 1 - after / before if before else 0.0
    fallbacks = sorted({f.op for f in graph.fallbacks})
    report = Report(device, options.emit)
    report.add("mode", _MODES[target.mode], mode=target.mode)
    report.add("fixed", f"{', '.join(fixed)}: {_FIXED}" if fixed else None, fixed=fixed)
    report.add_kernels(graph.program)
    report.add("fallbacks", ", ".join(fallbacks) or "none", fallbacks=fallbacks)
    report.add_all("fused", fused_groups(graph), none="nothing")
    report.add_all("matmuls", matmul_lines(graph))
    report.add(
        "bytes moved",
        f"{before / 1e6:.3f} MB before fusion, {after / 1e6:.3f} MB after ({saved:.0%} saved)",
        bytes_moved={"before": before, "after": after},
    )
    report.add_error(comparison, "eager")
    report.add_times(record, dict(zip(_BOTH, ms, strict=True)))
    peak = {name: round(mb, 3) for name, mb in zip(_BOTH, peaks, strict=True)}
    report.add("peak memory", f"{peaks[0]:.3f} MB, eager {peaks[1]:.3f} MB", peak_mb=peak)
    return report


def compile_target(
    target: Target, dynamic: list[str], options: Options, record: Record
) -> CompiledModel:
    """Compiles for the target's inputs; `dynamic` adds to the sizes named in input specs."""
    dims = dict[int | str, set[int]](_dynamic(target, dynamic).items())
    return compile(target.model, target.args, dynamic=dims, options=options, record=record)


def export_target(target: Target, dynamic: list[str]) -> torch.export.ExportedProgram:
    """Captures the target for its inputs, as `compile_target` does."""
    dims = _dynamic(target, dynamic)
    if isinstance(target.model, nn.Module):
        return export(target.model, target.args, dims)
    return target.model


def _dynamic(target: Target, dynamic: list[str]) -> dict[int, set[int]]:
    dims = {i: set(d) for i, d in target.dynamic.items()}
    if dynamic and not isinstance(target.model, nn.Module):
        raise UsageError(
            "--dynamic does nothing to an exported program: it says itself which of its dimensions "
            "are\n  to do: export it with those dimensions dynamic"
        )
    if isinstance(target.model, nn.Module):
        names = input_names(target.model, target.args)
        for name, extra in parse_dynamic(dynamic, names).items():
            dims.setdefault(names.index(name), set()).update(extra)
    return dims


def _eager(target: Target) -> Callable[..., Any]:
    model = target.model if isinstance(target.model, nn.Module) else module_of(target.model)

    def call(*args: Any) -> Any:
        with torch.no_grad():
            return model(*args)

    return call


def _observe(target: Target, call: Callable[..., Any]) -> Any:
    """What a call gives, what it leaves in its inputs and in the model's buffers: each call begins
    with the same of both, and with the same state of the random numbers."""
    args = _fresh(target.args)
    torch.manual_seed(0)
    with _buffers_restored(target):
        result = call(*args)
        model = target.model
        buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
        return _fresh((result, args, buffers))  # a result may be a buffer, which is undone


def _fresh(args: tuple[Any, ...]) -> Any:
    """Copies of tensors, so that a model that writes into its inputs is given the same twice."""
    return pytree.tree_map_only(torch.Tensor, lambda t: t.clone(), args)


@contextmanager
def _buffers_restored(target: Target) -> Iterator[None]:
    """Undoes what runs write into the model's buffers."""
    if not isinstance(target.model, nn.Module):
        yield
        return
    before = [
        (module._buffers, name, buffer, buffer.clone())
        for module in target.model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for own, name, buffer, value in before:
            own[name] = buffer  # eager may have put another tensor there
            buffer.copy_(value)
