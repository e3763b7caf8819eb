"""The one place that reads the environment."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """GEMM_TEMPLATES_CACHE_DIR, else `gemm_templates` in the user's cache folder."""
    given = os.environ.get("GEMM_TEMPLATES_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gemm_templates"
