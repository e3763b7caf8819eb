"""Names of values by role, the same for kernels that differ only in the names of buffers."""

# The name of a result: the operations that have it.
_NAMES = """
total: add; diff: sub; scaled: mul; negated: neg; magnitude: abs; larger: maximum;
smaller: minimum; ratio: div near_div bounded_div count_div;
quotient: floordiv truncdiv; power: pow; remainder: mod fmod;
random: philox; fused: fma; e: exp near_exp exp2; log_: log; root: sqrt; inv_std: rsqrt; sine: sin;
cosine: cos; t: tanh near_tanh; erf_: erf near_erf; gate: sigmoid near_sigmoid; activated: gelu;
rounded: round narrow; same: eq; differs: ne; below: lt le; above: gt ge; both: and; either: or;
one_of: xor; inverted: not; shifted: shl shr; chosen: where rarely;
value: cast byte fit saturated; bits: bitcast; nan: isnan; infinite: isinf; negative: signbit
"""
BY_OP = {
    op: name.strip()
    for name, ops in (entry.split(":") for entry in _NAMES.split(";"))
    for op in ops.split()
}

_FOLDS = "sum prod max min any all argmax argmin"
BY_REDUCTION: dict[str, tuple[str, ...]] = {op: (f"row_{op}",) for op in _FOLDS.split()}
BY_REDUCTION |= {"welford": ("mean", "m2"), "softmax": ("row_max", "row_sum")}

BY_SCAN = {op: f"running_{op}" for op in ("sum", "prod", "max", "min")}
BY_SCAN |= {"logsumexp": "running_lse", "argmax": "at_max", "argmin": "at_min"}


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
