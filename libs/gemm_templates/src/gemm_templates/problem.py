"""What is to be computed (`Problem`), and how (`Config`): plain data."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import torch

from gemm_templates.errors import InvalidConfig, InvalidProblem, UnsupportedProblem
from triton_rt import KernelParam

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ITEMSIZE = {"bf16": 2, "f16": 2, "f32": 4}

# The integer run-time parameters a kernel may take, in order; those that are not in
# `Problem.dynamic` are constants of the source.
DIMS = (
    "M", "N", "K", "stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_om", "stride_on",
    "stride_bias", "stride_ab", "stride_bb", "stride_ob",
)  # fmt: skip


@dataclass(frozen=True)
class Epilogue:
    """What happens to a tile before it is stored.

    name: the `@triton.jit` device function `(acc, rm, rn, mask, operands) -> value`.
    text: module text that defines or imports it.
    operands: run-time parameters of the kernel that it gets as the tuple `operands`.
    stores: it stores its results itself, and `out` is not written.
    bytes_per_element: what it reads and writes (besides `out`) for each output element, for the
        cost model.
    """

    name: str
    text: str
    operands: tuple[KernelParam, ...] = ()
    stores: bool = False
    bytes_per_element: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.name}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


@dataclass(frozen=True)
class Problem:
    """`out[m, n] = epilogue(a[m, k] @ b[k, n] + bias[n])`, `batch` times.

    m, n, k, strides (in elements) and batch strides are exact, or hints where their name of
    `DIMS` is in `dynamic`: those become run-time parameters. Strides left None are contiguous.
    aligned: dynamic names that are known to be multiples of 16.
    bias: element type of the bias, or None.
    wide: 64-bit offsets; None decides from the sizes, and takes 64 bits if any is dynamic. Pass
        False only where every offset is known to stay below 2**31.
    input_precision: "ieee" or "tf32", how f32 operands are multiplied.
    """

    m: int
    n: int
    k: int
    a_dtype: str = "bf16"
    b_dtype: str = "bf16"
    out_dtype: str = "bf16"
    a_stride: tuple[int, int] | None = None
    b_stride: tuple[int, int] | None = None
    out_stride: tuple[int, int] | None = None
    bias: str | None = None
    bias_stride: int = 1
    epilogue: Epilogue | None = None
    batch: int = 1
    batch_strides: tuple[int, int, int] | None = None
    dynamic: frozenset[str] = frozenset()
    aligned: frozenset[str] = frozenset()
    wide: bool | None = None
    input_precision: str = "ieee"

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 0 or self.batch < 1:
            raise InvalidProblem(
                f"sizes m={self.m} n={self.n} k={self.k} batch={self.batch}: "
                "expected m, n, k >= 0 and batch >= 1"
            )
        for name in (self.a_dtype, self.b_dtype, self.out_dtype, self.bias or "f32"):
            if name not in DTYPES:
                raise UnsupportedProblem(
                    f"element type {name!r}: the templates compute {sorted(DTYPES)}"
                )
        if self.a_dtype != self.b_dtype:
            raise UnsupportedProblem(
                f"operands of different element types, {self.a_dtype} and {self.b_dtype}"
            )
        for which in (self.dynamic, self.aligned):
            if unknown := which - set(DIMS):
                raise InvalidProblem(f"dynamic or aligned {sorted(unknown)}: expected {DIMS}")
        if self.input_precision not in ("ieee", "tf32"):
            raise InvalidProblem(
                f"input_precision {self.input_precision!r}: expected 'ieee' or 'tf32'"
            )
        if self.batch > 1 and self.epilogue is not None:
            raise UnsupportedProblem("an epilogue of a batched matmul: it is not given the batch")
        if self.batch > 65535:
            raise UnsupportedProblem(f"batch {self.batch}: a grid has at most 65535 rows")

    def dims(self) -> dict[str, int]:
        """Name of `DIMS` -> value (or hint)."""
        a_stride = self.a_stride or (self.k, 1)
        b_stride = self.b_stride or (self.n, 1)
        out_stride = self.out_stride or (self.n, 1)
        batch_strides = self.batch_strides or (
            self.m * self.k, self.k * self.n, self.m * self.n
        )  # fmt: skip
        values = (
            self.m, self.n, self.k, *a_stride, *b_stride, *out_stride, self.bias_stride,
            *batch_strides,
        )  # fmt: skip
        return dict(zip(DIMS, values, strict=True))

    @property
    def is_wide(self) -> bool:
        if self.wide is not None:
            return self.wide
        if self.dynamic:
            return True
        d = self.dims()
        # A tile may reach up to 1024 rows or columns past the end before masks apply.
        m, n, k = d["M"] + 1024, d["N"] + 1024, d["K"] + 1024
        far = max(
            m * abs(d["stride_am"]) + k * abs(d["stride_ak"]),
            k * abs(d["stride_bk"]) + n * abs(d["stride_bn"]),
            m * abs(d["stride_om"]) + n * abs(d["stride_on"]),
            m * n if self.epilogue else 0,
        )
        return far >= 2**31

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def key(self) -> str:
        """One line that tells this problem from every other."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Epilogue):
                value = value.key
            elif isinstance(value, frozenset):
                value = ",".join(sorted(value))
            parts.append(f"{field.name}={value}")
        return " ".join(parts)

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        end = f" {self.epilogue.name}" if self.epilogue else ""
        bias = " +bias" if self.bias else ""
        return (
            f"{batch}[{self.m}, {self.k}] @ [{self.k}, {self.n}] "
            f"{self.a_dtype}->{self.out_dtype}{bias}{end}"
        )


@dataclass(frozen=True)
class Config:
    """A schedule of a template. Block sizes are powers of two, at least 16."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(self, name)
            if size < 16 or size & (size - 1):
                raise InvalidConfig(f"{name}={size}: expected a power of two, at least 16")
        if self.num_warps not in (1, 2, 4, 8, 16) or self.num_stages < 1 or self.group_m < 1:
            raise InvalidConfig(
                f"{self}: expected num_warps in (1, 2, 4, 8, 16), num_stages and group_m >= 1"
            )

    def __str__(self) -> str:
        return (
            f"{self.block_m}x{self.block_n}x{self.block_k} g{self.group_m} "
            f"w{self.num_warps} s{self.num_stages}"
        )
