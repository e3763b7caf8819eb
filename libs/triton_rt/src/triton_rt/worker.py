"""The entry point of a compile worker: jobs on stdin, answers on stdout, each length-prefixed."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from triton_rt.process import serve

if TYPE_CHECKING:
    from triton_rt.source import KernelSource


def main() -> None:
    serve(_open)


def _open() -> Callable[[bytes], bytes]:
    # An interrupt of the terminal is for the process that asks, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from triton_rt import wire
    from triton_rt.compiler import compile_here
    from triton_rt.errors import CompileFailed, TritonRTError

    def handle(request: bytes) -> bytes:
        importlib.invalidate_caches()  # modules may be newer than the last job
        try:
            source, target, alignment, keep_ptx, fingerprint = wire.decode_job(request)
            if fingerprint and not _has(source, fingerprint):
                return wire.encode_stale()
            return wire.encode_binary(compile_here(source, target, alignment, keep_ptx))
        except TritonRTError as error:
            return wire.encode_error(error)
        except Exception as error:
            # A worker outlives any one job; the asker gets the error as a failed compile.
            return wire.encode_error(CompileFailed(f"{type(error).__name__}: {error}"))

    return handle


def _has(source: KernelSource, fingerprint: str) -> bool:
    """Whether the kernel, and all that it reaches, is here what it is where it was asked for."""
    try:
        return source.fingerprint == fingerprint
    except Exception:
        # Importing the user's modules runs their code: whatever it raises, it is not what is there.
        return False


if __name__ == "__main__":
    main()
