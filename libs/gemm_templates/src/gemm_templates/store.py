"""Choices that outlive the process."""

from functools import lru_cache

from gemm_templates.config import cache_dir
from multikernel import RecordStore as Store


@lru_cache(maxsize=1)
def default_store() -> Store:
    """The choices of the public functions, kept in the user's cache folder."""
    return Store(cache_dir())
