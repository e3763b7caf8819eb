"""Convolutions that cuDNN runs, called without what `torch.convolution` asks at each call."""

from collections.abc import Mapping, Sequence

import torch

from fx_emit.torch_compat import cudnn_flags
from wrapper_ir import DType, ExternCall, Ref, TensorType

_NUMBERS = (DType.bf16, DType.f16, DType.f32)


def is_cudnns(op: ExternCall, types: Mapping[str, TensorType]) -> bool:
    """Whether torch would choose cuDNN, by what it looks at: a plain convolution of images of known
    sizes on a GPU, which 32 bits count. Of those in groups, some are kernels of torch's own, and so
    are dilated ones that are to be deterministic."""
    if op.target != "aten.convolution.default" or op.outs[0] is None:
        return False
    x, weight, bias, _, _, dilation, transposed, _, groups = op.args
    if bias is not None or transposed or groups != 1 or dilation != (1, 1):
        return False
    if not torch.backends.cudnn.enabled:
        return False
    tensors = [op.outs[0][1], *(types[arg.name] for arg in (x, weight) if isinstance(arg, Ref))]
    return all(
        type.device.kind == "cuda"
        and type.dtype in _NUMBERS
        and len(type.size) == 4
        and all(n.is_Integer and n > 0 for n in type.size)
        and type.extent < 1 << 31
        for type in tensors
    )


def cudnn_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """`torch.convolution` into `out`: the host is spared the choice of who runs it, and the memory
    of the result in an order that is found anew."""
    return torch.cudnn_convolution(x, weight, padding, stride, dilation, 1, *cudnn_flags(), out=out)
