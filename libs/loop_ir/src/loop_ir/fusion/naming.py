"""Short names for fused kernels, made from the operations that went in."""

import re
from collections.abc import Collection, Sequence

from loop_ir.ir.nodes import Origin

# Operations that move no data or only change the element type; named only if nothing else is.
_WORDS = """
view reshape expand permute transpose unsqueeze squeeze slice clone to_copy to
convert_element_type alias detach t select contiguous copy scalar_tensor full lift_fresh_copy
unsafe_view
"""
_SILENT = frozenset(_WORDS.split())
MAX_WORDS = 4


def word_of(op: str) -> str:
    """`aten.native_layer_norm.default -> layer_norm`, `prims.iota.default -> iota`."""
    parts = op.replace("::", ".").split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    name = re.sub(r"\W+", "_", name).strip("_")
    return name.removeprefix("native_") or "op"


def words_of(origins: Sequence[Origin]) -> list[str]:
    """The operations by name, each once, without those that only move data if there are others."""
    words = list(dict.fromkeys(word_of(o.op) for o in origins))
    loud = [w for w in words if w not in _SILENT]
    return loud or words


def fused_name(origins: Sequence[Origin], taken: Collection[str], number: int) -> str:
    """`fused_add_layer_norm_3`: at most four operations, then a number that makes it unique."""
    words = words_of(origins)
    if len(words) > MAX_WORDS:
        words = [*words[: MAX_WORDS - 1], words[-1]]
    base = "_".join(["fused", *words])
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"
