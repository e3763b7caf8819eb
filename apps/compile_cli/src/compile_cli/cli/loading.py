"""FILE:NAME -> a module and its example inputs; FILE.pt2 -> an exported program."""

import importlib.util
import inspect
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from compile_cli.capture import FunctionModule, where
from compile_cli.cli.inputs import InputSpec, parse_input
from compile_cli.errors import BadInput, NoDevice, TargetNotFound, UsageError, UserModelError


@dataclass(frozen=True)
class Target:
    """What the user named: a module (or an exported program), and example inputs on its device.

    dynamic: input position -> dimensions that the input specs gave a name, which makes them
    dynamic. mode: `eval`, `train`, or `exported`, which an exported program was in."""

    name: str
    model: nn.Module | torch.export.ExportedProgram
    args: tuple[Any, ...]
    dynamic: dict[int, dict[int, str]]
    device: torch.device
    mode: str = "exported"


def pick_device(name: str | None) -> torch.device:
    """`cpu`, `cuda`, `cuda:1`; None is cuda where there is one."""
    if name is None:
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or name == "cpu:0":
        raise NoDevice(name, "the devices are cpu, cuda and cuda:INDEX")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise NoDevice(name, "torch finds no CUDA GPU on this machine")
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise NoDevice(name, f"this machine has {torch.cuda.device_count()} CUDA GPUs")
    return torch.device("cuda", number)


def load_target(
    text: str,
    inputs: list[str],
    device: torch.device,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    train: bool = False,
) -> Target:
    """Loads `FILE:NAME` or `FILE.pt2`. Weights and random inputs come from `seed`. train: the
    module is put into training mode (dropout, statistics of the batch) rather than in eval mode."""
    torch.manual_seed(seed)
    specs = [parse_input(spec) for spec in inputs]
    if text.endswith(".pt2"):
        if train or dtype is not None:
            raise UsageError(
                f"{'--train' if train else '--dtype'} does nothing to an exported program\n"
                "  to do: export the model as it is to run"
            )
        return _load_exported(Path(text), specs, device, seed)
    file, colon, name = text.rpartition(":")
    if not colon or not file or not name:
        raise TargetNotFound(
            f"cannot read the target {text!r}\n"
            "  expected: FILE:NAME of a module, function or class, such as "
            "examples/encoder.py:Encoder, or FILE.pt2"
        )
    source = _import_file(Path(file))
    if not hasattr(source, name):
        public = sorted(
            key
            for key, value in vars(source).items()
            if not key.startswith("_") and _is_target(value, source)
        )
        raise TargetNotFound(
            f"{file} has no attribute {name!r}\n  it has:  {', '.join(public) or 'no targets'}"
        )
    model = _instantiate(source, name, getattr(source, name), file)
    args = _example_args(source, specs, file, device, seed)
    model = model.train(train).to(device)
    if dtype is not None:
        model = model.to(dtype)
        args = tuple(
            a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a
            for a in args
        )
    named = {i: dict(spec.dynamic) for i, spec in enumerate(specs) if spec.dynamic}
    return Target(name, model, args, named, device, "train" if train else "eval")


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise TargetNotFound(f"no such file: {path}\n  expected: a Python file, or FILE.pt2")
    # a name of its own: a file called copy.py must not stand in for the module of that name
    name = f"_compile_cli_target_{re.sub(r'[^0-9A-Za-z_]', '_', path.stem)}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetNotFound(f"not a Python file: {path}\n  expected: FILE.py:NAME or FILE.pt2")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    beside = str(path.parent.resolve())  # last: what is installed comes first
    sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script may end in sys.exit()
        raise UserModelError("while its file was imported", where(error), error) from error
    finally:
        if beside in sys.path:
            sys.path.remove(beside)
    return module


def _is_target(value: object, source: ModuleType) -> bool:
    return isinstance(value, nn.Module) or (
        callable(value) and getattr(value, "__module__", None) == source.__name__
    )


def _instantiate(source: ModuleType, name: str, value: Any, file: str) -> nn.Module:
    if isinstance(value, type) and issubclass(value, nn.Module):
        init = getattr(source, "get_init_inputs", list)
        try:
            arguments: list[Any] | dict[str, Any] = init()
            if isinstance(arguments, dict):
                return value(**arguments)
            return value(*arguments)
        except Exception as error:
            raise UserModelError(f"in {name}'s constructor", where(error), error) from error
    if isinstance(value, nn.Module):
        return value
    if not callable(value) or isinstance(value, type):
        raise TargetNotFound(
            f"{file}:{name} is a {type(value).__name__}\n"
            "  expected: a torch.nn.Module, a class of one, a function that makes one, or a "
            "function of tensors"
        )
    if isinstance(value, FunctionType) and not inspect.signature(value).parameters:
        try:
            made = value()
        except Exception as error:
            raise UserModelError(f"in {name}()", where(error), error) from error
        if isinstance(made, nn.Module):
            return made
    return FunctionModule(value)


def _example_args(
    source: ModuleType, specs: list[InputSpec], file: str, device: torch.device, seed: int
) -> tuple[Any, ...]:
    if specs:
        return _random_args(specs, device, seed)
    if not hasattr(source, "get_inputs"):
        raise BadInput(
            f"{file} has no get_inputs(), so the inputs must be given\n"
            "  to do: add --input SPEC for each, such as --input 'i64[2,32]<1000'"
        )
    try:
        args = source.get_inputs()
    except Exception as error:
        raise UserModelError("in get_inputs()", where(error), error) from error
    return tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in args)


def _random_args(
    specs: list[InputSpec], device: torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(spec.make(generator, device) for spec in specs)


def _load_exported(path: Path, specs: list[InputSpec], device: torch.device, seed: int) -> Target:
    if not path.is_file():
        raise TargetNotFound(f"no such file: {path}\n  expected: a program of torch.export.save")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise TargetNotFound(
            f"{path} is not an exported program: {error}\n"
            "  expected: a file written by torch.export.save"
        ) from error
    if specs:
        if any(spec.dynamic for spec in specs):
            raise BadInput(
                "an exported program says itself which of its dimensions are dynamic\n"
                "  to do: write plain sizes in --input"
            )
        args: tuple[Any, ...] = _random_args(specs, device, seed)
    else:
        if program.example_inputs is None:
            raise BadInput(f"{path} carries no example inputs\n  to do: add --input SPEC for each")
        example, kwargs = program.example_inputs
        if kwargs:
            raise BadInput(
                f"{path} was exported with keyword arguments ({', '.join(kwargs)})\n"
                "  expected: positional arguments only"
            )
        args = tuple(a.to(device) if isinstance(a, torch.Tensor) else a for a in example)
    if device.type != "cpu" or any(p.device.type != "cpu" for p in program.parameters()):
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, str(device))
    return Target(path.stem, program, args, {}, device)
