"""The entry point of a compile worker: jobs on stdin, answers on stdout, each length-prefixed."""

from __future__ import annotations

from collections.abc import Callable

from triton_rt.process import serve


def main() -> None:
    serve(_open)


def _open() -> Callable[[bytes], bytes]:
    from triton_rt import wire
    from triton_rt.compiler import compile_here
    from triton_rt.errors import CompileFailed, TritonRTError

    def handle(request: bytes) -> bytes:
        try:
            return wire.encode_binary(compile_here(*wire.decode_job(request)))
        except TritonRTError as error:
            return wire.encode_error(error)
        except Exception as error:
            # A worker outlives any one job; the asker gets the error as a failed compile.
            return wire.encode_error(CompileFailed(f"{type(error).__name__}: {error}"))

    return handle


if __name__ == "__main__":
    main()
