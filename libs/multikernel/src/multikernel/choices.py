"""Choices that were measured, as plain data that survives the process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Lock

from multikernel.errors import InvalidChoices


class ChoiceTable:
    """(kernel, sizes) -> name of the variant to run.

    Filled by measuring (`MultiKernel.tune`) or by hand; read by `MultiKernel` and by programs
    that emit code ahead of time. `dumps` and `loads` are inverse to each other; what to do with
    the text (a file, an archive) is the caller's business."""

    def __init__(self) -> None:
        self._choices: dict[tuple[str, tuple[int, ...]], str] = {}
        self._lock = Lock()

    def record_choice(self, kernel: str, sizes: Sequence[int], variant: str) -> None:
        """From now on `variant` is the choice for these sizes of the kernel."""
        with self._lock:
            self._choices[kernel, tuple(sizes)] = variant

    def lookup_choice(self, kernel: str, sizes: Sequence[int]) -> str | None:
        """The choice for exactly these sizes; None where there is none."""
        return self._choices.get((kernel, tuple(sizes)))

    def choices(self, kernel: str) -> dict[tuple[int, ...], str]:
        """All choices of one kernel, by sizes, in order of sizes."""
        with self._lock:
            items = sorted(self._choices.items())
        return {sizes: variant for (name, sizes), variant in items if name == kernel}

    def dumps(self) -> str:
        """All choices as JSON text, in order of kernel and sizes."""
        with self._lock:
            items = sorted(self._choices.items())
        rows = [{"kernel": k, "sizes": list(s), "variant": v} for (k, s), v in items]
        return json.dumps({"version": 1, "choices": rows}, indent=1)

    @classmethod
    def loads(cls, text: str) -> ChoiceTable:
        """Raises InvalidChoices if the text was not written by `dumps`."""
        table = cls()
        try:
            data = json.loads(text)
            if data["version"] != 1:
                raise InvalidChoices(f"choice table version {data['version']!r}: expected 1")
            for row in data["choices"]:
                sizes = tuple(int(size) for size in row["sizes"])
                table._choices[str(row["kernel"]), sizes] = str(row["variant"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidChoices(f"not a choice table: {error!r}; write it with dumps()") from error
        return table
