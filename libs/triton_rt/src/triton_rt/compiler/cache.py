"""Binaries on disk, by content: many processes may read, write and evict at once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from triton_rt.compiler.binary import FORMAT_VERSION, Binary
from triton_rt.compiler.target import Target
from triton_rt.config import Config
from triton_rt.errors import BadBinary, CorruptCacheEntry
from triton_rt.files import private
from triton_rt.source import KernelSource


def cache_key(source: KernelSource, target: Target, alignment: int, compiler: str) -> str:
    """sha256 of everything that decides the cubin: the text of the kernel and of all jit
    functions it reaches, its record, the target, the alignment mask, the compiler and format."""
    parts = [source.fingerprint, target.arch, alignment, compiler, FORMAT_VERSION]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass(frozen=True)
class CacheStats:
    """What is on disk now, and what this `Cache` object has seen."""

    entries: int
    bytes: int
    hits: int
    misses: int
    corrupt: int


class Cache:
    """A folder of binaries, `ab/abcdef....bin`.

    Writes go to a temporary file that is renamed into place, so a reader sees a whole entry or
    none. A read verifies the checksum; a damaged entry is dropped, reported through `on_corrupt`
    (by default a `CorruptCacheEntry` warning), and counts as a miss. Once the folder exceeds
    `max_bytes`, the entries that were not read for the longest time go, down to 80 % of it.

    Entries are code: raises `UnsafeFolder` where another user may write them.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        max_bytes: int | None = None,
        *,
        on_corrupt: Callable[[str], None] | None = None,
    ) -> None:
        if path is None or max_bytes is None:
            config = Config.from_environment()
            path = config.cache_dir / "kernels" if path is None else path
            max_bytes = config.cache_max_bytes if max_bytes is None else max_bytes
        self.path = private(path)
        self.max_bytes = max_bytes
        self._on_corrupt = on_corrupt or _warn
        self._lock = threading.Lock()
        self._written: int | None = None  # bytes on disk as far as known; None: not counted yet
        self._warned = False
        self.hits = self.misses = self.corrupt = 0

    def file(self, key: str) -> Path:
        """Where the entry of a key lies, if there is one."""
        return self.path / key[:2] / f"{key}.bin"

    def get(self, key: str) -> Binary | None:
        """The entry, or None where there is none or it was damaged."""
        file = self.file(key)
        try:
            data = file.read_bytes()
        except OSError:
            self.misses += 1
            return None
        try:
            binary = Binary.from_bytes(data)
        except BadBinary as error:
            self.corrupt += 1
            self.misses += 1
            file.unlink(missing_ok=True)
            self._on_corrupt(f"{file}: {error}; the entry was dropped and is built again")
            return None
        self.hits += 1
        now = time.time()
        # Evicted by another process, or a read-only folder: the bytes are read already.
        with contextlib.suppress(OSError):
            os.utime(file, (now, now))
        return binary

    def put(self, key: str, binary: Binary) -> None:
        """Writes an entry. A folder that cannot be written to is a warning, once, not an error."""
        data = binary.to_bytes()
        file = self.file(key)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.parent.mkdir(mode=0o700, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=".tmp-")
            try:
                with os.fdopen(handle, "wb") as out:
                    out.write(data)
                Path(name).replace(file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            if not self._warned:
                warnings.warn(f"kernel cache {self.path} not written: {error}", stacklevel=2)
            self._warned = True
            return
        self._bound(len(data))

    def clear(self) -> None:
        """Removes every entry."""
        for file in self.path.glob("??/*.bin"):
            file.unlink(missing_ok=True)
        self._written = 0

    def stats(self) -> CacheStats:
        """Counts the folder now."""
        sizes = [size for _, size, _ in self._entries()]
        return CacheStats(len(sizes), sum(sizes), self.hits, self.misses, self.corrupt)

    def _entries(self) -> list[tuple[float, int, Path]]:
        out = []
        for file in self.path.glob("??/*.bin"):
            try:
                stat = file.stat()
            except OSError:
                continue  # evicted meanwhile by another process
            out.append((stat.st_mtime, stat.st_size, file))
        return out

    def _bound(self, added: int) -> None:
        with self._lock:
            if self._written is None:
                self._written = sum(size for _, size, _ in self._entries())
            else:
                self._written += added
            if self._written <= self.max_bytes:
                return
            entries = sorted(self._entries())
            total = sum(size for _, size, _ in entries)
            for _, size, file in entries:
                if total <= self.max_bytes * 0.8:
                    break
                file.unlink(missing_ok=True)
                total -= size
            self._written = total


def _warn(message: str) -> None:
    warnings.warn(message, CorruptCacheEntry, stacklevel=4)
