"""Problem + config -> the text of a Triton kernel with flat run-time parameters.

The text imports the template and calls it inline, so a launch passes pointers and integers only.
Static sizes and strides are literals in the text: the compiler then knows alignment, drops the
masks that cannot matter, and unrolls nothing it should not."""

import hashlib
import keyword
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from gemm_templates.errors import InvalidProblem
from gemm_templates.fused import Part, Prologue
from gemm_templates.plan import Plan, TemplateKernel, Workspace
from gemm_templates.problem import BATCH_STRIDES, DIMS, STRIDES_OF, Config, Problem
from gemm_templates.tensor_maps import Moves
from triton_rt import KernelParam, KernelSource


@dataclass(frozen=True)
class Call:
    """How the text of a kernel calls its template, a function of `families.<family>.kernel`:
    `function(a=Matrix(...), b=Matrix(...), sizes=Sizes(...), tile=Tile(...), ending=Ending(...),
    <flags>, ...)`, as `parts.operands` has them.

    flags: further keyword arguments, as text.
    workspaces: memory that it gets as `scratch`, if that is not None.
    batches: it walks over the batch itself; else it gets the pointers of one product.
    multiplies: it reads `a` and `b`. finishes: bias, epilogue and `out` are its business.
    roles: it is Gluon's, and its warps have roles.
    prologues: it takes prologues and block scales as `beginning`; others never get any.
    moves: what it reads or writes through descriptors."""

    family: str
    function: str
    flags: str = ""
    workspaces: tuple[Workspace, ...] | None = None
    multiplies: bool = True
    finishes: bool = True
    roles: bool = False
    batches: bool = False
    prologues: bool = False
    moves: Moves = field(default_factory=Moves)


# Of a kernel whose warps have roles, as it starts: warps, and a thread's share of 65536 registers,
# with those of the warps that load.
_ROLE_WARPS, _ROLE_REGISTERS = 4, 168


def launched(problem: Problem, config: Config, name: str, call: Call, **more: int) -> Plan:
    """The plan of one launch of the kernel `name`; the programs walk over the batch if `call`
    says so. more: `splits` and `shares` of `TemplateKernel`."""
    source = render(problem, config, name, call)
    if call.roles:
        source = replace(
            source, num_warps=_ROLE_WARPS, max_registers=_ROLE_REGISTERS, pdl=config.overlap
        )
    block = (config.block_m, config.block_n)
    walk = (problem.batch, config.programs)
    kernel = TemplateKernel(source, *block, *walk, flat=call.batches, maps=call.moves.maps, **more)
    return Plan((kernel,), call.workspaces or ())


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
    blocks = {p: ",".join(map(str, plan.block)) for p, plan in call.moves.maps}
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
        KernelParam(w.name, f"*{w.dtype}", mutated=True, aligned=True)
        for w in call.workspaces or ()
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
    values = {d: _value(d, d in used, dims, dynamic) for d in DIMS}
    whole = problem.batch == 1 or call.batches
    arguments = [
        *(
            f"{name}={_matrix(name, problem, call, values, whole)}"
            for name in ("a", "b", "b2")
            if call.multiplies and (name != "b2" or problem.gate)
        ),
        f"sizes=Sizes({values['M']}, {values['N']}, {values['K']}"
        f"{f', {problem.batch}' if call.batches else ''})",
        f"tile={_tile(problem, config, constants)}",
        f"ending={_ending(problem, call, values, whole)}" if call.finishes else "",
        f"beginning={_beginning(problem, before)}" if call.prologues else "",
        _scratch(call.workspaces),
        call.flags,
    ]
    head = ", ".join([*names, *(f"{c}: tl.constexpr" for c in constants)])
    body = "\n".join(f"        {line}," for line in arguments if line)
    imports = [f"from gemm_templates.families.{call.family}.kernel import {call.function}"]
    imports += [
        f"from gemm_templates.parts.operands import {kind}"
        for kind in _OPERANDS.split()
        if f"{kind}(" in body
    ]
    if call.roles:
        imports.insert(0, "from triton.experimental import gluon")
    if call.finishes and not epilogue:
        imports.append("from gemm_templates.parts.tiles import identity")
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
            "@gluon.jit" if call.roles else "@triton.jit",
            f"def {name}({head}):",
            *([] if whole else ["    batch = tl.program_id(1).to(tl.int64)"]),
            f"    {call.function}(",
            body,
            "    )",
            "",
        ]
    )
    return KernelSource(
        name, text, tuple(params), tuple(constants.items()), config.num_warps, config.num_stages
    )


_OPERANDS = "Beginning Ending Groups Matrix Pipeline Scratch Share Sizes Tile"


def _matrix(name: str, problem: Problem, call: Call, values: dict[str, str], whole: bool) -> str:
    tensor = "b" if name == "b2" else name
    row, column, batch = STRIDES_OF[tensor]
    pointer = name if whole else f"{name} + batch * {values[batch]}"
    parts = [pointer, values[row], values[column]]
    if call.batches:
        parts.append(values[batch])
    if name in call.moves.names:
        parts.append(f"BY_ROWS={problem.major(tensor) == column}")
        parts.append(f"TMA=True, GIVEN={name in dict(call.moves.maps)}")
    if name in call.moves.shared:
        parts.append("SHARED=True")
    return f"Matrix({', '.join(parts)})"


def _tile(problem: Problem, config: Config, constants: dict[str, int]) -> str:
    edges = ", ".join(f'EDGE_{d}="{_edge(problem, config, d)}"' for d in ("M", "N"))
    exact_fp8 = problem.multiplies_fp8 and not problem.fast_accum and problem.block_scale is None
    return (
        f"Tile({', '.join(constants)}, {edges}, "
        f"EVEN_K={problem.is_multiple('K', config.block_k)}, WIDE={problem.is_wide}, "
        f'INPUT_PRECISION="{problem.input_precision}"'
        f"{f', IMPRECISE={min(128, config.block_k)}' if exact_fp8 else ''}"
        f"{', INTEGER=True' if problem.sums == 'i32' else ''})"
    )


def _ending(problem: Problem, call: Call, values: dict[str, str], whole: bool) -> str:
    epilogue = problem.epilogue
    operands = "".join(f"{p.name}, " for p in epilogue.operands) if epilogue else ""
    batched = epilogue is not None and epilogue.batched
    if batched and not call.batches:
        operands = f"{'0' if whole else 'batch'}, {operands}"
    return (
        f"Ending({'bias' if problem.bias else 'None'}, {values['stride_bias']}, "
        f"{epilogue.name if epilogue else 'identity'}, ({operands.strip()}), "
        f"{_matrix('out', problem, call, values, whole) if stores_out(problem) else 'None'}"
        f"{f', GATE={problem.gate.name}' if problem.gate else ''}"
        f"{', BATCHED=True' if batched and call.batches else ''})"
    )


def _before(problem: Problem) -> dict[str, Part]:
    """What happens before the sums, by the prefix of its arguments."""
    parts = {
        "PROLOGUE_A a": problem.prologue_a,
        "PROLOGUE_B b": problem.prologue_b,
        "SCALE scale": problem.block_scale,
        "PICK_B b": problem.pick_b,
    }
    return {name: part for name, part in parts.items() if part is not None}


def _beginning(problem: Problem, before: dict[str, Part]) -> str:
    found = []
    for name, part in before.items():
        function, prefix = name.split()
        values = "".join(f"{p.name}, " for p in part.operands)
        if isinstance(part, Prologue) and part.batched:
            values = f"{'batch' if problem.batch > 1 else '0'}, {values}"
        found.append(f"{function}={part.name}, {prefix}_operands=({values.strip()})")
    return f"Beginning({', '.join(found)})"


def _scratch(workspaces: tuple[Workspace, ...] | None) -> str:
    if workspaces is None:
        return ""
    return f"scratch=Scratch({', '.join(f'{w.name}={w.name}' for w in workspaces)})"


def _title(problem: Problem) -> str:
    """The problem with names for dynamic sizes: their hints must not make texts differ."""
    m, n, k = problem.sizes.split("x")
    hinted = f"[{problem.m}, {problem.k}] @ [{problem.k}, {problem.n}]"
    return str(problem).replace(hinted, f"[{m}, {k}] @ [{k}, {n}]")


def stores_out(problem: Problem) -> bool:
    """Whether the template writes `out`, not the epilogue all there is."""
    return problem.epilogue is None or not problem.epilogue.stores


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


def _value(dim: str, used: bool, dims: Mapping[str, int], dynamic: list[str]) -> str:
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
    patterns = (
        "parts/*.py",
        "families/*/kernel.py",
        "*logues.py",
        "attention/*.py",
    )
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    data = b"".join(path.read_bytes() for path in files)
    return hashlib.sha256(data).hexdigest()[:12]
