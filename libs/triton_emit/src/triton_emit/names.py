"""Names of values by role, the same for kernels that differ only in the names of buffers."""

from __future__ import annotations

BY_OP = {
    "add": "total", "sub": "diff", "mul": "scaled", "neg": "negated", "abs": "magnitude",
    "maximum": "larger", "minimum": "smaller", "div": "ratio", "near_div": "ratio",
    "floordiv": "quotient", "truncdiv": "quotient", "mod": "remainder", "fmod": "remainder",
    "pow": "power", "philox": "random",
    "fma": "fused", "exp": "e", "exp2": "e", "log": "log_", "sqrt": "root", "rsqrt": "inv_std",
    "sin": "sine", "cos": "cosine", "tanh": "t", "erf": "erf_", "sigmoid": "gate",
    "gelu": "activated",
    "round": "rounded", "eq": "same", "ne": "differs", "lt": "below", "le": "below",
    "gt": "above", "ge": "above", "and": "both", "or": "either", "xor": "one_of",
    "not": "inverted", "shl": "shifted", "shr": "shifted", "where": "chosen", "cast": "value",
    "narrow": "rounded", "bitcast": "bits", "isnan": "nan", "isinf": "infinite",
    "signbit": "negative",
}  # fmt: skip

BY_REDUCTION = {
    "sum": ("row_sum",), "prod": ("row_prod",), "max": ("row_max",), "min": ("row_min",),
    "any": ("row_any",), "all": ("row_all",), "argmax": ("row_argmax",),
    "argmin": ("row_argmin",), "welford": ("mean", "m2"), "softmax": ("row_max", "row_sum"),
}  # fmt: skip

BY_SCAN = {
    "sum": "running_sum", "prod": "running_prod", "max": "running_max", "min": "running_min",
    "logsumexp": "running_lse", "argmax": "at_max", "argmin": "at_min",
}  # fmt: skip


class Namer:
    """Hands out names: `total`, `total_1`, ..."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        """A name that was not handed out before: `base`, or `base` and a number."""
        count = self._taken.get(base, -1) + 1
        self._taken[base] = count
        return base if count == 0 else f"{base}_{count}"

    def base_of(self, op: str) -> str:
        """What the result of an operation is called."""
        return BY_OP.get(op, f"{op}_")
