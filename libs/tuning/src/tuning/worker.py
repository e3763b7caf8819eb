"""The handler of a tuning worker's requests: builds a call's arguments, runs candidates on them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import triton_rt
from triton_rt import Binary, Kernel, KernelSource, LazyKernel
from triton_rt.errors import TritonRTError
from triton_rt.worker_process import decode, encode
from tuning.compare import compare
from tuning.portable import Rebuilt
from tuning.timer import Timer


def open_handler() -> Callable[[bytes], bytes]:
    """A function of one request."""
    state = State()

    def handle(request: bytes) -> bytes:
        record, blobs = decode(request)
        try:
            return encode({"ok": state.answer(record, blobs)})
        except TritonRTError as error:
            return encode(
                {"error": type(error).__name__, "message": str(error), "broken": broken()}
            )
        except Exception as error:
            # Whatever a candidate or its arguments raise here, the asker is told, and judges.
            kind = "OutOfMemory" if "OutOfMemory" in type(error).__name__ else "Other"
            message = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            return encode({"error": kind, "message": message, "broken": broken()})

    return handle


def broken() -> bool:
    """Whether the CUDA context of this process is lost, as it is after an illegal address."""
    if not initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:  # torch.AcceleratorError is one
        return True
    return False


def initialized() -> bool:
    """Whether this process has begun to use CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch's own


class State:
    """What a worker holds between messages: the arguments, and kernels by candidate."""

    def __init__(self) -> None:
        self.args: Any = None
        self.timer: Any = None
        self.kernels: dict[int, Callable[[], None]] = {}
        self.reference: list[Any] | None = None

    def answer(self, record: dict[str, Any], blobs: list[bytes]) -> Any:
        """The result of one request, by its `op`. Raises what the candidate does."""
        if record["op"] == "setup":
            return self.setup(record, blobs)
        if record["op"] == "measure":
            return self.measure(record, blobs)
        return self.release()

    def setup(self, record: dict[str, Any], blobs: list[bytes]) -> str:
        """Rebuilds a call's arguments, in place of those of the last one; where they are."""
        self.release()
        device = torch.device(record["device"])
        if device.type == "cuda":
            torch.cuda.set_device(device)
        else:
            triton_rt.load_jit  # noqa: B018 - imports the interpreter, not in a candidate's time
        self.args = Rebuilt(record["call"], blobs, device)
        if device.type == "cuda":
            self.timer = Timer(device, record["flush_bytes"])
        return str(device)

    def measure(self, record: dict[str, Any], blobs: list[bytes]) -> list[float]:
        """Milliseconds of each run of one candidate, loaded, run once and checked before the
        first."""
        index, mutated = record["index"], record["mutated"]
        cuda = self.timer is not None
        if index not in self.kernels:
            launch = self._load(record, blobs)
            self.args.restore()
            launch()
            if cuda:
                torch.cuda.synchronize()
            self.args.check(record["name"], record["params"], mutated)
            self._compare(record["name"], mutated)
            self.kernels[index] = launch
        launch = self.kernels[index]
        restore = self.args.restorer(mutated)
        if cuda:
            return list(self.timer.run(launch, restore, record["runs"]))
        times = []
        for _ in range(record["runs"]):
            restore()
            began = time.perf_counter()
            launch()
            times.append(1e3 * (time.perf_counter() - began))
        return times

    def release(self) -> str:
        """Gives all GPU memory but the context back."""
        if self.timer is not None:
            self.timer.close()
        self.args, self.timer, self.reference = None, None, None
        self.kernels.clear()
        if initialized():
            torch.cuda.empty_cache()
        return "released"

    def _load(self, record: dict[str, Any], blobs: list[bytes]) -> Callable[[], None]:
        grid = tuple(record["grid"])
        args = self.args.args
        kernel: Kernel | LazyKernel
        if blobs:
            kernel = Kernel(Binary.from_bytes(blobs[0]))
        else:
            kernel = LazyKernel(KernelSource.from_record(record["source"]))
        call = kernel.launch
        return lambda: call(grid, *args)

    def _compare(self, name: str, mutated: list[int]) -> None:
        views = [getattr(a, "base", a) for a in (self.args.args[i] for i in mutated)]
        if self.reference is None:
            self.reference = [v.clone() for v in views]
        else:
            compare(name, views, self.reference)
