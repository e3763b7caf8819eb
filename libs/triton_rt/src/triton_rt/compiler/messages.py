"""Messages between a process and its compile workers: JSON and raw bytes, no pickle."""

from triton_rt import errors
from triton_rt.compiler.binary import Binary
from triton_rt.compiler.target import Target
from triton_rt.source import KernelSource
from triton_rt.worker_process import decode, encode

#: What is compiled: the source, the target, the alignment of arguments, and whether PTX is kept.
Asked = tuple[KernelSource, Target, int | None, bool]


def encode_job(asked: Asked, fingerprint: str = "") -> bytes:
    """`fingerprint`: what `KernelSource.fingerprint` must be in the worker too, if given."""
    source, target, *rest = asked
    return encode({"source": source.to_record(), "rest": [fingerprint, target.arch, *rest]})


def decode_job(data: bytes) -> tuple[Asked, str]:
    """Inverse of `encode_job`."""
    record, _ = decode(data)
    fingerprint, arch, alignment, keep_ptx = record["rest"]
    return (
        KernelSource.from_record(record["source"]),
        Target(arch),
        alignment,
        keep_ptx,
    ), fingerprint


def encode_answer(result: Binary | errors.TritonRTError | None) -> bytes:
    """None: the worker has other text of the kernel, or of what it calls, than the asker."""
    if isinstance(result, errors.TritonRTError):
        return encode({"error": type(result).__name__, "message": str(result)})
    return encode({}, [] if result is None else [result.to_bytes()])


def decode_answer(data: bytes) -> Binary | None:
    """Inverse of `encode_answer`; raises the error that the worker had, by its class."""
    record, blobs = decode(data)
    if "error" in record:
        raise getattr(errors, record["error"], errors.CompileFailed)(record["message"])
    return Binary.from_bytes(blobs[0]) if blobs else None
