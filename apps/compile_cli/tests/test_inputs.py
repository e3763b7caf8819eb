"""Input specs, and the names of dynamic dimensions."""

from __future__ import annotations

import pytest
import torch

from compile_cli.cli.inputs import InputSpec, parse_dynamic, parse_input
from compile_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("f32[2,64]", InputSpec(torch.float32, (2, 64))),
        ("i64[batch=2, 32]<1000", InputSpec(torch.int64, (2, 32), ((0, "batch"),), 1000)),
        ("bf16[]", InputSpec(torch.bfloat16, ())),
        ("bool[0,n=3]", InputSpec(torch.bool, (0, 3), ((1, "n"),))),
        ("f8e4m3[4]", InputSpec(torch.float8_e4m3fn, (4,))),
    ],
)
def test_parse(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec


def test_values_fit_the_spec() -> None:
    made = parse_input("i64[100]<7").make(torch.Generator().manual_seed(0), torch.device("cpu"))
    assert made.dtype == torch.int64
    assert set(made.tolist()) == set(range(7))
    again = parse_input("i64[100]<7").make(torch.Generator().manual_seed(0), torch.device("cpu"))
    assert torch.equal(made, again)


def test_dynamic_names() -> None:
    names = ["ids", "mask"]
    assert parse_dynamic(["ids.0", "mask.1", "ids.2"], names) == {"ids": {0, 2}, "mask": {1}}
    assert parse_dynamic(["0"], names) == {"ids": {0}, "mask": {0}}
    with pytest.raises(UsageError, match=r"cannot read --dynamic 'x\.0'"):
        parse_dynamic(["x.0"], names)
