"""A worker process of ours: one request at a time over pipes, each message length-prefixed."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any

_LENGTH = struct.Struct("<Q")
_HEAD = struct.Struct("<I")


class Died(Exception):
    """A worker closed its pipe."""


class Hung(Died):
    """A worker did not answer in time."""


class WorkerProcess:
    """One `python -m triton_rt.worker module`, one request at a time (see `serve`)."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        # Unbuffered: a forked child that closes its copies of the pipes has nothing to flush.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "triton_rt.worker", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.environment,
            bufsize=0,
        )

    def ask(self, request: bytes, timeout: float) -> bytes:
        """The answer. Raises `Died` or `Hung`; the worker is then good for `stop` only."""
        assert self.process.stdin is not None and self.process.stdout is not None
        deadline = time.monotonic() + timeout
        try:
            rest = memoryview(_LENGTH.pack(len(request)) + request)
            while rest:
                rest = rest[self.process.stdin.write(rest) :]
        except OSError as error:
            raise Died(f"its input is closed ({error}), exit code {self._exit_code()}") from None
        size = _LENGTH.unpack(self._read(self.process.stdout, _LENGTH.size, deadline))[0]
        return self._read(self.process.stdout, size, deadline)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def let_go(self) -> None:
        """In a forked child: closes its copies of the pipes; the process is the parent's."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.returncode = 0  # not ours to wait for

    def stop(self) -> None:
        """SIGKILL, and the end of the pipes."""
        self.process.kill()
        # A process inside of a driver call dies when that returns: the kernel reaps it later.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30.0)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self, pipe: IO[bytes], count: int, deadline: float) -> bytes:
        chunks: list[bytes] = []
        with DefaultSelector() as selector:
            selector.register(pipe, EVENT_READ)
            while count:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Hung("it did not answer in time")
                chunk = pipe.read(count)  # unbuffered: what is there
                if not chunk:
                    raise Died(f"it exited with code {self._exit_code()}")
                chunks.append(chunk)
                count -= len(chunk)
        return b"".join(chunks)

    def _exit_code(self) -> int | None:
        try:
            return self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None


def serve(open_handler: Callable[[], Callable[[bytes], bytes]], starter: int) -> None:
    """The worker's side: answers requests until stdin ends, or the process `starter` does.

    Compilers and kernels may print: only answers go to the pipe, all else to stderr, also what
    is printed while `open_handler` imports."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests = sys.stdin.buffer
    threading.Thread(target=_follow, args=(starter,), daemon=True).start()
    handle = open_handler()
    while len(head := requests.read(_LENGTH.size)) == _LENGTH.size:
        answer = handle(requests.read(_LENGTH.unpack(head)[0]))
        answers.write(_LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _follow(starter: int) -> None:
    """Ends this process with the one that started it, even while a job does not return; also where
    that is gone already. (The parent may be another: a wrapper of the interpreter.)"""
    parent = os.getppid()
    with contextlib.suppress(OSError):
        while os.getppid() == parent:
            os.kill(starter, 0)
            time.sleep(1.0)
    os._exit(1)


def encode(record: dict[str, Any], blobs: Sequence[bytes] = ()) -> bytes:
    """One message: JSON, then raw bytes."""
    head = json.dumps({**record, "blobs": [len(b) for b in blobs]}).encode()
    return b"".join([_HEAD.pack(len(head)), head, *blobs])


def decode(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Inverse of `encode`."""
    size = _HEAD.unpack_from(data)[0]
    at = _HEAD.size + size
    record = json.loads(data[_HEAD.size : at])
    blobs = []
    for length in record.pop("blobs"):
        blobs.append(data[at : at + length])
        at += length
    return record, blobs
