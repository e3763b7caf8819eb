"""What the library exports is there, says what it does, and stands in the README."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import triton_rt

README = (Path(__file__).parents[1] / "README.md").read_text()
#: What other projects are told to rely on.
PROMISED = {"compile", "Binary", "Target", "Kernel", "LazyKernel", "TensorMap", "Workspace"}


#: As `from triton_rt.launch import LazyKernel as LazyKernel` gives it away.
PUBLIC = re.findall(r"import (\w+) as \1$", inspect.getsource(triton_rt), re.MULTILINE)


def test_promised_names() -> None:
    assert set(PUBLIC) >= PROMISED


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented(name: str) -> None:
    value = getattr(triton_rt, name)
    doc = inspect.getdoc(value) or ""
    assert len(doc) > 20 and not doc.startswith(f"{name}("), "a docstring of its own"
    assert re.search(rf"\b{name}\b", README), f"{name} is not in the README"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        triton_rt.nothing  # noqa: B018
