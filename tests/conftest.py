"""The example encoder, caches of their own, and a backend that keeps what it compiled."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # torch takes seconds, for which pytest's first process keeps the others waiting
    import torch

    import gemm_templates
    from compile_cli.result import CompiledGraph
    from planner.matmul.decide import MatmulPlanner

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def encoder_file() -> Path:
    return ROOT / "examples" / "encoder.py"


@pytest.fixture(scope="session")
def example(encoder_file: Path) -> ModuleType:
    """`examples/encoder.py` as a module."""
    spec = importlib.util.spec_from_file_location("encoder", encoder_file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["encoder"] = module
    spec.loader.exec_module(module)
    return module


def _beside(name: str) -> ModuleType:
    """A file of this folder as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def special_values() -> ModuleType:
    """`tests/special_values.py` as a module."""
    return _beside("special_values")


@pytest.fixture(scope="session")
def special_functions() -> ModuleType:
    """`tests/special_functions.py` as a module."""
    return _beside("special_functions")


@pytest.fixture(scope="session")
def encoder(example: ModuleType) -> Any:
    """The encoder with the example's sizes and fixed weights."""
    import torch

    torch.manual_seed(0)
    return example.Encoder(*example.get_init_inputs()).eval()


@pytest.fixture
def options(own_cache: Path) -> dict[str, Any]:
    return {"cache_dir": str(own_cache)}


@pytest.fixture
def large_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointwise kernels in programs of 1024 points, as of large tensors: of few thousands of them
    the interpreter runs two or three programs, not eleven and more."""
    monkeypatch.setattr("triton_emit.schedule.points.MULTIPROCESSORS", 1)


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    import torch

    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


class Compiled:
    """`torch.compile` with our backend, keeping what was compiled."""

    def __init__(self, options: dict[str, Any]) -> None:
        from compile_cli import Options

        self.options = Options.from_mapping(options)
        self.graphs: list[CompiledGraph] = []

    def backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from torch._dynamo.backends.common import aot_autograd

        from aten_lowering import decompositions
        from compile_cli.pipeline import compile_graph
        from compile_cli.record import Record

        def compile_fx(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
            self.graphs.append(compile_graph(graph, self.options, Record()))
            run = self.graphs[-1].run

            def boxed(args: list[Any]) -> Any:
                return run(*args)

            boxed._boxed_call = True  # type: ignore[attr-defined]
            return boxed

        make: Callable[..., Any] = aot_autograd(
            fw_compiler=compile_fx,
            decompositions=decompositions(),
            keep_inference_input_mutations=True,
        )
        return make(gm, inputs)  # type: ignore[no-any-return]

    def __call__(self, fn: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        import torch

        compiled: Callable[..., Any] = torch.compile(
            fn, backend=self.backend, fullgraph=True, **more
        )
        return torch.no_grad()(compiled)

    def ops(self, kind: type) -> list[Any]:
        return [op for op in self.graphs[-1].program.ops if isinstance(op, kind)]


@pytest.fixture
def compiled_as(options: dict[str, Any]) -> Callable[[str], Compiled]:
    """By the name of the emitter."""
    return lambda emit: Compiled({**options, "emit": emit})


@pytest.fixture(params=["fx", pytest.param("hop", marks=pytest.mark.slow), "cpp"])
def compiled(request: pytest.FixtureRequest, options: dict[str, Any]) -> Compiled:
    return Compiled({**options, "emit": request.param})


@pytest.fixture
def fx(options: dict[str, Any]) -> Compiled:
    return Compiled(options)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None) -> Iterator[list[CompiledGraph]]:
    """The graphs that `torch.compile` compiles, as they come; none is left to eager."""
    from compile_cli import pipeline

    graphs: list[CompiledGraph] = []
    compile_graph = pipeline.compile_graph

    def spy(*args: Any, **kwargs: Any) -> CompiledGraph:
        graphs.append(compile_graph(*args, **kwargs))
        return graphs[-1]

    monkeypatch.setattr(pipeline, "compile_graph", spy)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="compile_cli leaves")
        yield graphs


Timer = Callable[[Any, Any], list[float]]


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Timer], list[gemm_templates.Choice]]:
    """`as_on_gpu(timer)`: matmuls on the CPU are decided as on a GPU, by the times that `timer`
    gives. What was chosen, in order."""
    import gemm_templates
    from compile_cli import pipeline
    from loop_ir import FuseOptions
    from planner.matmul import ladder
    from planner.matmul.decide import MatmulPlanner

    choices: list[gemm_templates.Choice] = []
    make_task, choose = MatmulPlanner._make_task, gemm_templates.choose

    def task(self: MatmulPlanner, *args: Any) -> Any:
        options, self.options = self.options, replace(self.options, gemm="template")
        try:
            return make_task(self, *args)
        finally:
            self.options = options

    def start(timer: Timer) -> list[gemm_templates.Choice]:
        def chosen(problem: Any, inputs: Any, extern: Any, found: Any, **more: Any) -> Any:
            choice = choose(
                problem, inputs, extern, found, device="cpu", force=timer,
                build=gemm_templates.bind,
            )  # fmt: skip
            choices.append(choice)
            return choice

        monkeypatch.setattr(MatmulPlanner, "_make_task", task)
        monkeypatch.setattr(gemm_templates, "choose", chosen)
        monkeypatch.setattr(gemm_templates, "prefetch", lambda *_, **__: [])
        monkeypatch.setattr(
            pipeline, "fuse_options", lambda *_: FuseOptions(epilogue=True, prologue=True)
        )
        monkeypatch.setattr(ladder, "LADDER", (1, 16))
        return choices

    return start
