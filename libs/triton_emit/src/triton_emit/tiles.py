"""Axes flattened onto one tile dimension, and how an index is written over it.

axes (i0 < 4, i1 < 12, i2 < 64), flat variable xindex
768*i0 + 64*i1 + i2  ->  xindex                 all axes in row-major order
64*i1 + i2           ->  i1_2, = xindex % 768   a run of axes is one `//` and `%`
i1                   ->  i1, = xindex // 64 % 12
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import sympy

from loop_ir import Axis
from symexpr import Where, symbol


@dataclass(eq=False)
class Tile:
    """Axes of one tile dimension. `key` names the dimension ("x", "r0"), `flat` the variable that
    holds the flattened index, `prefix` starts the names of parts that must be recovered from it.
    `definitions`: those parts, in the order they were needed, with the text of each."""

    key: str
    flat: str
    prefix: str
    axes: tuple[Axis, ...]
    write: Callable[[sympy.Expr], str]
    definitions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.numel: sympy.Expr = sympy.Mul(*(a.extent for a in self.axes))
        self.extents: dict[sympy.Symbol, sympy.Expr] = {symbol(self.flat): self.numel}

    def rewrite(self, e: sympy.Expr) -> sympy.Expr:
        """`e` in terms of the flat variable and parts of it."""
        symbols = [a.symbol for a in self.axes]
        if not e.free_symbols.intersection(symbols):
            return e
        if len(symbols) == 1:
            return e.xreplace({symbols[0]: symbol(self.flat)})
        e = sympy.expand(e)
        chosen = sympy.Add(*(t for t in sympy.Add.make_args(e) if t.has(Where)))
        if chosen not in (0, e):  # it needs axes apart that are one in the rest
            return self.rewrite(e - chosen) + self.rewrite(chosen)
        factors = [self._factor(e, s) for s in symbols]
        out = e
        own: dict[sympy.Symbol, sympy.Symbol] = {}  # a part may be named as another axis is
        parts: list[sympy.Expr] = []
        first = 0
        for k, factor in enumerate(factors):
            joined = (
                factor is not None
                and k + 1 < len(factors)
                and factors[k + 1] is not None
                and factor != 0
                and sympy.expand(factor - factors[k + 1] * self.axes[k + 1].extent) == 0
            )
            if joined:
                continue
            if factor is None:
                own[symbols[k]] = self._part(k, k)
            elif factor != 0:
                parts.append(factor * self._part(first, k))
                run = zip(factors[first : k + 1], symbols[first : k + 1], strict=True)
                out = out - sympy.Add(*(f * s for f, s in run))
            first = k + 1
        return sympy.expand(out.xreplace(own)) + sympy.Add(*parts)

    def _factor(self, e: sympy.Expr, s: sympy.Symbol) -> sympy.Expr | None:
        """The coefficient of `s` where `e` is linear in it, else None."""
        factor = _coefficient(e, s)
        if factor is None or factor.free_symbols.intersection(a.symbol for a in self.axes):
            return None
        return factor

    def _part(self, first: int, last: int) -> sympy.Symbol:
        if first == 0 and last == len(self.axes) - 1:
            return symbol(self.flat)
        name = f"{self.prefix}{first}" if first == last else f"{self.prefix}{first}_{last}"
        part = symbol(name)
        if name not in self.definitions:
            size = sympy.Mul(*(a.extent for a in self.axes[first : last + 1]))
            step = sympy.Mul(*(a.extent for a in self.axes[last + 1 :]))
            text = self.flat
            if last + 1 < len(self.axes):
                text += f" // {self._factor_text(step)}"
            if first > 0:
                text += f" % {self._factor_text(size)}"
            self.definitions[name] = text
            self.extents[part] = size
        return part

    def _factor_text(self, e: sympy.Expr) -> str:
        text = self.write(sympy.expand(e))
        return text if e.is_Integer or e.is_Symbol else f"({text})"


@lru_cache(1 << 12)
def _coefficient(e: sympy.Expr, s: sympy.Symbol) -> sympy.Expr | None:
    """The coefficient of `s` where `e` is linear in it, else None."""
    factor = e.coeff(s)
    return None if s in sympy.expand(e - factor * s).free_symbols else factor


def rewritten(e: sympy.Expr, tiles: Sequence[Tile]) -> sympy.Expr:
    """`e` in terms of the variables of several tiles. Parts of one may be named as axes of another
    are: those that are done, and axes whose turn comes, have other names meanwhile."""
    pairs = ((t.prefix, a.symbol.name) for t in tiles for o in tiles if o is not t for a in o.axes)
    if not any(name.startswith(prefix) for prefix, name in pairs):
        for tile in tiles:
            e = tile.rewrite(e)
        return e
    aside = {a.symbol: symbol(f"{a.symbol}_axis") for t in tiles for a in t.axes}
    done: dict[sympy.Symbol, sympy.Symbol] = {}
    e = e.xreplace(aside)
    for tile in tiles:
        e = tile.rewrite(e.xreplace({aside[a.symbol]: a.symbol for a in tile.axes}))
        own = {part: symbol(f"{part}_part") for part in tile.extents}
        done |= {new: part for part, new in own.items()}
        e = e.xreplace(own)
    return e.xreplace(done)


def divides(block: int, numel: sympy.Expr) -> bool:
    """`numel` is a multiple of `block` whatever its symbols are."""
    terms = sympy.Add.make_args(sympy.expand(numel))
    return all(t.as_coeff_Mul()[0] % block == 0 for t in terms)
