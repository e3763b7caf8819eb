"""The handler of a compile worker's requests: jobs and answers as `messages` writes them."""

import importlib
from collections.abc import Callable

from triton_rt.compiler.messages import decode_job, encode_answer
from triton_rt.compiler.stages import compile_here
from triton_rt.errors import CompileFailed, TritonRTError
from triton_rt.source import KernelSource


def open_handler() -> Callable[[bytes], bytes]:
    """A function of one request."""

    def handle(request: bytes) -> bytes:
        importlib.invalidate_caches()  # modules may be newer than the last job
        try:
            asked, fingerprint = decode_job(request)
            known = not fingerprint or _has(asked[0], fingerprint)
            return encode_answer(compile_here(*asked) if known else None)
        except TritonRTError as error:
            return encode_answer(error)
        except Exception as error:
            # A worker outlives any one job; the asker gets the error as a failed compile.
            return encode_answer(CompileFailed(f"{type(error).__name__}: {error}"))

    return handle


def _has(source: KernelSource, fingerprint: str) -> bool:
    """Whether the kernel, and all that it reaches, is here what it is where it was asked for."""
    try:
        return source.fingerprint == fingerprint
    except Exception:
        # Importing the user's modules runs their code: whatever it raises, it is not what is there.
        return False
