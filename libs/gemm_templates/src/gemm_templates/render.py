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
from gemm_templates.plan import Maps, Workspace
from gemm_templates.problem import (
    BATCH_STRIDES,
    DIMS,
    BlockScale,
    Config,
    Epilogue,
    Problem,
    Prologue,
)
from triton_rt import KernelParam, KernelSource


@dataclass(frozen=True)
class Call:
    """How the text of a kernel calls its template: `module.function(a, b, bias, out, M, ...,
    stride_bias, operands=..., EPILOGUE=..., BLOCK_M=..., <flags>, ...)`, as `tiled_mm`.

    flags: further keyword arguments, as text.
    workspaces: pointers passed as keyword arguments of their names.
    batches: it walks over the batch itself, with `BATCH=..., stride_ab=..., stride_bb=...,
    stride_ob=..., EPILOGUE_BATCHED=...`; else it gets the pointers of one product.
    multiplies: it reads `a` and `b`; else they are None. finishes: bias, epilogue and `out` are
    its business; else they are None, `identity` and not stored.
    decorator: of the kernel: "triton.jit" or "gluon.jit".
    prologues: it takes prologues (and block scales and exact sums of fp8, if it gets such
    problems) as `tiled_mm`; others never get any.
    maps: which of `a`, `b`, `b2`, `out` are descriptors, made by the host; with any, `MAPS=True`.
    """

    module: str
    function: str
    flags: str = ""
    workspaces: tuple[Workspace, ...] = ()
    multiplies: bool = True
    finishes: bool = True
    decorator: str = "triton.jit"
    batches: bool = False
    prologues: bool = False
    maps: Maps = ()


def render(problem: Problem, config: Config, name: str, call: Call) -> KernelSource:
    """The kernel `name`. Raises InvalidProblem if a name is taken."""
    dims = problem.dims()
    epilogue = problem.epilogue if call.finishes else None
    bias = problem.bias if call.finishes else None
    stores = call.finishes and stores_out(problem)
    used = [d for d in DIMS if _used(d, problem, call)]
    dynamic = [d for d in used if d in problem.dynamic]
    if (
        problem.batch > 1
        and {"stride_ab", "stride_bb", "stride_ob"} & problem.dynamic
        and not problem.is_wide
    ):
        raise InvalidProblem("dynamic batch strides need wide offsets; leave wide=None")
    operands = epilogue.operands if epilogue else ()
    # Sizes fit 32 bits; Triton widens the product of an index with a 64-bit stride.
    stride_kind = "i64" if problem.is_wide else "i32"
    pointers = [("a", problem.a_dtype), ("b", problem.b_dtype)] if call.multiplies else []
    if call.multiplies and problem.gate:
        pointers.append(("b2", problem.b_dtype))
    if bias:
        pointers.append(("bias", bias))
    if stores:
        pointers.append(("out", problem.out_dtype))
    blocks = {p: ",".join(map(str, plan.block)) for p, plan in call.maps}
    params = [
        KernelParam(
            p,
            f"tensordesc<{dtype}[{blocks[p]}]>" if p in blocks else f"*{dtype}",
            mutated=p == "out",
            aligned=p in problem.aligned,
        )
        for p, dtype in pointers
    ]
    if problem.jagged:
        params.append(KernelParam("offs", "*i32"))
    params += [
        KernelParam(w.name, f"*{w.dtype}", mutated=True, aligned=True) for w in call.workspaces
    ]
    params += operands
    before = _before(problem) if call.prologues else {}
    params += [p for part in before.values() for p in part.operands]
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
    if problem.batch > 1 and not call.batches:
        lines.append("    batch = tl.program_id(1).to(tl.int64)")
        offset = {
            tensor: f" + batch * {stride if stride in dynamic else dims[stride]}"
            for tensor, stride in (("a", "stride_ab"), ("b", "stride_bb"), ("out", "stride_ob"))
        }
    a, b = (f"{x}{offset[x]}" if call.multiplies else "None" for x in ("a", "b"))
    out = "out" + offset["out"] if stores else "None"
    operand_names = "".join(f"{p.name}, " for p in operands)
    if epilogue and epilogue.batched and not call.batches:
        operand_names = f"{'batch' if problem.batch > 1 else '0'}, {operand_names}"
    arguments = [
        f"{a}, {b}, {'bias' if bias else 'None'}, {out}",
        ", ".join(_value(d, d in used, dims, dynamic) for d in DIMS[:10]),
        f"operands=({operand_names.strip()})",
        f"EPILOGUE={epilogue.name if epilogue else 'identity'}",
        ", ".join(f"{c}={c}" for c in constants),
        ", ".join(f"{w.name}={w.name}" for w in call.workspaces),
        _batch_arguments(problem, epilogue, used, dims, dynamic) if call.batches else "",
        call.flags,
        "MAPS=True" if call.maps else "",
        f"b2_ptr=b2, GATE={problem.gate.name}" if call.multiplies and problem.gate else "",
        _before_arguments(problem, config, before),
        f"HAS_BIAS={bias is not None}, WIDE={problem.is_wide}, "
        f'INPUT_PRECISION="{problem.input_precision}", STORE={stores}',
    ]
    head = ", ".join([*names, *(f"{c}: tl.constexpr" for c in constants)])
    imports = [f"from gemm_templates.templates.{call.module} import {call.function}"]
    if call.decorator == "gluon.jit":
        imports.insert(0, "from triton.experimental import gluon")
    if not epilogue:
        imports.append("from gemm_templates.templates.tiled import identity")
    text = "\n".join(
        [
            f"# {_title(problem)}   template {template_digest()}",
            "import triton",
            "import triton.language as tl",
            *imports,
            *([epilogue.text.strip("\n")] if epilogue else []),
            *(part.text.strip("\n") for part in before.values()),
            *([problem.gate.text.strip("\n")] if problem.gate else []),
            "",
            "",
            f"@{call.decorator}",
            f"def {name}({head}):",
            *lines,
            f"    {call.function}(",
            *(f"        {line}," for line in arguments if line),
            "    )",
            "",
        ]
    )
    return KernelSource(
        name, text, tuple(params), tuple(constants.items()), config.num_warps, config.num_stages
    )


def _before(problem: Problem) -> dict[str, Prologue | BlockScale]:
    """What happens before the sums, by the prefix of its arguments."""
    parts = {
        "PROLOGUE_A a": problem.prologue_a,
        "PROLOGUE_B b": problem.prologue_b,
        "SCALE scale": problem.block_scale,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _before_arguments(
    problem: Problem, config: Config, before: dict[str, Prologue | BlockScale]
) -> str:
    found = []
    for name, part in before.items():
        function, prefix = name.split()
        values = "".join(f"{p.name}, " for p in part.operands)
        if isinstance(part, Prologue) and part.batched:
            values = f"{'batch' if problem.batch > 1 else '0'}, {values}"
        found.append(f"{function}={part.name}, {prefix}_operands=({values.strip()})")
    if problem.multiplies_fp8 and not problem.fast_accum and problem.block_scale is None:
        found.append(f"IMPRECISE={min(128, config.block_k)}")
    return ", ".join(found)


def _title(problem: Problem) -> str:
    """The problem with names for dynamic sizes: their hints must not make texts differ."""
    m, n, k = (d if d in problem.dynamic else str(problem.dims()[d]) for d in ("M", "N", "K"))
    hinted = f"[{problem.m}, {problem.k}] @ [{problem.k}, {problem.n}]"
    return str(problem).replace(hinted, f"[{m}, {k}] @ [{k}, {n}]")


def stores_out(problem: Problem) -> bool:
    """Whether the template writes `out`, not the epilogue all there is."""
    return problem.epilogue is None or not problem.epilogue.stores


def edges(problem: Problem, config: Config) -> str:
    """EDGE_M and EDGE_N (`tiled_mm`) as keyword arguments."""
    return f'EDGE_M="{_edge(problem, config, "M")}", EDGE_N="{_edge(problem, config, "N")}"'


def check_tile(config: Config) -> None:
    """Raises InvalidConfig if a tile of accumulators does not suit the warps."""
    elements = config.block_m * config.block_n
    if min(config.block_m, config.block_n, config.block_k) < 16:
        raise InvalidConfig(f"{config}: expected blocks of at least 16")
    if elements > 1024 * 64 or elements < 32 * config.num_warps:
        raise InvalidConfig(
            f"{config}: a tile of {elements} accumulators for {config.num_warps} warps; "
            "expected at least one per thread and at most 65536"
        )


def _batch_arguments(
    problem: Problem,
    epilogue: Epilogue | None,
    used: list[str],
    dims: dict[str, int],
    dynamic: list[str],
) -> str:
    strides = ", ".join(f"{d}={_value(d, d in used, dims, dynamic)}" for d in BATCH_STRIDES)
    jagged = f'JAGGED="{problem.jagged}", offs_ptr=offs, ' if problem.jagged else ""
    batched = epilogue is not None and epilogue.batched
    return f"{jagged}BATCH={problem.batch}, {strides}, EPILOGUE_BATCHED={batched}"


def _used(dim: str, problem: Problem, call: Call) -> bool:
    if dim == "stride_bias":
        return call.finishes and problem.bias is not None
    if dim in BATCH_STRIDES:
        batched = problem.batch > 1
        if problem.jagged:  # only what is not cut into groups is a batch
            batched = dim == {"N": "stride_ab", "M": "stride_bb", "K": "stride_ob"}[problem.jagged]
        if dim == "stride_ob":
            return batched and call.finishes and stores_out(problem)
        return batched and call.multiplies
    if dim in ("stride_om", "stride_on"):
        return call.finishes and stores_out(problem)
    return call.multiplies or dim in ("M", "N", "K")


def _value(dim: str, used: bool, dims: dict[str, int], dynamic: list[str]) -> str:
    if not used:
        return "0"
    return dim if dim in dynamic else str(dims[dim])


def _edge(problem: Problem, config: Config, dim: str) -> str:
    """Masks: were the last rows to read row 0 instead, all programs would read that one at once,
    which took up to 1.5 times as long (3 rows in tiles of 16, 200 in tiles of 64)."""
    block = config.block_m if dim == "M" else config.block_n
    return "none" if problem.jagged != dim and problem.is_multiple(dim, block) else "mask"


@cache
def template_digest() -> str:
    """Part of the text, so that caches keyed by text notice a changed template."""
    folder = Path(__file__).parent
    data = b"".join(
        p.read_bytes()
        for p in (*sorted((folder / "templates").glob("*.py")), *sorted(folder.glob("*logues.py")))
    )
    return hashlib.sha256(data).hexdigest()[:12]
