"""Decisions on disk: one small file per cell, the first one written stays.

A file is written aside and then linked to its name, which fails if the name exists. So a reader
sees a whole file or none, no process loses another's decision, and all that share a store agree
from the moment a cell is decided.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from multikernel.buckets import Cell
from multikernel.errors import DamagedEntry, StoreUnavailable
from multikernel.table import Decision

FORMAT_VERSION = 1
_STALE_SECONDS = 3600.0


class TableStore:
    """A folder of measured choices, for any number of kernels and processes.

    context: what the times depend on beside the kernel's name and the names of its variants:
        the device, versions, a hash of the variants' sources. Other contexts, other files.
    """

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
    """The files of one kernel under one context, `<bucket>_<bucket>.json`."""

    def __init__(self, path: Path, key: str, variants: tuple[str, ...]) -> None:
        self.path = path
        self._key = key
        self._variants = variants
        self._writable = True

    def file(self, cell: Cell) -> Path:
        return self.path / ("_".join(str(c) for c in cell) + ".json")

    def load(self, dimensions: int | None = None) -> dict[Cell, Decision]:
        """All decisions that can be read, of one number of dimensions (by default that of the
        first file); damaged ones are reported and removed."""
        found = {}
        with contextlib.suppress(OSError):
            for file in sorted(self.path.iterdir()):
                if file.suffix == ".json":
                    cell = _cell(file.stem)
                    decision = self.read(cell) if cell is not None else None
                    if cell is not None and decision is not None:
                        dimensions = dimensions or len(cell)
                        if len(cell) == dimensions:
                            found[cell] = decision
                else:
                    with contextlib.suppress(OSError):  # another process may remove it first
                        if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                            file.unlink()
        return found

    def read(self, cell: Cell) -> Decision | None:
        """The decision of a cell; None where there is none or it was damaged."""
        file = self.file(cell)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        try:
            checksum, _, body = data.partition(b"\n")
            if checksum.decode() != hashlib.sha256(body).hexdigest():
                raise ValueError("the checksum does not match")
            entry = json.loads(body)
            if entry["key"] != self._key or entry["cell"] != list(cell):
                raise ValueError("it belongs to another kernel, context or cell")
            if entry["variant"] not in self._variants:
                raise ValueError(f"no variant {entry['variant']!r}")
            seconds = {str(n): float(t) for n, t in entry["seconds"].items()}
            sizes = tuple(int(s) for s in entry["sizes"])
            if len(sizes) != len(cell):
                raise ValueError(f"sizes {sizes} for a cell of {len(cell)} dimensions")
            return Decision(str(entry["variant"]), seconds, sizes)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(
                f"{file}: not a measured choice ({error}); removed, it will be measured again",
                DamagedEntry,
                stacklevel=3,
            )
            with contextlib.suppress(OSError):
                file.unlink()
            return None

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
        body = json.dumps(entry, indent=1).encode()
        data = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        try:
            return self._link(cell, data) or decision
        except OSError as error:
            self._writable = False
            warnings.warn(
                f"{self.path}: {error}; measured choices last as long as this process",
                StoreUnavailable,
                stacklevel=3,
            )
            return decision

    def _link(self, cell: Cell, data: bytes) -> Decision | None:
        self.path.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(prefix=".new-", dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            for _ in range(2):  # once more where a damaged entry was in the way
                try:
                    os.link(aside, self.file(cell))
                    return None
                except FileExistsError:
                    there = self.read(cell)
                    if there is not None:
                        return there
                except OSError:  # a file system without hard links: the last one stays
                    Path(aside).replace(self.file(cell))
                    return None
            return None
        finally:
            with contextlib.suppress(OSError):
                Path(aside).unlink()


def _cell(stem: str) -> Cell | None:
    parts = stem.split("_")
    return tuple(int(p) for p in parts) if all(p.isdecimal() for p in parts) else None
