"""The example encoder, its inputs, and caches of their own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def encoder_file() -> Path:
    return ROOT / "examples" / "encoder.py"


@pytest.fixture(scope="session")
def example(encoder_file: Path) -> ModuleType:
    """`examples/encoder.py` as a module."""
    spec = importlib.util.spec_from_file_location("encoder", encoder_file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["encoder"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def encoder(example: ModuleType) -> Any:
    """The encoder with the example's sizes and fixed weights."""
    torch.manual_seed(0)
    return example.Encoder(*example.get_init_inputs()).eval()


@pytest.fixture
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"cache_dir": str(tmp_path_factory.mktemp("cache"))}
