"""Arguments of a call as data, and the same call rebuilt in another process.

What is kept is what a kernel can see: values of scalars; of tensors, sizes, strides, which bytes
they share, the address modulo 256, and contents: saved, or for floating-point data a seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from triton_rt import KernelParam, TensorMap, flatten
from triton_rt.element_types import kind_of, torch_dtype
from tuning.errors import CorruptedMemory, UnportableArgument
from tuning.saved import extent, spans

Values = Literal["seeded", "saved"]

#: Bytes before and after each tensor that no kernel may change, and what they hold.
_GUARD, _PATTERN = 4096, 0xA5
_ALIGN = 256


def describe(
    params: Sequence[KernelParam], args: Sequence[Any], values: Values = "seeded"
) -> tuple[dict[str, Any], list[bytes]]:
    """A record of the arguments, and the bytes that it refers to.

    Integers and booleans are always saved: they may be indices. Raises `UnportableArgument`."""
    args = flatten(args)
    bases = [a.base if isinstance(a, TensorMap) else a for a in args]
    tensors = [a for a in bases if isinstance(a, torch.Tensor)]
    found = spans(tensors)
    regions: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for number, span in enumerate(found):
        inside = [t for t in tensors if _inside(t, span.base, span.start, span.end)]
        region: dict[str, Any] = {
            "bytes": span.bytes,
            "residue": (span.base + span.start) % _ALIGN,
            "dtype": kind_of(inside[0].dtype),
            "seed": number,
        }
        if values == "saved" or not all(t.dtype.is_floating_point for t in inside):
            region["blob"] = len(blobs)
            blobs.append(span.view().cpu().numpy().tobytes())
        regions.append(region)
    described: list[dict[str, Any]] = []
    for param, given, arg in zip(params, args, bases, strict=True):
        if isinstance(arg, torch.Tensor):
            start, _ = extent(arg)
            base = arg.untyped_storage().data_ptr()
            region_of = [
                i
                for i, s in enumerate(found)
                if _inside(arg, s.base, s.start, s.end) and s.base == base
            ]
            described.append(
                {
                    "shape": [int(n) for n in arg.shape],
                    "stride": [int(n) for n in arg.stride()],
                    "dtype": kind_of(arg.dtype),
                    "region": region_of[0] if region_of else None,
                    "offset": start - found[region_of[0]].start if region_of else 0,
                    "map": _map_record(given),
                }
            )
        elif isinstance(arg, bool):
            described.append({"bool": arg})
        elif hasattr(arg, "__index__"):
            described.append({"int": arg.__index__()})
        elif isinstance(arg, float):
            described.append({"float": arg.hex()})
        else:
            raise UnportableArgument(
                f"{param.name} is a {type(arg).__name__}: workers take tensors, tensor maps of "
                "tensors, and numbers; tune this kernel in process (no pool)"
            )
    return {"regions": regions, "args": described}, blobs


def _map_record(arg: Any) -> dict[str, Any] | None:
    if not isinstance(arg, TensorMap):
        return None
    return {
        name: getattr(arg, name) for name in ("block", "shape", "strides", "padding", "swizzle")
    }


def _inside(tensor: torch.Tensor, base: int, start: int, end: int) -> bool:
    if tensor.untyped_storage().data_ptr() != base:
        return False
    low, high = extent(tensor)
    return low < high and start <= low and high <= end


@dataclass
class Region:
    """A guarded piece of memory: `whole` is guard, content, guard; `first` its first content."""

    whole: torch.Tensor
    start: int
    end: int
    first: torch.Tensor

    @property
    def content(self) -> torch.Tensor:
        """The bytes between the guards."""
        return self.whole[self.start : self.end]


class Rebuilt:
    """The arguments, recreated on `device` with guard zones around each piece of memory."""

    def __init__(
        self, record: dict[str, Any], blobs: Sequence[bytes], device: torch.device
    ) -> None:
        self.regions = [_region(r, blobs, device) for r in record["regions"]]
        self.args: list[Any] = []
        self.region_of: list[int | None] = []
        for arg in record["args"]:
            self.region_of.append(arg.get("region"))
            self.args.append(self._argument(arg, device))

    def _argument(self, arg: dict[str, Any], device: torch.device) -> Any:
        if "shape" not in arg:
            name, value = next(iter(arg.items()))
            return float.fromhex(value) if name == "float" else value
        empty = torch.empty(0, dtype=torch_dtype(arg["dtype"]), device=device)
        if arg["map"] is not None:
            return TensorMap(self._argument({**arg, "map": None}, device), **arg["map"])
        if arg["region"] is None:
            return empty.new_empty(arg["shape"])
        region = self.regions[arg["region"]]
        at = region.whole.storage_offset() + region.start + arg["offset"]
        return empty.set_(
            region.whole.untyped_storage(), at // empty.element_size(), arg["shape"], arg["stride"]
        )

    def restore(self) -> None:
        """First contents, and intact guards, everywhere."""
        for region in self.regions:
            region.whole.fill_(_PATTERN)
            region.content.copy_(region.first)

    def restorer(self, mutated: Sequence[int]) -> Callable[[], None]:
        """A function that puts back what arguments `mutated` hold."""
        regions = [self.regions[i] for i in self._regions(mutated)]

        def restore() -> None:
            for region in regions:
                region.content.copy_(region.first)

        return restore

    def check(self, name: str, params: Sequence[str], mutated: Sequence[int]) -> None:
        """Raises `CorruptedMemory` where a kernel wrote what it may not write."""
        writable = self._regions(mutated)
        for number, region in enumerate(self.regions):
            owners = [p for p, r in zip(params, self.region_of, strict=True) if r == number]
            guards = (
                ("before", region.whole[: region.start]),
                ("after", region.whole[region.end :]),
            )
            for side, guard in guards:
                count = int((guard != _PATTERN).sum())
                if count:
                    raise CorruptedMemory(
                        f"{name}: wrote {count} bytes {side} the memory of {', '.join(owners)}"
                    )
            if number not in writable and not bool((region.content == region.first).all()):
                raise CorruptedMemory(
                    f"{name}: wrote to {', '.join(owners)}, which is not declared mutated"
                )

    def _regions(self, arguments: Sequence[int]) -> set[int]:
        return {r for i in arguments if (r := self.region_of[i]) is not None}


def _region(record: dict[str, Any], blobs: Sequence[bytes], device: torch.device) -> Region:
    size = record["bytes"]
    raw = torch.empty(size + 2 * _GUARD + 2 * _ALIGN, dtype=torch.uint8, device=device)
    start = (-raw.data_ptr()) % _ALIGN + _GUARD + record["residue"]
    whole = raw[start - _GUARD : start + size + _GUARD]
    whole.fill_(_PATTERN)
    if "blob" in record:
        host = torch.frombuffer(bytearray(blobs[record["blob"]]), dtype=torch.uint8)
        first = host.to(device)
    else:
        dtype = torch_dtype(record["dtype"])
        generator = torch.Generator(device).manual_seed(record["seed"])
        # Float8 has no generator of its own: drawn wider, then rounded.
        width = torch.empty(0, dtype=dtype).element_size()
        wide = torch.float64 if width == 8 else torch.float32
        drawn = torch.randn(-(-size // width), dtype=wide, device=device, generator=generator)
        first = drawn.to(dtype).view(torch.uint8)[:size]
    region = Region(whole, _GUARD, _GUARD + size, first)
    region.content.copy_(first)
    return region
