"""Tuning results on disk, by kernel, shapes and device; the nearest shape is a first guess."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from multikernel import RecordFolder
from triton_rt import Config, KernelParam
from tuning.errors import CorruptTuningRecord

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Query:
    """One tuning problem. `structure` says what must agree for two to be comparable (kinds,
    ranks, alignment of pointers), `sizes` what may differ (dimensions, integers)."""

    kernel: str
    device: str
    structure: str
    sizes: tuple[int, ...]

    @classmethod
    def of(
        cls, kernel: str, device: str, params: Sequence[KernelParam], args: Sequence[Any]
    ) -> Query:
        """The query of a call: shapes and strides of tensor arguments, values of integers."""
        parts: list[str] = []
        sizes: list[int] = []
        for param, arg in zip(params, args, strict=True):
            place = getattr(arg, "base", arg)  # of a descriptor, which has a shape of its own
            if hasattr(place, "data_ptr"):
                aligned = place.data_ptr() % 16 == 0
                parts.append(f"{param.kind}/{len(arg.shape)}{'' if aligned else '!'}")
                strides = arg.strides if hasattr(arg, "strides") else arg.stride()
                sizes += [*map(int, arg.shape), *map(int, strides)]
            else:
                parts.append(param.kind)
                if isinstance(arg, int) and not isinstance(arg, bool):
                    sizes.append(arg)
        return cls(kernel, device, " ".join(parts), tuple(sizes))

    def distance(self, other: Query) -> float:
        """0 for the same sizes, 1 for one of them doubled; infinite where not comparable."""
        if self.structure != other.structure or len(self.sizes) != len(other.sizes):
            return math.inf
        both = zip(self.sizes, other.sizes, strict=True)
        return sum(abs(math.log2((abs(x) + 1) / (abs(y) + 1))) for x, y in both)


@dataclass(frozen=True)
class Record:
    """What was measured: `times` in milliseconds by candidate (`candidate_keys`), infinite ones
    left out; `bad` candidates with the reason, which no shape tries again on this device."""

    query: Query
    winner: str
    times: Mapping[str, float]
    bad: Mapping[str, str] = field(default_factory=dict)
    candidates: tuple[str, ...] = ()


def candidate_keys(sources: Sequence[object]) -> tuple[str, ...]:
    """Identities of candidates: their sources as data (no text is executed for it), numbered
    where several have the same one and differ in their grid."""
    seen: dict[str, int] = {}
    out = []
    for source in sources:
        key = hashlib.sha256(repr(source).encode()).hexdigest()[:32]
        seen[key] = seen.get(key, 0) + 1
        out.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return tuple(out)


class TuningStore:
    """A folder of records, one file each, `KERNEL-DEVICE/SHAPES.json`.

    Many processes may share it: a write is a rename, a read verifies a checksum, and a damaged
    record is dropped, reported (a `CorruptTuningRecord` warning) and
    measured again. Past `max_bytes`, what was not used for the longest time goes."""

    def __init__(self, path: str | Path | None = None, max_bytes: int = 64 << 20) -> None:
        self.path = Config.from_environment().cache_dir / "tuning" if path is None else Path(path)
        self._records = RecordFolder(
            self.path, _dropped, max_bytes=max_bytes, what="tuning results"
        )

    def file(self, query: Query) -> Path:
        """Where the record of a query lies, if there is one."""
        return self._records.file(_name(query))

    def get(self, query: Query) -> Record | None:
        """The record of exactly these shapes, or None."""
        found = self._records.read(_name(query), _record)
        if found is not None:
            self._records.touch(_name(query))
        return found

    def nearest(self, query: Query, limit: float = math.inf) -> Record | None:
        """The record of the kernel's nearest shapes on this device, not farther than `limit`."""
        near = [(r.query.distance(query), r.query.sizes, r) for r in self.records(query)]
        near = [n for n in near if n[0] <= limit and n[0] < math.inf]
        return min(near, key=lambda n: n[:2])[2] if near else None

    def records(self, query: Query) -> Iterator[Record]:
        """All of the kernel on the device."""
        for name in self._records.names(_folder(query)):
            found = self._records.read(name, _record)
            if found is not None:
                yield found

    def bad(self, query: Query) -> dict[str, str]:
        """Candidates of the kernel that failed dangerously at some shape on this device."""
        return {key: why for r in self.records(query) for key, why in r.bad.items()}

    def put(self, record: Record) -> None:
        """Writes a record. A folder that cannot be written to is a warning, not an error."""
        self._records.write(_name(record.query), {"version": FORMAT_VERSION, **asdict(record)})


def _folder(query: Query) -> str:
    return _hash([query.kernel, query.device])


def _name(query: Query) -> str:
    return f"{_folder(query)}/{_hash([query.structure, query.sizes])}"


def _record(body: Any) -> Record | None:
    """The record in a file; None if the format is of another version."""
    if body["version"] != FORMAT_VERSION:
        return None
    query = dict(body["query"])
    query["sizes"] = tuple(query["sizes"])
    candidates = tuple(body["candidates"])
    return Record(Query(**query), body["winner"], body["times"], body["bad"], candidates)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:40]


def _dropped(file: Path, error: Exception) -> None:
    why = f"{type(error).__name__}: {error}; the record was dropped, its kernel is measured again"
    warnings.warn(f"{file}: {why}", CorruptTuningRecord, stacklevel=5)
