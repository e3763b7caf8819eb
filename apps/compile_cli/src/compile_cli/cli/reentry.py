"""`compile-cli run --from STAGE FILE`: what `dump` printed, edited or not, is read back, verified,
compiled from there on, run, and held against the reference interpreter of that stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aten_lowering import Lowered
from compile_cli.cli.measure import Comparison, compare, require_equal
from compile_cli.cli.report import Report
from compile_cli.errors import UsageError
from compile_cli.hosts import OPERATORS, Outside, Runner, build_program
from compile_cli.options import Options
from compile_cli.pipeline import NO_FUSION, compile_loop, fuse_options
from compile_cli.record import Record
from compile_cli.refusals import plan_refusals
from fx_emit import TORCH_DTYPE, TorchRuntime
from loop_ir import Extern, Graph, UserKernel, interpret_graph, parse_graph
from loop_ir import verify as verify_graph
from planner import Kernels
from symexpr import evaluate
from tensor_ir import DType, IRError, TensorType
from tuning import time_ms
from wrapper_ir import Constant, ExternCall, Program, interpret, parse_program
from wrapper_ir import verify as verify_program
from wrapper_ir.analysis import SUBGRAPH, programs, walk

# The stages whose text is read back, and what it is.
READABLE = {"loop": "loop IR", "fused": "loop IR", "wrapper": "host program"}


def run_text(
    stage: str, file: Path, constants: Path | None, options: Options, seed: int, record: Record
) -> Report:
    """Compiles and runs the text of a stage with random inputs of the sizes that it hints at.

    Raises `UsageError` for a stage or text that cannot be read and for what a text does not hold,
    `NumbersDiffer` where the results are not those of the interpreter."""
    if stage not in READABLE:
        raise UsageError(f"no text of stage {stage!r}\n  expected: one of {', '.join(READABLE)}")
    ir = read(stage, file)
    values = _constants(ir, constants)
    torch.manual_seed(seed)
    inputs = _inputs(ir)
    expected = _interpreted(ir, _copies(inputs), values)
    with plan_refusals():
        program, run = _compiled(ir, stage, values, options, record)
    with record.stage("check"):
        comparison = _compared(tuple(run(*_copies(inputs))), expected)
        require_equal(comparison)
    device = next((x.device for x in inputs if isinstance(x, Tensor)), torch.device("cpu"))
    with record.stage("time"):
        ms = time_ms(lambda: run(*inputs), device)
    report = Report(device, options.emit)
    report.add("from", f"the {READABLE[stage]} of stage {stage}", **{"from": stage})
    report.add_kernels(program)
    report.add_error(comparison, "the reference interpreter")
    report.add_times(record, {"compiled": ms})
    return report


def read(stage: str, file: Path) -> Graph | Program:
    """The verified IR that a file holds as the text of a stage. Raises `UsageError`."""
    try:
        text = file.read_text()
        if stage == "wrapper":
            program = parse_program(text)
            verify_program(program)
            return program
        graph = parse_graph(text)
        verify_graph(graph)
        return graph
    except (OSError, UnicodeDecodeError, IRError) as error:
        raise UsageError(
            f"{file} cannot be read as the {READABLE[stage]} of stage {stage}\n  why:   {error}\n"
            f"  to do: print one with compile-cli dump FILE:NAME --stage {stage}"
        ) from error


def _compiled(
    ir: Graph | Program, stage: str, constants: dict[str, Tensor], options: Options, record: Record
) -> tuple[Program, Runner]:
    if isinstance(ir, Graph):
        fusing = fuse_options(options, ir) if stage == "loop" else NO_FUSION
        compiled = compile_loop(Lowered(ir, constants, ()), fusing, options, record)
        return compiled.program, compiled.run
    kernels = Kernels(options)
    with kernels.compiling():
        _, run, _ = build_program(ir, kernels, Outside(constants), options, record)
    return ir, run


# -- what a text does not hold


def _constants(ir: Graph | Program, file: Path | None) -> dict[str, Tensor]:
    """The tensors of the constants that the text names, from the file that `dump` wrote beside
    it. Raises `UsageError` where one is missing, and for what no file holds."""
    for what in _elsewhere(ir):
        raise UsageError(
            f"the text calls {what}, which only the model has\n"
            "  to do: compile the model itself: compile-cli run FILE:NAME"
        )
    named = _named_constants(ir)
    try:
        found = torch.load(file, weights_only=True) if file is not None else {}
    except Exception as error:
        raise UsageError(f"{file} holds no constants\n  why:   {error}") from error
    if missing := sorted(named - found.keys()):
        raise UsageError(
            f"the text names {len(missing)} constants, whose values it does not hold: "
            f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}\n"
            "  to do: write them when the text is printed (compile-cli dump --constants FILE.pt) "
            "and give them here: --constants FILE.pt"
        )
    return {name: found[name] for name in named}


def _named_constants(ir: Graph | Program) -> set[str]:
    if isinstance(ir, Graph):
        return {name for name, _ in ir.constants}
    return {op.key for p in programs(ir) for op in p.ops if isinstance(op, Constant)}


def _elsewhere(ir: Graph | Program) -> Iterator[str]:
    """What a call needs that is no operator of torch and no kernel in the text."""
    inner = () if isinstance(ir, Graph) else programs(ir)
    for node in ir.nodes if isinstance(ir, Graph) else (op for p in inner for op in walk(p.ops)):
        if isinstance(node, UserKernel):
            yield f"the Triton kernel {node.kernel} of the user's"
        elif isinstance(node, Extern) and node.target.startswith(SUBGRAPH):
            yield f"a graph beside it, {node.target}"
        elif isinstance(node, Extern | ExternCall) and node.target.startswith("eager."):
            yield f"a part of the model that torch runs, {node.target}"


# -- inputs, and what the interpreters make of them


def _inputs(ir: Graph | Program) -> tuple[Any, ...]:
    """Random tensors, integers of which are 0 or 1, so that they may be indices; and the sizes
    themselves."""
    env = {s.name: s.typical for s in ir.symbols}
    params = ir.inputs if isinstance(ir, Graph) else ir.params
    return tuple(env[p.name] if p.type is None else _random(p.type, env) for p in params)


def _random(type: TensorType, env: Mapping[str, int]) -> Tensor:
    size, stride = ([int(evaluate(n, env)) for n in part] for part in (type.size, type.stride))
    dtype = TORCH_DTYPE[type.dtype]
    out = torch.empty_strided(size, stride, dtype=dtype, device=str(type.device))
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return out.copy_(torch.randn(size, dtype=wide, device=out.device))
    return out.copy_(torch.randint(0, 2, size, device=out.device))


def _copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same inputs in memory of their own, with the same strides: a run may write there."""
    return tuple(
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)
        if isinstance(x, Tensor)
        else x
        for x in inputs
    )


def _interpreted(
    ir: Graph | Program, inputs: tuple[Any, ...], constants: Mapping[str, Tensor]
) -> tuple[Any, ...]:
    """What the reference interpreter of the IR gives."""
    if isinstance(ir, Program):
        kernels = Kernels(Options())
        return interpret(ir, inputs, TorchRuntime(kernels.launcher, OPERATORS), constants)
    runtime = TorchRuntime(lambda define: _no_launch, OPERATORS)

    def extern(target: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tuple(map(_to_torch, args)), {k: _to_torch(v) for k, v in kwargs.items()}
        return _to_numpy(runtime.extern(target, *given))

    arrays = {name: _to_numpy(tensor) for name, tensor in constants.items()}
    return interpret_graph(ir, tuple(map(_to_numpy, inputs)), arrays, extern)


def _no_launch(*args: Any) -> None:
    raise AssertionError("a graph of loop nests launches nothing")


def _to_numpy(value: Any) -> Any:
    """Tensors as arrays; those of element types that numpy has no name for as float32."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        known = plain.dtype not in _UNKNOWN_TO_NUMPY
        return (plain if known else plain.float()).numpy()
    return tuple(map(_to_numpy, value)) if isinstance(value, list | tuple) else value


_UNKNOWN_TO_NUMPY = frozenset(
    TORCH_DTYPE[dtype] for dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2)
)


def _to_torch(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return tuple(map(_to_torch, value)) if isinstance(value, list | tuple) else value


def _compared(got: tuple[Any, ...], expected: tuple[Any, ...]) -> Comparison:
    """The results beside the interpreter's, which may be arrays, on a device of their own."""
    pairs = zip(got, map(_to_torch, expected), strict=True)
    beside = tuple(y.to(x) if isinstance(x, Tensor) else y for x, y in pairs)
    return compare(got, beside)
