"""`torch.compile(model, backend="compile_cli", options={...})`.

Dynamo captures and guards, AOTAutograd makes the ATen graph; each graph goes through the same
pipeline as the command line's. The one place that touches `torch._dynamo` and AOTAutograd."""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from importlib.metadata import entry_points
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from compile_cli.garbage import collected_later

with collected_later():
    import compile_cli.graph_cache as graph_cache
    from aten_lowering import own_composites
    from aten_lowering.fakes import correct_fakes
    from aten_lowering.passes.one_stream import one_stream
    from aten_lowering.passes.readable_masks import make_masks_readable
    from aten_lowering.passes.score_tables import score_tables
    from aten_lowering.passes.writable_views import writable_views
    from compile_cli.capture import order_matters, retyped_input
    from compile_cli.graph_cache import GraphCode, cacheable, cached
    from compile_cli.options import Options
    from compile_cli.torch_compat import (
        TorchDynamoException,
        aot_autograd,
        aot_module_simplified,
        counters,
        dual_level,
        guard_dual_level,
        register_backend,
        untraced,
    )
    from planner import start_workers

if TYPE_CHECKING:
    from compile_cli.graph_compiler import GraphCompiler

_MATMULS = {"linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "addbmm", "einsum"}
CANDIDATES = 5  # templates that are compiled for a matmul, to be measured

_OURS = ("compile_cli", "aten_lowering", "planner", "loop_ir", "tensor_ir", "symexpr")


def compile_cli(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: dict[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Dynamo's backend interface. Options are those of `compile_cli.Options`; an unknown one is
    refused by name. mode: one of torch.compile's, which stands for some of them (`options.MODES`).
    """
    began = perf_counter()
    graph_cache.until_compiled()
    settings = Options.from_mapping({**Options.of_mode(mode), **(options or {})})

    @functools.cache
    def compiler() -> GraphCompiler:
        from compile_cli.graph_compiler import GraphCompiler  # a graph that is found needs none

        return GraphCompiler(settings, began)

    def compile_fx(graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> GraphCode:
        if kept and not settings.cuda_graphs:
            graph_cache.kept_when_compiled()
        return compiler().compile(graph)

    if (why := order_matters(gm) or retyped_input(gm) or _in_forward_mode()) is not None:
        warnings.warn(f"compile_cli leaves a graph to eager: {why}", stacklevel=2)
        eager: Callable[..., Any] = gm.forward
        return eager
    names = [getattr(n.target, "__name__", n.target) for n in gm.graph.nodes if "call" in n.op]
    kernels = len(names) + CANDIDATES * sum(name in _MATMULS for name in names)
    start = partial(start_workers, settings, example_inputs, kernels)
    kept = settings.fx_backend is None
    one_stream(gm)
    make_masks_readable(gm)
    writable_views(gm)
    score_tables(gm)
    how: dict[str, Any] = {
        "fw_compiler": cacheable(compile_fx) if kept else compile_fx,
        "bw_compiler": cacheable(_untraced(compile_fx)) if kept else _untraced(compile_fx),
        "decompositions": _Decompositions(start),
        "keep_inference_input_mutations": True,
        "partition_fn": lambda *given, **more: compiler().partition(*given, **more),
    }
    try:
        with collected_later(), own_composites(), cached(settings) if kept else nullcontext():
            if any(isinstance(x, list | tuple | dict) for x in example_inputs):
                result: Callable[..., Any] = aot_autograd(**how)(gm, example_inputs)
            else:  # which is what that does, but for imports of torch's own compiler
                counters["aot_autograd"]["total"] += 1  # DDP's optimizer looks at it
                result = untraced(aot_module_simplified(gm, example_inputs, **how))
    except Exception as error:
        if isinstance(error, TorchDynamoException) or _is_ours(error):
            raise
        warnings.warn(f"compile_cli leaves a graph to eager: {error}", stacklevel=2)
        return gm.forward
    return result


def _in_forward_mode() -> str | None:
    """Why a graph is left to eager where its inputs may have tangents, which kernels do not carry
    along. Elsewhere it is compiled anew."""
    guard_dual_level()
    return "its inputs may be dual numbers (torch.autograd.forward_ad)" if dual_level() else None


def _untraced(compile_fx: Callable[..., GraphCode]) -> Callable[..., GraphCode]:
    """A compiler of backward passes, which are compiled and run while Dynamo may look on."""
    quiet = untraced(compile_fx)

    @functools.wraps(compile_fx)
    def compile_backward(*args: Any, **more: Any) -> GraphCode:
        code: GraphCode = untraced(quiet(*args, **more))
        return code

    return compile_backward


class _Decompositions(Mapping[Any, Callable[..., Any]]):
    """The table of decompositions, made when it is asked for, when compile workers are started:
    a graph that is found in the cache needs neither."""

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start

    @functools.cached_property
    def _table(self) -> dict[Any, Callable[..., Any]]:
        from aten_lowering import decompositions

        self._start()
        return decompositions()

    def __getitem__(self, op: Any) -> Callable[..., Any]:
        return self._table[op]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)


def _is_ours(error: Exception) -> bool:
    """Whether it was raised beyond this module by code of this project: else AOTAutograd has no
    functional form of the graph."""
    frames = (str(f.f_globals.get("__name__")) for f, _ in traceback.walk_tb(error.__traceback__))
    return any(name.split(".")[0] in _OURS and name != __name__ for name in frames)


def _register() -> None:
    """Makes the backend known by name, unless the installed package's entry point does."""
    if "compile_cli" not in entry_points(group="torch_dynamo_backends").names:
        register_backend(compile_cli, name="compile_cli")


_register()
correct_fakes()  # before Dynamo asks them
graph_cache.until_compiled()


# What the package calls it.
backend = compile_cli
