"""What a kernel may be compiled for."""

from __future__ import annotations

import pytest

from triton_rt import Target
from triton_rt.errors import UnknownTarget


@pytest.mark.parametrize("arch", [999, 0, -1, 70, 901])
def test_targets_without_a_code_generator_are_refused(arch: int) -> None:
    """LLVM would end the process."""
    with pytest.raises(UnknownTarget, match=f"no target sm_{arch}; Triton compiles for 75, 80"):
        Target(arch)
