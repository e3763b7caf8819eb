"""Whether a call may go past torch's dispatcher, which takes several microseconds."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

_KEY = torch._C.DispatchKey
_SET = torch._C.DispatchKeySet


def _allowed() -> int:
    keys = _SET(_KEY.CPU) | _SET(_KEY.CUDA) | _SET(_KEY.ADInplaceOrView)
    for key in (_KEY.AutogradCPU, _KEY.AutogradCUDA, _KEY.AutocastCPU, _KEY.AutocastCUDA):
        keys = keys | _SET(key)
    return int(keys.raw_repr())


_ALLOWED = _allowed()


def direct(*tensors: Tensor | None) -> bool:
    """No gradients to record, nothing that traces or intercepts, and ordinary tensors: no
    subclasses, no lazy negation, no functorch wrappers. What the dispatcher would do is then to
    call the implementation."""
    if torch.compiler.is_compiling():
        return False
    if (
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
    ):
        return False
    grad = torch.is_grad_enabled()
    for tensor in tensors:
        if tensor is not None and (
            (grad and tensor.requires_grad)
            or torch._C._dispatch_keys(tensor).raw_repr() & ~_ALLOWED
        ):
            return False
    return True
