"""The entry point of a compile worker: jobs on stdin, answers on stdout, each length-prefixed."""

from __future__ import annotations

import os
import struct
import sys

_LENGTH = struct.Struct("<Q")


def main() -> None:
    # Compilers and kernels may print: only answers go to the pipe, all else to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs = sys.stdin.buffer

    from triton_rt import wire
    from triton_rt.compiler import compile_here
    from triton_rt.errors import CompileFailed, TritonRTError

    while len(head := jobs.read(_LENGTH.size)) == _LENGTH.size:
        request = jobs.read(_LENGTH.unpack(head)[0])
        try:
            answer = wire.encode_binary(compile_here(*wire.decode_job(request)))
        except TritonRTError as error:
            answer = wire.encode_error(error)
        except Exception as error:
            # A worker outlives any one job; the asker gets the error as a failed compile.
            answer = wire.encode_error(CompileFailed(f"{type(error).__name__}: {error}"))
        answers.write(_LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    main()
