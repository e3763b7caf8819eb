"""Messages between a process and its compile workers: JSON and raw bytes, no pickle."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any

from triton_rt import errors
from triton_rt.binary import Binary
from triton_rt.source import KernelParam, KernelSource, Ref
from triton_rt.target import Target

_PLAIN = (
    "name", "text", "num_warps", "num_stages", "num_ctas", "tma", "cooperative", "pdl",
    "max_registers",
)  # fmt: skip
_TAG = struct.Struct("<B")
_OK, _ERROR, _STALE = 0, 1, 2


def source_to_record(source: KernelSource) -> dict[str, Any]:
    """Plain JSON; floats keep every bit (`float.hex`), `Ref`s are tagged."""
    record: dict[str, Any] = {f: getattr(source, f) for f in _PLAIN}
    record["params"] = [asdict(p) for p in source.params]
    record["constants"] = [[name, _tag(value)] for name, value in source.constants]
    return record


def source_from_record(record: dict[str, Any]) -> KernelSource:
    """Inverse of `source_to_record`."""
    return KernelSource(
        **{f: record[f] for f in _PLAIN},
        params=tuple(KernelParam(**p) for p in record["params"]),
        constants=tuple((name, _untag(value)) for name, value in record["constants"]),
    )


def _tag(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.path}
    if isinstance(value, float):
        return {"float": value.hex()}
    return value


def _untag(value: Any) -> Any:
    if isinstance(value, dict):
        return Ref(value["ref"]) if "ref" in value else float.fromhex(value["float"])
    return value


def encode_job(
    source: KernelSource,
    target: Target,
    alignment: int | None,
    keep_ptx: bool,
    fingerprint: str = "",
) -> bytes:
    """`fingerprint`: what `KernelSource.fingerprint` must be in the worker too, if given."""
    record = {
        "source": source_to_record(source),
        "arch": target.arch,
        "alignment": alignment,
        "keep_ptx": keep_ptx,
        "fingerprint": fingerprint,
    }
    return json.dumps(record).encode()


def decode_job(data: bytes) -> tuple[KernelSource, Target, int | None, bool, str]:
    record = json.loads(data)
    source = source_from_record(record["source"])
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
