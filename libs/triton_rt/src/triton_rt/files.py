"""Files that many processes read and write: whole or not at all, and no more than fit."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

from triton_rt.errors import UnsafeFolder


def private(path: str | Path) -> Path:
    """The folder, which need not be there yet. Raises `UnsafeFolder` where it belongs to another
    user, or everyone may write to it or replace it.

    What root owns is trusted, as root may do anything; a sticky folder above (`/tmp`) lets nobody
    replace what is ours. Groups are the owner's business (a team may share a cache).
    """
    path = Path(path).absolute()
    for folder in (path, *path.parents):
        try:
            found = folder.stat()
        except OSError:
            continue  # not there yet, or not ours to see: whoever opens it says so
        sticky = found.st_mode & stat.S_ISVTX and folder != path
        if found.st_mode & stat.S_IWOTH and not sticky:
            raise UnsafeFolder(f"{path}: everyone may write to {folder}", f"chmod o-w {folder}")
        if folder == path and found.st_uid not in (os.getuid(), 0):
            raise UnsafeFolder(f"{path}: it belongs to user {found.st_uid}", "use another folder")
    return path


def write_whole(file: Path, data: bytes) -> None:
    """Writes a file through a rename: a reader sees all of it, or what was there before."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=".tmp-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


class BoundedFolder:
    """Files `AB/NAME` under `path`, all `suffix`ed, which many processes may write and drop.

    Once they exceed `max_bytes`, those that were not read for the longest time go, down to 80 % of
    it. A folder that cannot be written to is a warning, once, not an error; `what` it holds.
    """

    def __init__(self, path: Path, suffix: str, max_bytes: int, what: str, mode: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._suffix, self._what, self._mode = suffix, what, mode
        self._lock = threading.Lock()
        self._written: int | None = None  # bytes on disk as far as known; None: not counted yet
        self._warned = False

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

    def write(self, file: Path, data: bytes) -> None:
        """Writes one file."""
        try:
            for folder in (self.path, file.parent):
                folder.mkdir(mode=self._mode, parents=True, exist_ok=True)
            write_whole(file, data)
        except OSError as error:
            if not self._warned:
                warnings.warn(f"{self._what} {self.path} not written: {error}", stacklevel=3)
            self._warned = True
            return
        self._bound(len(data))

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

    def _bound(self, added: int) -> None:
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
