"""An attention as a problem, and the text of its kernel: static sizes and strides are literals of
it, the others run-time parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from gemm_templates.problem import ITEMSIZE
from gemm_templates.render import template_digest
from triton_rt import KernelParam, KernelSource

__all__ = [
    "Attention",
    "Config",
    "Function",
    "Tensor",
    "attention_kernel",
    "default_config",
    "fitted",
]

Size = int | str


@dataclass(frozen=True)
class Tensor:
    """Element type and strides along (batch, head, row, column), or (batch, head, row); a string
    is the name of a run-time parameter, as everywhere here."""

    dtype: str
    strides: tuple[Size, ...]

    def text(self, name: str) -> str:
        """The text that makes it an operand of the kernel."""
        return f"Heads({', '.join(map(str, (name, *self.strides)))})"


@dataclass(frozen=True)
class Function:
    """`name(score, batch, head, rm, rn, mask, operands)`, which `text` defines: what becomes of
    scores. reads: bytes of what it loads for each score; 0 if nothing."""

    name: str
    text: str
    operands: tuple[KernelParam, ...] = ()
    reads: int = 0


@dataclass(frozen=True)
class Attention:
    """softmax(partial(q @ k.T * scale)) @ v, and its gradients.

    lengths: heads of queries, how many of them share one of keys and values, queries, keys.
    columns: of queries and keys, and of values. tensors: `q`, `k`, `v`, `out`, and those that there
    are of `logsumexp`, `maxima`, `counts`, `indices` (of the blocks of keys that a block of queries
    looks at, with `partial`), `full_counts`, `full_indices` (of those with `full`); for gradients
    `grad_out`, `grad_logsumexp`, `delta`, `grad_q`, `grad_k`, `grad_v`, `q_counts` and the like.
    partial_gradient, full_gradient, scatters: functions of `score, grad`, the last of which add to
    memory what is captured. Those of the kernel of keys take
    tiles [keys, queries]. blocks: their size, in queries and in keys. precision: of products of f32
    ("ieee", "tf32")."""

    lengths: tuple[Size, Size, Size, Size]
    columns: tuple[int, int]
    scale: float
    tensors: Mapping[str, Tensor]
    partial: Function | None = None
    full: Function | None = None
    partial_gradient: Function | None = None
    full_gradient: Function | None = None
    blocks: tuple[int, int] = (0, 0)
    precision: str = "ieee"
    scatters: tuple[Function, ...] = ()

    @property
    def dtype(self) -> str:
        """The element type of queries, keys and values."""
        return self.tensors["q"].dtype

    @property
    def functions(self) -> tuple[Function | None, ...]:
        """In the order in which `Scores` has them."""
        return self.partial, self.full, self.partial_gradient, self.full_gradient


@dataclass(frozen=True)
class Config:
    """block_m: queries of a program; block_n: keys that it takes at a time. In the kernel of the
    gradients of keys, a program has block_n keys and takes block_m queries at a time."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class _Template:
    """A function of `module`: the tensors that it reads, and those that it writes, of its `Call`.
    blocks: how the names of blocks begin, and what `Call` has for them. functions: how many of
    `Scores` it takes."""

    module: str
    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    blocks: tuple[tuple[str, str], ...]
    functions: int = 4


_KEYS = (("", "partial"), ("full_", "full"))
TEMPLATES = {
    "forward": _Template(
        "kernel",
        "attention_forward",
        ("q", "k", "v"),
        ("out", "logsumexp", "maxima"),
        _KEYS,
        functions=2,
    ),
    "queries": _Template(
        "gradients",
        "gradient_of_queries",
        ("q", "k", "v", "out", "logsumexp", "grad_out", "grad_logsumexp"),
        ("delta", "grad_q"),
        _KEYS,
    ),
    "keys": _Template(
        "gradients",
        "gradient_of_keys",
        ("q", "k", "v", "logsumexp", "grad_out", "delta"),
        ("grad_k", "grad_v"),
        (("q_", "q_partial"), ("full_q_", "q_full")),
    ),
}


def default_config(problem: Attention, template: str = "forward") -> Config:
    """What was the fastest on an H200 or H100, of few forms of scores and lengths, with 64 and 128
    columns of 16 bits."""
    wide = max(problem.columns)
    if ITEMSIZE[problem.dtype] == 4:
        return Config(32 if wide <= 64 else 16, 32, 8, 2)  # what registers hold
    reads = problem.full.reads if problem.full is not None else 0
    if wide > 128 and template == "forward":
        loaded = max(reads, problem.partial.reads if problem.partial is not None else 0)
        return Config(128, 32, 8, 3) if loaded == 4 else Config(128, 64, 8, 2)
    if wide > 128:
        return Config(32, 64, 8, 2) if template == "keys" else Config(64, 32, 8, 2)
    if reads == 4 and (template == "forward" or (template == "queries" and wide <= 64)):
        # what is loaded for scores takes shared memory, and as many stages as keys
        forward = Config(128, 32, 4, 4 if wide <= 64 else 3)
        return Config(128, 32, 8, 3) if template == "queries" else forward
    if reads == 2 and template == "forward" and wide > 64:
        return Config(128, 64, 8, 3)
    if template == "queries":
        return Config(64, 64, 4, 3 if wide <= 64 else 2)
    if template == "keys" and wide > 64:
        return Config(64, 128, 8, 3) if problem.full is None else Config(32, 64, 4, 3)
    if template == "keys" or "counts" in problem.tensors or problem.full is not None:
        return Config(64, 64, 4, 3)
    return Config(128, 64, 4, 3) if wide <= 64 else Config(128, 128, 8, 3)


def fitted(
    problem: Attention, config: Config, template: str = "forward", smem: int = 99 * 1024
) -> Config | None:
    """The config with blocks that divide those of the mask, no more queries than there are, and
    stages and blocks that `smem` bytes of shared memory hold; None if none does."""
    m, n, stages = config.block_m, config.block_n, config.num_stages
    if "counts" in problem.tensors or "q_counts" in problem.tensors:
        m, n = gcd(m, problem.blocks[0]), gcd(n, problem.blocks[1])
    queries = problem.lengths[2]
    while isinstance(queries, int) and m > 16 and m // 2 >= queries:
        m //= 2
    inner, outer = map(_padded, problem.columns)

    def needed() -> int:
        held, walked = (n, m) if template == "keys" else (m, n)
        tile = inner + (outer if template != "forward" else 0)
        return ITEMSIZE[problem.dtype] * (held * tile + stages * walked * (inner + outer))

    while needed() > smem and (stages > 2 or max(m, n) > 16):
        if stages > 2:
            stages -= 1
        elif m >= n:
            m //= 2
        else:
            n //= 2
    return Config(m, n, config.num_warps, stages) if min(m, n) >= 16 else None


def _padded(columns: int) -> int:
    return max(16, 1 << (columns - 1).bit_length())


def attention_kernel(
    problem: Attention, config: Config, name: str = "attention", template: str = "forward"
) -> KernelSource:
    """A kernel, "forward", or the gradients of "queries" (which writes `delta`, too) and of "keys"
    and values, in this order. Its grid is `cdiv(queries, block_m) * heads * batches` programs, of
    "keys" `cdiv(keys, block_n) * heads of keys * batches`. Parameters: its tensors by their names,
    the operands of the functions, then the sizes that are names."""
    of = TEMPLATES[template]
    blocks = [f"{prefix}{part}" for prefix, _ in of.blocks for part in ("counts", "indices")]
    tensors = {n: t for n, t in problem.tensors.items() if n in (*of.reads, *of.writes, *blocks)}
    functions = (*problem.functions[: of.functions], *_scatters(problem, template))
    params = [KernelParam(n, f"*{t.dtype}", n in of.writes) for n, t in tensors.items()]
    changes = [f for f in dict.fromkeys(functions) if f is not None]
    params += dict.fromkeys(p for f in changes for p in f.operands)
    params += _sizes(problem, tensors)
    text = "\n".join(
        [
            f"# attention   template {template_digest()}",
            "import triton",
            "import triton.language as tl",
            f"from gemm_templates.attention.{of.module} import {of.function}",
            "from gemm_templates.attention.operands import Blocks, Call, Heads, Scores",
            "from gemm_templates.attention.operands import Shape, Side, Width",
            *(f.text.strip("\n") for f in changes),
            "",
            "",
            "@triton.jit",
            f"def {name}({', '.join(p.name for p in params)}):",
            f"    {of.function}(",
            "        Call(",
            *(
                f"            {line},"
                for line in _arguments(problem, config, of, tensors, _scatters(problem, template))
            ),
            "        )",
            "    )",
            "",
        ]
    )
    shape = config.num_warps, config.num_stages
    return KernelSource(name, text, tuple(params), (), *shape)


def _arguments(
    problem: Attention,
    config: Config,
    of: _Template,
    tensors: Mapping[str, Tensor],
    scatters: Sequence[Function],
) -> list[str]:
    heads, group, *lengths = problem.lengths
    blocks = config.block_m, config.block_n
    # The last block of a mask may go past the end by several of a program's.
    wholes = [max(*both) for both in zip(blocks, problem.blocks, strict=True)]
    sides = [
        f"Side({n}, {block}, {isinstance(n, int) and n % whole == 0})"
        for n, block, whole in zip(lengths, blocks, wholes, strict=True)
    ]
    widths = [f"Width({n}, {_padded(n)})" for n in problem.columns]
    shape = (heads, group, *sides, *widths, f'"{problem.precision}"')
    scaled = problem.full is not None or problem.scale <= 0
    functions = problem.functions[: of.functions]
    scores = [problem.scale, scaled, *map(_function, functions)]
    if scatters:
        named, given = zip(*((f.name, _operands(f)) for f in scatters), strict=True)
        scores += [f"SCATTERS={_tuple(named)}", f"scatter_operands={_tuple(given)}"]
    return [
        *(f"{n}={t.text(n)}" for n, t in tensors.items() if n in (*of.reads, *of.writes)),
        f"shape=Shape({', '.join(map(str, shape))})",
        f"scores=Scores({', '.join(map(str, scores))})",
        *(
            f"{name}={_blocks(problem, prefix, tensors)}"
            for prefix, name in of.blocks
            if f"{prefix}counts" in tensors
        ),
    ]


def _function(function: Function | None) -> str:
    if function is None:
        return "None, ()"
    return f"{function.name}, {_operands(function)}"


def _operands(function: Function) -> str:
    return _tuple(p.name for p in function.operands)


def _tuple(parts: Iterable[str]) -> str:
    return f"({''.join(f'{part}, ' for part in parts).strip()})"


def _scatters(problem: Attention, template: str) -> tuple[Function, ...]:
    """Of the launch that goes over all scores as they lie."""
    return problem.scatters if template == "queries" else ()


def _blocks(problem: Attention, prefix: str, tensors: Mapping[str, Tensor]) -> str:
    names = f"{prefix}counts", f"{prefix}indices"
    sizes = problem.blocks[::-1] if prefix.endswith("q_") else problem.blocks
    return f"Blocks({', '.join((*(tensors[n].text(n) for n in names), *map(str, sizes)))})"


def _sizes(problem: Attention, tensors: Mapping[str, Tensor]) -> Iterable[KernelParam]:
    """The run-time sizes, and strides, which may be wide."""
    names = {n: "i32" for n in problem.lengths if isinstance(n, str)}
    strides = [n for t in tensors.values() for n in t.strides if isinstance(n, str)]
    return [KernelParam(n, kind) for n, kind in (names | dict.fromkeys(strides, "i64")).items()]
