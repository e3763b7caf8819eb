"""What a result on disk was made with: the sources of packages, as a digest."""

import hashlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def source_digest(*packages: str) -> str:
    """sha256 of all Python files of these packages, which need not be imported."""
    made = hashlib.sha256()
    for package in packages:
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            for path in sorted(Path(folder).rglob("*.py")):
                made.update(f"{package}/{path.relative_to(folder)}\n".encode())
                made.update(path.read_bytes())
    return made.hexdigest()
