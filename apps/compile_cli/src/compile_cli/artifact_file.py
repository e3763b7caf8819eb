"""Named bytes in one zip file, or in a folder: what they are is in a manifest, with their digests.

Nothing is unpickled, nothing is written while reading, and names say no folders but `kernels/`."""

import errno
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from compile_cli.errors import BadArtifact, NotLoaded
from multikernel import write_whole

Format = Literal["binary", "unpacked"]
MANIFEST = "manifest.json"
FORMAT_VERSION = 1
# Errors of files that are not there, or at places that are not in them.
_OF_NAMES = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.ENAMETOOLONG)
_NAME = re.compile(r"(kernels/)?[a-z0-9_]+\.[a-z0-9]+", re.ASCII)


def write(
    path: Path, format: Format, record: Mapping[str, Any], files: Mapping[str, bytes]
) -> None:
    """Writes the files and their manifest, the manifest last; whole or not at all as a zip."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    manifest = {"format": FORMAT_VERSION, **record, "files": digests}
    every = {**files, MANIFEST: json.dumps(manifest, indent=1, sort_keys=True).encode()}
    if format == "unpacked":
        for name, data in every.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(path / name, data)
        return
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as out:
        for name, data in every.items():
            out.writestr(zipfile.ZipInfo(name), data)  # of no time: the same bytes each time
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, whole.getvalue())


def read(path: Path, format: Format) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the files. Raises `BadArtifact` for what is damaged, or of another format
    version, `NotLoaded` for what cannot be read."""
    try:
        if format == "unpacked":
            manifest = _manifest(path, (path / MANIFEST).read_bytes())
            files = {name: (path / name).read_bytes() for name in manifest["files"]}
        else:
            with zipfile.ZipFile(path) as found:
                if any(each.compress_type != zipfile.ZIP_STORED for each in found.infolist()):
                    raise BadArtifact(path, "an artifact is not compressed")
                manifest = _manifest(path, found.read(MANIFEST))
                files = {name: found.read(name) for name in manifest["files"]}
    except (BadArtifact, MemoryError):
        raise
    except Exception as error:  # damaged bytes make of zips and JSON what they do
        if isinstance(error, OSError) and error.errno not in _OF_NAMES:
            raise NotLoaded(path, f"{type(error).__name__}: {error}") from error
        raise BadArtifact(path, f"{type(error).__name__}: {error}") from error
    for name, data in files.items():
        if hashlib.sha256(data).hexdigest() != manifest["files"][name]:
            raise BadArtifact(path, f"{name} is damaged: its digest differs from the manifest's")
    return manifest, files


def _manifest(path: Path, data: bytes) -> dict[str, Any]:
    manifest = json.loads(data)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise BadArtifact(path, "its manifest names no files")
    if manifest.get("format") != FORMAT_VERSION:
        raise BadArtifact(path, f"format {manifest.get('format')}, this version reads 1")
    for name in manifest["files"]:
        if _NAME.fullmatch(name) is None:
            raise BadArtifact(path, f"its manifest names {name!r}, which is no file of an artifact")
    return manifest
