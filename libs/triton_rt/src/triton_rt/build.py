"""`compile`: through the cache, in this process or in a pool."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Sequence
from concurrent.futures import Future

from triton_rt.binary import Binary
from triton_rt.cache import Cache, cache_key
from triton_rt.pool import CompilePool
from triton_rt.source import KernelSource
from triton_rt.target import Target


@functools.cache
def compiler_name() -> str:
    """The compiler that decides the code, with its version; found without importing it."""
    return f"triton {importlib.metadata.version('triton')}"


def submit(
    source: KernelSource,
    target: Target,
    *,
    alignment: int | None = None,
    cache: Cache | None = None,
    pool: CompilePool | None = None,
    keep_ptx: bool = False,
) -> Future[Binary]:
    """A future of the binary: done at once from the cache, or when the pool has compiled it.

    Without a pool it compiles before it returns, in this process, or in a helper process where
    this one was started with TRITON_INTERPRET=1. The result is written to `cache` if given.
    """
    mask = source.promised_alignment if alignment is None else alignment
    key = (
        cache_key(source, target, mask, compiler_name())
        if cache is not None and not keep_ptx
        else None
    )
    future: Future[Binary] = Future()
    if cache is not None and key is not None and (found := cache.get(key)) is not None:
        future.set_result(found)
        return future
    # Here, so that a process that only loads cached binaries never imports Triton.
    from triton_rt import compiler

    if pool is None and not compiler.in_process():
        pool = _helper()
    if pool is not None:
        inner = pool.submit(source, target, mask, keep_ptx)
        if cache is None or key is None:
            return inner
        # A future of its own: whoever waits for it finds the entry written.
        inner.add_done_callback(functools.partial(_store_then_pass, cache, key, future))
        return future
    try:
        future.set_result(compiler.compile_here(source, target, mask, keep_ptx))
    except Exception as error:
        # Raised again by `result()`, as a pool's future would.
        future.set_exception(error)
    if cache is not None and key is not None:
        _store(cache, key, future)
    return future


def compile(
    source: KernelSource,
    target: Target | None = None,
    *,
    alignment: int | None = None,
    cache: Cache | None = None,
    pool: CompilePool | None = None,
    keep_ptx: bool = False,
) -> Binary:
    """Compiles a kernel for `target` (default: this machine's GPU); no GPU is needed otherwise.

    `alignment`: bit i says that parameter i (a pointer, or an integer) is divisible by 16; default
    is what the parameters promise by `aligned`. Raises `BadSource`, `CompileFailed`,
    `WorkerFailed`, `NoGPU`.
    """
    target = target or Target.current()
    return submit(
        source, target, alignment=alignment, cache=cache, pool=pool, keep_ptx=keep_ptx
    ).result()


def compile_many(
    sources: Sequence[KernelSource],
    target: Target | None = None,
    *,
    pool: CompilePool | None = None,
    cache: Cache | None = None,
) -> list[Binary]:
    """Binaries in the order of the sources; equal sources are compiled once. Raises the first
    error after all jobs have ended."""
    target = target or Target.current()
    unique = dict.fromkeys(sources)
    futures = {s: submit(s, target, cache=cache, pool=pool) for s in unique}
    for future in futures.values():
        future.exception()
    return [futures[s].result() for s in sources]


def _store(cache: Cache, key: str, future: Future[Binary]) -> None:
    if not future.cancelled() and future.exception() is None:
        cache.put(key, future.result())


def _store_then_pass(cache: Cache, key: str, outer: Future[Binary], inner: Future[Binary]) -> None:
    _store(cache, key, inner)
    error = inner.exception()
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(inner.result())


@functools.lru_cache(maxsize=1)
def _helper() -> CompilePool:
    return CompilePool(1)
