"""Every way a compilation can be refused: one class a mistake, each with its exit code."""


class CompileCliError(Exception):
    """Base of all errors of the app. The message says what, where, expected, got, what to do."""

    exit_code = 1


class CompileFailed(CompileCliError):
    """The model could not be captured or compiled."""


class UserModelError(CompileFailed):
    """The user's model raised an exception while it was run or captured."""

    def __init__(self, stage: str, where: str, error: BaseException) -> None:
        super().__init__(
            f"the model raised {type(error).__name__} {stage}\n"
            f"  where: {where}\n"
            f"  what:  {first_line(error)}\n"
            "  to do: run the model in eager with the same inputs; it must run there first"
        )


class GraphBreak(CompileFailed):
    """The model cannot be captured as one graph."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(
            "the model cannot be captured as one graph\n"
            f"  where: {where}\n"
            f"  why:   {why}\n"
            "  to do: keep Python control flow independent of tensor values (torch.where, "
            'torch.cond), or use torch.compile(model, backend="compile_cli"), which may split it'
        )


class UserKernelFailed(CompileFailed):
    """A kernel of the user's cannot be part of the compiled program."""


class UnsupportedModel(CompileFailed):
    """The model takes or returns something that compiled programs do not have."""

    exit_code = 5


class DataDependent(UnsupportedModel):
    """A result has a size, or is a number, that depends on what the inputs hold."""


class NoSecondDerivative(UnsupportedModel):
    """A gradient that a compiled graph computes is to be differentiated."""

    def __init__(self) -> None:
        super().__init__(
            "gradients that a compiled graph computes cannot be differentiated: create_graph=True\n"
            "  to do: compile the function that takes the first gradient, by torch.func.grad (or "
            "jvp, vjp), or run this model in eager"
        )


class MachineError(CompileCliError):
    """This machine lacks something that the compilation needs."""

    exit_code = 6


class NoCompiler(MachineError):
    """No C++ compiler, or no headers of torch, for a C++ host program."""

    def __init__(self, why: BaseException) -> None:
        super().__init__(
            f"a C++ host program cannot be built here\n  why:   {first_line(why)}\n"
            "  to do: install g++ (or clang++), or take the host program as FX: emit='fx'"
        )


class CacheUnusable(MachineError):
    """Nothing can be written to the cache folder, nor beside it."""

    def __init__(self, path: object, why: BaseException) -> None:
        super().__init__(
            f"no folder for compiled code\n  where: {path}\n  why:   {first_line(why)}\n"
            "  to do: free space there, or name another folder: --cache-dir, or "
            "COMPILE_CLI_CACHE_DIR"
        )


class NotLoaded(MachineError):
    """A compiled artifact, of which nothing is known to be wrong, cannot be loaded here, or now."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(
            f"{path} cannot be loaded: the machine failed\n  why:   {why}\n"
            "  to do: mend that (space, rights, memory, the GPU), and load the same file again"
        )


class UsageError(CompileCliError):
    """What the user asked for cannot be read: a wrong file, name, spec or option."""

    exit_code = 2


class TargetNotFound(UsageError):
    """FILE:NAME does not lead to a module, function or class."""


class BadInputSpec(UsageError):
    """An input spec such as `i64[2,32]<1000` cannot be read."""

    def __init__(self, spec: str, position: int, expected: str) -> None:
        super().__init__(
            f"cannot read the input spec at position {position}\n"
            f"  {spec}\n  {' ' * position}^ expected {expected}\n"
            "  to do: write DTYPE[SIZES], such as 'f32[2,64]', 'i64[batch=2,32]<1000', 'bool[2]'"
        )


class UnknownOption(UsageError):
    """An option that does not exist, or a value it does not take."""


class UnsafeCache(UsageError):
    """The cache holds code, and another user could put some there."""


class BadInput(UsageError):
    """The inputs do not fit the model or the compiled program."""


class NotFinite(CompileCliError):
    """With `nan_asserts`: a kernel or an operator made a NaN or an infinity, or an input holds
    one."""

    exit_code = 3


class NumbersDiffer(CompileCliError):
    """The compiled model and eager disagree."""

    exit_code = 3


class NoArtifact(CompileCliError):
    """A compiled graph cannot be kept for a later process."""


class NoLibrary(UnsupportedModel):
    """There is no library that runs a model without Python."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"no library {what} runs without Python\n  why:   {why}\n"
            '  to do: torch.compile(model, backend="compile_cli", options={"emit": "cpp"}), which '
            "asks Python for the rest"
        )


class BadArtifact(UsageError):
    """A file is no artifact, is damaged, or was made for something else."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(
            f"{path} cannot be loaded as a compiled artifact\n  why:   {why}\n"
            "  to do: compile the graph again here, and save that"
        )


class NoDevice(CompileCliError):
    """The device asked for is not there."""

    exit_code = 4

    def __init__(self, device: str, why: str) -> None:
        super().__init__(
            f"no such device: {device}\n  why:   {why}\n"
            "  to do: use --device cpu (the same kernels, through Triton's interpreter)"
        )


def first_line(error: BaseException) -> str:
    """The first non-empty line of an error's message."""
    for line in str(error).splitlines():
        if line.strip():
            return line.strip()
    return type(error).__name__
