"""An attention as a problem, and the text of its kernel: static sizes and strides are literals of
it, the others run-time parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gemm_templates.problem import ITEMSIZE
from gemm_templates.render import template_digest
from triton_rt import KernelParam, KernelSource

Size = int | str


@dataclass(frozen=True)
class Tensor:
    """Element type and strides along (batch, head, row, column), or (batch, head, row); a string
    is the name of a run-time parameter, as everywhere here."""

    dtype: str
    strides: tuple[Size, ...]

    def text(self, name: str) -> str:
        """As an operand of the kernel."""
        return f"Heads({', '.join(map(str, (name, *self.strides)))})"


@dataclass(frozen=True)
class Function:
    """`name(score, batch, head, rm, rn, mask, operands)`, which `text` defines: what becomes of
    scores."""

    name: str
    text: str
    operands: tuple[KernelParam, ...] = ()


@dataclass(frozen=True)
class Attention:
    """softmax(partial(q @ k.T * scale)) @ v.

    lengths: heads of queries, how many of them share one of keys and values, queries, keys.
    columns: of queries and keys, and of values. tensors: `q`, `k`, `v`, `out`, and those that there
    are of `logsumexp`, `maxima`, `counts`, `indices` (of the blocks of keys that a block of queries
    looks at, with `partial`), `full_counts`, `full_indices` (of those with `full`).
    blocks: their size, in queries and in keys. precision: of products of f32 ("ieee", "tf32").
    """

    lengths: tuple[Size, Size, Size, Size]
    columns: tuple[int, int]
    scale: float
    tensors: Mapping[str, Tensor]
    partial: Function | None = None
    full: Function | None = None
    blocks: tuple[int, int] = (0, 0)
    precision: str = "ieee"

    @property
    def dtype(self) -> str:
        """Of queries, keys and values."""
        return self.tensors["q"].dtype


@dataclass(frozen=True)
class Config:
    """Queries of a program, keys that it takes at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


_OPERANDS = ("Blocks", "Call", "Heads", "Lengths", "Scores", "Tile")


def default_config(problem: Attention) -> Config:
    """What is likely the best for the columns."""
    wide = max(problem.columns)
    if ITEMSIZE[problem.dtype] == 4:
        return Config(64, 32, 4, 2) if wide <= 64 else Config(32, 32, 4, 2)
    if wide <= 64:
        return Config(64 if "counts" in problem.tensors else 128, 64, 4, 3)
    return Config(128, 64, 8, 3) if wide <= 128 else Config(64, 32, 4, 2)


def fitted(problem: Attention, config: Config) -> Config | None:
    """The config with blocks that divide those of the mask; None if none does."""
    m, n = config.block_m, config.block_n
    if "counts" in problem.tensors:
        while problem.blocks[0] % m:
            m //= 2
        while problem.blocks[1] % n:
            n //= 2
    queries = problem.lengths[2]
    while isinstance(queries, int) and m > 16 and m // 2 >= queries:
        m //= 2
    return Config(m, n, config.num_warps, config.num_stages) if min(m, n) >= 16 else None


def attention_kernel(problem: Attention, config: Config, name: str = "attention") -> KernelSource:
    """The kernel; its grid is `cdiv(queries, block_m) * heads * batches` programs. Parameters: the
    tensors by their names, the operands of the functions, then the sizes that are names."""
    tensors = problem.tensors
    heads, group, queries, keys = problem.lengths
    wanted = ("q", "k", "v", "out", "logsumexp", "maxima")
    operands = [tensors[n].text(n) if n in tensors else "Heads()" for n in wanted]
    even = [
        isinstance(n, int) and n % b == 0
        for n, b in ((queries, config.block_m), (keys, config.block_n))
    ]
    widths = [max(16, 1 << (n - 1).bit_length()) for n in problem.columns]
    scaled = problem.full is not None or problem.scale <= 0
    functions = [_function(f) for f in (problem.partial, problem.full)]
    arguments = [
        *operands,
        f"Lengths({heads}, {group}, {queries}, {keys}, {problem.columns[0]}, {problem.columns[1]})",
        f"Tile({config.block_m}, {config.block_n}, {widths[0]}, {widths[1]}, {even[0]}, {even[1]}, "
        f'"{problem.precision}")',
        f"Scores({problem.scale!r}, {scaled}, {', '.join(functions)})",
        *(_blocks(problem, prefix) for prefix in ("", "full_")),
    ]
    params = [KernelParam(n, f"*{t.dtype}", n in wanted[3:]) for n, t in tensors.items()]
    changes = [f for f in dict.fromkeys((problem.partial, problem.full)) if f is not None]
    texts = [f.text.strip("\n") for f in changes]
    params += [p for f in changes for p in f.operands]
    params += _sizes(problem)
    text = "\n".join(
        [
            f"# attention   template {template_digest()}",
            "import triton",
            "import triton.language as tl",
            "from gemm_templates.attention.kernel import attention_forward",
            f"from gemm_templates.attention.operands import {', '.join(_OPERANDS)}",
            *texts,
            "",
            "",
            "@triton.jit",
            f"def {name}({', '.join(p.name for p in params)}):",
            "    attention_forward(",
            "        Call(",
            *(f"            {line}," for line in arguments),
            "        )",
            "    )",
            "",
        ]
    )
    shape = config.num_warps, config.num_stages
    return KernelSource(name, text, tuple(params), (), *shape)


def _function(function: Function | None) -> str:
    if function is None:
        return "None, ()"
    return f"{function.name}, ({''.join(f'{p.name}, ' for p in function.operands).strip()})"


def _blocks(problem: Attention, prefix: str) -> str:
    names = f"{prefix}counts", f"{prefix}indices"
    if names[0] not in problem.tensors:
        return "Blocks()"
    operands = ", ".join(problem.tensors[name].text(name) for name in names)
    return f"Blocks({operands}, {problem.blocks[0]}, {problem.blocks[1]})"


def _sizes(problem: Attention) -> Iterable[KernelParam]:
    """The run-time sizes, and strides, which may be wide."""
    names = {n: "i32" for n in problem.lengths if isinstance(n, str)}
    strides = [n for t in problem.tensors.values() for n in t.strides if isinstance(n, str)]
    return [KernelParam(n, kind) for n, kind in (names | dict.fromkeys(strides, "i64")).items()]
