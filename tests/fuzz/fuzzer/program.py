"""A program as data: inputs and steps, each a line of Python over the names before it.

Printed, it is a file that `compile-cli run FILE:Graph` takes and that `run.py --replay FILE` checks
again with the settings and sizes it was found with.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from fuzzer import helpers
from fuzzer.settings import Setting
from fuzzer.tensors import make

NAME = re.compile(r"\b[abcv]\d+(?:_\d+)?\b")
Sizes = dict[str, int]


@dataclass(frozen=True)
class Input:
    """`name = text`. The text makes a tensor (`make(torch.float32, (n, 4), 17).t()`) or a view of
    an input before it. Names of arguments begin with `a`, of buffers with `b`."""

    name: str
    text: str


@dataclass(frozen=True)
class Step:
    """`result = text`, or only `text`, which writes into a tensor."""

    text: str
    result: str | None = None

    @property
    def line(self) -> str:
        return self.text if self.result is None else f"{self.result} = {self.text}"


@dataclass(frozen=True)
class Program:
    """sizes: the named sizes and their values in the example; calls: other values to call with,
    in order, through the same compilation. result: the expression that is returned."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    result: str
    sizes: Sizes = field(default_factory=dict)
    calls: tuple[Sizes, ...] = ()

    def without_unused(self) -> Program:
        """Without steps whose result nothing reads, and inputs that nothing reads."""
        steps, inputs = list(self.steps), list(self.inputs)
        while True:
            used = set(names_in(self.result))
            for text in (*(s.text for s in steps), *(i.text for i in inputs)):
                used.update(names_in(text))
            left = [s for s in steps if s.result is None or s.result in used]
            kept = [i for i in inputs if i.name in used]
            if (len(left), len(kept)) == (len(steps), len(inputs)):
                return replace(self, steps=tuple(steps), inputs=tuple(inputs))
            steps, inputs = left, kept

    def source(self, setting: Setting | None = None, note: str = "") -> str:
        """The program as a Python file."""
        return completed(self.short(setting, note))

    def short(self, setting: Setting | None = None, note: str = "") -> str:
        """The program without what is the same in every file (`completed` adds it)."""
        arguments = [i for i in self.inputs if i.name.startswith("a")]
        buffers = [i for i in self.inputs if i.name.startswith("b")]
        held = [f'self.register_buffer("{b.name}", {b.text})' for b in buffers] or ["pass"]
        body = [f"{b.name} = self.{b.name}" for b in buffers]
        body += [step.line for step in self.steps]
        lines = [
            *(f"# {line}".rstrip() for line in note.splitlines()),
            f"SETTING = {(setting or Setting()).as_dict()}",
            f"SIZES = {self.sizes}",
            f"CALLS = {list(self.calls)}", "", "",
            "class Graph(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {line}" for line in held),
            "",
            f"    def forward({', '.join(['self', *(i.name for i in arguments)])}):",
            *(f"        {line}" for line in body),
            f"        return {self.result}",
            "", "",
            f"def get_inputs({', '.join(f'{k}={v}' for k, v in self.sizes.items())}):",
            *(f"    {i.name} = {i.text}" for i in arguments),
            f"    return [{', '.join(i.name for i in arguments)}]",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"


_HEAD = """import math
import random

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"


"""


_HELPERS = inspect.getsource(helpers).split("import torch\n\n\n", 1)[1]


def completed(text: str) -> str:
    """The text of a file, from a program's short form; a whole file is left as it is."""
    if "def make(" in text:
        return text
    return f"{_HEAD}{inspect.getsource(make)}\n\n{_HELPERS}\n\n{text}"


def names_in(text: str) -> list[str]:
    return NAME.findall(text)


def renamed(text: str, names: dict[str, str]) -> str:
    return NAME.sub(lambda m: names.get(m.group(), m.group()), text)


def merged(programs: list[Program]) -> Program:
    """Several programs as one that does all they do, each with tensors of its own. The programs
    have the same names of sizes."""
    inputs: list[Input] = []
    steps: list[Step] = []
    results: list[str] = []
    for i, program in enumerate(programs):

        def of(text: str, i: int = i) -> str:
            return NAME.sub(lambda m: f"{m.group()}_{i}", text)

        inputs += [Input(of(n.name), of(n.text)) for n in program.inputs]
        steps += [replace(s, text=of(s.text), result=s.result and of(s.result))
                  for s in program.steps]  # fmt: skip
        results.append(of(program.result))
    first = programs[0]
    return Program(tuple(inputs), tuple(steps), f"[{', '.join(results)}]", first.sizes, first.calls)


_SEED = re.compile(r"(make\([^()]*\([^()]*\), )(\d+)")


def alike(program: Program, count: int) -> list[Program]:
    """That many programs which do the same to other values: their kernels may be one launch."""

    def other(made: Input, by: int) -> Input:
        text = _SEED.sub(lambda m: f"{m.group(1)}{int(m.group(2)) + by}", made.text)
        return replace(made, text=text)

    return [
        replace(program, inputs=tuple(other(i, n) for i in program.inputs)) for n in range(count)
    ]


class Loaded:
    """A printed program, imported: `Graph`, `get_inputs`, `SETTING`, `SIZES`, `CALLS`."""

    count = 0

    def __init__(self, source: str, device: str = "cpu") -> None:
        Loaded.count += 1
        file = f"<fuzz {Loaded.count}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        self.source, self.device = source, device
        module = ModuleType(f"fuzzed_{Loaded.count}")
        sys.modules[module.__name__] = module  # Dynamo looks functions up where they are from
        self.space: dict[str, Any] = module.__dict__
        exec(compile(source, file, "exec"), self.space)
        self.space["DEVICE"] = device
        self.setting = Setting(**self.space["SETTING"])
        self.calls: list[Sizes] = [self.space["SIZES"], *self.space["CALLS"]]

    def module(self) -> Any:
        return self.space["Graph"]().eval().to(self.space["DEVICE"])

    def inputs(self, sizes: Sizes) -> list[Any]:
        result: list[Any] = self.space["get_inputs"](**sizes)
        return result
