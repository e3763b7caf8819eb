"""The whole grammar of the host program.

A `Program` is a list of ops over names. A name is a tensor, or (when it is a symbol of the
program) an integer. Every op prints as one line, `If` as a block:

    program encoder(ids: i64[s0, 32] cuda:0, emb: f32[1000, 768] cuda:0):
      where s0 in [1, 64] hint 2                            # Program.symbols: one line each
      given s0 % 2 == 0                                     # Program.given: one line each
      symbol s0 = ids.size(0)
      kernel embed(ids: *i64, w: *f32, out: *bf16 mutated, n: i32) constants (BLOCK=1024) warps 4
          stages 3:                                         # (on one line) DefineKernel: a block
        import triton                                       # that holds the source as it is
        ...
      end
      kernel scale(x: *f32, out: *f32 mutated) cpp:         # the same in C++
        extern "C" void kernel_scale(...) {
        ...
      end
      subgraph body(x: f32[64] cuda:0):                     # DefineSubgraph: a block, a program
        y = extern aten.sin.default(x) -> f32[64] cuda:0
        return (y,)
      subgraph main_part0(x: f32[64] cuda:0) captured:      # a part that a CUDA graph may hold
        ...
      subgraph loop = while (more, body) carries 1          # DefineControl
      (z,) = extern subgraph.body(x) -> (f32[64] cuda:0,)
      assert s0 <= 64 "batch"
      c0 = constant f32[768] cuda:0 "_tensor_constant0"
      b0 = alloc bf16[s0, 32, 768] cuda:0
      launch embed grid (s0*32, 1, 1) (ids, emb, b0, s0*32)  # aten.embedding encoder.py:30
      b1 = extern aten.linear.default(b0, w, bias) -> bf16[s0, 32, 2304] cuda:0
      (m, _) = extern aten.max.dim(b0, 1) -> (bf16[s0, 768] cuda:0, _)
      extern aten.add_.Tensor(b0, 1) mutates (b0,)
      n = extern aten.nonzero.default(b0) binds (u0,) -> i64[u0, 3] cuda:0
      symbol u1 = count.item()
      q = view b1 bf16[s0, 12, 32, 64] cuda:0 stride (73728, 64, 2304, 1)
      d0 = describe b0 block (1, 32, 64)
      if s0*s0 <= 32:
        launch k2 grid (s0, 1, 1) (q)
      else:
        launch k3 grid (s0, 1, 1) (q)
      stream 1
      wait 0
      launch k4 grid (s0, 1, 1) (b1)
      stream 0
      launch k5 grid (s0, 1, 1) (b0)
      wait 1
      state = workspace i64[s0] cuda:0
      launch k6 grid (s0, 1, 1) (b0, state)
      device cuda:1                                         # DeviceGuard
      launch k7 grid (s0, 1, 1) (there)
      device cuda:0
      free b1
      p = comm_alloc bf16[64] cuda:0 group "0"
      comm_free p
      b4 = reuse b0 bf16[s0*32, 768] cuda:0
      copy b4 -> ids
      return (b4,)

`line` of an op is its text but for a comment: fields, and words between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import sympy

from tensor_ir import Arg, Device, Symbol, TensorType


@dataclass(frozen=True)
class KernelParam:
    """One run-time parameter of a kernel, in order.

    kind: `*f32` (pointer to elements of a DType name), `i8` to `i64`, `u8` to `u64`, `f32`,
    `f64`, `bool`, or `tensordesc<f32[64,32]>` (a tensor descriptor with its block).
    mutated: the kernel writes through this pointer or descriptor.
    aligned: promised a multiple of 16 (bytes for a pointer, units for an integer). A launcher
    may also find that out from the real arguments."""

    name: str
    kind: str
    mutated: bool = False
    aligned: bool = False


@dataclass(frozen=True)
class DefineKernel:
    """A Triton kernel: `source` is a Python module whose `@triton.jit` function is called
    `name`. `params` are its run-time parameters, in order; `constants` its `tl.constexpr`
    parameters (which follow the run-time ones). `num_ctas`: blocks of a program, a cluster.
    max_registers: of a thread as the kernel starts, for warps that then share them out. overlap:
    it may be launched while the kernel before it ends; its text waits before it reads. contract: a
    product and a sum may be rounded once, as Triton does unless told otherwise; equal expressions
    may then differ by a rounding from kernel to kernel. language:
    `triton`, or `cpp` for tensors on the CPU: `source` then defines `extern "C" void kernel_NAME`
    of these parameters, which does all of the work in one call (`cpp_loops`)."""

    name: str
    source: str
    params: tuple[KernelParam, ...]
    constants: tuple[tuple[str, int | float | bool | str | None], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    comment: str = ""
    num_ctas: int = 1
    max_registers: int | None = None
    overlap: bool = False
    language: str = "triton"
    contract: bool = False


@dataclass(frozen=True)
class DefineSubgraph:
    """A program that is kept once and called as an operator, `extern subgraph.NAME(...)`, as often
    as one likes. Nothing outside is known in it. What it writes to its calls `mutates`, and control
    calls none that writes; it gives tensors of its own, each in a storage of its own. captured: a
    CUDA graph may hold it, since the host waits for nothing there."""

    program: Program
    captured: bool = False


@dataclass(frozen=True)
class DefineControl:
    """Calls subgraphs that are defined before as data says, and is called as they are.

    form: "if" takes a predicate and arguments, with which it calls the first subgraph where the
    predicate holds, else the second. "while" calls the second as long as the first holds, both
    with all of its arguments, the first `carries` of which are its results, that the second gives
    anew. "trace" does so, too, and gives stacks of what they were after each step. "scan" calls its
    subgraph for each step along the first dimension of the `over` arguments that follow those
    `carries`, with a slice of each: it gives what is carried, then slices that the results after
    those are stacks of."""

    name: str
    form: str
    subgraphs: tuple[str, ...]
    carries: int = 0
    over: int = 0
    comment: str = ""


# How many subgraphs each form of control calls.
FORMS = {"if": 2, "while": 2, "trace": 2, "scan": 1}


@dataclass(frozen=True)
class SymbolDef:
    """`symbol s0 = x.size(0)`: binds an integer symbol to a size (or stride) of a parameter, or
    by one that is declared as `factor*s0 + plus`: `symbol s0 = x.size(0) less 1 over 2`. Must come
    before its first use. Integer parameters bind their own symbol and need no SymbolDef.
    `symbol u0 = x.item()`: to the integer that a tensor of one element holds, whichever; whoever
    runs the program waits for it there."""

    symbol: str
    tensor: str
    dim: int
    comment: str = ""
    of: str = "size"
    factor: int = 1
    plus: int = 0

    def value(self, size: Sequence[int], stride: Sequence[int]) -> int:
        """The value of the symbol, for a parameter of this layout."""
        return ((size if self.of == "size" else stride)[self.dim] - self.plus) // self.factor


@dataclass(frozen=True)
class Assert:
    """Stops with `message` (values of the symbols added) unless the condition holds."""

    line: ClassVar = "assert {condition} {message}"
    condition: sympy.logic.boolalg.Boolean
    message: str
    comment: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", sympy.sympify(self.condition))


@dataclass(frozen=True)
class Constant:
    """A tensor that belongs to the program, found under `key` in the constants given at run
    time."""

    line: ClassVar = "{out} = constant {type} {key}"
    out: str
    type: TensorType
    key: str
    comment: str = ""


@dataclass(frozen=True)
class Allocate:
    """Uninitialised storage with exactly the layout of `type` (offset 0)."""

    line: ClassVar = "{out} = alloc {type}"
    out: str
    type: TensorType
    comment: str = ""


@dataclass(frozen=True)
class Free:
    """Ends the life of a storage owned by the program; views of it die with it."""

    line: ClassVar = "free {name}"
    name: str
    comment: str = ""


@dataclass(frozen=True)
class Workspace:
    """`state = workspace i64[12] cuda:0`: memory that launches find all zero and leave all zero,
    which nothing else uses. A program has it from call to call where these follow each other, as
    those of one stream do, and frees none. (What begins as it happens to be is `alloc`.)"""

    line: ClassVar = "{out} = workspace {type}"
    out: str
    type: TensorType
    comment: str = ""


@dataclass(frozen=True)
class CommAllocate:
    """`p = comm_alloc T group "0"`: contiguous memory that the other ranks of a group read and
    write. All of one group begins at the same place: what an operator leaves there lasts until
    another is given memory of the group. On the CPU it is memory like any other."""

    line: ClassVar = "{out} = comm_alloc {type} group {group}"
    out: str
    type: TensorType
    group: str
    comment: str = ""


@dataclass(frozen=True)
class CommFree:
    """Ends the life of what `comm_alloc` gave."""

    line: ClassVar = "comm_free {name}"
    name: str
    comment: str = ""


@dataclass(frozen=True)
class DeviceGuard:
    """`device cuda:1`: launches that follow run there, and streams are of it. A program begins on
    the first GPU that one of its tensors is on, and leaves its caller's current. Nothing where
    there is none."""

    line: ClassVar = "device {device}"
    device: Device
    comment: str = ""


@dataclass(frozen=True)
class StreamSwitch:
    """`stream 1`: what follows runs on another stream of the device, beside what other streams were
    given; 0 is that of the call, on which a program begins and ends. One after the other, in order
    of the program, is always right. Nothing on the CPU."""

    line: ClassVar = "stream {stream}"
    stream: int
    comment: str = ""


@dataclass(frozen=True)
class StreamWait:
    """`wait 1`: what follows on this stream begins when a stream has done all that it was given
    before."""

    line: ClassVar = "wait {stream}"
    stream: int
    comment: str = ""


@dataclass(frozen=True)
class Reuse:
    """`out = reuse src type`: takes over the storage of `src` (dead from here on, with its
    views) under a new layout that fits in it, of any element type, same device. What it held is
    nothing to the new owner, who writes before it reads."""

    line: ClassVar = "{out} = reuse {src} {type}"
    out: str
    src: str
    type: TensorType
    comment: str = ""


@dataclass(frozen=True)
class View:
    """Another layout over the storage of `src`. `type.offset` counts elements of `type.dtype`
    from the start of the storage; the storage of a parameter starts at that parameter's first
    element (a caller may pass a view with a storage offset of its own: the offset is not part
    of the program)."""

    line: ClassVar = "{out} = view {src} {type}"
    out: str
    src: str
    type: TensorType
    comment: str = ""


@dataclass(frozen=True)
class Describe:
    """`d0 = describe x block (64, 32)`: a descriptor by which a kernel copies blocks of `x` through
    the TMA unit; what lies outside of `x` reads as zero. Only launches take it, for a parameter of
    the kind `tensordesc<...>`, as often as they like. It lives in the storage of `x`: it keeps `x`
    alive, and dies with that storage."""

    line: ClassVar = "{out} = describe {src} block {block}"
    out: str
    src: str
    block: tuple[int, ...]
    comment: str = ""


@dataclass(frozen=True)
class Launch:
    """Runs a defined kernel; `args` match its `params` one to one. Nothing runs where a grid size
    is 0."""

    kernel: str
    grid: tuple[sympy.Expr, sympy.Expr, sympy.Expr]
    args: tuple[Arg, ...]
    comment: str = ""

    def __post_init__(self) -> None:
        x, y, z = map(sympy.sympify, self.grid)
        object.__setattr__(self, "grid", (x, y, z))


@dataclass(frozen=True)
class ExternCall:
    """Calls an operator by name, `aten.addmm.default`.

    outs: name and type of each result; `None` where a result is not used or not a tensor.
    tuple_result: the operator returns a tuple or list (even of one).
    binds: symbols that sizes of the results give a value, of those that hang on data.
    mutates: names of the arguments that it writes to.
    alias: results share the storage of this argument (for view-like operators), or None."""

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outs: tuple[tuple[str, TensorType] | None, ...] = ()
    tuple_result: bool = False
    mutates: tuple[str, ...] = ()
    alias: str | None = None
    comment: str = ""
    binds: tuple[str, ...] = ()

    def places(self) -> dict[str, tuple[int, int]]:
        """For each symbol that it binds: the result, and the dimension whose size the symbol is."""
        found = [
            (str(n), (i, dim))
            for i, out in enumerate(self.outs)
            for dim, n in enumerate(out[1].size if out is not None else ())
        ]
        return {s: place for s, place in reversed(found) if s in self.binds}


@dataclass(frozen=True)
class CopyBack:
    """`copy src -> dst`: writes a result into a tensor of the caller (same sizes)."""

    line: ClassVar = "copy {src} -> {dst}"
    src: str
    dst: str
    comment: str = ""


@dataclass(frozen=True)
class If:
    """Runs one of two blocks. Blocks may launch, call, and mutate, but define no name that is
    used outside."""

    condition: sympy.logic.boolalg.Boolean
    then: tuple[Op, ...]
    orelse: tuple[Op, ...] = ()
    comment: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "condition", sympy.sympify(self.condition))


@dataclass(frozen=True)
class Comment:
    """A line for the reader."""

    text: str


@dataclass(frozen=True)
class Return:
    """The last op: tensors, integers or constants, in order."""

    values: tuple[Arg, ...]
    comment: str = ""


# The ops that print as a line of their own.
LineOp: TypeAlias = (
    DefineControl
    | SymbolDef
    | Assert
    | Constant
    | Allocate
    | Free
    | Workspace
    | CommAllocate
    | CommFree
    | DeviceGuard
    | StreamSwitch
    | StreamWait
    | Reuse
    | View
    | Describe
    | Launch
    | ExternCall
    | CopyBack
    | Return
)
Op: TypeAlias = LineOp | DefineKernel | DefineSubgraph | If | Comment


@dataclass(frozen=True)
class Param:
    """A tensor parameter, or (type None) an integer parameter that binds the symbol `name`."""

    name: str
    type: TensorType | None


@dataclass(frozen=True)
class Program:
    """given: conditions on the symbols that the caller has made sure of, or otherwise knows the
    program to be right for."""

    name: str
    params: tuple[Param, ...]
    ops: tuple[Op, ...]
    symbols: tuple[Symbol, ...] = field(default=())
    given: tuple[sympy.logic.boolalg.Boolean, ...] = field(default=())
