"""What is to be computed (`Problem`), and how (`Config`): plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import lcm

from gemm_templates.errors import InvalidConfig, InvalidProblem, UnsupportedProblem
from gemm_templates.fused import BlockScale, Epilogue, Pick, Prologue
from triton_rt.tma import violations

# Of an element type, in bytes; `dtypes` has torch's types by the same names.
ITEMSIZE = {"bf16": 2, "f16": 2, "f32": 4, "f8e4m3": 1, "f8e5m2": 1, "i8": 1, "u8": 1, "i32": 4}
_INTEGERS = {"i8", "u8", "i32"}
FP8 = ("f8e4m3", "f8e5m2")
# The longest K of `Problem.fast_accum`: the error of one sum in the tensor cores grows with K. Of
# 16384 positive products it was 0.22, of torch's call 0.045.
FAST_K = 4096

# The integer run-time parameters a kernel may take, in order; those that are not in
# `Problem.dynamic` are constants of the source.
STRIDES = ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_om", "stride_on")
BATCH_STRIDES = ("stride_ab", "stride_bb", "stride_ob")
DIMS = ("M", "N", "K", *STRIDES, "stride_bias", *BATCH_STRIDES)

POINTERS = ("a", "b", "b2", "bias", "out")
# Of a matrix: its numbers of rows and columns; the strides of these, and of a batch.
SIZES_OF = {"a": ("M", "K"), "b": ("K", "N"), "out": ("M", "N")}
STRIDES_OF = {
    "a": ("stride_am", "stride_ak", "stride_ab"),
    "b": ("stride_bk", "stride_bn", "stride_bb"),
    "out": ("stride_om", "stride_on", "stride_ob"),
}


@dataclass(frozen=True)
class Problem:
    """`out[m, n] = epilogue(a[m, k] @ b[k, n] + bias[n])`, `batch` times.

    m, n, k, strides (in elements) and batch strides are exact, or hints where their name of
    `DIMS` is in `dynamic`: those become run-time parameters. Strides left None are contiguous.
    aligned: dynamic names that are known to be multiples of 16; "a", "b", "bias", "out": those
        pointers are promised to be 16-byte aligned, which the TMA template needs.
    bias: element type of the bias, or None.
    divisors: dynamic names with a divisor they are known to have, `(("M", 512),)`: edges that
        cannot occur cost nothing then.
    wide: 64-bit offsets; None decides from the sizes, and takes 64 bits if any is dynamic. Pass
        False only where every offset is known to stay below 2**31.
    input_precision: "ieee" or "tf32", how f32 operands are multiplied.
    jagged: "M", "N" or "K" for a grouped matmul: that size is the total of `batch` groups, and the
        i32 vector `offs` has the end of each along it, known to the device only. "M": `b` and
        "N": `a` is a batch of matrices, one a group; "K": `out` is. Only that has a batch stride.
    gate: a second product, of `a` and of `b2` which is like `b`:
        `epilogue(gate(a @ b) * (a @ b2))`. A function like an epilogue's, without operands; no
        bias, and no batch but groups of rows.
    prologue_a, prologue_b: what happens to the operands' tiles first. block_scale: a factor for
        each block along K. pick_b: the matrix that is read in place of `b`, of several.
    Operands of i8 are multiplied as integers; the epilogue gets their sums in i32.
    fast_accum: fp8 products are summed as the tensor cores do it, with 13 bits behind the leading
        one of the largest addend (Hopper); else each 128 along K are added in f32."""

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
    divisors: tuple[tuple[str, int], ...] = ()
    wide: bool | None = None
    input_precision: str = "ieee"
    jagged: str | None = None
    gate: Epilogue | None = None
    prologue_a: Prologue | None = None
    prologue_b: Prologue | None = None
    block_scale: BlockScale | None = None
    fast_accum: bool = False
    pick_b: Pick | None = None

    def __post_init__(self) -> None:
        sizes = (self.m, self.n, self.k)
        if min(sizes) < 0 or max(sizes) >= 2**31 - 2**16 or self.batch < 1:
            raise InvalidProblem(
                f"sizes m={self.m} n={self.n} k={self.k} batch={self.batch}: "
                "expected m, n, k in [0, 2**31 - 2**16) and batch >= 1"
            )
        for name in (self.a_dtype, self.b_dtype, self.out_dtype, self.bias or "f32"):
            if name not in ITEMSIZE:
                raise UnsupportedProblem(
                    f"element type {name!r}: the templates compute {sorted(ITEMSIZE)}"
                )
        multiplied = {self.operand("a"), self.operand("b")}
        if len(multiplied) > 1 and not multiplied <= set(FP8):
            raise UnsupportedProblem(
                f"operands of different element types, {self.operand('a')} and "
                f"{self.operand('b')}: expected one, or fp8; a prologue can convert"
            )
        if multiplied == {"i8"}:
            if self.bias or self.block_scale or self.gate or self.jagged or self.batch > 1:
                raise UnsupportedProblem("integers: expected one product, without bias or scales")
        elif found := _INTEGERS & {*multiplied, self.out_dtype, self.bias or "f32"}:
            raise UnsupportedProblem(f"{min(found)} is a type of operands that a prologue converts")
        if (self.prologue_a or self.prologue_b or self.block_scale) and self.jagged:
            raise UnsupportedProblem("prologues or block scales of a jagged matmul")
        picks = self.pick_b is not None
        if picks and (self.prologue_b or self.jagged or self.batch > 1 or self.dynamic - {"M"}):
            raise UnsupportedProblem("several matrices of a batch, of groups or with a prologue")
        if self.block_scale and self.batch > 1:
            raise UnsupportedProblem("block scales of a batched matmul")
        named = self.dynamic | self.aligned | {name for name, _ in self.divisors}
        if unknown := named - {*DIMS, *POINTERS}:
            raise InvalidProblem(
                f"dynamic, aligned or divisors {sorted(unknown)}: expected {DIMS + POINTERS}"
            )
        gate = self.gate
        batched = self.batch > 1 and self.jagged != "M"
        if gate and (gate.operands or gate.stores or self.bias or batched):
            raise UnsupportedProblem(
                f"gate {gate.name}: expected a function without operands that stores nothing, no "
                "bias and no batch but groups of rows"
            )
        if self.input_precision not in ("ieee", "tf32"):
            raise InvalidProblem(
                f"input_precision {self.input_precision!r}: expected 'ieee' or 'tf32'"
            )
        if self.jagged not in (None, "M", "N", "K"):
            raise InvalidProblem(f"jagged={self.jagged!r}: expected None, 'M', 'N' or 'K'")
        ending = self.epilogue
        for part in (ending, self.prologue_a, self.prologue_b):
            whole = self.jagged in ("M", "N")  # then `out` is one matrix
            if self.batch > 1 and not whole and part and part.operands and not part.batched:
                raise UnsupportedProblem(
                    f"{part.name} of a batched matmul has operands, and is not given the batch: "
                    f"set {type(part).__name__}.batched, and take its number first"
                )
        if self.batch > 65535:
            raise UnsupportedProblem(f"batch {self.batch}: a grid has at most 65535 rows")

    def loaded(self, tensor: str) -> float:
        """Bytes that are read for each element of "a" or "b", by its prologue, too."""
        prologue = self.prologue_a if tensor == "a" else self.prologue_b
        return self.stored(tensor) + (prologue.bytes_per_element if prologue else 0)

    def stored(self, tensor: str) -> int:
        """Bytes of an element of "a" or "b" as a template loads it; 0 where elements along K share
        a place: their prologue reads them, and nothing is left of the template's load."""
        along = "stride_ak" if tensor == "a" else "stride_bk"
        if along not in self.dynamic and self.dims()[along] == 0:
            return 0
        return ITEMSIZE[self.a_dtype if tensor == "a" else self.b_dtype]

    def operand(self, tensor: str) -> str:
        """The element type of "a" or "b" as it is multiplied."""
        prologue = self.prologue_a if tensor == "a" else self.prologue_b
        stored = self.a_dtype if tensor == "a" else self.b_dtype
        return prologue.dtype if prologue else stored

    @property
    def multiplies_bytes(self) -> bool:
        """Whether the tensor cores get elements of 8 bits."""
        return ITEMSIZE[self.operand("a")] == 1

    @property
    def sums(self) -> str:
        """The element type of sums, which epilogues get."""
        return "i32" if self.operand("a") == "i8" else "f32"

    @property
    def multiplies_fp8(self) -> bool:
        """Whether the tensor cores get fp8."""
        return self.operand("a") in FP8

    def dims(self) -> Mapping[str, int]:
        """Name of `DIMS` -> value (or hint)."""
        return self._dims

    @cached_property
    def _dims(self) -> dict[str, int]:
        sizes = (self.m, self.n, self.k)
        a, b, out = self.a_stride, self.b_stride, self.out_stride
        strides = (*(a or (self.k, 1)), *(b or (self.n, 1)), *(out or (self.n, 1)))
        whole = (self.m * self.k, self.k * self.n, self.m * self.n)
        values = (*sizes, *strides, self.bias_stride, *(self.batch_strides or whole))
        return dict(zip(DIMS, values, strict=True))

    @property
    def is_wide(self) -> bool:
        """Whether offsets need 64 bits."""
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

    def is_multiple(self, name: str, of: int) -> bool:
        """Whether a size or stride is known to be a multiple of `of`."""
        return self._factor(name) % of == 0

    def _factor(self, name: str) -> int:
        """A size or stride, or what is known to divide it where it is dynamic."""
        if name not in self.dynamic:
            return self.dims()[name]
        return lcm(16 if name in self.aligned else 1, *(d for n, d in self.divisors if n == name))

    def major(self, tensor: str, *, written: bool = False, batched: bool = False) -> str | None:
        """The stride of `DIMS` along which a tensor ("a", "b", "out") is contiguous, if a tensor
        descriptor can address it so, by the rules of `triton_rt.tma`; None if it cannot.

        written: the kernel stores through it. batched: it has the products of a batch, too."""
        key = (tensor, written, batched)
        if key not in self._majors:
            self._majors[key] = self._major(*key)
        return self._majors[key]

    @cached_property
    def _majors(self) -> dict[tuple[str, bool, bool], str | None]:
        return {}

    def _major(self, tensor: str, written: bool, batched: bool) -> str | None:
        row, column, batch = STRIDES_OF[tensor]
        # Strides of single rows count: a size of 1 may be a hint.
        rows, columns = (2 if f == 1 else f for f in map(self._factor, SIZES_OF[tensor]))
        kind = {"a": self.a_dtype, "b": self.b_dtype, "out": self.out_dtype}[tensor]
        address = 0 if tensor in self.aligned else 1
        for inner, outer, sizes in ((column, row, (rows, columns)), (row, column, (columns, rows))):
            if inner in self.dynamic or self.dims()[inner] != 1:
                continue
            shape: tuple[int, ...] = sizes
            strides: tuple[int, ...] = (self._factor(outer), 1)
            if batched:
                shape, strides = (self.batch, *shape), (self._factor(batch), *strides)
            if not any(violations(address, shape, strides, ITEMSIZE[kind], written=written)):
                return inner
        return None

    @property
    def flops(self) -> int:
        """Operations of all products, two for each multiply-add."""
        products = (2 if self.gate else 1) * (1 if self.jagged else self.batch)
        return 2 * self.m * self.n * self.k * products

    @property
    def even(self) -> Problem:
        """The batched problem of about the same work: for a jagged one, with equal groups."""
        if self.jagged is None:
            return self
        m, n, k = (
            -(-size // self.batch) if self.jagged == name else size
            for name, size in (("M", self.m), ("N", self.n), ("K", self.k))
        )
        last = self.epilogue and replace(self.epilogue, batched=True)
        return replace(self, jagged=None, batch_strides=None, m=m, n=n, k=k, epilogue=last)

    @cached_property
    def key(self) -> str:
        """One line that tells this problem from every other."""
        parts = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Epilogue | Prologue | BlockScale | Pick):
                value = value.key
            elif isinstance(value, frozenset):
                value = ",".join(sorted(value))
            parts.append(f"{field.name}={value}")
        return " ".join(parts)

    @property
    def sizes(self) -> str:
        """`MxNxK`, with letters for what is dynamic, for names: hints must not make them differ."""
        dims = self.dims()
        return "x".join(d if d in self.dynamic else str(dims[d]) for d in "MNK")

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        if self.jagged:
            batch = f"{self.batch} groups along {self.jagged} of "
        end = f" {self.epilogue.name}" if self.epilogue else ""
        bias = " +bias" if self.bias else ""
        types = self.a_dtype if self.a_dtype == self.b_dtype else f"{self.a_dtype}*{self.b_dtype}"
        gate = f" gated by {self.gate.name}" if self.gate else ""
        return (
            f"{batch}[{self.m}, {self.k}] @ [{self.k}, {self.n}] "
            f"{types}->{self.out_dtype}{gate}{bias}{end}"
        )


@dataclass(frozen=True)
class Config:
    """A schedule of a template. Block sizes are powers of two.

    template: a name of `families.FAMILIES`.
    programs: of a persistent template, how many run (a multiple of the multiprocessors); else 0.
    split_n: the epilogue runs on that many parts of a tile (2 or 4; 0: on all).
    split_k: programs that share the work along K of one tile; of `gluon` and `gated_gluon`, only of
        the tiles that fill no round of `programs`.
    overlap: each launch begins while the one before it in the stream ends (Hopper and later); in
        `decompose_k` the second one while the first runs.
    maps: templates with tensor descriptors get them from the host, by value; else each program
        makes its own in memory that a launch must bring (2 us more on an H200)."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group_m: int = 8
    num_warps: int = 4
    num_stages: int = 3
    template: str = "tiled"
    programs: int = 0
    split_n: int = 0
    split_k: int = 1
    overlap: bool = False
    maps: bool = True

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            size = getattr(self, name)
            if size < 1 or size & (size - 1):
                raise InvalidConfig(f"{name}={size}: expected a power of two")
        if self.num_warps not in (1, 2, 4, 8, 16) or self.num_stages < 1 or self.group_m < 1:
            raise InvalidConfig(
                f"{self}: expected num_warps in (1, 2, 4, 8, 16), num_stages and group_m >= 1"
            )
        if self.split_n not in (0, 2, 4):
            raise InvalidConfig(f"{self}: split_n={self.split_n}, expected 0, 2 or 4")
        if self.programs < 0 or self.split_k < 1:
            raise InvalidConfig(f"{self}: expected programs >= 0 and split_k >= 1")

    @property
    def parts(self) -> int:
        """Into how many the epilogue divides a tile's columns."""
        return self.split_n or 1

    def __str__(self) -> str:
        end = "" if self.template == "tiled" else f" {self.template}"
        end += f"/{self.split_n}" if self.split_n else ""
        end += f" k{self.split_k}" if self.split_k > 1 else ""
        end += " o" if self.overlap else ""
        end += f" p{self.programs}" if self.programs else ""
        end += "" if self.maps else " d"
        return (
            f"{self.block_m}x{self.block_n}x{self.block_k} g{self.group_m} "
            f"w{self.num_warps} s{self.num_stages}{end}"
        )
