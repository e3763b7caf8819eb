"""Decisions on disk: one record per cell, the first one written stays, so that all that share a
store agree from the moment a cell is decided."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multikernel.buckets import Cell
from multikernel.errors import DamagedEntry, StoreUnavailable
from multikernel.records import RecordFolder
from multikernel.table import Decision

FORMAT_VERSION = 1


class TableStore:
    """A folder of measured choices, for any number of kernels and processes.

    context: what the times depend on beside the kernel's name and the names of its variants:
        the device, versions, a hash of the variants' sources. Other contexts, other files."""

    def __init__(self, path: str | Path, context: str = "") -> None:
        self.path = Path(path)
        self.context = context

    def shelf(self, kernel: str, variants: Sequence[str], resolution: int) -> Shelf:
        """The decisions of one kernel."""
        key = [FORMAT_VERSION, kernel, list(variants), resolution, self.context]
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]
        readable = re.sub(r"[^A-Za-z0-9_.-]", "_", kernel)[:60].lstrip(".") or "kernel"
        return Shelf(self.path / f"{readable}-{digest}", digest, tuple(variants))


class Shelf:
    """The records of one kernel under one context, `<bucket>_<bucket>.json`."""

    def __init__(self, path: Path, key: str, variants: tuple[str, ...]) -> None:
        self.path = path
        self._key = key
        self._variants = variants
        self._writable = True
        self._records = RecordFolder(path, _report_damage, refused=self._refuse)

    def load(self, dimensions: int | None = None) -> dict[Cell, Decision]:
        """All decisions that can be read, of one number of dimensions (by default that of the
        first file); damaged ones are reported and removed."""
        found = {}
        for name in self._records.names():
            cell = _cell(name)
            decision = self.read(cell) if cell is not None else None
            if cell is not None and decision is not None:
                dimensions = dimensions or len(cell)
                if len(cell) == dimensions:
                    found[cell] = decision
        return found

    def read(self, cell: Cell) -> Decision | None:
        """The decision of a cell; None where there is none or it was damaged."""
        return self._records.read(_name(cell), lambda entry: self._decision(entry, cell))

    def publish(self, cell: Cell, decision: Decision) -> Decision:
        """Writes a decision unless the cell has one; returns the one that is on disk."""
        if not self._writable:
            return decision
        entry = {
            "key": self._key,
            "cell": list(cell),
            "sizes": list(decision.sizes),
            "variant": decision.variant,
            "seconds": dict(decision.seconds),
        }
        there = self._records.write_first(
            _name(cell), entry, lambda found: self._decision(found, cell)
        )
        return there or decision

    def _decision(self, entry: Any, cell: Cell) -> Decision:
        if entry["key"] != self._key or entry["cell"] != list(cell):
            raise ValueError("it belongs to another kernel, context or cell")
        if entry["variant"] not in self._variants:
            raise ValueError(f"no variant {entry['variant']!r}")
        seconds = {str(n): float(t) for n, t in entry["seconds"].items()}
        sizes = tuple(int(s) for s in entry["sizes"])
        if len(sizes) != len(cell):
            raise ValueError(f"sizes {sizes} for a cell of {len(cell)} dimensions")
        return Decision(str(entry["variant"]), seconds, sizes)

    def _refuse(self, error: OSError) -> None:
        self._writable = False
        warnings.warn(
            f"{self.path}: {error}; measured choices last as long as this process",
            StoreUnavailable,
            stacklevel=6,
        )


def _report_damage(file: Path, error: Exception) -> None:
    warnings.warn(
        f"{file}: not a measured choice ({error}); removed, it will be measured again",
        DamagedEntry,
        stacklevel=5,
    )


def _name(cell: Cell) -> str:
    return "_".join(str(c) for c in cell)


def _cell(name: str) -> Cell | None:
    parts = name.split("_")
    return tuple(int(p) for p in parts) if all(p.isdecimal() for p in parts) else None
