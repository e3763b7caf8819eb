"""The whole grammar of loop IR.

A `Kernel` is parallel axes, then phases. A phase has inner axes of its own (or none) and a body
of SSA statements that runs at every point of parallel axes x inner axes. `reduce` statements fold
a value over the inner axes of their phase; their results are known, per point of the parallel
axes, from the next phase on. A value computed in a phase with inner axes may be used in a later
phase whose inner axes have the same extents: it means the value at the same inner point (the
code generator keeps it in registers or computes it again). Inner symbols are shared: phases with
the same inner extents use the same symbols. A `scan` folds over the inner axes too, with a result
at each inner point, known at once. All scans of a kernel go the same way, and a kernel whose scans
start at the end has no reductions: so every loop over inner axes has one direction.

    kernel add_norm(x: bf16[s0, 768], y: bf16[s0, 768], w: f32[768], out r: bf16[s0, 768],
                    out n: bf16[s0, 768])                                # s0 in [1, 4096] hint 64
      # aten.add, aten.native_layer_norm   encoder.py:41
      parallel i0 < s0:
        over r0 < 768:
          v0 = load x[768*i0 + r0]                  : bf16
          v1 = cast(v0)                             : f32
          v2 = load y[768*i0 + r0]                  : bf16
          v3 = cast(v2)                             : f32
          v4 = add(v1, v3)                          : f32
          mean, m2 = reduce welford(v4)             : f32
        once:
          v5 = const 768.0                          : f32
          ...
        over r0 < 768:
          ...
          store n[768*i0 + r0] = v11

An index is an integer expression of axis symbols, size symbols and `indirect` symbols; it
addresses the flat storage of a buffer in elements, so that views cost nothing. A schedule
(persistent or looped, block sizes) is not part of a kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Union

import sympy

from tensor_ir import Arg, DType, Symbol, TensorType

# Scalar operations by the number of their arguments. All arguments of one operation have the same
# element type except where said; comparisons and logic give bool.
#
# - arithmetic of ints and floats; NaN wins in `maximum` and `minimum`. `div` is true division of
#   floats, `near_div` within two units in the last place of f32, where no more is asked for;
#   `floordiv` rounds down, `truncdiv` to zero; `mod` has the sign of the divisor (Python),
#   `fmod` that of the dividend (C). Integers by zero, as on a GPU: all bits set (64-bit dividends
#   below 2**32: half of them)
# - functions of floats; `round` takes halves to even
# - bits, and logic on bool
# - philox(seed: i64, counter: i64): random bits (u32), the stream of words of Philox-2x32-10
#   (Salmon et al., SC11), two from each block: block counter // 2, of an unsigned counter, with the
#   low half of the seed as its key and the high half in its counter
# - where(condition: bool, a, b); cast(a) to the statement's dtype (float -> int truncates);
#   narrow(a) is a cast of f32 to bf16 or f16 whose rounding the program asks for by itself, which
#   no pass drops; bitcast(a) keeps the bits
# - functions of as many steps as an element asks for: gcd of ints; zeta(x, q); of the incomplete
#   gamma function gamma_series(a, x), the sum of x^k / ((a + 1) ... (a + k)), and, of x above a and
#   1, gamma_fraction(a, x, least), 1 / (x + 1 - a - (1 - a) / (x + 3 - a - ...)), until steps are a
#   part `least` of it; orthogonal polynomials of a whole order n >= 0, as a float, by recurrence
#   from 1 and the first: chebyshev(x, first, n), laguerre(x, n), legendre(x, n), and hermite(x, c,
#   n), whose last term is c times the order
# - rarely(condition, a, b) is a where of floats whose condition few meet, and whose a takes long: a
#   kernel may leave that out where no element of a program wants it
_OPS = {
    1: """
        neg abs exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh
        tanh erf sigmoid floor ceil trunc acosh asinh atanh erfc erfinv lgamma round isnan isinf
        signbit not cast narrow bitcast
    """,
    2: """
        add sub mul maximum minimum div near_div floordiv truncdiv mod fmod pow atan2 hypot eq ne lt
        le gt ge and or xor shl shr philox
        gcd zeta laguerre legendre gamma_series
    """,
    3: "fma where rarely gamma_fraction chebyshev hermite",
}
OPS: dict[str, int] = {name: count for count, names in _OPS.items() for name in names.split()}

# Reductions: number of arguments and of results. `welford` gives mean and the sum of squared
# differences from it; `argmax`/`argmin` take a value and give the flat inner index (i64) of the
# first extreme, NaN counting as the extreme; `max`/`min` propagate NaN. `softmax` gives the maximum
# m of floats and the sum of exp(v - m), which is 0 where m is -inf.
REDUCTIONS: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all", "argmax", "argmin"), (1, 1)),
    **dict.fromkeys(("welford", "softmax"), (1, 2)),
}

# Modes of stores, and their signs in text.
STORES: dict[str, str] = {
    "set": "=",
    "add": "+=",
    "mul": "*=",
    "max": "max=",
    "min": "min=",
    "sum": "sum=",
}

# Modes that combine a value with what the buffer holds, atomically: in any order.
ATOMICS = frozenset(("add", "mul", "max", "min"))

# The kernels that stand below a matmul in text, in this order.
MATMUL_PARTS = ("prologue_a", "prologue_b", "epilogue")

# Scans, of one argument: at each inner point what is folded of the points up to it. `logsumexp` is
# of floats; `argmax`/`argmin` give the flat inner index (i64) of the last extreme so far, NaN
# counting as the extreme (as `torch.cummax` does); `max`/`min` propagate NaN.
SCANS = frozenset(("sum", "prod", "max", "min", "logsumexp", "argmax", "argmin"))


def _sympify(item: object, name: str) -> None:
    """A plain `int` in a field of expressions becomes a `sympy.Integer`."""
    if isinstance(value := getattr(item, name), int):
        object.__setattr__(item, name, sympy.Integer(value))


# The lower bound of a symbol that may be negative, as an integer input may: 64 bits hold its
# negative too. An open lower bound is that of a size, which is 0.
LEAST = 1 - 2**63


@dataclass(frozen=True)
class Axis:
    """A loop `symbol` in [0, extent)."""

    symbol: sympy.Symbol
    extent: sympy.Expr

    def __post_init__(self) -> None:
        _sympify(self, "extent")


@dataclass(frozen=True)
class Load:
    """`out = load buffer[index] if mask else other`; `mask` names a bool value. Where the mask
    is false nothing is read and the index may be out of bounds."""

    out: str
    buffer: str
    index: sympy.Expr
    dtype: DType
    mask: str | None = None
    other: int | float | bool = 0

    def __post_init__(self) -> None:
        _sympify(self, "index")


@dataclass(frozen=True)
class Index:
    """`out = index expr`: an integer expression of axes and sizes as a value, or (of the type
    f64) a number computed of sizes in floats, such as `ToFloat(s0)**-0.5`."""

    out: str
    expr: sympy.Expr
    dtype: DType

    def __post_init__(self) -> None:
        _sympify(self, "expr")


@dataclass(frozen=True)
class Const:
    """`out = const value`: a number, the same at all points."""

    out: str
    value: int | float | bool
    dtype: DType


@dataclass(frozen=True)
class Compute:
    """`out = op(args)`, an entry of `OPS`, with the element type of the result."""

    out: str
    op: str
    args: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True)
class Indirect:
    """`symbol = indirect value < extent`: from here on in this and later phases the integer
    `value` may stand in an index as `symbol`. Negative values count from the end; the result is
    in [0, extent), anything else is the caller's error (as in eager): kernels write nothing there,
    and read NaN or 0."""

    symbol: sympy.Symbol
    value: str
    extent: sympy.Expr

    def __post_init__(self) -> None:
        _sympify(self, "extent")


@dataclass(frozen=True)
class Reduce:
    """`outs = reduce op(args)` over the inner axes of the phase; accumulates in `dtype`."""

    outs: tuple[str, ...]
    op: str
    args: tuple[str, ...]
    dtype: DType


@dataclass(frozen=True)
class Scan:
    """`out = scan op(args)`: at each inner point, `op` folded over the points from the first to
    this one, both included, in the row-major order of the inner axes; `reverse`: from this one to
    the last. It is known from here on, in this phase too. Accumulates in `dtype`."""

    out: str
    op: str
    args: tuple[str, ...]
    dtype: DType
    reverse: bool = False


@dataclass(frozen=True)
class Store:
    """`store buffer[index] = value` (mode "set"), or `+=`, `*=`, `max=`, `min=` (`ATOMICS`; NaN
    propagates), at points where `mask` (a bool value) holds. `sum=` (mode "sum"), at all inner
    points: the sum of the value over the last parallel axis, of which the index is free. A program
    walks over that axis, so that reductions of rows and sums of columns share one reading."""

    buffer: str
    index: sympy.Expr
    value: str
    mode: str = "set"
    mask: str | None = None

    def __post_init__(self) -> None:
        _sympify(self, "index")


Stmt = Load | Index | Const | Compute | Indirect | Reduce | Scan | Store


@dataclass(frozen=True)
class Phase:
    """`over r0 < 768:` with inner axes, or `once:` without."""

    axes: tuple[Axis, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Buffer:
    """A buffer that a kernel uses. Its name is the name in the graph. `type.offset` is 0: the
    layout of the storage; of complex numbers that of their parts. `written`: the kernel stores to
    it."""

    name: str
    type: TensorType
    written: bool = False


@dataclass(frozen=True)
class Origin:
    """What a node was made from: `aten.add.Tensor`, and the user's line `encoder.py:41`."""

    op: str
    source: str = ""


@dataclass(frozen=True)
class Kernel:
    """One loop nest (one phase list) over shared parallel axes."""

    name: str
    buffers: tuple[Buffer, ...]
    axes: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    symbols: tuple[Symbol, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a graph buffer: how extern calls, matmuls and results see tensors.

    Extern calls, copies and results may see it at another element type than the buffer's (the
    offset counts elements of the view's), and lazily conjugated or negated, as torch's views are:
    the memory holds the value before that. again: of results that see one memory alike, equal ones
    are one tensor, those of other numbers tensors of their own; of an input, 0 is that itself."""

    buffer: str
    type: TensorType
    conj: bool = False
    neg: bool = False
    again: int = 0


GraphArg = Union[TensorRef, Arg, tuple["GraphArg", ...]]  # noqa: UP007  # refers to itself


@dataclass(frozen=True)
class Extern:
    """A call of an operator on whole tensors.

    outs: name of the new buffer and its layout, or None for a result that is unused or no
    tensor; an operator without results does something else. fallback: the operator has no lowering
    (reported); False for those that stay extern by design, such as attention. mutates: buffers
    written in place. binds: symbols that hang on data, to sizes of the results, or that of
    `aten._local_scalar_dense` to what its tensor holds.
    """

    target: str
    args: tuple[GraphArg, ...]
    kwargs: tuple[tuple[str, GraphArg], ...]
    outs: tuple[tuple[str, TensorType] | None, ...]
    tuple_result: bool = False
    mutates: tuple[str, ...] = ()
    fallback: bool = True
    origins: tuple[Origin, ...] = ()
    binds: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operand:
    """A tensor that a matmul multiplies, and the pointwise kernel, over axes of its own, that makes
    its buffer, if the matmul does that itself: then nothing else reads the buffer, and it need not
    be materialised."""

    ref: TensorRef
    prologue: Kernel | None = None


@dataclass(frozen=True)
class Scales:
    """Factors of the products of a matmul, by which its operands have been divided: one for each
    row of `a`, [m], and for each column of `b`, [n] (of groups of rows: of each matrix, [groups,
    n]), with a stride of 0 where one serves all; or for each of their `blocks` of (rows, elements
    along k, columns): [ceil(m / rows), ceil(k / elements)] and [ceil(k / elements), ceil(n /
    columns)].

    fast: fp8 products may be summed as tensor cores do it, with fewer bits than f32 has."""

    a: TensorRef
    b: TensorRef
    fast: bool = False
    blocks: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Matmul:
    """`out[m, n] = alpha * (a[m, k] @ b[k, n]) (+ beta * bias[n])`, batched if the operands have
    rank 3. `operands` are `a` and `b`, which carry their strides, so a transposed weight is a view.
    `scales` are further factors, of one product. The element type of `out` may be another than
    that of the operands. `bias` has rank 1, or the sizes of `out` and strides of 0 where it
    broadcasts; a beta of 0 ignores it, and the sum is rounded once. `epilogue` is a pointwise
    kernel over (m, n) that reads `out` (and others), replaces the store of `out`, and writes the
    buffers it declares as written; `out` then is not materialised.

    groups: of which the result is a product each, the ends (i32) along one size: along m (`b` is a
    batch, a matrix a group), along n (`a` is), or, where neither is, along k (the result is). What
    lies in no group is of no value, nor what an epilogue makes of it."""

    out: str
    type: TensorType
    operands: tuple[Operand, Operand]
    bias: TensorRef | None
    extern: Extern
    epilogue: Kernel | None = None
    origins: tuple[Origin, ...] = ()
    alpha: int | float = 1
    beta: int | float = 1
    scales: Scales | None = None
    groups: TensorRef | None = None

    @property
    def jagged(self) -> str | None:
        """The size that has groups: "M", "N", "K", or None."""
        if self.groups is None:
            return None
        return "M" if len(self.b.type.size) == 3 else "N" if len(self.a.type.size) == 3 else "K"

    @property
    def a(self) -> TensorRef:
        """The first operand, `[m, k]`."""
        return self.operands[0].ref

    @property
    def b(self) -> TensorRef:
        """The second operand, `[k, n]`."""
        return self.operands[1].ref

    @property
    def added(self) -> tuple[TensorRef, ...]:
        """What it reads beside its operands: factors, ends of groups and bias."""
        factors = () if self.scales is None else (self.scales.a, self.scales.b)
        others = (*factors, self.groups, self.bias)
        return tuple(ref for ref in others if ref is not None)

    @property
    def prologues(self) -> tuple[Kernel, ...]:
        """Those that there are, `a`'s first."""
        return tuple(o.prologue for o in self.operands if o.prologue is not None)

    def map_prologues(self, rewrite: Callable[[Kernel, TensorRef], Kernel | None]) -> Matmul:
        """The matmul with each prologue, of the operand given with it, rewritten."""
        a, b = (
            o if o.prologue is None else Operand(o.ref, rewrite(o.prologue, o.ref))
            for o in self.operands
        )
        return replace(self, operands=(a, b))


@dataclass(frozen=True)
class UserKernel:
    """A launch of a Triton kernel that the user wrote.

    kernel: its key in the table of kernels that comes with the graph. grids: one for each config
    of an autotuned kernel, else one. args: run-time arguments by parameter name: tensors, integer
    expressions, numbers. constants: what is fixed before the launch; a DType stands for an
    element type, a `Ref` for an object in the table of kernels.
    outs: new buffers, uninitialised before the launch. mutates: buffers written in place.
    descriptors: tensor arguments that the kernel takes as a TMA descriptor, with its block."""

    name: str
    kernel: str
    grids: tuple[tuple[sympy.Expr, sympy.Expr, sympy.Expr], ...]
    args: tuple[tuple[str, GraphArg], ...]
    constants: tuple[tuple[str, GraphArg], ...] = ()
    outs: tuple[tuple[str, TensorType], ...] = ()
    mutates: tuple[str, ...] = ()
    descriptors: tuple[tuple[str, tuple[sympy.Expr, ...]], ...] = ()
    origins: tuple[Origin, ...] = ()

    def __post_init__(self) -> None:
        grids = tuple(tuple(map(sympy.sympify, grid)) for grid in self.grids)
        object.__setattr__(self, "grids", grids)
        blocks = tuple((name, tuple(map(sympy.sympify, b))) for name, b in self.descriptors)
        object.__setattr__(self, "descriptors", blocks)


@dataclass(frozen=True)
class CopyBack:
    """Writes a result into an input of the caller."""

    src: TensorRef
    dst: TensorRef


Node = Kernel | Extern | Matmul | UserKernel | CopyBack


@dataclass(frozen=True)
class GraphInput:
    """A tensor input, or (type None) an integer input that binds the symbol `name`."""

    name: str
    type: TensorType | None


@dataclass(frozen=True)
class Graph:
    """The program before it has an order of allocation: nodes in a valid order.

    A buffer that is no input and no constant is made by the first node that writes it, with the
    layout that this node declares.
    constants: name -> layout of tensors that belong to the program."""

    name: str
    inputs: tuple[GraphInput, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[GraphArg, ...]
    symbols: tuple[Symbol, ...] = ()
    constants: tuple[tuple[str, TensorType], ...] = field(default=())
