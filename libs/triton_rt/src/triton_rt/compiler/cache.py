"""Binaries on disk, by content: many processes may read, write and evict at once."""

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from multikernel import BoundedFolder
from triton_rt.compiler.binary import FORMAT_VERSION, Binary
from triton_rt.compiler.target import Target
from triton_rt.config import Config, line_info
from triton_rt.errors import BadBinary, CorruptCacheEntry
from triton_rt.files import private
from triton_rt.source import KernelSource


def cache_key(source: KernelSource, target: Target, alignment: int, compiler: str) -> str:
    """sha256 of everything that decides the cubin: the text of the kernel and of all jit
    functions it reaches, its record, the target, the alignment mask, the compiler and format."""
    parts = [source.fingerprint, target.arch, alignment, compiler, FORMAT_VERSION]
    parts += ["lines"] * line_info()
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

    A read verifies the checksum; a damaged entry is dropped, reported through `on_corrupt`
    (by default a `CorruptCacheEntry` warning), and counts as a miss. Once the folder exceeds
    `max_bytes`, the entries that were not read for the longest time go, down to 80 % of it.

    Entries are code: raises `UnsafeFolder` where another user may write them."""

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
        self._folder = BoundedFolder(self.path, ".bin", max_bytes, "kernel cache", mode=0o700)
        self._on_corrupt = on_corrupt or _warn
        self.hits = self.misses = self.corrupt = 0

    def file(self, key: str) -> Path:
        """Where the entry of a key lies, if there is one."""
        return self.path / key[:2] / f"{key}.bin"

    def get(self, key: str) -> Binary | None:
        """The entry, or None where there is none or it was damaged."""
        file = self.file(key)
        data = self._folder.read(file)
        if data is None:
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
        self._folder.touch(file)
        return binary

    def put(self, key: str, binary: Binary) -> None:
        """Writes an entry. A folder that cannot be written to is a warning, once, not an error."""
        self._folder.write(self.file(key), binary.to_bytes())

    def clear(self) -> None:
        """Removes every entry."""
        self._folder.clear()

    def stats(self) -> CacheStats:
        """Counts the folder now."""
        sizes = [size for _, size, _ in self._folder.entries()]
        return CacheStats(len(sizes), sum(sizes), self.hits, self.misses, self.corrupt)


def _warn(message: str) -> None:
    warnings.warn(message, CorruptCacheEntry, stacklevel=4)
