"""A compiled kernel, ready to launch."""

from typing import Any

from triton_rt.compiler import Binary
from triton_rt.errors import MisalignedArgument, WrongDevice
from triton_rt.launch.dispatch import Dispatch, make_dispatcher
from triton_rt.launch.loading import Entry


class Kernel:
    """`Kernel(binary)(grid, *args)`: loads the cubin on a device at the first launch there.

    One binary has one set of alignment assumptions: arguments that break it raise
    `MisalignedArgument`. `launch` is the same callable without a Python frame around it."""

    def __init__(self, binary: Binary) -> None:
        self.binary = binary
        self._entries: dict[int, Entry] = {}  # by device
        self.launch: Dispatch = make_dispatcher(
            binary.name, binary.params, self._resolve, self._on_cpu
        )

    def __call__(self, grid: Any, *args: Any) -> None:
        """Launches on torch's current stream of the arguments' device; returns at once."""
        self.launch(grid, *args)

    def load(self, device: int = 0) -> Entry:
        """Loads the cubin on a device now, and not at the first launch; returns what was loaded."""
        entry = self._entries.get(device)
        if entry is None:
            entry = self._entries[device] = Entry.load(self.binary, device)
        return entry

    def unload(self) -> None:
        """Frees the code on every device, after waiting for the work queued there.

        The next launch loads it again. CUDA graphs that captured this kernel must not be replayed
        any more: they hold the code by its address."""
        self.launch.clear()
        while self._entries:
            self._entries.popitem()[1].unload()

    def _resolve(self, alignment: int, device: int) -> Entry:
        broken = self.binary.alignment & ~alignment
        if broken:
            names = [p.name for i, p in enumerate(self.binary.params) if broken >> i & 1]
            raise MisalignedArgument(
                f"{self.binary.name} was compiled for {', '.join(names)} divisible by 16, which "
                "these arguments are not: launch a LazyKernel, or compile with alignment=0"
            )
        return self.load(device)

    def _on_cpu(self, grid: Any, *args: Any) -> None:
        raise WrongDevice(
            f"{self.binary.name} is a compiled kernel for {self.binary.target}, its arguments are "
            "on the CPU; a LazyKernel interprets its source there"
        )
