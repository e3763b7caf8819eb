"""Device functions that combine values with memory atomically, as text (see `helpers.py`)."""

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

ATOMICS = ""
for _bits in (32, 64):
    for _extreme, _nan in (("max", (1 << (_bits - 1)) - 1), ("min", -1)):
        ATOMICS += _EXTREME.format(extreme=_extreme, dtype=f"f{_bits}", bits=_bits, nan=_nan)
    for _kind in ("float", "int"):
        ATOMICS += _PRODUCT.format(dtype=f"{_kind[0]}{_bits}", bits=_bits, tl=f"{_kind}{_bits}")
