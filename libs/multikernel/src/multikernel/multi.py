"""The callable that picks."""

import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from threading import RLock
from typing import Any, Literal

from multikernel.chain import (
    Branch,
    Comparison,
    Factor,
    Hint,
    as_hint,
    as_hints,
    compare_chain,
    rank_hints,
)
from multikernel.choices import ChoiceTable
from multikernel.errors import (
    AllVariantsFailed,
    InvalidHint,
    InvalidOption,
    InvalidSizes,
    NoChain,
    UnknownVariant,
    VariantFailed,
)
from multikernel.keys import as_key
from multikernel.learn import Learner, Run
from multikernel.measurement import Measurement, Timer
from multikernel.settings import HintKey, OnError, Select, Settings
from multikernel.table import DecisionTable


class MultiKernel:
    """Several callables for one job; each call runs the one that suits its sizes.

    variants: size hint -> callable. A hint is an int or a tuple, all of one rank; a string names
        a variant that was tuned for no size in particular (measured selection only). `None` is
        the default variant: it runs where `key` returns None (sizes unknown), last of all where
        the nearest hint decides, and like any other where measuring does.
    select: "nearest" (L1 distance in log2, ties to the smaller hint); "measured" (times variants
        on the arguments as new sizes arrive, and keeps a `DecisionTable`); or a function
        `(sizes, hints) -> index` that is asked once per new sizes.
    settings: what else it may be told, field by field as keyword arguments too (`Settings`): `key`,
        `name`, `arguments`, `choices`, `on_error`, `measurement`, `store`, `memory`.

    A call of sizes seen before takes no lock: it reads one dict, which is replaced whole."""

    def __init__(
        self,
        variants: Mapping[HintKey, Run],
        select: Literal["nearest", "measured"] | Select = "nearest",
        settings: Settings | None = None,
        **options: Any,
    ) -> None:
        chosen = replace(settings or Settings(), **options)
        name = chosen.name
        if not variants:
            raise InvalidHint(f"{name}: no variants")
        chosen.check_select(select)
        labels = [hint for hint in variants if isinstance(hint, str)]
        if labels and select != "measured":
            raise InvalidHint(
                f"{name}: variants {labels} have no sizes; use select='measured' or size hints"
            )
        sized = [hint for hint in variants if hint is not None and not isinstance(hint, str)]
        self.name = name
        self.hints: tuple[Hint, ...] = as_hints(sized) if sized else ()
        cuts = {_name(hint): cut for hint, cut in (chosen.arguments or {}).items()}
        self._runs = {_name(h): _cut(run, cuts.get(_name(h))) for h, run in variants.items()}
        if len(self._runs) != len(variants):
            raise InvalidHint(f"{name}: variants {list(variants)}: two have the same name")
        for unknown in cuts.keys() - self._runs.keys():
            raise UnknownVariant(f"{name}: arguments for {unknown}, have {list(self._runs)}")
        self.names = tuple(self._runs)
        self.dropped: dict[str, str] = {}
        self._select = select
        self._key = as_key(chosen.key)
        self._choices = ChoiceTable() if chosen.choices is None else chosen.choices
        given = chosen.on_error
        self._on_error: OnError | bool = given if callable(given) else given == "next"
        self._memory = chosen.memory // 2  # two generations of them
        self._seen: dict[Hashable, Run] = {}
        self._older: dict[Hashable, Run] = {}
        self._lock = RLock()
        self._measurement = chosen.measurement or Measurement()
        self._learner: Learner | None = None
        if select == "measured":
            limits = self._measurement
            store = chosen.store
            shelf = store.shelf(name, self.names, limits.resolution) if store else None
            rank = len(self.hints[0]) if self.hints else None
            self._learner = Learner(self._runs, limits, shelf, self._live, self._failed, rank)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        sizes = self._key(*args)
        try:
            run = self._seen[sizes]
        except KeyError:
            run = self._first(sizes, args, kwargs)
        except TypeError as error:
            raise InvalidSizes(
                f"{self.name}: key gave {sizes!r}, which cannot be hashed; give a tuple of ints"
            ) from error
        try:
            return run(*args, **kwargs)
        except Exception as error:  # a variant is foreign code: any error counts
            return self._next(run, error, sizes, args, kwargs)

    def order(self, sizes: Hashable) -> list[str]:
        """Names of the variants in the order in which they are tried for these sizes, dropped
        ones last. A name is the hint: "64", "8x64", "default", or the string given."""
        if sizes is None:
            if "default" not in self._runs:
                raise InvalidSizes(
                    f"{self.name}: sizes are unknown (key gave None) and there is no default "
                    "variant; add one under None"
                )
            return ["default"]
        at = self._sizes(sizes)
        names = self._ranked(at)
        if self._learner is not None:
            table = self._learner.table
            decision = table.cells.get(table.cell(at))
            times = decision.seconds if decision is not None else {}
            names.sort(key=lambda n: times.get(n, float("inf")))
            first = table.lookup(at)
        elif callable(self._select):
            first = _name(self.hints[self._select(at, self.hints)])
        else:
            first = None
        recorded = self._choices.lookup_choice(self.name, at)
        for choice in (first, recorded):
            if choice in self._runs:
                names = [choice, *(n for n in names if n != choice)]
        return sorted(names, key=lambda n: n in self.dropped)

    def chain(self) -> tuple[Branch, ...]:
        """The choice as it is now, as if / elif / else over the sizes; `Branch.variant` indexes
        `names`. Equal to `lookup_choice` for all sizes. Recorded choices come first, one
        equality a size. Raises NoChain where `select` is a function."""
        if callable(self._select):
            raise NoChain(f"{self.name}: select is a function; there are no comparisons for it")
        branches = []
        for sizes, name in self._choices.choices(self.name).items():
            if self._runs_still(name):
                equal = tuple(c for dim, s in enumerate(sizes) for c in _equals(dim, s))
                branches.append(Branch(equal, self.names.index(name)))
        if self._learner is not None and self._learner.table.cells:
            return (*branches, *self._learner.table.chain())
        hints = [h for h in self.hints if _name(h) not in self.dropped or self._all_dropped]
        if hints:
            found = {i: self.names.index(_name(hint)) for i, hint in enumerate(hints)}
            nearest = compare_chain(hints)
            return (*branches, *(Branch(b.comparisons, found[b.variant]) for b in nearest))
        return (*branches, Branch((), self.names.index(self._live(())[0])))

    def record_choice(self, sizes: int | Sequence[int], variant: HintKey) -> None:
        """From now on `variant` runs for exactly these sizes. Raises UnknownVariant."""
        name = _name(variant)
        if name not in self._runs:
            raise UnknownVariant(f"{self.name}: no variant {name}, have {list(self._runs)}")
        self._choices.record_choice(self.name, self._sizes(sizes), name)
        self._forget()

    def lookup_choice(self, sizes: int | Sequence[int]) -> str:
        """Name of the variant that a call with these sizes runs (recorded, measured so far, or
        nearest). Measures nothing."""
        return self.order(self._sizes(sizes))[0]

    def explore(
        self, sizes: Iterable[int | Sequence[int]], arguments: Callable[..., Sequence[Any]]
    ) -> DecisionTable:
        """Measures ahead of time: decides the cells of `sizes` (see `sample_hints`) within the
        limits of `measurement`, with `arguments(*sizes)` as the arguments of a call."""
        if self._learner is None:
            raise InvalidOption(f"{self.name}: explore() goes with select='measured'")
        for each in sizes:
            at = self._sizes(each)
            made = arguments(*at)
            with self._lock:
                self._learner.learn(at, made, {})
        self._forget()
        return self._learner.table

    def tune(self, *args: Any, measure: Timer | None = None, **kwargs: Any) -> dict[str, float]:
        """Measures every variant on these arguments and records the fastest for exactly their
        sizes. Runs each several times: only where that is harmless.

        measure: `fn -> seconds`; by default the timer of `measurement`."""
        sizes = self._sizes(self._key(*args))
        timer = measure or self._measurement.timer
        times = {n: timer(partial(run, *args, **kwargs)) for n, run in self._runs.items()}
        best = min(times, key=lambda n: times[n])
        self._choices.record_choice(self.name, sizes, best)
        self._forget()
        return times

    @property
    def table(self) -> DecisionTable | None:
        """What was measured so far; None where nothing is. It does not change: ask again."""
        return self._learner.table if self._learner is not None else None

    @property
    def remembered(self) -> int:
        """How many different sizes are remembered now."""
        return len(self._seen.keys() | self._older.keys())

    @property
    def _all_dropped(self) -> bool:
        return len(self.dropped) == len(self._runs)

    def _runs_still(self, recorded: str | None) -> bool:
        """Whether a recorded choice decides: its variant is there, and not dropped."""
        return recorded in self._runs and (recorded not in self.dropped or self._all_dropped)

    def _sizes(self, sizes: Any) -> Hint:
        at = sizes if isinstance(sizes, Sequence) else (sizes,)
        rank = len(self.hints[0]) if self.hints else None
        if rank not in (None, len(at)) or not all(hasattr(s, "__index__") for s in at):
            raise InvalidSizes(
                f"{self.name}: key gave {sizes!r}, expected {rank} sizes to match the hints "
                f"{self.hints}; pass key= to pick the sizes that count"
            )
        return tuple(index(size) for size in at)

    def _ranked(self, at: Hint) -> list[str]:
        """All names: nearest hints, then the others as given, the default last."""
        near = [_name(self.hints[i]) for i in rank_hints(at, self.hints)] if at else []
        rest = [n for n in self.names if n not in near]
        return near + sorted(rest, key=lambda n: n == "default")

    def _live(self, at: Hint) -> list[str]:
        names = self._ranked(at)
        return [n for n in names if n not in self.dropped] or names

    def _first(self, sizes: Hashable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Run:
        """The variant for sizes that are not at hand."""
        seen = self._seen  # if choices change meanwhile, this dict is no longer in use
        older = self._older.get(sizes)
        if older is not None:
            self._remember(seen, sizes, older)
            return older
        stays = True
        if self._learner is not None and sizes is not None:
            at = self._sizes(sizes)
            if not self._runs_still(self._choices.lookup_choice(self.name, at)):
                with self._lock:
                    stays = self._learner.learn(at, args, kwargs)
                    seen = self._seen
        run = self._runs[self.order(sizes)[0]]
        if stays:
            self._remember(seen, sizes, run)
        return run

    def _remember(self, seen: dict[Hashable, Run], sizes: Hashable, run: Run) -> None:
        if len(seen) >= self._memory:
            with self._lock:
                if seen is not self._seen:
                    return
                self._older = seen
                self._seen = seen = {}
        seen[sizes] = run

    def _forget(self) -> None:
        with self._lock:
            # In this order: who holds the new dict must not find an old choice to move there.
            self._older = {}
            self._seen = {}

    def _next(
        self,
        run: Run,
        error: Exception,
        sizes: Hashable,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Runs the next best after `run` raised `error`. The variants that raised are dropped
        if another one returns: else the arguments are to blame, or the device."""
        names = self.order(sizes)
        failed = next(name for name in names if self._runs[name] is run)
        errors = {failed: error}
        self._go_on(failed, error)
        for name in names:
            if name in errors:
                continue
            try:
                result = self._runs[name](*args, **kwargs)
            except Exception as another:  # a variant is foreign code: any error counts
                errors[name] = another
                self._go_on(name, another)
                continue
            for each, why in errors.items():
                self._drop(each, why, 4)
            return result
        if len(errors) == 1:
            raise error
        raise AllVariantsFailed(
            f"{self.name}: {list(errors)} all failed for sizes {sizes}; the first with {error!r}",
            errors,
        ) from error

    def _go_on(self, name: str, error: Exception) -> None:
        going = self._on_error(name, error) if callable(self._on_error) else self._on_error
        if not going:
            raise error

    def _failed(self, name: str, error: Exception) -> None:
        """A variant raised while it was measured."""
        self._go_on(name, error)
        self._drop(name, error, 7)

    def _drop(self, name: str, error: Exception, stacklevel: int) -> None:
        with self._lock:
            again = name in self.dropped
            self.dropped = {**self.dropped, name: repr(error)}
            if self._learner is not None and not again:
                self._learner.drop(name)
            self._forget()
        if not again:
            warnings.warn(
                f"{self.name}: variant {name} failed with {error!r} and is dropped; the next "
                "best runs in its place",
                VariantFailed,
                stacklevel=stacklevel,
            )


def _name(hint: HintKey) -> str:
    if hint is None or isinstance(hint, str):
        return "default" if hint is None else hint
    return "x".join(str(size) for size in as_hint(hint))


def _equals(dim: int, size: int) -> tuple[Comparison, Comparison]:
    factor = (Factor(dim),)
    return Comparison(factor, 1, (), size), Comparison((), size, factor, 1)


def _cut(run: Run, cut: slice | Sequence[int] | None) -> Run:
    if cut is None:
        return run
    if isinstance(cut, slice):
        part = cut
        return lambda *args, **kwargs: run(*args[part], **kwargs)
    indices = tuple(cut)
    return lambda *args, **kwargs: run(*[args[i] for i in indices], **kwargs)
