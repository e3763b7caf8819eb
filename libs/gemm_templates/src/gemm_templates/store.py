"""Choices that outlive the process: one small JSON file each."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_templates.config import cache_dir


class Store:
    """Key -> record, in memory and (given a folder) on disk. Writes are atomic, so processes
    may share a folder; a file that cannot be read counts as missing, with a warning."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._memory: dict[str, dict[str, Any]] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        if key not in self._memory and self._folder is not None:
            path = self._path(key)
            try:
                data = json.loads(path.read_text())
                if data["key"] == key and isinstance(data["record"], dict):
                    self._memory[key] = data["record"]
            except FileNotFoundError:
                return None
            except (ValueError, KeyError, TypeError, OSError) as error:
                warnings.warn(f"ignoring {path}: {error!r}", stacklevel=2)
        return self._memory.get(key)

    def put(self, key: str, record: dict[str, Any]) -> None:
        self._memory[key] = record
        if self._folder is None:
            return
        path = self._path(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._folder)
            with os.fdopen(handle, "w") as file:
                json.dump({"key": key, "record": record}, file, indent=1)
            Path(name).replace(path)
        except OSError as error:  # a full or read-only disk must not stop the program
            warnings.warn(f"choice not kept in {path}: {error!r}", stacklevel=2)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + ".json")


@lru_cache(maxsize=1)
def default_store() -> Store:
    """The choices of the public functions, kept in the user's cache folder."""
    return Store(cache_dir())
