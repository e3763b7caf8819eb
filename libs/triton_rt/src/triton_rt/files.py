"""Folders that code is loaded from."""

import stat
from os import getuid
from pathlib import Path

from triton_rt.errors import UnsafeFolder


def private(path: str | Path) -> Path:
    """The folder, which need not be there yet. Raises `UnsafeFolder` where it belongs to another
    user, or everyone may write to it or replace it.

    What root owns is trusted, as root may do anything; a sticky folder above (`/tmp`) lets nobody
    replace what is ours. Groups are the owner's business (a team may share a cache)."""
    path = Path(path).absolute()
    for folder in (path, *path.parents):
        try:
            found = folder.stat()
        except OSError:
            continue  # not there yet, or not ours to see: whoever opens it says so
        sticky = found.st_mode & stat.S_ISVTX and folder != path
        if found.st_mode & stat.S_IWOTH and not sticky:
            raise UnsafeFolder(f"{path}: everyone may write to {folder}", f"chmod o-w {folder}")
        if folder == path and found.st_uid not in (getuid(), 0):
            raise UnsafeFolder(f"{path}: it belongs to user {found.st_uid}", "use another folder")
    return path
