"""Which convolutions are called as cuDNN's, and that this is what runs them."""

import pytest
import torch

from fx_emit import emit
from fx_emit.torch_compat import cudnn_flags
from wrapper_ir import parse_program

TEXT = """program p(x: bf16[2, 8, 6, 6] cuda:0, w: bf16[4, 8, 3, 3] cuda:0, b: bf16[4] cuda:0):
  y = extern aten.convolution.default(x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1) \
-> bf16[2, 4, 6, 6] cuda:0
  return (y,)
"""


def code(old="", new="", launch="direct"):
    assert old in TEXT
    program = parse_program(TEXT.replace("\\\n", "").replace(old, new))
    return emit(program, launch, load_kernel=None, values=False).code


def test_a_plain_convolution_is_cudnns():
    found = code()
    assert "torch.convolution" not in found and "conform" not in found
    assert "cudnn_convolution(x, w, (1, 1), (1, 1), (1, 1), out = " in found


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("w, None", "w, b"),
        ("False, (0, 0), 1)", "True, (0, 0), 1)"),
        ("(0, 0), 1)", "(0, 0), 2)"),
        ("(1, 1), False", "(1, 2), False"),
        ("cuda:0", "cpu"),
        ("bf16", "f64"),
        ("[2, ", "[70000000, "),
        ("6, 6]", "6, 6, 6]"),
    ],
)
def test_others_are_torchs_choice(old, new):
    found = code(old, new)
    assert "torch.convolution(" in found and "cudnn" not in found


def test_cudnn_that_is_switched_off_and_other_forms_are_left_to_torch():
    with torch.backends.cudnn.flags(enabled=False):
        assert "torch.convolution(" in code()
    assert "aten.convolution" in code(launch="hop")


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precision_is_that_of_convolutions(precision):
    """Which torch does not tell by `allow_tf32` where that of RNNs differs."""
    conv = torch.backends.cudnn.conv
    before, conv.fp32_precision = conv.fp32_precision, precision
    try:
        assert cudnn_flags()[2] is (precision == "tf32")
    finally:
        conv.fp32_precision = before
