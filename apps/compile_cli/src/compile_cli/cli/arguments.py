"""The arguments of each command, as dataclasses: a field is an option, and has its default."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from compile_cli.cli.dump import DUMP_STAGES
from compile_cli.cli.reentry import READABLE
from compile_cli.options import Options

TargetArg = Annotated[
    str, typer.Argument(help="FILE:NAME of a module, a class of one, or a function; or FILE.pt2")
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
CpuOpt = Annotated[str, typer.Option(help="kernels on the CPU: auto, cpp or interpreter")]
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
FromOpt = Annotated[
    str | None,
    typer.Option("--from", help=f"FILE is the text of this stage: {' | '.join(READABLE)}"),
]
ConstantsOpt = Annotated[
    Path | None, typer.Option(help="the file that dump writes the model's constants to, for run")
]
DebugOpt = Annotated[bool, typer.Option("--debug", help="show tracebacks")]


@dataclass(frozen=True)
class ModelArguments:
    """Arguments of every command that compiles a model."""

    target: TargetArg
    input: InputOpt = field(default_factory=list)
    dynamic: DynamicOpt = field(default_factory=list)
    device: DeviceOpt = None
    dtype: DtypeOpt = None
    cache_dir: CacheOpt = None
    seed: SeedOpt = 0
    train: TrainOpt = False
    debug: DebugOpt = False

    def options(self) -> Options:
        """Those of the arguments that are options of a compilation."""
        return Options(
            **{f.name: getattr(self, f.name) for f in fields(Options) if hasattr(self, f.name)}
        )


@dataclass(frozen=True)
class RunArguments(ModelArguments):
    """Arguments of `compile-cli run`."""

    emit: EmitOpt = "fx"
    cpu_kernels: CpuOpt = "auto"
    gemm: GemmOpt = "auto"
    fuse: FuseOpt = True
    cuda_graphs: GraphsOpt = False
    channels_last: LastOpt = "auto"
    nan_asserts: NansOpt = False
    tune: TuneOpt = "auto"
    from_stage: FromOpt = None
    constants: ConstantsOpt = None
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object")] = False


@dataclass(frozen=True)
class DumpArguments(ModelArguments):
    """Arguments of `compile-cli dump`."""

    stage: Annotated[str, typer.Option(help=" | ".join(DUMP_STAGES))] = "fused"
    after: Annotated[str | None, typer.Option(help="the stage's IR after this pass")] = None
    emit: EmitOpt = "fx"
    cpu_kernels: CpuOpt = "auto"
    gemm: GemmOpt = "auto"
    fuse: FuseOpt = True
    constants: ConstantsOpt = None


@dataclass(frozen=True)
class CompileArguments(ModelArguments):
    """Arguments of `compile-cli compile`."""

    output: Annotated[Path, typer.Option("-o", "--output", help="the library")] = Path("model.so")
    emit: Annotated[str, typer.Option(help="cpp, a library that runs without Python")] = "cpp"
    for_target: Annotated[
        str, typer.Option("--target", help="cuda:90, of compute capability 9.0")
    ] = "cuda:90"


@dataclass(frozen=True)
class ExplainArguments(ModelArguments):
    """Arguments of `compile-cli explain`."""

    tune: TuneOpt = "auto"


T = TypeVar("T")


def command(
    app: typer.Typer, arguments: type[T]
) -> Callable[[Callable[[T], None]], Callable[[T], None]]:
    """Makes a function of `arguments`, a dataclass, a command of `app`: typer reads signatures, so
    it is given one with a parameter a field."""
    hints = get_type_hints(arguments, include_extras=True)
    parameters = []
    for each in fields(arguments):  # type: ignore[arg-type]  # a dataclass, which no type says
        default = each.default if each.default_factory is MISSING else each.default_factory()
        kind = inspect.Parameter.KEYWORD_ONLY
        default = inspect.Parameter.empty if default is MISSING else default
        parameters.append(
            inspect.Parameter(each.name, kind, default=default, annotation=hints[each.name])
        )

    def register(run: Callable[[T], None]) -> Callable[[T], None]:
        def called(**given: Any) -> None:
            run(arguments(**given))

        called.__doc__ = run.__doc__
        called.__annotations__ = hints
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # which inspect reads
        app.command(run.__name__)(called)
        return run

    return register
