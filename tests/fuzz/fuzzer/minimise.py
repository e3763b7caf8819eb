"""Delta debugging: a smaller program that fails in the same way."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzzer import helpers, tensors
from fuzzer.program import Input, Program, Step, names_in, renamed
from fuzzer.settings import Setting

Fails = Callable[[Program, Setting], bool]
_SIZES = re.compile(r"make\((torch\.\w+), \(([^)]*)\), (\d+)([^)]*)\)")


def minimise(
    program: Program, setting: Setting, fails: Fails, seconds: float = 90.0
) -> tuple[Program, Setting]:
    """Takes each smaller program and simpler setting for which `fails` still holds, until none
    does or the time is up."""
    end = time.monotonic() + seconds
    tried: set[tuple[Program, Setting]] = set()
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for propose in (_fewer_calls, _fewer_results, _fewer_steps, _settings, _cuts, _inputs):
            again = True
            while again and time.monotonic() < end:
                again = False
                for smaller, simpler in propose(program, setting):
                    smaller = smaller.without_unused()
                    key = (_hashable(smaller), simpler)
                    if key in tried or (smaller, simpler) == (program, setting):
                        continue
                    tried.add(key)
                    if fails(smaller, simpler):
                        program, setting, again, changed = smaller, simpler, True, True
                        break
                    if time.monotonic() > end:
                        break
    return program, setting


def _hashable(program: Program) -> Any:
    return (program.inputs, program.steps, program.result, str(program.sizes), str(program.calls))


Proposals = Iterator[tuple[Program, Setting]]


def _fewer_calls(program: Program, setting: Setting) -> Proposals:
    if program.calls:
        yield replace(program, calls=()), setting
    for i in range(len(program.calls)):
        yield replace(program, calls=program.calls[:i] + program.calls[i + 1 :]), setting
    for i, call in enumerate(program.calls):
        for name in call:
            if call[name] != program.sizes[name]:
                same = {**call, name: program.sizes[name]}
                calls = (*program.calls[:i], same, *program.calls[i + 1 :])
                yield replace(program, calls=calls), setting


def _fewer_results(program: Program, setting: Setting) -> Proposals:
    names = list(dict.fromkeys(names_in(program.result)))
    for name in names:
        if program.result != f"({name},)":
            yield replace(program, result=f"({name},)"), setting
    if program.result != "()":
        yield replace(program, result="()"), setting
    plain = f"({', '.join(names)},)"
    if program.result != plain and len(program.result) > len(plain):
        yield replace(program, result=plain), setting
    for name in names if len(names) > 2 else []:
        yield replace(program, result=f"({', '.join(n for n in names if n != name)},)"), setting


def _fewer_steps(program: Program, setting: Setting) -> Proposals:
    """Without some steps: nothing may read what they make."""
    steps = program.steps
    for size in (8, 4, 2, 1):
        for start in reversed(range(0, len(steps), size)):
            gone = steps[start : start + size]
            left = steps[:start] + steps[start + size :]
            read = {n for s in left for n in names_in(s.text)} | set(names_in(program.result))
            if not any(s.result in read for s in gone):
                yield replace(program, steps=left), setting


def _settings(program: Program, setting: Setting) -> Proposals:
    for simpler in (
        replace(setting, emit="fx"), replace(setting, grad=False),
        replace(setting, plan_memory=True),
        replace(setting, fuse=True), replace(setting, entry="backend"),
    ):  # fmt: skip
        if simpler != setting:
            yield program, simpler
    for name, value in program.sizes.items():
        of = re.compile(rf"\b{name}\b")
        inputs = tuple(replace(i, text=of.sub(str(value), i.text)) for i in program.inputs)
        sizes = {k: v for k, v in program.sizes.items() if k != name}
        calls = tuple({k: v for k, v in c.items() if k != name} for c in program.calls)
        left = replace(setting, dynamic="".join(sizes))
        yield replace(program, inputs=inputs, sizes=sizes, calls=calls), left


def _cuts(program: Program, setting: Setting) -> Proposals:
    """A step's result becomes an argument like it, or another tensor of its shape."""
    values = _values(program)
    for i in reversed(range(len(program.steps))):
        step = program.steps[i]
        made = values.get(step.result or "")
        if step.result is None or not isinstance(made, Tensor):
            continue
        left = program.steps[:i] + program.steps[i + 1 :]
        for name in dict.fromkeys(names_in(step.text)):
            other = values.get(name)
            if isinstance(other, Tensor) and other.shape == made.shape:
                to = {step.result: name}
                yield (
                    replace(
                        program, result=renamed(program.result, to),
                        steps=tuple(replace(s, text=renamed(s.text, to)) for s in left),
                    ),
                    setting,
                )  # fmt: skip
        new = Input(f"a{_free(program)}", _make(program, made, 0))
        to = {step.result: new.name}
        steps = tuple(replace(s, text=renamed(s.text, to)) for s in left)
        yield (
            replace(program, inputs=(*program.inputs, new), steps=steps,
                    result=renamed(program.result, to)),
            setting,
        )  # fmt: skip


def _inputs(program: Program, setting: Setting) -> Proposals:
    """Arguments that are contiguous, smaller, of plain values; buffers become arguments."""
    values = _values(program)
    for i, given in enumerate(program.inputs):

        def new(text: str, name: str = given.name, i: int = i) -> Program:
            inputs = (*program.inputs[:i], Input(name, text), *program.inputs[i + 1 :])
            return replace(program, inputs=inputs)

        if given.name.startswith("b"):
            name = f"a{_free(program)}"
            steps = tuple(
                Step(renamed(s.text, {given.name: name}), s.result) for s in program.steps
            )
            moved = replace(new(given.text, name), steps=steps)
            yield replace(moved, result=renamed(program.result, {given.name: name})), setting
        value = values.get(given.name)
        match = _SIZES.search(given.text)
        if isinstance(value, Tensor) and (match is None or match.group() != given.text):
            yield new(_make(program, value, 0)), setting
        if match is None:
            continue
        _kind, sizes, seed, more = match.groups()
        if "wide" in more or "special" in more:
            yield new(given.text.replace(more, ", 'plain'")), setting
        parts = [p.strip() for p in sizes.split(",") if p.strip()]
        for d, part in enumerate(parts):
            for less in (1, 2, 3):
                if part.isdigit() and int(part) > less:
                    written = ", ".join([*parts[:d], str(less), *parts[d + 1 :]]) + ","
                    text = given.text.replace(f"({sizes}), {seed}", f"({written}), {seed}")
                    yield new(text), setting


def _make(program: Program, like: Tensor, seed: int) -> str:
    symbols = {v: k for k, v in program.sizes.items()}
    sizes = ", ".join(str(symbols.get(n, n)) for n in like.shape)
    sizes += "," if like.dim() == 1 else ""
    return f"make({like.dtype}, ({sizes}), {seed}, 'plain')"


def _free(program: Program) -> int:
    return 1 + max(
        (int(re.sub(r"\D", "", n.split("_")[0])) for i in program.inputs for n in [i.name]),
        default=0,
    )


def _values(program: Program) -> dict[str, Any]:
    """The tensors of a program, by name, as they are when it ends."""
    world: dict[str, Any] = {
        "torch": torch, "F": F, "make": tensors.make, **helpers.FUNCTIONS, **program.sizes,
    }  # fmt: skip
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for line in [f"{i.name} = {i.text}" for i in program.inputs] + [
            s.line for s in program.steps
        ]:
            try:
                exec(line, world)
            except Exception:  # a program in the middle of being cut: what it has so far
                break
    return world
