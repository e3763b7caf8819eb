"""Files that many processes read and write: whole or not at all, and no more than fit."""

import contextlib
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path


def write_whole(file: Path, data: bytes) -> None:
    """Writes a file through a rename: a reader sees all of it, or what was there before. Raises
    OSError where the folder is missing or cannot be written to."""
    with _aside(file, data) as made:
        made.replace(file)


def write_first(file: Path, data: bytes) -> bool:
    """Writes a file unless there is one of its name, and says whether it did: of several writers
    the first one's stays. On a file system without hard links it is the last one's."""
    with _aside(file, data) as made:
        try:
            os.link(made, file)  # fails, unlike a rename, where the name exists
        except FileExistsError:
            return False
        except OSError:
            made.replace(file)
        return True


@contextlib.contextmanager
def _aside(file: Path, data: bytes) -> Iterator[Path]:
    """A file of the data beside another one; it is gone afterwards unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


class BoundedFolder:
    """Files with one suffix in folders under `path`, which many processes may write and drop.

    max_bytes: once the files exceed it, those that were not of use for the longest time go, down
        to 80 % of it. None: any number of bytes.
    what: what the folder holds, for the warning, given once, where it cannot be written to;
        `refused` is called with the error in place of that warning.
    mode: of folders that are made."""

    def __init__(
        self,
        path: Path,
        suffix: str,
        max_bytes: int | None,
        what: str,
        mode: int = 0o777,
        refused: Callable[[OSError], None] | None = None,
    ) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._suffix, self._what, self._mode = suffix, what, mode
        self._lock = threading.Lock()
        self._written: int | None = None  # bytes on disk as far as known; None: not counted yet
        self._warned = False
        self._refused = refused or self._warn

    def read(self, file: Path) -> bytes | None:
        """What a file holds; None if there is none."""
        try:
            return file.read_bytes()
        except OSError:
            return None

    def touch(self, file: Path) -> None:
        """The file was of use: others go before it."""
        # Dropped by another process, or a read-only folder: what was read is read.
        with contextlib.suppress(OSError):
            os.utime(file)

    def write(self, file: Path, data: bytes, first: bool = False) -> bool:
        """Writes one file; with `first`, only if it is not there. Whether it is as given now."""
        try:
            for folder in (self.path, file.parent):
                folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
            if first and not write_first(file, data):
                return False
            if not first:
                write_whole(file, data)
        except OSError as error:
            self._refused(error)
            return True
        self._bound(len(data))
        return True

    def clear(self) -> None:
        """Removes every file."""
        for _, _, file in self.entries():
            file.unlink(missing_ok=True)
        self._written = 0

    def entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each file was last of use, its bytes, and where it is."""
        for file in self.path.glob(f"*/*{self._suffix}"):
            with contextlib.suppress(OSError):  # dropped meanwhile by another process
                found = file.stat()
                yield found.st_mtime, found.st_size, file

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            warnings.warn(f"{self._what} {self.path} not written: {error}", stacklevel=4)
        self._warned = True

    def _bound(self, added: int) -> None:
        if self.max_bytes is None:
            return
        with self._lock:
            if self._written is None:
                self._written = sum(size for _, size, _ in self.entries())
            else:
                self._written += added
            if self._written <= self.max_bytes:
                return
            entries = sorted(self.entries())
            total = sum(size for _, size, _ in entries)
            for _, size, file in entries:
                if total <= self.max_bytes * 0.8:
                    break
                file.unlink(missing_ok=True)
                total -= size
            self._written = total
