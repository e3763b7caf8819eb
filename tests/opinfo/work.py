"""One entry in one dtype: its samples through eager and through a backend."""

from __future__ import annotations

import copy
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor
from torch._dynamo.utils import counters

from opinfo.cases import Case, Copies, choose, seed, subjects, tensors_of
from opinfo.compare import Outcome, Verdict, compare, flatten

torch._functorch.config.enable_autograd_cache = False  # each sample is compiled

UNFILLED = re.compile(r"(^|\.|_)empty|^resize")  # results are what the memory held
FINE = ("ok", "graph-break", "eager-raises")
DYNAMIC = {"static": False, "dynamic": True, "backward": False, "dynamic-backward": True}


@dataclass(frozen=True)
class Settings:
    """modes: of `static dynamic backward dynamic-backward`. most: elements of a sample. peer:
    a backend to ask where ours fails. options: of our backend."""

    device: str
    modes: tuple[str, ...]
    samples: int
    most: int
    peer: str | None
    options: dict[str, Any]


def run(case: Case, how: Callable[..., Any], grad: bool, wide: bool = False) -> Outcome:
    """A call of copies of the case's inputs. how: makes of its function what is called."""
    copies = Copies(wide)
    fn, state = case.fn, []
    if isinstance(fn, torch.nn.Module):
        fn = copy.deepcopy(fn)
        if wide:
            fn = fn.double()
        state = [*fn.parameters(), *fn.buffers()]
    args, kwargs = copies.tree((case.args, case.kwargs))
    given = [*state, *tensors_of((args, kwargs))]
    leaves = [t for t in given if t.requires_grad]
    seed(1)
    with torch.set_grad_enabled(grad):
        called = args, kwargs
        if grad and not isinstance(fn, torch.nn.Module):
            # an operator in place may not write to a leaf that takes a gradient
            called = torch.utils._pytree.tree_map(_not_leaf, called)
        results = how(fn)(*called[0], **called[1])
        flat, spec = flatten(results)
        gradients: list[Tensor | None] = []
        if grad:
            ends = [t for t in tensors_of(case.process(results)) if t.requires_grad]
            gradients = differentiate(ends, leaves)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return Outcome(flat, tensors_of((state, called)), gradients, spec)


def _not_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Tensor) and leaf.requires_grad:
        return leaf.view_as(leaf) if leaf.layout == torch.strided else leaf
    return leaf


def differentiate(ends: list[Tensor], leaves: list[Tensor]) -> list[Tensor | None]:
    """The gradients of the leaves for random gradients of the results."""
    if not ends or not leaves:
        return [None] * len(leaves)
    generator = torch.Generator().manual_seed(2)
    given = []
    for t in ends:
        real = torch.float64 if not t.is_complex() else torch.complex128
        value = torch.randn(t.shape, generator=generator, dtype=real)
        given.append(value.to(t.dtype).to(t.device))
    return list(torch.autograd.grad(ends, leaves, given, allow_unused=True))


def eagerly(fn: Any) -> Any:
    return fn


def compiler(backend: str, dynamic: bool, options: dict[str, Any]) -> Callable[..., Any]:
    def compiled(fn: Any) -> Any:
        return torch.compile(fn, backend=backend, dynamic=dynamic, options=options or None)

    return compiled


def first_line(error: BaseException) -> str:
    """The error's name, the first line that says something, and where it was raised."""
    text = str(error)
    for noise in (r"backend='\w+' raised:\n", r"^Failed running .*\n"):
        text = re.sub(noise, "", text)
    line = next((one.strip() for one in text.splitlines() if one.strip()), "")
    cause: BaseException = getattr(error, "inner_exception", None) or error
    frames = traceback.extract_tb(cause.__traceback__)
    ours = [f for f in frames if "/src/" in f.filename] or frames
    at = f" [{Path(ours[-1].filename).name}:{ours[-1].lineno}]" if ours else ""
    name = type(cause).__name__
    return f"{'' if line.startswith(name) else name + ': '}{line[:300]}{at}"


@dataclass(frozen=True)
class Oracle:
    """What eager gives. random: another seed gives something else."""

    expected: Outcome
    random: bool
    case: Case
    grad: bool

    def exact(self) -> Outcome | None:
        """The same in float64, where the operator takes that."""
        try:
            return run(self.case, eagerly, self.grad, wide=True)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return None  # a dtype that the sample fixes, or that the operator does not have

    def judge(self, backend: str, dynamic: bool, options: dict[str, Any]) -> Verdict:
        torch._dynamo.reset()
        counters.clear()
        try:
            got = run(self.case, compiler(backend, dynamic, options), self.grad)
        except Exception as error:  # whatever a compiler may raise is what is looked for
            return Verdict("raises", first_line(error))
        verdict = compare(got, self.expected, None, not self.random)
        if verdict.kind == "wrong":
            verdict = compare(got, self.expected, self.exact(), not self.random)
        if verdict.kind == "ok" and counters["graph_break"]:
            reason = next(iter(counters["graph_break"])).splitlines()[0]
            return Verdict("graph-break", reason[:200])
        return verdict


def consult(case: Case, name: str, grad: bool) -> Oracle:
    expected = run(case, eagerly, grad)
    random = bool(UNFILLED.search(name)) or _is_random(case, expected, grad)
    return Oracle(expected, random, case, grad)


def _is_random(case: Case, expected: Outcome, grad: bool) -> bool:
    """Whether the random state decides: the same again after another seed differs."""

    def reseeded(fn: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            seed(3)
            return fn(*args, **kwargs)

        return call

    return compare(run(case, reseeded, grad), expected, None).kind == "wrong"


def unit(
    name: str, variant: str, dtype: str, settings: Settings, announce: Callable[[Any], None]
) -> Iterator[dict[str, Any]]:
    """The records of one entry in one dtype. announce: told of each before it is run."""
    subject = subjects(settings.device)[name, variant]
    torch_dtype = getattr(torch, dtype)
    for grad in (False, True):
        modes = [m for m in settings.modes if m.endswith("backward") == grad]
        if not modes or torch_dtype not in (subject.backward_dtypes if grad else subject.dtypes):
            continue
        for number, case in choose(subject, torch_dtype, grad, settings.samples, settings.most):
            base = {"op": name, "variant": variant, "dtype": dtype, "sample": number}
            announce({**base, "mode": "eager", "inputs": case.text()})
            try:
                oracle = consult(case, name, grad)
            except Exception as error:  # eager refuses the sample: there is nothing to compare
                yield {
                    **base, "mode": "backward" if grad else "static", "verdict": "eager-raises",
                    "text": first_line(error),
                }  # fmt: skip
                continue
            for mode in modes:
                record = {**base, "mode": mode}
                announce({**record, "inputs": case.text()})
                verdict = oracle.judge("compile_cli", DYNAMIC[mode], settings.options)
                record |= {"verdict": verdict.kind, "text": verdict.text}
                if verdict.kind not in ("ok", "graph-break"):
                    record["inputs"] = case.text()[:400]
                    if settings.peer:
                        theirs = oracle.judge(settings.peer, DYNAMIC[mode], {})
                        record |= {"peer": theirs.kind, "peer_text": theirs.text}
                if oracle.random:
                    record["random"] = True
                yield record
