"""Records on disk: what was measured or decided, one small JSON file each.

A file is a line with the checksum of the rest, and the record as JSON. Earlier versions also wrote
an object of `sha256` and `record`, and one of `key` and `record`; these are read as well."""

import contextlib
import hashlib
import json
import re
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from multikernel.files import BoundedFolder

T = TypeVar("T")

#: Seconds after which a file that a writer left aside belongs to one that crashed.
_STALE_SECONDS = 3600.0


class RecordFolder:
    """Records by name under `path`, shared by any number of processes. A name is the path of the
    record's file, without `.json`.

    damaged: told of a file that is no record, or not one that `parse` takes, and why; the file is
        removed. max_bytes, what, refused: as in `BoundedFolder`."""

    def __init__(
        self,
        path: Path,
        damaged: Callable[[Path, Exception], None],
        *,
        max_bytes: int | None = None,
        what: str = "records",
        refused: Callable[[OSError], None] | None = None,
    ) -> None:
        self.path = path
        self._damaged = damaged
        self._files = BoundedFolder(path, ".json", max_bytes, what, refused=refused)

    def file(self, name: str) -> Path:
        """Where a record lies, if there is one."""
        return self.path / f"{name}.json"

    def names(self, folder: str = "") -> Iterator[str]:
        """The names of the records in one folder, in order; what a crash left there goes."""
        found: list[Path] = []
        with contextlib.suppress(OSError):
            found = sorted((self.path / folder).iterdir())
        for file in found:
            if file.suffix == ".json":
                yield str(file.relative_to(self.path).with_suffix(""))
            elif not file.is_dir():
                with contextlib.suppress(OSError):  # another process may remove it first
                    if time.time() - file.stat().st_mtime > _STALE_SECONDS:
                        file.unlink()

    def read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """What `parse` makes of a record; None where there is none. What raises ValueError,
        KeyError, TypeError or AttributeError there is damaged."""
        file = self.file(name)
        data = self._files.read(file)
        if data is None:
            return None
        try:
            return parse(decode(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            with contextlib.suppress(OSError):
                file.unlink()
            self._damaged(file, error)
            return None

    def touch(self, name: str) -> None:
        """The record was of use: others go before it."""
        self._files.touch(self.file(name))

    def write(self, name: str, record: Any) -> None:
        """Writes a record, in place of one that is there."""
        self._files.write(self.file(name), encode(record))

    def write_first(self, name: str, record: Any, parse: Callable[[Any], T]) -> T | None:
        """Writes a record unless there is one, which is returned then: of several writers the
        first one's stays. A damaged one in its place goes."""
        for _ in range(2):
            if self._files.write(self.file(name), encode(record), first=True):
                return None
            there = self.read(name, parse)
            if there is not None:
                return there
        return None


class RecordStore:
    """Key -> record (a dict that JSON holds), in memory and, given a folder, on disk.

    A file that cannot be read counts as missing, and a folder that cannot be written to stops
    nobody; both are warnings."""

    def __init__(self, folder: Path | None = None) -> None:
        self._memory: dict[str, dict[str, Any]] = {}
        self._folder = None if folder is None else RecordFolder(folder, _ignored, refused=_not_kept)

    def get(self, key: str) -> dict[str, Any] | None:
        """The record of a key, or None."""
        if key not in self._memory and self._folder is not None:
            found = self._folder.read(_digest(key), lambda entry: _of_key(entry, key))
            if found is not None:
                self._memory[key] = found
        return self._memory.get(key)

    def put(self, key: str, record: dict[str, Any]) -> None:
        """Keeps a record, in place of an earlier one of the key."""
        self._memory[key] = record
        if self._folder is not None:
            self._folder.write(_digest(key), {"key": key, "record": record})


def encode(record: Any) -> bytes:
    """A record as a file holds it."""
    body = json.dumps(record, indent=1).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(data: bytes) -> Any:
    """The record of a file. Raises ValueError where the data are not as they were written."""
    checksum, _, body = data.partition(b"\n")
    if re.fullmatch(rb"[0-9a-f]{64}", checksum):
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise ValueError("the checksum does not match")
        return json.loads(body)
    old = json.loads(data)
    if "key" in old:
        return old
    text = json.dumps(old["record"], sort_keys=True)
    if hashlib.sha256(text.encode()).hexdigest()[:40] != old["sha256"]:
        raise ValueError("the checksum does not match")
    return old["record"]


def _ignored(file: Path, error: Exception) -> None:
    warnings.warn(f"ignoring {file}: {error!r}", stacklevel=5)


def _not_kept(error: OSError) -> None:
    warnings.warn(f"choice not kept: {error!r}", stacklevel=6)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _of_key(entry: Any, key: str) -> dict[str, Any]:
    if entry["key"] != key or not isinstance(entry["record"], dict):
        raise ValueError("it belongs to another key")
    return dict(entry["record"])
