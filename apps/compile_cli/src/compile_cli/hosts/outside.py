"""What a host program names, and does not hold."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Outside:
    """constants: tensors, by their names. operators: those that torch does not have, by target."""

    constants: Mapping[str, Tensor] = field(default_factory=dict)
    operators: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
