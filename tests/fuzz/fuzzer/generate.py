"""Random programs: a pool of tensors that grows, each step an operator on some of them.

Every step is run in eager while it is made, at two sets of sizes if sizes have names. A step that
eager refuses is dropped, and nothing else is.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzzer import helpers, tensors
from fuzzer.observe import EagerRefused, eager
from fuzzer.program import Input, Loaded, Program, Sizes, Step, names_in
from fuzzer.settings import FEW, Setting
from fuzzer.tensors import may_have_gradient

FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_MAIN = torch.float32
DERIVED = "torch.func."  # what a step is called by that takes gradients
# Of named sizes: an example, another. Those of large tensors, and the sizes that have no name.
_VALUES = {"n": (5, 8), "m": (7, 3), "k": (11, 6)}
_LARGE_VALUES = {"n": (65, 130), "m": (7, 3), "k": (1031, 96)}
_SIZES = (1, 2, 3, 4, 4, 6, 8, 9)
_LARGE_SIZES = (1, 2, 3, 8, 9, 16, 33, 64, 100, 128, 257, 512, 1000, 2048, 4099, 20000)
_REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AttributeError,
             ZeroDivisionError, OverflowError)  # fmt: skip


class TooLarge(Exception):
    """An input of more elements than programs have: the step that wants it is left out."""


class Maker:
    """What families of operators build on: tensors to pick, steps to add."""

    def __init__(self, rng: random.Random, setting: Setting) -> None:
        self.rng, self.setting = rng, setting
        self.inputs: list[Input] = []
        self.steps: list[Step] = []
        self.names: list[str] = []
        self.sizes: Sizes = {}
        second: Sizes = {}
        for name in setting.dynamic:
            values = _LARGE_VALUES if setting.elements > FEW else _VALUES
            self.sizes[name], second[name] = values[name]
        # The tensors under each set of sizes.
        self.worlds: list[dict[str, Any]] = [
            {"torch": torch, "F": F, "make": tensors.make, **helpers.FUNCTIONS, **sizes}
            for sizes in ([self.sizes, second] if self.sizes else [{}])
        ]

    # -- choosing

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def one(self, options: Sequence[Any]) -> Any:
        return options[self.rng.randrange(len(options))]

    def value(self, name: str) -> Tensor:
        found = self.worlds[0][name]
        assert isinstance(found, Tensor)
        return found

    def pick(self, when: Callable[[Tensor], bool] = lambda t: True) -> str | None:
        """A tensor for which `when` holds, rather a late one; None where there is none."""
        fit = [n for n in self.names if when(self.value(n))]
        if not fit:
            return None
        return fit[-1 - int(len(fit) * self.rng.random() ** 2.2)]

    def floating(self, least: int = 0) -> str:
        """A float tensor of `least` dimensions or more; a new input if there is none."""
        found = self.pick(lambda t: t.is_floating_point() and t.dim() >= least)
        if found is None or self.chance(0.04):
            return self.input(self.one(FLOATS), self.shape(least))
        return found

    def any(self, least: int = 0) -> str:
        found = self.pick(lambda t: t.dim() >= least)
        return found if found is not None else self.input(self.dtype(), self.shape(least))

    def partner(self, x: str) -> str:
        """What broadcasts with `x`: a tensor there is, one of its dimensions, or a new input."""
        shape = self.value(x).shape
        if self.chance(0.5):
            found = self.pick(lambda t: _broadcasts(t.shape, shape))
            if found is not None:
                return found
        if self.chance(0.3):
            return self.one([f"{x}.flip(0)", f"{x}.clone()", f"{x}"]) if shape else x
        sizes = [1 if self.chance(0.2) else s for s in shape]
        sizes = sizes[self.rng.randrange(len(sizes) + 1) :] if self.chance(0.3) else sizes
        return self.input(self.dtype(), sizes)

    def dim(self, x: str) -> int:
        rank = self.value(x).dim()
        return self.rng.randrange(-rank, rank) if rank else self.one([0, -1])

    def size(self, x: str, d: int) -> str:
        """The size of a dimension, as a number or as an expression."""
        shape = self.value(x).shape
        if self.setting.dynamic or self.chance(0.1):
            return f"{x}.shape[{d}]"
        return str(shape[d])

    def scalar(self) -> str:
        return str(self.one([
            0, 1, 2, -1, 3, 0.5, -0.25, 1.5, 2.0, 7.3, 0.1, -3, True, 1e-3, 100, 255, 1e-6,
        ]))  # fmt: skip

    def dtype(self) -> torch.dtype:
        draw = self.rng.random()
        if draw < 0.5:
            return _MAIN
        if draw < 0.72:
            return self.one(FLOATS)  # type: ignore[no-any-return]
        if draw < 0.92:
            return self.one(INTS)  # type: ignore[no-any-return]
        return torch.bool if draw < 0.98 else torch.complex64

    def shape(self, least: int = 0) -> list[int]:
        rank = max(least, self.one([0, 1, 1, 2, 2, 2, 3, 3, 4]))
        values = list(self.sizes.values())
        out = []
        for _ in range(rank):
            draw = self.rng.random()
            if values and draw < 0.5:
                out.append(self.one(values))
            else:
                sizes = _LARGE_SIZES if self.setting.elements > FEW else _SIZES
                out.append(self.one(sizes if draw < 0.97 else [0]))
        while _count(out) > self.setting.elements:
            out[out.index(max(out))] = 2
        return out

    def index(self, x: str, d: int, sizes: Sequence[int]) -> str:
        """Integers that are positions of dimension `d` of `x`, with repetitions."""
        high = self.value(x).shape[d] if self.value(x).dim() else 1
        if high == 0:  # no index is right, and operators that look at no element take any
            sizes = [0 for _ in sizes]
        if self.setting.dynamic and high in self.sizes.values():
            raw = self.input(torch.int64, sizes, "index", 16)
            return f"({raw} % {x}.shape[{d}])"
        index = self.input(torch.int64, sizes, "index", max(high, 1))
        if self.chance(0.15):
            return f"({index} - {high})"  # negative positions, where they are allowed
        return index

    # -- adding

    def input(
        self, dtype: torch.dtype, sizes: Sequence[int], kind: str | None = None, high: int = 1
    ) -> str:
        """A new argument or buffer. Raises `TooLarge`."""
        held = self.chance(0.08) and not any(s in self.sizes.values() for s in sizes)
        name = f"{'b' if held else 'a'}{len(self.inputs)}"
        if kind is None:
            draw = self.rng.random()
            kind = "plain" if draw < 0.6 else "wide" if draw < 0.92 else "special"
        symbols = {v: k for k, v in self.sizes.items()}
        written = ", ".join(str(symbols.get(s, s)) for s in sizes) + (
            "," if len(sizes) == 1 else ""
        )
        seed = self.rng.randrange(10**6)
        text = (
            f"make({dtype}, ({written}), {seed}, {kind!r}{f', {high}' if kind == 'index' else ''})"
        )
        if not self._take(Input(name, text), 10 * self.setting.elements):
            raise TooLarge(text)
        return name

    def arranged(self, dtype: torch.dtype) -> str:
        """An argument that is a view: permuted, with steps, expanded, overlapping, shifted; or a
        view of another argument."""
        shape = self.shape(1)
        rank = len(shape)
        d = self.rng.randrange(rank)
        other = self.pick_argument()
        if other is not None and self.chance(0.25):
            view = self.one(["", "[1:]", ".flatten()[::2]", ".unsqueeze(0)", ".detach()",
                "[..., :1]",
                             ".transpose(0, -1)", ".reshape(-1)"])  # fmt: skip
            text = f"{other}{view}"
        else:
            order = list(range(rank))
            self.rng.shuffle(order)
            base = self.input_text(dtype, shape)
            text = base + self.one([
                f".permute({order})", f".permute({order})", "[::2]", "[..., 1:]",
                f".narrow({d}, 0, 1)",
                f".unsqueeze({d}).expand({', '.join(['-1'] * d + ['3'] + ['-1'] * (rank - d))})",
                f"[..., :1].expand({', '.join(['-1'] * (rank - 1) + ['4'])})",
                ".flatten()[1:]", ".flatten().unfold(0, 3, 1)", ".flatten().unfold(0, 3, 2)",
                ".reshape(-1).as_strided((3, 4), (1, 1))",
                ".reshape(-1).as_strided((2, 3), (3, 2), 1)",
                ".diagonal()", ".select(0, 0)", ".flip(0)", ".transpose(0, -1)", ".conj()",
            ])  # fmt: skip
        name = f"a{len(self.inputs)}"
        return name if self._take(Input(name, text)) else self.input(dtype, shape)

    def pick_argument(self) -> str | None:
        found = [i.name for i in self.inputs if i.name.startswith("a")]
        return self.one(found) if found else None

    def input_text(self, dtype: torch.dtype, sizes: Sequence[int]) -> str:
        name = self.input(dtype, sizes)
        text = self.inputs.pop().text
        self.names.remove(name)
        return text

    def _take(self, new: Input, limit: int | None = None) -> bool:
        values = self._eval(new.text)
        limit = limit or self.setting.elements
        if values is None or any(v.numel() > limit for v in values):
            return False
        self.inputs.append(new)
        self._bind(new.name, values)
        return True

    def _bind(self, name: str, values: list[Tensor]) -> None:
        for world, value in zip(self.worlds, values, strict=True):
            if self.setting.grad and name[0] == "a" and may_have_gradient(value):
                value.requires_grad_()
            world[name] = value
        self.names.append(name)

    def _eval(self, text: str) -> list[Any] | None:
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(self.setting.grad):
                warnings.simplefilter("ignore")
                return [eval(text, world) for world in self.worlds]
        except _REFUSALS:
            return None

    def add(self, text: str, known: bool = True) -> str | None:
        """A step that makes a tensor: its name, or None if eager refuses. known: whether other
        families may read it and the program may return it."""
        values = self._eval(text)
        if values is None or not all(
            isinstance(v, Tensor) and v.numel() <= self.setting.elements and v.dim() <= 6
            for v in values
        ):
            return None
        name = f"v{len(self.steps)}"
        self.steps.append(Step(text, name))
        self._bind(name, values)
        if not known:
            self.names.remove(name)
        return name

    def write(self, text: str) -> bool:
        """A step that writes into a tensor: an expression, or an assignment. None in a program that
        takes gradients itself, of which torch.export makes no functional graph then."""
        if any(DERIVED in step.text for step in self.steps):
            return False
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(self.setting.grad):
                warnings.simplefilter("ignore")
                for world in self.worlds:
                    exec(text, world)
        except _REFUSALS:
            return False
        self.steps.append(Step(text))
        return True


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(m == n or m == 1 or n == 1 for m, n in pairs)


def _count(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def generate(seed: int, setting: Setting, length: tuple[int, int] = (5, 40)) -> Program:
    """The program of a seed. Where gradients are asked for, the first that eager differentiates."""
    rng = random.Random(seed)
    while True:
        program = _program(rng, setting, length)
        if not setting.grad or _differentiable(program, setting):
            return program


def _program(rng: random.Random, setting: Setting, length: tuple[int, int]) -> Program:
    from fuzzer.families import FAMILIES

    maker = Maker(rng, setting)
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.35:
            maker.arranged(maker.dtype())
        else:
            maker.input(maker.dtype(), maker.shape())
    wanted = int(length[0] + (length[1] - length[0] + 1) * rng.random() ** 3)
    kinds = [f for f, _ in FAMILIES]
    weights = [w for _, w in FAMILIES]
    for _ in range(4 * wanted):
        if len(maker.steps) >= wanted:
            break
        (family,) = rng.choices(kinds, weights)
        with suppress(TooLarge):
            family(maker)
        if rng.random() < 0.02:
            maker.arranged(maker.dtype())
    return Program(
        tuple(maker.inputs), tuple(maker.steps), _result(maker), maker.sizes,
        _calls(rng, maker.sizes),
    ).without_unused()  # fmt: skip


def _differentiable(program: Program, setting: Setting) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen = eager(Loaded(program.source(setting)), program.sizes)
    except EagerRefused:
        return False
    return any(name.startswith("gradient") for name, _ in seen.values)


def _result(maker: Maker) -> str:
    """Most of what no later step reads and some that one does, nested."""
    rng = maker.rng
    read = {n for step in maker.steps for n in names_in(step.text)}
    made = [n for n in maker.names if n.startswith("v")] or maker.names
    chosen = [n for n in made if n not in read and rng.random() < 0.8] or made[-1:]
    for _ in range(rng.randint(0, 3)):
        chosen.append(maker.one(maker.names))  # an argument, or one twice, now and then
    if rng.random() < 0.3:
        chosen.append(
            f"{chosen[0]}.{maker.one(['detach()', 'flatten()', 'unsqueeze(0)', 'numel()'])}"
        )
    rng.shuffle(chosen)
    draw = rng.random()
    joined = ", ".join(chosen)
    if draw < 0.6:
        return f"({joined},)"
    if draw < 0.75:
        return f"[{joined}]"
    if draw < 0.85:
        return (
            f"{{'first': {chosen[0]}, 'rest': ({', '.join(chosen[1:])},)}}"
            if chosen[1:]
            else joined
        )
    if draw < 0.95:
        return f"[{chosen[0]}, ({joined},), {{'x': {chosen[-1]}, 'none': None, 'three': 3}}]"
    return chosen[-1]


def _calls(rng: random.Random, sizes: Sizes) -> tuple[Sizes, ...]:
    """Other sizes to call with: 1, 0, 2, larger, and all at once."""
    if not sizes:
        return ()
    out: list[Sizes] = [{k: v + 3 + 2 * i for i, (k, v) in enumerate(sizes.items())}]
    for _ in range(rng.randint(1, 3)):
        out.append({k: rng.choice([v, 0, 1, 1, 2, 3, 6, 16]) for k, v in sizes.items()})
    return tuple(out)
