"""Messages between a process and its compile workers: JSON and raw bytes, no pickle."""

from __future__ import annotations

import json
import struct

from triton_rt import errors
from triton_rt.compiler.binary import Binary
from triton_rt.compiler.target import Target
from triton_rt.source import KernelSource

_TAG = struct.Struct("<B")
_OK, _ERROR, _STALE = 0, 1, 2


def encode_job(
    source: KernelSource,
    target: Target,
    alignment: int | None,
    keep_ptx: bool,
    fingerprint: str = "",
) -> bytes:
    """`fingerprint`: what `KernelSource.fingerprint` must be in the worker too, if given."""
    record = {
        "source": source.to_record(),
        "arch": target.arch,
        "alignment": alignment,
        "keep_ptx": keep_ptx,
        "fingerprint": fingerprint,
    }
    return json.dumps(record).encode()


def decode_job(data: bytes) -> tuple[KernelSource, Target, int | None, bool, str]:
    record = json.loads(data)
    source = KernelSource.from_record(record["source"])
    target = Target(record["arch"])
    return source, target, record["alignment"], record["keep_ptx"], record["fingerprint"]


def encode_binary(binary: Binary) -> bytes:
    return _TAG.pack(_OK) + binary.to_bytes()


def encode_error(error: errors.TritonRTError) -> bytes:
    return _TAG.pack(_ERROR) + json.dumps([type(error).__name__, str(error)]).encode()


def encode_stale() -> bytes:
    """The worker has other text of the kernel, or of what it calls, than the asker."""
    return _TAG.pack(_STALE)


def is_stale(answer: bytes) -> bool:
    return answer[0] == _STALE


def decode_answer(data: bytes) -> Binary:
    """The binary, or raises the error that the worker had, by its class."""
    if data[0] == _OK:
        return Binary.from_bytes(data[1:])
    name, message = json.loads(data[1:])
    kind = getattr(errors, name, errors.CompileFailed)
    raise kind(message)
