"""The callable that picks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal

from multikernel.chain import Hint, as_hint, as_hints, rank_hints
from multikernel.choices import ChoiceTable
from multikernel.errors import (
    AllVariantsFailed,
    InvalidHint,
    InvalidSizes,
    UnknownVariant,
    VariantFailed,
)

HintKey = int | tuple[int, ...] | None
Run = Callable[..., Any]
Select = Callable[[Hint, tuple[Hint, ...]], int]


def shape_of_first(*args: Any) -> Hashable:
    """The default key: sizes of the first argument that has a `.shape`; None if none has."""
    for arg in args:
        shape = getattr(arg, "shape", None)
        if shape is not None:
            return tuple(shape)
    return None


class MultiKernel:
    """Several callables for one job; each call runs the one that suits its sizes.

    variants: size hint -> callable. A hint is an int or a tuple, all of one rank. `None` is the
        default variant: it runs where `key` returns None (sizes unknown), and last of all when
        others raise.
    select: "nearest" (L1 distance in log2, ties to the smaller hint), or a function
        `(sizes, hints) -> index` that is asked once per new sizes.
    key: the call's positional arguments -> sizes: an int, a tuple of ints, or None.
    arguments: hint -> slice or indices of the positional arguments which that variant takes;
        a variant that is not listed takes all.
    choices: measured choices under `name`; a recorded choice goes before `select`.
    on_error: "raise" lets a variant's error through. "next" warns (`VariantFailed`) and runs the
        next best in its place, and remembers that for these sizes; sound only if variants raise
        before they write any output.
    memory: how many different sizes are remembered before the memory starts anew.

    Calls need no lock: the memory is a dict that is read once and replaced whole.
    """

    def __init__(
        self,
        variants: Mapping[HintKey, Run],
        select: Literal["nearest"] | Select = "nearest",
        *,
        key: Callable[..., Hashable] = shape_of_first,
        name: str = "kernel",
        arguments: Mapping[HintKey, slice | Sequence[int]] | None = None,
        choices: ChoiceTable | None = None,
        on_error: Literal["raise", "next"] = "raise",
        memory: int = 4096,
    ) -> None:
        if not variants:
            raise InvalidHint(f"{name}: no variants")
        if select != "nearest" and not callable(select):
            raise ValueError(f"select={select!r}: expected 'nearest' or a function")
        if on_error not in ("raise", "next"):
            raise ValueError(f"on_error={on_error!r}: expected 'raise' or 'next'")
        if memory < 1:
            raise ValueError(f"memory={memory}: expected at least 1")
        sized = [hint for hint in variants if hint is not None]
        self.name = name
        self.hints: tuple[Hint, ...] = as_hints(sized) if sized else ()
        cuts = {_name(hint): cut for hint, cut in (arguments or {}).items()}
        self._runs = {_name(h): _cut(run, cuts.get(_name(h))) for h, run in variants.items()}
        for unknown in cuts.keys() - self._runs.keys():
            raise UnknownVariant(f"{name}: arguments for {unknown}, have {list(self._runs)}")
        self._names = [_name(hint) for hint in self.hints]
        self._select = select
        self._key = key
        self._choices = choices if choices is not None else ChoiceTable()
        self._next = on_error == "next"
        self._memory = memory
        self._seen: dict[Hashable, Run] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = self._key(*args)
        try:
            run = self._seen[sizes]
        except KeyError:
            run = self._resolve(sizes)
        except TypeError as error:
            raise InvalidSizes(
                f"{self.name}: key gave {sizes!r}, which cannot be hashed; give a tuple"
            ) from error
        return run(*args, **kwargs)

    def order(self, sizes: Hashable) -> list[str]:
        """Names of the variants in the order in which they are tried for these sizes. A name is
        the hint: "64", "8x64", "default"."""
        last = ["default"] if "default" in self._runs else []
        if sizes is None or not self.hints:
            if not last:
                raise InvalidSizes(
                    f"{self.name}: sizes are unknown (key gave None) and there is no default "
                    "variant; add one under None"
                )
            return last
        at = self._sizes(sizes)
        names = [self._names[i] for i in rank_hints(at, self.hints)]
        if callable(self._select):
            first = self._names[self._select(at, self.hints)]
            names = [first, *(n for n in names if n != first)]
        recorded = self._choices.lookup_choice(self.name, at)
        names += last
        if recorded in self._runs:
            names = [recorded, *(n for n in names if n != recorded)]
        return names

    def record_choice(self, sizes: int | Sequence[int], variant: HintKey) -> None:
        """From now on `variant` runs for exactly these sizes. Raises UnknownVariant."""
        name = _name(variant)
        if name not in self._runs:
            raise UnknownVariant(f"{self.name}: no variant {name}, have {list(self._runs)}")
        self._choices.record_choice(self.name, self._sizes(sizes), name)
        self._seen = {}

    def lookup_choice(self, sizes: int | Sequence[int]) -> str:
        """Name of the variant that a call with these sizes runs (recorded or selected)."""
        return self.order(self._sizes(sizes))[0]

    def tune(
        self,
        *args: Any,
        measure: Callable[[Callable[[], Any]], float] | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Measures every variant on these arguments and records the fastest for their sizes.

        measure: `fn -> seconds`; by default the best of five calls by the host's clock, which
        for a kernel that runs asynchronously is not a measurement: give one that waits.
        """
        sizes = self._sizes(self._key(*args))
        timer = measure or _best_of_five
        times = {n: timer(partial(run, *args, **kwargs)) for n, run in self._runs.items()}
        best = min(times, key=lambda n: times[n])
        self._choices.record_choice(self.name, sizes, best)
        self._seen = {}
        return times

    @property
    def remembered(self) -> int:
        """How many different sizes are remembered now."""
        return len(self._seen)

    def _sizes(self, sizes: Any) -> Hint:
        at = (sizes,) if isinstance(sizes, int) else sizes
        rank = len(self.hints[0]) if self.hints else None
        if not isinstance(at, Sequence) or rank not in (None, len(at)):
            raise InvalidSizes(
                f"{self.name}: key gave {sizes!r}, expected {rank} sizes to match the hints "
                f"{self.hints}; pass key= to pick the sizes that count"
            )
        return tuple(int(size) for size in at)

    def _resolve(self, sizes: Hashable) -> Run:
        names = self.order(sizes)
        run = self._guarded(sizes, names) if self._next else self._runs[names[0]]
        self._remember(sizes, run)
        return run

    def _remember(self, sizes: Hashable, run: Run) -> None:
        if len(self._seen) >= self._memory:
            self._seen = {}  # readers hold the old dict or see the new one; both are right
        self._seen[sizes] = run

    def _guarded(self, sizes: Hashable, names: list[str]) -> Run:
        def run(*args: Any, **kwargs: Any) -> Any:
            for place, name in enumerate(names):
                try:
                    result = self._runs[name](*args, **kwargs)
                except Exception as error:  # a variant is foreign code: any error counts
                    if place + 1 == len(names):
                        raise AllVariantsFailed(
                            f"{self.name}: all variants {names} failed for sizes {sizes}; "
                            f"the last with {error!r}"
                        ) from error
                    warnings.warn(
                        f"{self.name}: variant {name} failed for sizes {sizes} with {error!r}; "
                        f"running {names[place + 1]}",
                        VariantFailed,
                        stacklevel=3,
                    )
                else:
                    if place:
                        self._remember(sizes, self._guarded(sizes, names[place:]))
                    return result
            raise AssertionError("an order of variants is never empty")

        return run


def _name(hint: HintKey) -> str:
    return "default" if hint is None else "x".join(str(size) for size in as_hint(hint))


def _cut(run: Run, cut: slice | Sequence[int] | None) -> Run:
    if cut is None:
        return run
    if isinstance(cut, slice):
        part = cut
        return lambda *args, **kwargs: run(*args[part], **kwargs)
    indices = tuple(cut)
    return lambda *args, **kwargs: run(*[args[i] for i in indices], **kwargs)


def _best_of_five(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(5):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)
