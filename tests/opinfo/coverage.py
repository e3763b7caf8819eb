"""Which operators become kernels of ours, and which stay calls of torch's: `docs/coverage.md`.

    python tests/opinfo --coverage docs/coverage.md

Each entry of `op_db` is traced as AOTAutograd does for `torch.compile` on a few of its samples, in
f32 and i64 (else in the first type that it takes), forward and backward, on the CPU; each graph is
lowered, not compiled. What remains as an operator's call is listed with the lowering's reason.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor

from aten_lowering import UNFILLED, decompositions, lower_with_report, own_composites
from aten_lowering.placement import UPDATES
from loop_ir import Extern
from opinfo.cases import Case, Copies, Subject, choose, seed, subjects
from opinfo.work import differentiate, first_line

SAMPLES = 4
MOST = 20_000  # elements of a sample
DTYPES = (torch.float32, torch.int64)
OTHERS = (torch.bool, torch.complex64, torch.float64)
NOT_NEEDED = "the result is empty"
BY_DESIGN = "on purpose"
_FUNCTIONAL = {str(op): str(of) for of, op in UPDATES.items()}

FAMILIES = (
    ("on purpose: sorting", r"^(arg|m)?sort$|topk|kthvalue|median|mode$|unique|quantile"),
    ("on purpose: Fourier transforms", r"fft|stft"),
    ("on purpose: linear algebra", r"linalg|cholesky|^lu|^svd|^qr|geqrf|ormqr|pinverse|"
     r"triangular_solve|logdet|^pca|svd_lowrank|pca_lowrank|eig|lstsq|matrix_exp|^inverse|"
     r"^det$|ldl|lobpcg|householder"),
    ("on purpose: matmuls, convolutions, attention", r"matmul|^(mm|bmm|mv|addmm|addbmm|"
     r"addmv|baddbmm|dot|vdot|inner|chain_matmul|einsum|tensordot|addr|ger|outer|cdist)$|addmm|"
     r"conv|attention|linear$|bilinear$|multi_dot|kron|_mm"),
    ("on purpose: sparse, size of data, memory as it lies", r"sparse|to_sparse|nonzero|"
     r"masked_select|empty|argwhere|bincount|histc|histogram|combinations|resize|equal$|"
     r"allclose|item|is_set_to"),
    ("random", r"rand|bernoulli|multinomial|^normal|cauchy|exponential|geometric|log_normal|"
     r"uniform|dropout|rrelu"),
    ("normalisation", r"norm(alize)?$|normalize|layer_norm|batch_norm|local_response"),
    ("pooling", r"pool|unfold|fold"),
    ("upsampling", r"interpolate|upsample|grid_sample|affine_grid|pixel_"),
    ("padding", r"pad"),
    ("losses", r"loss|cross_entropy|nll"),
    ("scan", r"^cum|cumsum|cumprod|logcumsumexp|cummax|cummin|trapezoid|trapz|diff$|scan"),
    ("arg reductions", r"^arg(max|min)"),
    ("scatter and gather", r"scatter|gather|index_|^take|put|embedding|one_hot|bucketize|"
     r"searchsorted|masked_fill|isin"),
    ("indexing and views", r"view|reshape|permute|transpose|expand|squeeze|select|slice|split|"
     r"chunk|cat|stack|narrow|diag|flip|roll|rot90|tile|repeat|movedim|swap|unbind|stride|"
     r"getitem|contiguous|T$|^[tHT]$|triu|tril|atleast|ravel|flatten|broadcast|mesh|block_diag|"
     r"alias|clone|copy|real|imag|conj|resolve"),
    ("type conversion", r"^(to|type_as|float|double|half|int|long|short|byte|char|bool|bfloat16|"
     r"cfloat|cdouble|chalf|complex|polar|type|cpu|_to_copy)"),
    ("reductions", r"^(sum|mean|prod|amax|amin|aminmax|any|all|var|std|nansum|nanmean|"
     r"count_nonzero|logsumexp|norm|dist|hash_tensor)|max.reduction|min.reduction|_mean$|"
     r"^masked\.(sum|mean|prod|amax|amin|var|std|logsumexp|norm|median)|std_mean|segment_reduce"),
    ("creation", r"ones|zeros|full|arange|linspace|logspace|eye|tri|new_|scalar_tensor|fill|"
     r"signal|window|vander"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Of one entry: the operators that stay calls, each with the reason; None: there is no such
    graph. `error`: it could not be traced or lowered."""

    name: str
    forward: dict[str, str]
    backward: dict[str, str] | None
    error: str = ""

    @property
    def native(self) -> bool:
        return not (self.forward or self.backward or self.error)


def family(name: str) -> str:
    found = (title for title, pattern in FAMILIES if re.search(pattern, name))
    return next(found, "pointwise")


def trace(case: Case, grad: bool) -> tuple[dict[str, str], dict[str, str]]:
    """What stays a call in the graphs of a case, forward and backward."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}

    def compiler(direction: int) -> Callable[..., Any]:
        def lowered(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            report = lower_with_report(gm)
            reasons = {f.op: f.reason for f in report.fallbacks}
            for node in report.graph.nodes:
                if not isinstance(node, Extern) or node.target.startswith(UNFILLED):
                    continue
                if any(out is not None and out[0].startswith("seed") for out in node.outs):
                    continue  # the state of torch's generator
                if node.outs and all(out is None or 0 in out[1].size for out in node.outs):
                    continue
                op = node.origins[0].op if node.target in report.operators else node.target
                op = _FUNCTIONAL.get(op, op)
                reason = reasons.get(op, BY_DESIGN)
                if reason != NOT_NEEDED:
                    found[direction][op] = reason
            return make_boxed_func(gm.forward)

        return lowered

    args, kwargs = Copies().tree((case.args, case.kwargs))
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def call(*given: Tensor) -> Any:
        rest = iter(given)
        filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return case.fn(*args, **kwargs)

    seed(1)
    run = aot_function(
        call, fw_compiler=compiler(0), bw_compiler=compiler(1), decompositions=decompositions(),
        keep_inference_input_mutations=True,
    )  # fmt: skip
    with torch.set_grad_enabled(grad), own_composites():
        results = run(*tensors)
        if grad:
            ends = [t for t in pytree.tree_leaves(case.process(results)) if isinstance(t, Tensor)]
            ends = [t for t in ends if t.requires_grad]
            differentiate(ends, [t for t in tensors if t.requires_grad])
    return found


def row(subject: Subject) -> Row:
    forward: dict[str, str] = {}
    backward: dict[str, str] | None = None
    error = ""
    dtypes = [d for d in DTYPES if d in subject.dtypes]
    for dtype in dtypes or [d for d in OTHERS if d in subject.dtypes][:1]:
        grad = dtype in subject.backward_dtypes
        for _, case in choose(subject, dtype, grad, SAMPLES, MOST):
            try:
                ahead, back = trace(case, grad)
            except Exception as caught:  # whatever tracing another's operator raises is a row
                error = error or re.sub(r"\s*\[[\w<>.]+:\d+\]$", "", first_line(caught))
                continue
            forward |= ahead
            if grad:
                backward = (backward or {}) | back
    return Row(subject.name, forward, backward, error)


HEAD = """# Coverage

Which operators of torch's OpInfo database become kernels of the compiler, and which stay calls of
torch's own operators. Generated: `uv run python tests/opinfo --coverage docs/coverage.md` (a few
minutes), from the operators' own samples (f32 and i64; {samples} each), traced forward
and backward on the CPU and lowered with the default options. An operator is native if no sample of
it leaves a call; else the calls are listed, each with the lowering's reason ("on purpose": the
vendor's library, or a random operator that kernels do not compute). On a GPU integer division by
tensors is native, too: on the CPU eager raises where a divisor is 0, which a kernel cannot. Of
complex numbers pointwise functions, sums and what moves elements are kernels. What is "not traced"
breaks the graph under `torch.compile`, or is not of this machine.

| family | operators | native | of which some calls remain |
|---|---|---|---|
"""


def page(rows: Iterable[Row]) -> str:
    groups: dict[str, list[Row]] = defaultdict(list)
    for each in sorted(rows, key=lambda r: r.name):
        groups[family(each.name)].append(each)
    titles = [t for t in ("pointwise", *(t for t, _ in FAMILIES)) if t in groups]
    titles.sort(key=lambda t: t.startswith(BY_DESIGN))
    text = HEAD.format(samples=SAMPLES)
    for title in titles:
        own = groups[title]
        native = sum(r.native for r in own)
        text += f"| {title} | {len(own)} | {native} | {len(own) - native} |\n"
    for title in titles:
        text += f"\n## {title[0].upper()}{title[1:]}\n"
        names = [f"`{r.name}`" for r in groups[title] if r.native]
        if names:
            text += f"\nNative: {', '.join(names)}.\n"
        rest = [line(r) for r in groups[title] if not r.native]
        if rest:
            text += "\n| operator | forward | backward |\n|---|---|---|\n" + "\n".join(rest) + "\n"
    return text


def line(row: Row) -> str:
    """Of a table, for an operator of which calls remain."""
    forward = "; ".join(
        filter(None, (_calls(row.forward), row.error and f"not traced: {row.error}"))
    )
    backward = "" if row.backward is None else _calls(row.backward) or "native"
    return f"| `{row.name}` | {forward or 'native'} | {backward} |"


def _calls(found: dict[str, str]) -> str:
    said = (f"`{op}`: {reason}" for op, reason in sorted(found.items()))
    return "; ".join(said).replace("|", "\\|")


def rows(pattern: str = "") -> Iterable[Row]:
    """Of all operators whose names contain the pattern."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (name, variant), subject in subjects("cpu").items():
            if variant == "function" and re.search(pattern, name):
                yield row(subject)
