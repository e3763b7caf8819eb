"""What a `MultiKernel` may be told beside its variants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from multikernel.chain import Hint
from multikernel.choices import ChoiceTable
from multikernel.errors import InvalidOption
from multikernel.keys import Key
from multikernel.measurement import Measurement
from multikernel.store import TableStore

HintKey = int | tuple[int, ...] | str | None
Select = Callable[[Hint, tuple[Hint, ...]], int]
OnError = Callable[[str, Exception], bool]


@dataclass(frozen=True)
class Settings:
    """The keyword arguments of `MultiKernel`. Raises InvalidOption for those out of range.

    key: the call's positional arguments -> sizes: an int, a tuple of ints, or None. Or the places
        of the sizes, `[(argument, dimension), ...]`. By default the shape of the first argument
        that has one.
    name: of the kernel, in messages, choices and stores.
    arguments: hint -> slice or indices of the positional arguments which that variant takes;
        a variant that is not listed takes all.
    choices: exact choices under `name`; a recorded choice goes before `select`.
    on_error: "next" drops a variant that raises, reports it (`VariantFailed`, and `dropped`),
        and runs the next best on the same arguments: sound if variants write nothing before
        they raise. "raise" lets the error through. A function `(variant, error) -> bool` tells,
        per error, whether to go on.
    measurement: how "measured" measures, and what it may cost.
    store: where measured choices outlive the process.
    memory: how many different sizes are remembered."""

    key: Key | Sequence[tuple[int, int]] | None = None
    name: str = "kernel"
    arguments: Mapping[HintKey, slice | Sequence[int]] | None = None
    choices: ChoiceTable | None = None
    on_error: Literal["raise", "next"] | OnError = "next"
    measurement: Measurement | None = None
    store: TableStore | None = None
    memory: int = 4096

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "next") and not callable(self.on_error):
            raise InvalidOption(
                f"{self.name}: on_error={self.on_error!r}: expected 'raise', 'next' or a function"
            )
        if self.memory < 2:
            raise InvalidOption(f"{self.name}: memory={self.memory}: expected at least 2")

    def check_select(self, select: object) -> None:
        """Raises InvalidOption where `select` is not one, or does not go with these."""
        if select not in ("nearest", "measured") and not callable(select):
            raise InvalidOption(
                f"{self.name}: select={select!r}: expected 'nearest', 'measured' or a function"
            )
        measures = self.measurement is not None or self.store is not None
        if select != "measured" and measures:
            raise InvalidOption(f"{self.name}: measurement and store go with select='measured'")
