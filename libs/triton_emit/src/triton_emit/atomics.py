"""Device functions that combine values with memory atomically, as text (see `helpers.py`)."""

from textwrap import dedent

_EXTREME = """
# The {extreme} of what is there and x; NaN wins. tl.atomic_{extreme} looks at bits: for it one sign
# of NaN is the {extreme}, and one of the other sign, which memory may have held, is lost. Who was
# given that puts NaN back.
def atomic_{extreme}_{dtype}(p, x, mask):
    bits = tl.where(x != x, {nan}, x.to(tl.int{bits}, bitcast=True))
    old = tl.atomic_{extreme}(p, bits.to(tl.float{bits}, bitcast=True), mask=mask, sem="relaxed")
    nan = tl.where(x == x, {nan}, bits).to(tl.float{bits}, bitcast=True)
    tl.atomic_{extreme}(p, nan, mask=(old != old) & mask, sem="relaxed")
"""

_PRODUCT = """
# The product of what is there and x: whoever was not overtaken between its load and its store is
# done. Elements outside of the mask look at the first place, and change nothing.
def atomic_mul_{dtype}(p, at, x, mask):
    left = (at == at) & mask
    place = (p + tl.where(left, at, 0)).to(tl.pointer_type(tl.int{bits}), bitcast=True)
    old = tl.load(place)
    while tl.max(left.to(tl.int32) + tl.zeros([1], tl.int32)) > 0:
        product = (old.to(tl.{tl}, bitcast=True) * x).to(tl.int{bits}, bitcast=True)
        now = tl.atomic_cas(place, old, tl.where(left, product, old), sem="relaxed")
        left = left & (now != old)
        old = now
"""

_BITS = (32, 64)
ATOMIC_SOURCES = {
    **{
        f"atomic_{extreme}_f{bits}": dedent(_EXTREME).format(
            extreme=extreme,
            dtype=f"f{bits}",
            bits=bits,
            nan=(1 << (bits - 1)) - 1 if extreme == "max" else -1,
        )
        for extreme in ("max", "min")
        for bits in _BITS
    },
    **{
        f"atomic_mul_{kind[0]}{bits}": dedent(_PRODUCT).format(
            dtype=f"{kind[0]}{bits}", bits=bits, tl=f"{kind}{bits}"
        )
        for kind in ("float", "int")
        for bits in _BITS
    },
}
