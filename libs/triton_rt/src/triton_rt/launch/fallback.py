"""A kernel that uses TMA where the tensors allow it, and another one where they do not."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from triton_rt.element_types import parse_descriptor
from triton_rt.errors import BadSource, TensorMapRule
from triton_rt.launch.lazy import LazyKernel
from triton_rt.source import flatten
from triton_rt.tma import MapPlan, Violation, as_tensor_map


class FallbackKernel:
    """`kernel(grid, *args)`: `tma` if all tensors keep the rules, else `plain`. See
    `with_fallback`."""

    def __init__(
        self, tma: LazyKernel, plain: Callable[..., None], maps: Mapping[str, MapPlan]
    ) -> None:
        self.tma = tma
        self.plain = plain
        self.maps = dict(maps)
        names = [p.name for p in tma.source.params]
        unknown = [n for n in maps if n not in names]
        if unknown:
            raise BadSource(
                f"{tma.source.name} has no parameter {', '.join(unknown)}; it has "
                f"{', '.join(names)}"
            )
        self._names = names
        self._described = [i for i, p in enumerate(tma.source.params) if p.is_descriptor]
        self._flat = not any("." in name for name in names)

    def __repr__(self) -> str:
        return f"FallbackKernel({self.tma!r}, {self.plain!r})"

    def __call__(self, grid: Any, *args: Any) -> None:
        """One launch. Arguments are those of `tma`; errors those of either kernel."""
        # On a GPU a launch checks its descriptors itself, before it begins, and the binary knows
        # better than the source what the kernel writes. The interpreter finds that out when it has
        # run half of the kernel.
        flat = args if self._flat else flatten(args)
        try:
            # All are on one device, or the launch refuses them.
            first = flat[self._described[0]] if self._described else None
            on_cpu = first is not None and getattr(first, "base", first).get_device() < 0
        except (AttributeError, IndexError):
            on_cpu = False  # the launch says what is wrong with the arguments
        if (on_cpu or self.maps) and self.why_not(*args):
            self.plain(grid, *args)
            return
        try:
            self.tma.launch(grid, *args)
        except TensorMapRule:
            if on_cpu:
                raise
            self.plain(grid, *args)

    def why_not(self, *args: Any) -> tuple[Violation, ...]:
        """The rules that keep these arguments from TMA; empty where it runs."""
        flat = flatten(args)
        if len(flat) != len(self._names):
            return ()  # the launch says what is missing
        found: list[Violation] = []
        params = self.tma.source.params
        for i in self._described:
            block = parse_descriptor(params[i].kind)
            assert block is not None
            found += as_tensor_map(flat[i], block[1]).problems(written=params[i].mutated)
        if self.maps:
            named = dict(zip(self._names, flat, strict=True))
            written = {p.name: p.mutated for p in params}
            for name, plan in self.maps.items():
                found += plan.bind(named[name], named).problems(written=written[name])
        return tuple(found)


def with_fallback(
    tma: LazyKernel,
    plain: Callable[..., None] | None = None,
    *,
    maps: Mapping[str, MapPlan] | None = None,
) -> FallbackKernel:
    """`tma` where its tensors keep the rules of TMA, else `plain`, with the same arguments.

    Looked at are the arguments for descriptor parameters, and the pointer parameters in `maps`:
    tensors that the kernel describes itself, with shapes and strides that may name other parameters
    of the kernel. More is asked of those that are `mutated` (the rule "written row"). Without
    `plain` the same source is compiled with `tma=False`: descriptors become addresses, sizes and
    strides, and blocks are loaded and stored element by element with masks.

    `with_fallback(kernel, maps={"x": MapPlan((64, 64), ("m", "n"), ("stride", 1))})`
    """
    if plain is None:
        source = replace(tma.source, tma=False)
        plain = LazyKernel(
            source, target=tma.target, cache=tma.cache, pool=tma.pool, max_variants=tma.max_variants
        )
    return FallbackKernel(tma, plain, maps or {})
