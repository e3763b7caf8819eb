"""A compiled kernel as bytes: loading needs the CUDA driver, and neither Triton nor pickle."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import asdict, dataclass, fields
from typing import Any

from triton_rt.compiler.target import Target
from triton_rt.errors import BadBinary, BadSource, UnknownTarget
from triton_rt.source import KernelParam
from triton_rt.tma import MapLayout

#: Raised whenever the record, what the launcher makes of it, or what is made of the same source
#: changes meaning.
FORMAT_VERSION = 3

_MAGIC = b"TRTRTBIN"
_HEAD = struct.Struct("<8sIIQQ")  # magic, version, header bytes, cubin bytes, ptx bytes


@dataclass(frozen=True)
class Binary:
    """A cubin, and all that a launch has to know of it.

    `params` are the launch arguments in order; after them the kernel takes two pointers, global
    scratch and profile scratch (null where the sizes are 0, in bytes per program otherwise).
    `alignment`: bit i is set if parameter i was assumed divisible by 16. `tensor_maps`: the layout
    of each descriptor parameter, in order; empty where the kernel takes them without TMA."""

    name: str
    target: Target
    params: tuple[KernelParam, ...]
    alignment: int
    num_warps: int
    num_ctas: int
    shared_bytes: int
    global_scratch_bytes: int
    global_scratch_align: int
    profile_scratch_bytes: int
    profile_scratch_align: int
    cooperative: bool
    pdl: bool
    compiler: str
    cubin: bytes
    ptx: str = ""
    tensor_maps: tuple[MapLayout, ...] = ()

    @property
    def key(self) -> str:
        """sha256 of the cubin: the same code has the same key wherever it was built."""
        return hashlib.sha256(self.cubin).hexdigest()

    def to_bytes(self) -> bytes:
        """A self-contained record with a checksum; `from_bytes` is its inverse."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        cubin, ptx = record.pop("cubin"), record.pop("ptx").encode()
        record["target"] = self.target.arch
        record["params"] = [asdict(p) for p in self.params]
        record["tensor_maps"] = [m.to_record() for m in self.tensor_maps]
        header = json.dumps(record, sort_keys=True).encode()
        head = _HEAD.pack(_MAGIC, FORMAT_VERSION, len(header), len(cubin), len(ptx))
        body: bytes = head + header + cubin + ptx
        return body + hashlib.sha256(body).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Binary:
        """Raises `BadBinary`, saying what is missing or wrong."""
        if len(data) < _HEAD.size + 32:
            raise BadBinary(f"{len(data)} bytes are too few for a kernel binary: truncated?")
        magic, version, header_size, cubin_size, ptx_size = _HEAD.unpack_from(data)
        if magic != _MAGIC:
            raise BadBinary(f"not a kernel binary: starts with {data[:8]!r}, expected {_MAGIC!r}")
        if version != FORMAT_VERSION:
            raise BadBinary(
                f"format version {version}; this library reads {FORMAT_VERSION}: compile it again"
            )
        body, checksum = data[:-32], data[-32:]
        if len(body) != _HEAD.size + header_size + cubin_size + ptx_size:
            raise BadBinary("the length differs from what its header says: truncated?")
        if hashlib.sha256(body).digest() != checksum:
            raise BadBinary("the checksum differs: the bytes were damaged")
        at = _HEAD.size
        record = json.loads(body[at : at + header_size])
        at += header_size
        return cls._from_record(
            record, body[at : at + cubin_size], body[at + cubin_size :].decode()
        )

    @classmethod
    def _from_record(cls, record: dict[str, Any], cubin: bytes, ptx: str) -> Binary:
        expected = {f.name for f in fields(cls)} - {"cubin", "ptx"}
        missing = sorted(expected - record.keys())
        if missing:
            raise BadBinary(f"the record lacks {', '.join(missing)}")
        known = {k: v for k, v in record.items() if k in expected}
        try:
            known["target"] = Target(known["target"])
            known["params"] = tuple(KernelParam(**p) for p in known["params"])
            known["tensor_maps"] = tuple(map(MapLayout.from_record, known["tensor_maps"]))
        except (TypeError, KeyError, BadSource, UnknownTarget) as error:
            raise BadBinary(
                f"the record's params, target or tensor maps are wrong: {error}"
            ) from None
        return cls(**known, cubin=cubin, ptx=ptx)
