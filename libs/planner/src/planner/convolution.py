"""Whether a graph's convolutions run faster on channels-last tensors, by measurement.

53 convolutions of 23 kinds: 1520.3 us as given; channels last 1104.8 us, and at most
178.2 us for 55 copies -> channels last
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

import gemm_templates
from aten_lowering.passes.channels_last import Convolution, Rewrite, channels_last, lines_as_planes
from planner.settings import Settings
from planner.torch_compat import unset_fake_temporarily
from tuning import MARGINS, added_seconds

# What a copy costs beside the bytes that it moves, in seconds: a launch. An upper bound: most are
# made together with what comes before them.
LAUNCH = 2e-6
# Of the time of a copy: what it costs more to write a result in another order than it is read in.
_FUSED = 0.25
# Of each way to fill the cache, as many rounds: it is sums of times that are compared.
_ROUNDS = 5
# Kinds are left out once so many, of this share of the bytes, were measured, and one side is ahead
# by that.
_SOME = 3
_MOST = 0.6
_CLEAR = 0.15
aten = torch.ops.aten


@dataclass(frozen=True)
class Comparison:
    """Seconds of all convolutions as they are given and channels-last, and of the copies that the
    latter need. Where nothing can be measured, `missing` says why. measured: how many kinds were;
    the others are taken to be like these, by the bytes that they read."""

    calls: int
    kinds: int
    copies: int
    given: float = 0.0
    last: float = 0.0
    copying: float = 0.0
    missing: str = ""
    measured: int = 0

    @property
    def is_clear(self) -> bool:
        """Whether one side is so far ahead that what was not measured would not change it."""
        last = self.last + self.copying
        return last < (1 - _CLEAR) * self.given or self.given < (1 - _CLEAR) * last

    @property
    def pays(self) -> bool:
        """Whether channels-last, its copies included, is faster by more than noise."""
        return (
            not self.missing and self.last + self.copying < (1 - MARGINS.convolutions) * self.given
        )

    def __str__(self) -> str:
        start = f"{self.calls} convolutions of {self.kinds} kinds: "
        if self.missing:
            return f"{start}as given ({self.missing})"
        some = f"({self.measured} measured) " if self.measured < self.kinds else ""
        return (
            f"{start}{some}{self.given * 1e6:.1f} us as given; "
            f"channels last {self.last * 1e6:.1f} us, and at most "
            f"{self.copying * 1e6:.1f} us for {self.copies} copies -> "
            f"{'channels last' if self.pays else 'as given'}"
        )


class ChannelsLast:
    """The pass `channels_last`, where the options ask for it or it is found to pay. decide: gives
    what a comparison finds, or found in another process."""

    name = "channels_last"

    def __init__(self, options: Settings) -> None:
        self.options = options
        self.comparison: Comparison | None = None
        self.decide: Callable[[Callable[[], Comparison]], Comparison] = lambda make: make()

    def run(self, graph: fx.Graph) -> fx.Graph:
        """The same graph, rewritten where that pays."""
        lines_as_planes(graph)
        channels_last(graph, self._pays)
        return graph

    def _pays(self, rewrite: Rewrite) -> bool:
        if self.options.channels_last == "on":
            return True
        all_kinds = self.options.tune == "max"
        self.comparison = self.decide(lambda: compare(rewrite, self.store, all_kinds))
        return self.comparison.pays

    @cached_property
    def store(self) -> gemm_templates.Store:
        """Times on disk."""
        return gemm_templates.Store(self.options.cache_path / "convolutions")

    def explain(self) -> str:
        """What was measured, and what came of it; empty where nothing was asked."""
        return str(self.comparison or "")


def compare(rewrite: Rewrite, store: gemm_templates.Store, all_kinds: bool = False) -> Comparison:
    """Each kind of convolution is measured once, and its times kept in `store`: those that read
    most first, until it is clear what comes of it. all_kinds: measure all."""
    calls, copies = len(rewrite.convolutions), len(rewrite.copies)
    if any(size.node.hint is None for size in _dynamic(rewrite)):
        return Comparison(calls, calls, copies, missing="a size that nothing is known of")
    kinds: dict[str, list[Convolution]] = {}
    for one in rewrite.convolutions:
        kinds.setdefault(_kind(one), []).append(one)
    device = rewrite.convolutions[0].given[0].device
    compared = Comparison(calls, len(kinds), copies)
    if not _measurable(device):
        return replace(compared, missing="no GPU to measure on")
    if torch.are_deterministic_algorithms_enabled():
        return replace(compared, missing="nothing is measured for deterministic algorithms")
    info = gemm_templates.device_info(device)
    moved = sum(2 * _bytes(c.tensor) * (_FUSED if c.fused else 1) for c in rewrite.copies)
    copying = moved / info.dram_rate + LAUNCH * sum(not c.fused for c in rewrite.copies)
    size = {kind: sum(map(_read, alike)) for kind, alike in kinds.items()}
    whole, part, given, last = sum(size.values()), 0, 0.0, 0.0
    # Under torch.compile fake tensors are in force; what is measured is real.
    with unset_fake_temporarily(), torch.no_grad():
        try:
            for number, kind in enumerate(sorted(kinds, key=lambda kind: -size[kind]), 1):
                times = _times(kinds[kind][0], info, store)
                part += size[kind]
                given += len(kinds[kind]) * times[0]
                last += len(kinds[kind]) * times[1]
                scale = whole / part if part else 1.0
                compared = replace(
                    compared, given=given * scale, last=last * scale, copying=copying,
                    measured=number,
                )  # fmt: skip
                enough = number >= _SOME and part >= _MOST * whole and compared.is_clear
                if enough and not all_kinds:
                    break
        except torch.OutOfMemoryError:
            return Comparison(calls, len(kinds), copies, missing="no memory to measure with")
    return compared


def _measurable(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available()


def _dynamic(rewrite: Rewrite) -> list[Any]:
    sizes = [size for one in rewrite.convolutions for t in one.given for size in t.shape]
    return [size for size in sizes if not isinstance(size, int)]


def _kind(one: Convolution) -> str:
    """All that the times depend on, but for the device and versions."""
    tensors = (*one.given, *one.last, *((one.bias,) if one.bias is not None else ()))
    layouts = [f"{t.dtype} {_sizes(t)} {_numbers(t.stride())}" for t in tensors]
    gradient = "gradient; " if one.target != aten.convolution.default else ""
    return f"{gradient}{'; '.join(layouts)}; {one.rest}"


def _times(
    one: Convolution, info: gemm_templates.DeviceInfo, store: gemm_templates.Store
) -> tuple[float, float]:
    cudnn: Any = torch.backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.conv.fp32_precision)
    version = cudnn.version()
    key = f"{_kind(one)}\n{info.name}, torch {torch.__version__}, cudnn {version}, {switches}"
    record = store.get(key)
    if record is None:
        runs = [_call(one, one.given, one.bias), _call(one, one.last, None)]
        seconds = added_seconds(runs, info.l2_bytes, _ROUNDS)
        record = {"given": seconds[0], "last": seconds[1]}
        store.put(key, record)
    return float(record["given"]), float(record["last"])


def _call(
    one: Convolution, operands: Sequence[Tensor], bias: Tensor | None
) -> Callable[[], object]:
    """The call with random numbers in these layouts."""
    generator = torch.Generator(operands[0].device).manual_seed(0)
    args: list[Any] = [_random(t, generator) for t in operands]
    if one.target == aten.convolution.default:
        args.append(None if bias is None else _random(bias, generator))
    return lambda: one.target(*args, *one.rest)


def _random(like: Tensor, generator: torch.Generator) -> Tensor:
    """Elements may lie in one place, as those of an expanded tensor do."""
    size, stride = _sizes(like), _numbers(like.stride())
    span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(size) else 0
    memory = torch.empty(span, dtype=like.dtype, device=like.device)
    return memory.normal_(generator=generator).as_strided(size, stride)


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return _numbers(tensor.shape)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    """With hints in place of what is dynamic."""
    return tuple(v if isinstance(v, int) else int(v.node.hint) for v in values)


def _read(one: Convolution) -> int:
    """Bytes of its operands."""
    return sum(map(_bytes, one.given))


def _bytes(tensor: Tensor) -> int:
    count = tensor.element_size()
    for size in _sizes(tensor):
        count *= size
    return count
