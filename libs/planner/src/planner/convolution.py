"""Whether a graph's convolutions run faster on channels-last tensors, by measurement.

53 convolutions of 23 kinds: 1520.3 us as given; channels last 1104.8 us, and at most
178.2 us for 55 copies -> channels last
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
aten = torch.ops.aten


@dataclass(frozen=True)
class Comparison:
    """Seconds of all convolutions as they are given and channels-last, and of the copies that the
    latter need. Where nothing can be measured, `missing` says why."""

    calls: int
    kinds: int
    copies: int
    given: float = 0.0
    last: float = 0.0
    copying: float = 0.0
    missing: str = ""

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
        return (
            f"{start}{self.given * 1e6:.1f} us as given; channels last {self.last * 1e6:.1f} us, "
            f"and at most {self.copying * 1e6:.1f} us for {self.copies} copies -> "
            f"{'channels last' if self.pays else 'as given'}"
        )


class ChannelsLast:
    """The pass `channels_last`, where the options ask for it or it is found to pay."""

    name = "channels_last"

    def __init__(self, options: Settings) -> None:
        self.options = options
        self.comparison: Comparison | None = None

    def run(self, graph: fx.Graph) -> fx.Graph:
        """The same graph, rewritten where that pays."""
        lines_as_planes(graph)
        channels_last(graph, self._pays)
        return graph

    def _pays(self, rewrite: Rewrite) -> bool:
        if self.options.channels_last == "on":
            return True
        self.comparison = compare(rewrite, self.store)
        return self.comparison.pays

    @cached_property
    def store(self) -> gemm_templates.Store:
        """Times on disk."""
        return gemm_templates.Store(self.options.cache_path / "convolutions")

    def explain(self) -> str:
        """What was measured, and what came of it; empty where nothing was asked."""
        return str(self.comparison or "")


def compare(rewrite: Rewrite, store: gemm_templates.Store) -> Comparison:
    """Each kind of convolution is measured once, and its times kept in `store`."""
    calls, copies = len(rewrite.convolutions), len(rewrite.copies)
    if any(size.node.hint is None for size in _dynamic(rewrite)):
        return Comparison(calls, calls, copies, missing="a size that nothing is known of")
    counts = Counter(map(_kind, rewrite.convolutions))
    totals = (calls, len(counts), copies)
    device = rewrite.convolutions[0].given[0].device
    if not _measurable(device):
        return Comparison(*totals, missing="no GPU to measure on")
    if torch.are_deterministic_algorithms_enabled():
        return Comparison(*totals, missing="nothing is measured for deterministic algorithms")
    info = gemm_templates.device_info(device)
    given = last = 0.0
    # Under torch.compile fake tensors are in force; what is measured is real.
    with unset_fake_temporarily(), torch.no_grad():
        try:
            for one in {_kind(c): c for c in rewrite.convolutions}.values():
                times = _times(one, info, store)
                given += counts[_kind(one)] * times[0]
                last += counts[_kind(one)] * times[1]
        except torch.OutOfMemoryError:
            return Comparison(*totals, missing="no memory to measure with")
    moved = sum(2 * _bytes(c.tensor) * (_FUSED if c.fused else 1) for c in rewrite.copies)
    copying = moved / info.dram_rate + LAUNCH * sum(not c.fused for c in rewrite.copies)
    return Comparison(*totals, given, last, copying)


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
    cudnn = torch.backends.cudnn
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    version = cudnn.version()  # type: ignore[no-untyped-call]  # of torch
    key = f"{_kind(one)}\n{info.name}, torch {torch.__version__}, cudnn {version}, {switches}"
    record = store.get(key)
    if record is None:
        runs = [_call(one, one.given, one.bias), _call(one, one.last, None)]
        seconds = added_seconds(runs, info.l2_bytes)
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


def _bytes(tensor: Tensor) -> int:
    count = tensor.element_size()
    for size in _sizes(tensor):
        count *= size
    return count
