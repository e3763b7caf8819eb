"""The command line: `compile-cli run | dump | compile | explain | doctor`.

Exit codes: 0 ok, 1 the model could not be compiled, 2 usage, 3 the numbers differ or are not
finite, 4 no such device, 5 the model needs what compiled programs do not have (results whose size
depends on data), 6 this machine lacks something (a C++ compiler, a folder to write to)."""

import json
import sys
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from compile_cli.ahead import compile_ahead
from compile_cli.cli.arguments import (
    CompileArguments,
    DebugOpt,
    DumpArguments,
    ExplainArguments,
    ModelArguments,
    RunArguments,
    command,
)
from compile_cli.cli.doctor import examine
from compile_cli.cli.dump import DUMP_STAGES, dump_text
from compile_cli.cli.inputs import DTYPES
from compile_cli.cli.loading import Target, load_target, pick_device
from compile_cli.cli.reentry import run_text
from compile_cli.cli.run import compile_target, export_target, run_target
from compile_cli.errors import CompileCliError, UsageError
from compile_cli.options import Options
from compile_cli.record import STAGES, Record
from compile_cli.result import CompiledModel
from wrapper_ir.analysis import kernels

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compiles PyTorch models to fused Triton kernels.",
)


@command(app, RunArguments)
def run(args: RunArguments) -> None:
    """Compile a model, run it, and compare it with eager; with --from, the text of a stage."""
    steps = ["load", "eager", *STAGES, "check", "time"]
    with _progress() as progress:
        bar = progress.add_task("load", total=len(steps))

        def on_stage(name: str) -> None:
            progress.update(bar, description=name, completed=steps.index(name))

        record = Record(on_stage)
        if args.from_stage is not None:
            _only_a_text(args)
            file = Path(args.target)
            report = run_text(
                args.from_stage, file, args.constants, args.options(), args.seed, record
            )
        else:
            report = run_target(_loaded(args), args.dynamic, args.options(), record)
    text = json.dumps(report.data) if args.json_output else "\n".join(report.lines)
    sys.stdout.write(text + "\n")


@command(app, DumpArguments)
def dump(args: DumpArguments) -> None:
    """Print a stage of a compilation, or what a pass made."""
    if args.stage not in DUMP_STAGES:
        raise UsageError(f"no stage {args.stage!r}\n  expected: one of {', '.join(DUMP_STAGES)}")
    compiled = _compiled(args)
    if args.constants is not None:
        torch.save(dict(compiled.graph.constants), args.constants)
    sys.stdout.write(dump_text(compiled, args.stage, args.after).rstrip("\n") + "\n")


@command(app, CompileArguments)
def compile(args: CompileArguments) -> None:
    """Write a library that runs a model on a GPU without Python, its weights and a C header; no GPU
    is needed here."""
    if args.emit != "cpp":
        raise UsageError(f"--emit {args.emit} makes no library\n  expected: cpp")
    target = load_target(
        args.target, args.input, torch.device("cpu"), _dtype(args.dtype), args.seed, args.train
    )
    program = compile_ahead(
        export_target(target, args.dynamic), args.output, args.for_target, args.options()
    )
    launches = len(kernels(program))
    sys.stdout.write(f"{args.output}: {launches} kernels for {args.for_target}\n")


@command(app, ExplainArguments)
def explain(args: ExplainArguments) -> None:
    """Say what was fused, what was not, and why; what runs each matmul, and the schedules of large
    kernels, with times."""
    sys.stdout.write(_compiled(args).graph.explain().rstrip("\n") + "\n")


@app.command()
def doctor(debug: DebugOpt = False) -> None:
    """Show what this machine can do."""
    sys.stdout.write(examine(Options()) + "\n")


def _compiled(args: ModelArguments) -> CompiledModel:
    """The model, with what each stage and pass made."""
    return compile_target(_loaded(args), args.dynamic, args.options(), Record(keep=True))


def _loaded(args: ModelArguments) -> Target:
    """The model that the arguments name, and its inputs."""
    device = pick_device(args.device)
    return load_target(args.target, args.input, device, _dtype(args.dtype), args.seed, args.train)


def _only_a_text(args: RunArguments) -> None:
    """Raises `UsageError` for options that say what a text says itself."""
    names = ("input", "dynamic", "device", "dtype", "train")
    if said := [f"--{name}" for name in names if getattr(args, name)]:
        raise UsageError(
            f"{', '.join(said)} with --from: the text says itself what its inputs are\n"
            "  to do: edit the text, or drop the option"
        )


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
