"""What a family takes besides one plain product."""

from dataclasses import dataclass

from gemm_templates.device import DeviceInfo


@dataclass(frozen=True)
class Abilities:
    """Declared by each family as `CAN`.

    since, until: the compute capabilities that its kernels are for, both inclusive.
    jagged: groups whose ends only the device knows (`Problem.jagged`).
    gate: two products and a gate (`Problem.gate`).
    prologues, block_scale: as of `Problem`. fp8: "" for none, "fast" for sums that stay in the
    tensor cores (`Problem.fast_accum`), "all" for these and for sums in f32.
    integers: operands of i8, whose sums are i32.
    shares_last: `Config.split_k` is for the tiles that fill no round alone.
    descriptors: "given" if the host makes its tensor descriptors (`Config.maps`), "made" if its
    kernels do, in memory that a launch brings; "" if it has none. gluon: kernels are Gluon's.
    vendor: the vendor's library has kernels like these, whose times predict the vendor's call.
    persistent: a program's next tile is loaded while the last one is stored, and `Config.programs`
    bounds how many programs a multiprocessor has, in the model of `dense`."""

    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (99, 0)
    jagged: bool = False
    gate: bool = False
    prologues: bool = False
    block_scale: bool = False
    fp8: str = ""
    integers: bool = False
    shares_last: bool = False
    descriptors: str = ""
    gluon: bool = False
    vendor: bool = False
    persistent: bool = False

    def runs_on(self, device: DeviceInfo) -> bool:
        """Whether a device has what the kernels are made of."""
        return self.since <= device.capability <= self.until


HOPPER = (9, 0)
