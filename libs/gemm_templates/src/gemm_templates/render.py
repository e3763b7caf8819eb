"""Problem + config -> the text of a Triton kernel with flat run-time parameters.

The text imports the template and calls it inline, so a launch passes pointers and integers only.
Static sizes and strides are literals in the text: the compiler then knows alignment, drops the
masks that cannot matter, and unrolls nothing it should not.
"""

from __future__ import annotations

import hashlib
import keyword
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gemm_templates.errors import InvalidConfig, InvalidProblem
from gemm_templates.problem import DIMS, ITEMSIZE, Config, Problem
from triton_rt import KernelParam, KernelSource


@dataclass(frozen=True)
class TemplateKernel:
    """A kernel as text, and its grid.

    source.params: run-time parameters in order: `a, b, [bias], [out]`, the epilogue's operands,
        then the dynamic names of `DIMS` in the order of `DIMS`.
    source.constants: the block sizes.
    grid: tiles = cdiv(M, block_m) * cdiv(N, block_n) in x, at most `programs` if that is not 0;
        the batch in y. `grid_text` is that as expressions of `M` and `N` with `CeilDiv`, `Min`.
    """

    source: KernelSource
    block_m: int
    block_n: int
    batch: int
    programs: int = 0

    def grid(self, m: int, n: int) -> tuple[int, int, int]:
        tiles = -(-m // self.block_m) * -(-n // self.block_n)
        return (min(tiles, self.programs) if self.programs else tiles, self.batch, 1)

    @property
    def grid_text(self) -> tuple[str, str, str]:
        tiles = f"CeilDiv(M, {self.block_m})*CeilDiv(N, {self.block_n})"
        return (f"Min({tiles}, {self.programs})" if self.programs else tiles, str(self.batch), "1")


def source(problem: Problem, config: Config, name: str = "matmul") -> TemplateKernel:
    """The kernel `name` for a problem.

    Raises InvalidConfig if the config cannot run this problem at all (device limits are the
    business of `candidates`), InvalidProblem if a name is taken.
    """
    dims = problem.dims()
    used = [d for d in DIMS if _used(d, problem)]
    dynamic = [d for d in used if d in problem.dynamic]
    operands = problem.epilogue.operands if problem.epilogue else ()
    # Sizes fit 32 bits; Triton widens the product of an index with a 64-bit stride.
    stride_kind = "i64" if problem.is_wide else "i32"
    stores = problem.epilogue is None or not problem.epilogue.stores
    pointers = [("a", problem.a_dtype), ("b", problem.b_dtype)]
    if problem.bias:
        pointers.append(("bias", problem.bias))
    if stores:
        pointers.append(("out", problem.out_dtype))
    params = [
        KernelParam(p, f"*{dtype}", mutated=p == "out", aligned=p in problem.aligned)
        for p, dtype in pointers
    ]
    params += operands
    params += [
        KernelParam(
            d, stride_kind if d.startswith("stride") else "i32", aligned=problem.is_multiple(d, 16)
        )
        for d in dynamic
    ]
    names = [p.name for p in params]
    if len({*names, name}) != len(names) + 1:
        raise InvalidProblem(f"{name}: parameter names {names} must differ; rename the operands")
    for word in (name, *names):
        if not word.isidentifier() or keyword.iskeyword(word):
            raise InvalidProblem(f"{word!r} is not a name")

    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
    }
    offset = {"a": "", "b": "", "out": ""}
    lines = []
    if problem.batch > 1:
        lines.append("    batch = tl.program_id(1).to(tl.int64)")
        offset = {
            tensor: f" + batch * {stride if stride in dynamic else dims[stride]}"
            for tensor, stride in (("a", "stride_ab"), ("b", "stride_bb"), ("out", "stride_ob"))
        }
    out = "out" + offset["out"] if stores else "None"
    operand_names = "".join(f"{p.name}, " for p in operands)
    call = [
        f"a{offset['a']}, b{offset['b']}, {'bias' if problem.bias else 'None'}, {out}",
        ", ".join(_value(d, problem, dims, dynamic) for d in DIMS[:10]),
        f"operands=({operand_names.strip()})" if operands else "operands=()",
        f"EPILOGUE={problem.epilogue.name if problem.epilogue else 'identity'}",
        ", ".join(f"{c}={c}" for c in constants),
        f'EDGE_M="{_edge(problem, config, "M")}", EDGE_N="{_edge(problem, config, "N")}"',
        _flags(problem, config, stores),
        f"HAS_BIAS={problem.bias is not None}, WIDE={problem.is_wide}, "
        f'INPUT_PRECISION="{problem.input_precision}", STORE={stores}',
    ]
    head = ", ".join([*names, *(f"{c}: tl.constexpr" for c in constants)])
    imports = [f"from gemm_templates.templates.{config.template} import {config.template}_mm"]
    if not problem.epilogue:
        imports.append("from gemm_templates.templates.tiled import identity")
    text = "\n".join(
        [
            f"# {problem}   template {template_digest()}",
            "import triton",
            "import triton.language as tl",
            *imports,
            *([problem.epilogue.text.strip("\n")] if problem.epilogue else []),
            "",
            "",
            "@triton.jit",
            f"def {name}({head}):",
            *lines,
            f"    {config.template}_mm(",
            *(f"        {line}," for line in call),
            "    )",
            "",
        ]
    )
    _check(problem, config)
    kernel = KernelSource(
        name, text, tuple(params), tuple(constants.items()), config.num_warps, config.num_stages
    )
    return TemplateKernel(kernel, config.block_m, config.block_n, problem.batch, config.programs)


def _used(dim: str, problem: Problem) -> bool:
    if dim == "stride_bias":
        return problem.bias is not None
    if dim in ("stride_ab", "stride_bb", "stride_ob"):
        return problem.batch > 1
    if dim in ("stride_om", "stride_on"):
        return problem.epilogue is None or not problem.epilogue.stores
    return True


def _value(dim: str, problem: Problem, dims: dict[str, int], dynamic: list[str]) -> str:
    if not _used(dim, problem):
        return "0"
    return dim if dim in dynamic else str(dims[dim])


def _edge(problem: Problem, config: Config, dim: str) -> str:
    """Wrapping needs no mask in the loop, but breaks up rows that are contiguous along `dim`."""
    block = config.block_m if dim == "M" else config.block_n
    along = "stride_ak" if dim == "M" else "stride_bk"
    if problem.is_multiple(dim, block):
        return "none"
    contiguous_in_k = along not in problem.dynamic and problem.dims()[along] == 1
    return "wrap" if contiguous_in_k else "mask"


def _flags(problem: Problem, config: Config, stores: bool) -> str:
    if config.template == "tiled":
        return f"EVEN_K={problem.is_multiple('K', config.block_k)}"
    # A TMA store clips rows at the next 16 bytes, not at their last element: it would write past
    # the end of rows that end in between (triton-lang/triton issue 11583).
    whole = problem.is_multiple("N", 16 // ITEMSIZE[problem.out_dtype])
    tma_out = stores and whole and "out" in problem.aligned and problem.major("out") == "stride_on"
    return (
        f"A_ROWS={problem.major('a') == 'stride_ak'}, B_ROWS={problem.major('b') == 'stride_bn'}, "
        f"STORE_TMA={tma_out}, PARTS={config.parts}"
    )


def tma_allows(problem: Problem) -> bool:
    """Whether tensor descriptors can address both operands."""
    return (
        {"a", "b"} <= problem.aligned
        and problem.batch == 1
        and min(problem.m, problem.n, problem.k) > 0
        and problem.major("a") is not None
        and problem.major("b") is not None
    )


def _check(problem: Problem, config: Config) -> None:
    elements = config.block_m * config.block_n
    if elements > 1024 * 64 or elements < 32 * config.num_warps:
        raise InvalidConfig(
            f"{config}: a tile of {elements} accumulators for {config.num_warps} warps; "
            "expected at least one per thread and at most 65536"
        )
    if config.template == "tma" and not tma_allows(problem):
        raise InvalidConfig(
            f"{config} for {problem}: tensor descriptors need operands that are contiguous along "
            "one dimension, 16-byte aligned (say so in `aligned`), no batch, and no empty size"
        )
    if (
        problem.batch > 1
        and {"stride_ab", "stride_bb", "stride_ob"} & problem.dynamic
        and (not problem.is_wide)
    ):
        raise InvalidProblem("dynamic batch strides need wide offsets; leave wide=None")


@cache
def template_digest() -> str:
    """Part of the text, so that caches keyed by text notice a changed template."""
    folder = Path(__file__).parent
    data = b"".join(
        p.read_bytes()
        for p in (*sorted((folder / "templates").glob("*.py")), folder / "epilogues.py")
    )
    return hashlib.sha256(data).hexdigest()[:12]
