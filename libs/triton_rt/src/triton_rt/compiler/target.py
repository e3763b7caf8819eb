"""What a kernel is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from triton_rt.driver import open_driver
from triton_rt.errors import NoGPU, UnknownTarget

ARCHITECTURES = (75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)


@dataclass(frozen=True)
class Target:
    """A CUDA architecture: `arch` is ten times the compute capability (80, 90, 100). Raises
    `UnknownTarget` for one that Triton does not compile for."""

    arch: int = 90

    def __post_init__(self) -> None:
        if self.arch not in ARCHITECTURES:  # LLVM ends the process that asks it for another
            known = ", ".join(map(str, ARCHITECTURES))
            raise UnknownTarget(f"no target sm_{self.arch}; Triton compiles for {known}")

    @classmethod
    def current(cls, device: int | None = None) -> Target:
        """The architecture of a GPU of this machine. Raises `NoGPU` where there is none, or its
        kinds `DriverMissing` and `DriverTooOld`."""
        import torch

        if not torch.cuda.is_available():
            open_driver()  # says more, if it is the driver that is missing or old
            raise NoGPU("Target.current() needs a CUDA GPU; name a target, such as Target(90)")
        major, minor = torch.cuda.get_device_capability(device)
        return cls(major * 10 + minor)

    def runs_on(self, capability: int) -> bool:
        """Whether a cubin for this target loads on a GPU of that compute capability times ten.

        Triton compiles for `sm_90a` and `sm_100a` from Hopper on: such code runs on exactly that
        architecture; earlier ones run on later minors of their major too (CUDA C++ programming
        guide, "Application compatibility")."""
        if self.arch >= 90:
            return self.arch == capability
        return self.arch // 10 == capability // 10 and self.arch <= capability

    def __str__(self) -> str:
        return f"sm_{self.arch}"
