"""A kernel that is compiled when it is first needed, for the arguments it is first given."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from triton_rt.compiler import Binary, Cache, CompilePool, Target, submit
from triton_rt.launch.args import described, pack
from triton_rt.launch.dispatch import make_dispatcher
from triton_rt.launch.loading import Entry
from triton_rt.source import KernelSource

if TYPE_CHECKING:
    from triton_rt.interp import InterpretedKernel


@dataclass(eq=False, repr=False)
class LazyKernel:
    """`kernel(grid, *args)`: launches on CUDA tensors, interprets on CPU tensors.

    On CUDA, the variant is chosen by what the arguments of this call are: which pointers and
    integers are divisible by 16. A variant is compiled at its first call, or was started by
    `prefetch`; beyond `max_variants`, the one that assumes nothing takes what is new.
    `launch` is the same callable without a Python frame around it.

    Errors: `WrongArgumentCount`, `WrongArgumentType`, `WrongDType`, `WrongDevice`, `BadScalar`,
    `BadGrid`, and those of `compile`."""

    source: KernelSource
    _: KW_ONLY
    target: Target | None = None
    cache: Cache | None = None
    pool: CompilePool | None = None
    max_variants: int = 8

    def __post_init__(self) -> None:
        self._binaries: dict[tuple[int, int], Future[Binary]] = {}  # by (arch, alignment)
        self._entries: dict[tuple[Binary, int], Entry] = {}
        self._lock = threading.RLock()
        self._interpreted: InterpretedKernel | None = None
        self.launch: Callable[..., None] = make_dispatcher(
            self.source.name, self.source.params, self._resolve, self._interpret
        )

    def __call__(self, grid: Any, *args: Any) -> None:
        """One launch on torch's current stream. A zero in the grid launches nothing."""
        self.launch(grid, *args)

    def __repr__(self) -> str:
        return f"LazyKernel({self.source.name}, variants={len(self._binaries)})"

    def prefetch(
        self, target: Target | None = None, alignment: int | None = None
    ) -> Future[Binary]:
        """Starts to compile a variant (by default, the one that the `aligned` parameters promise);
        in the background if there is a pool. No GPU is needed if a target is named."""
        target = target or self.target or Target.current()
        mask = self.source.promised_alignment if alignment is None else alignment
        return self._variant(target, mask)

    def binary(self, target: Target | None = None, alignment: int | None = None) -> Binary:
        """The compiled variant; waits for it."""
        return self.prefetch(target, alignment).result()

    def provide(self, binary: Binary) -> None:
        """Takes a variant that was compiled before; it is not compiled here."""
        with self._lock:
            future: Future[Binary] = Future()
            future.set_result(binary)
            self._binaries[binary.target.arch, binary.alignment] = future

    def alignment(self, *args: Any) -> int:
        """The mask of actual arguments: bit i is set if argument i is divisible by 16."""
        return pack(self.source.name, self.source.params, 1, args).alignment

    def _variant(self, target: Target, alignment: int) -> Future[Binary]:
        with self._lock:
            key = (target.arch, alignment)
            future = self._binaries.get(key)
            if future is None or (future.done() and future.exception() is not None):
                future = self._binaries[key] = submit(
                    self.source, target, alignment=alignment, cache=self.cache, pool=self.pool
                )
            return future

    def _resolve(self, alignment: int, device: int) -> Entry:
        target = self.target or Target.current(device)
        known = [mask for arch, mask in self._binaries if arch == target.arch]
        if alignment not in known and len(known) >= self.max_variants:
            # The strongest of the known assumptions that hold; assuming nothing always does.
            fits = [m for m in known if m & ~alignment == 0]
            alignment = max(fits, key=int.bit_count, default=0)
        binary = self._variant(target, alignment).result()
        with self._lock:
            entry = self._entries.get((binary, device))
            if entry is None:
                entry = self._entries[binary, device] = Entry.load(binary, device)
            return entry

    def _interpret(self, grid: Any, *args: Any) -> None:
        packed = pack(self.source.name, self.source.params, grid, args)
        if self._interpreted is None:
            from triton_rt.interp import load_jit  # Triton and numpy, which a GPU does without

            self._interpreted = load_jit(self.source, interpret=True)
        args = described(self.source.params, args)
        self._interpreted.launch(packed.grid, (), self.source.bound(args))
