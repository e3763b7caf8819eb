"""What `compile` takes: models and example inputs, refused by name before anything is captured."""

from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from compile_cli.errors import BadInput, UnsupportedModel
from compile_cli.torch_compat import FakeTensor

_PLAIN = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_CONSTANTS = (int, float, complex, bool, str, type(None))


def require_model(model: Any) -> None:
    """Raises `BadInput` for what is no model, `UnsupportedModel` for one of TorchScript, or with a
    parameter or buffer that no kernel takes."""
    if isinstance(model, torch.export.ExportedProgram):
        return
    if isinstance(model, type) or not callable(model):
        kind = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise BadInput(
            f"the model is no model\n  expected: a torch.nn.Module, a function of tensors, or an "
            f"exported program\n  got:      {kind}"
        )
    if isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction):
        raise UnsupportedModel(
            "the model is one of TorchScript, whose code cannot be captured\n"
            "  to do: compile the module or function that it was made of"
        )
    if isinstance(model, nn.Module):
        tensors = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
        for kind, named in tensors.items():
            for name, tensor in named:
                problem = _problem(tensor)
                if problem is not None:
                    raise _unsupported(f"{kind} {name}", problem)


def require_inputs(args: Any) -> tuple[Any, ...]:
    """The example inputs as a tuple. Raises `BadInput` or `UnsupportedModel`, with the place of the
    input among the arguments."""
    if not isinstance(args, tuple | list):
        raise BadInput(
            f"the example inputs are no tuple\n  expected: (x,), one item an argument\n"
            f"  got:      {type(args).__name__}"
        )
    for path, value in pytree.tree_leaves_with_path(tuple(args)):
        where = "".join(map(str, path))
        if isinstance(value, Tensor):
            problem = _problem(value)
            if problem is not None:
                raise _unsupported(f"args{where}", problem)
        elif not isinstance(value, _CONSTANTS):
            raise BadInput(
                f"args{where} is a {type(value).__module__}.{type(value).__qualname__}\n"
                "  expected: tensors, numbers, strings and None, in tuples, lists, dictionaries "
                "and what torch.utils._pytree knows\n  to do: bind it (functools.partial), or "
                "register its type (torch.export.register_dataclass)"
            )
    return tuple(args)


def _problem(tensor: Tensor) -> str | None:
    """Why no compiled program takes such a tensor."""
    if tensor.is_nested:
        return "a nested tensor"
    if type(tensor) not in _PLAIN:
        return f"a tensor subclass, {type(tensor).__module__}.{type(tensor).__qualname__}"
    if tensor.is_quantized:
        return f"quantized, {tensor.dtype}"
    if tensor.layout is not torch.strided:
        return f"sparse, {tensor.layout}"
    return "on the device meta: it has no values" if tensor.device.type == "meta" else None


def _unsupported(name: str, problem: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} is {problem}\n  expected: a plain, strided torch.Tensor with values\n"
        "  to do: convert it before the compiled part of the model (inside of it, such values may "
        "be made and used)"
    )
