"""`compile`: through the cache, in this process or in a pool."""

import functools
import importlib.metadata
import types
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from triton_rt.compiler.binary import Binary
from triton_rt.compiler.cache import Cache, cache_key
from triton_rt.compiler.one_build_at_a_time import Claim, Flights, follow
from triton_rt.compiler.pool import CompilePool, shared_pool
from triton_rt.compiler.target import Target
from triton_rt.errors import BadSource
from triton_rt.source import Constant, KernelSource


@functools.cache
def compiler_name() -> str:
    """The compiler that decides the code, with its version; found without importing it."""
    return f"triton {importlib.metadata.version('triton')}"


#: Of the whole process, so that graphs compiled side by side share their kernels.
_FLIGHTS = Flights()
_FLIGHTS.at_forks()


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
    this one was started with TRITON_INTERPRET=1. The result is written to `cache` if given. The
    same job asked for by several threads is done once; by several processes that share the cache,
    once too."""
    mask = source.promised_alignment if alignment is None else alignment
    key = (
        cache_key(source, target, mask, compiler_name())
        if cache is not None and not keep_ptx
        else None
    )
    if cache is not None and key is not None and (found := cache.get(key)) is not None:
        future: Future[Binary] = Future()
        future.set_result(found)
        return future
    if pool is None and not _stages().in_process():
        pool = shared_pool(1)
    place = None if cache is None else str(cache.path)
    flight = (source, target, mask, keep_ptx, place, id(pool))
    shared, ours = _FLIGHTS.join(flight)
    if not ours:
        return follow(shared)
    claim = None if cache is None or key is None else Claim(cache, key)
    try:
        if pool is None:
            make = functools.partial(_stages().compile_here, source, target, mask, keep_ptx)
            _FLIGHTS.land(flight, make() if claim is None else claim.build(make))
            return shared
        inner = pool.submit(
            source, target, mask, keep_ptx, claim=claim, fingerprint=_fingerprint(source)
        )
    except BaseException as error:
        # Whoever else waits for this flight gets the same error; ours is raised by the future
        # too, unless it is one of the call (a closed pool), or an interrupt.
        _FLIGHTS.land(flight, error)
        if pool is not None or not isinstance(error, Exception):
            raise
        return shared
    inner.add_done_callback(functools.partial(_land, flight))
    return follow(shared)


def _stages() -> types.ModuleType:
    """What compiles in this process: one that leaves it to workers never imports Triton."""
    from triton_rt.compiler import stages

    return stages


def _fingerprint(source: KernelSource) -> str:
    """As this process sees the source; nothing where that fails, which the worker will say."""
    try:
        return source.fingerprint
    except (BadSource, OSError):
        return ""


def _land(flight: Any, inner: Future[Binary]) -> None:
    _FLIGHTS.land(flight, inner.exception() or inner.result())


def compile(
    source: KernelSource | Any,
    target: Target | None = None,
    *,
    signature: Mapping[str, str] | None = None,
    constants: Mapping[str, Constant] | None = None,
    alignment: int | None = None,
    cache: Cache | None = None,
    pool: CompilePool | None = None,
    keep_ptx: bool = False,
    **options: Any,
) -> Binary:
    """Compiles a kernel for `target` (default: this machine's GPU); no GPU is needed otherwise.

    `source` may be a `@triton.jit` function, with `signature`, `constants` and `options` as
    `KernelSource.from_jit` takes them. `alignment`: bit i says that parameter i (a pointer, or an
    integer) is divisible by 16; default is what the parameters promise by `aligned`. Raises
    `BadSource`, `CompileFailed`, `WorkerFailed`, `NoGPU`."""
    if not isinstance(source, KernelSource):
        source = KernelSource.from_jit(source, signature or {}, constants, **options)
    elif signature is not None or constants is not None or options:
        raise BadSource(
            f"{source.name} is a KernelSource, which has a signature, constants and options of its "
            "own: give them there (dataclasses.replace)"
        )
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
