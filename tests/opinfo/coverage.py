"""Which operators become kernels of ours, and which stay calls of torch's: `docs/coverage.md`.

    python tests/opinfo --coverage docs/coverage.md

Each entry of `op_db` is traced as AOTAutograd does for `torch.compile` on a few of its samples, in
f32 and i64 (else in the first type it takes), forward and backward; each graph is lowered, not
compiled. What remains as an operator's call is listed with the lowering's reason.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from functorch.compile import aot_function, make_boxed_func
from torch import Tensor

from aten_lowering import decompositions, lower_with_report
from loop_ir import Extern
from opinfo.cases import Case, Copies, Subject, choose, seed, subjects
from opinfo.work import differentiate, first_line

SAMPLES = 4
MOST = 20_000
DTYPES = (torch.float32, torch.int64)
OTHERS = (torch.bool, torch.complex64, torch.float64)

# The first whose pattern is found in the name of an entry.
FAMILIES = (
    ("extern on purpose: sorting", r"sort|topk|kthvalue|median|mode$|^msort|unique|quantile"),
    ("extern on purpose: Fourier transforms", r"fft|stft"),
    ("extern on purpose: linear algebra", r"linalg|cholesky|^lu|^svd|^qr|geqrf|ormqr|pinverse|"
     r"triangular_solve|logdet|^pca|svd_lowrank|pca_lowrank|eig|lstsq|matrix_exp|^inverse|"
     r"^det$|ldl|lobpcg|householder"),
    ("extern on purpose: matmuls, convolutions, attention", r"matmul|^(mm|bmm|mv|addmm|addbmm|"
     r"addmv|baddbmm|dot|vdot|inner|chain_matmul|einsum|tensordot|addr|ger|outer|cdist)$|addmm|"
     r"conv|attention|linear$|bilinear$|multi_dot|kron|_mm"),
    ("extern on purpose: sparse, size of data, memory as it lies", r"sparse|to_sparse|nonzero|"
     r"masked_select|empty|argwhere|bincount|histc|histogram|combinations|resize|equal$|"
     r"allclose|item|is_set_to"),
    ("random", r"rand|bernoulli|multinomial|normal$|cauchy|exponential|geometric|log_normal|"
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


def family(name: str, kind: str) -> str:
    for title, pattern in FAMILIES:
        if re.search(pattern, name):
            return title
    return "reductions" if kind == "reduction" else "pointwise"


def trace(case: Case, grad: bool) -> tuple[dict[str, str], dict[str, str]]:
    """What stays a call in the graphs of a case, forward and backward."""
    found: tuple[dict[str, str], dict[str, str]] = {}, {}

    def compiler(direction: int) -> Callable[..., Any]:
        def lowered(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
            report = lower_with_report(gm)
            reasons = {f.op: f.reason for f in report.fallbacks}
            for node in report.graph.nodes:
                if isinstance(node, Extern):
                    opaque = report.operators.get(node.target)
                    op = node.target if opaque is None else opaque.op
                    reason = reasons.get(op, "on purpose")
                    if reason != "the result is empty":
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
    with torch.set_grad_enabled(grad):
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
