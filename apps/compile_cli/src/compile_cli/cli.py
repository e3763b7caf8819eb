"""The command line: `compile-cli run | dump | explain | doctor`.

Exit codes: 0 ok, 1 the model could not be compiled, 2 usage, 3 the numbers differ or are not
finite, 4 no such device, 5 the model needs what compiled programs do not have (results whose size
depends on data), 6 this machine lacks something (a C++ compiler, a folder to write to).
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from compile_cli.config import Options
from compile_cli.doctor import examine
from compile_cli.dump import DUMP_STAGES, dump_text
from compile_cli.errors import CompileCliError, UsageError
from compile_cli.inputs import DTYPES
from compile_cli.loading import load_target, pick_device
from compile_cli.run import compile_target, run_target
from compile_cli.stages import STAGES, Record

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="Compiles PyTorch models to fused Triton kernels.",
)  # fmt: skip

TargetArg = Annotated[
    str, typer.Argument(help="FILE:NAME of a module, function or class, or FILE.pt2")
]
InputOpt = Annotated[
    list[str],
    typer.Option(
        "--input", help="an input, such as 'i64[batch=2,32]<1000'; a named size is dynamic"
    ),
]
DynamicOpt = Annotated[
    list[str], typer.Option("--dynamic", help="INPUT.DIM or DIM that may differ between calls")
]
DeviceOpt = Annotated[str | None, typer.Option(help="cpu or cuda[:INDEX]; default: a GPU if any")]
DtypeOpt = Annotated[str | None, typer.Option(help="convert floats of the model and inputs: bf16")]
EmitOpt = Annotated[str, typer.Option(help="host program: fx, hop or cpp")]
GemmOpt = Annotated[str, typer.Option(help="matmuls: auto, extern or template")]
GraphsOpt = Annotated[bool, typer.Option(help="replay CUDA graphs from the second call on")]
LastOpt = Annotated[
    str, typer.Option(help="convolutions on channels-last tensors: auto, on or off")
]
NansOpt = Annotated[
    bool, typer.Option(help="stop at the first kernel that makes a NaN or an infinity")
]
TuneOpt = Annotated[str, typer.Option(help="measure schedules of kernels: auto, max or off")]
FuseOpt = Annotated[bool, typer.Option(help="join loop nests into fewer kernels")]
CacheOpt = Annotated[str | None, typer.Option(help="directory for compiled kernels")]
TrainOpt = Annotated[
    bool, typer.Option("--train/--eval", help="the mode that the model is put into")
]
SeedOpt = Annotated[int, typer.Option(help="seed of weights and random inputs")]
DebugOpt = Annotated[bool, typer.Option("--debug", help="show tracebacks")]


@app.command()
def run(
    target: TargetArg,
    input: InputOpt = [],  # noqa: B006  (typer reads the default, nobody changes it)
    dynamic: DynamicOpt = [],  # noqa: B006
    device: DeviceOpt = None,
    dtype: DtypeOpt = None,
    emit: EmitOpt = "fx",
    gemm: GemmOpt = "auto",
    fuse: FuseOpt = True,
    cuda_graphs: GraphsOpt = False,
    channels_last: LastOpt = "auto",
    nan_asserts: NansOpt = False,
    tune: TuneOpt = "auto",
    cache_dir: CacheOpt = None,
    seed: SeedOpt = 0,
    train: TrainOpt = False,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
    debug: DebugOpt = False,
) -> None:
    """Compile a model, run it, and compare it with eager."""
    options = Options(
        emit=emit, gemm=gemm, fuse=fuse, cache_dir=cache_dir, cuda_graphs=cuda_graphs,
        channels_last=channels_last, nan_asserts=nan_asserts, tune=tune,
    )  # fmt: skip
    where = pick_device(device)
    steps = ["load", "eager", *STAGES, "check", "time"]
    with _progress() as progress:
        bar = progress.add_task("load", total=len(steps))

        def on_stage(name: str) -> None:
            progress.update(bar, description=name, completed=steps.index(name))

        record = Record(on_stage)
        loaded = load_target(target, input, where, _dtype(dtype), seed, train)
        report = run_target(loaded, dynamic, options, record)
    if json_output:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")
    else:
        sys.stdout.write(report.to_text() + "\n")


@app.command()
def dump(
    target: TargetArg,
    stage: Annotated[str, typer.Option(help=" | ".join(DUMP_STAGES))] = "fused",
    after: Annotated[str | None, typer.Option(help="the stage's IR after this pass")] = None,
    input: InputOpt = [],  # noqa: B006
    dynamic: DynamicOpt = [],  # noqa: B006
    device: DeviceOpt = None,
    dtype: DtypeOpt = None,
    emit: EmitOpt = "fx",
    gemm: GemmOpt = "auto",
    fuse: FuseOpt = True,
    cache_dir: CacheOpt = None,
    seed: SeedOpt = 0,
    train: TrainOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Print a stage of a compilation, or what a pass made."""
    if stage not in DUMP_STAGES:
        raise UsageError(f"no stage {stage!r}\n  expected: one of {', '.join(DUMP_STAGES)}")
    options = Options(emit=emit, gemm=gemm, fuse=fuse, cache_dir=cache_dir)
    loaded = load_target(target, input, pick_device(device), _dtype(dtype), seed, train)
    compiled = compile_target(loaded, dynamic, options, Record(keep=True))
    sys.stdout.write(dump_text(compiled, stage, after).rstrip("\n") + "\n")


@app.command()
def explain(
    target: TargetArg,
    input: InputOpt = [],  # noqa: B006
    dynamic: DynamicOpt = [],  # noqa: B006
    device: DeviceOpt = None,
    dtype: DtypeOpt = None,
    tune: TuneOpt = "auto",
    cache_dir: CacheOpt = None,
    seed: SeedOpt = 0,
    train: TrainOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Say what was fused, what was not, and why; what runs each matmul, and the schedules of large
    kernels, with times."""
    loaded = load_target(target, input, pick_device(device), _dtype(dtype), seed, train)
    options = Options(tune=tune, cache_dir=cache_dir)
    compiled = compile_target(loaded, dynamic, options, Record(keep=True))
    sys.stdout.write(compiled.graph.explain().rstrip("\n") + "\n")


@app.command()
def doctor(debug: DebugOpt = False) -> None:
    """Show what this machine can do."""
    sys.stdout.write(examine(Options()) + "\n")


def _dtype(name: str | None) -> torch.dtype | None:
    if name is None:
        return None
    if name not in DTYPES or not DTYPES[name].is_floating_point:
        floats = ", ".join(n for n, d in DTYPES.items() if d.is_floating_point)
        raise UsageError(f"no dtype {name!r} to convert to\n  expected: one of {floats}")
    return DTYPES[name]


def _progress() -> Progress:
    """A bar on the terminal; nothing where standard error is no terminal."""
    console = Console(stderr=True)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description:8}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry point: one message and an exit code for every error, a traceback with --debug."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app(arguments, standalone_mode=True)
    except CompileCliError as error:
        if "--debug" in arguments:
            raise
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
    except Exception as error:
        if "--debug" in arguments:
            raise
        sys.stderr.write(
            f"error: {type(error).__name__}: {error}\n"
            "  this is a bug of the compiler; --debug shows where\n"
        )
        sys.exit(1)
