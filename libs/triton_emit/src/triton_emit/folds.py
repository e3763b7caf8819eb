"""Device functions that reductions and scans fold with, by which programs tell each other what
their chunks fold to, and that spread what groups of places share, as text (see `helpers.py`)."""

FOLDS = """\
# the groups of GROUP places that COUNT places from `first` on lie in, both powers of two
def groups_of(first, COUNT: tl.constexpr, GROUP: tl.constexpr):
    if COUNT > GROUP:
        groups = first // GROUP + tl.arange(0, COUNT // GROUP)
    else:
        groups = first // GROUP + tl.arange(0, 1)
    return groups

# [rows, groups] -> [rows, COUNT]: what is of a group for each place in it. Joined, copies
# stay in the registers of a thread that has all places of a group.
def along_groups(x, COUNT: tl.constexpr):
    GROUP: tl.constexpr = COUNT // x.shape[1]
    if x.shape[1] == 1:
        x = tl.broadcast_to(x, (x.shape[0], COUNT))
    elif GROUP > 16:
        each = tl.broadcast_to(x[:, :, None], (x.shape[0], x.shape[1], GROUP))
        x = tl.reshape(each, (x.shape[0], COUNT))
    else:
        if GROUP >= 2:
            x = tl.reshape(tl.join(x, x), (x.shape[0], 2 * x.shape[1]))
        if GROUP >= 4:
            x = tl.reshape(tl.join(x, x), (x.shape[0], 2 * x.shape[1]))
        if GROUP >= 8:
            x = tl.reshape(tl.join(x, x), (x.shape[0], 2 * x.shape[1]))
        if GROUP >= 16:
            x = tl.reshape(tl.join(x, x), (x.shape[0], 2 * x.shape[1]))
    return x

def plus(a, b):
    return a + b

# each 32 bits of a number in a word of their own, with a flag that they are there: one
# write of 64 bits which no other program sees half of, and which none waits to make
def put_total(at, value):
    if value.dtype.primitive_bitwidth == 64:
        bits = value.to(tl.int64, bitcast=True)
        high = ((bits >> 32) & 0xFFFFFFFF) | 0x100000000
        tl.atomic_xchg(at + 1, high, sem="relaxed")
    else:
        bits = value.to(tl.int32, bitcast=True).to(tl.int64)
    tl.atomic_xchg(at, (bits & 0xFFFFFFFF) | 0x100000000, sem="relaxed")

# A program waits only for those of smaller numbers, which have begun, so that they are on
# the GPU and stay there: the one of the smallest number waits for none, and so all end.
def wait_word(at, needed):
    word = tl.load(at, needed, other=0x100000000, volatile=True)
    while tl.min(word) == 0:
        word = tl.load(at, word == 0, other=word, volatile=True)
    return word & 0xFFFFFFFF

def take_totals(at, needed, like):
    low = wait_word(at, needed)
    if like.dtype.primitive_bitwidth == 64:
        bits = (wait_word(at + 1, needed) << 32) | low
    else:
        bits = low.to(tl.int32)
    return bits.to(like.dtype, bitcast=True)

# What is told within a millisecond, and 0 where nothing is: programs that have not begun may begin
# only when this one ends. Threads read the clock apart, so that one may find the millisecond over
# before another: a minimum over all threads ends the loop, which is the same number in each.
def look_for(at, needed):
    word = tl.load(at, needed, other=0x100000000, volatile=True)
    begun = tl.extra.cuda.globaltimer()
    waits = tl.min(word) == 0
    while waits:
        word = tl.load(at, word == 0, other=word, volatile=True)
        late = tl.extra.cuda.globaltimer() - begun >= 1000000
        waits = tl.min(tl.where(late, 1, word)) == 0
    return word

# What a chunk folds to, for the later ones of its group
def tell_1(slots, chunk, total, GROUP: tl.constexpr):
    WORDS: tl.constexpr = total.dtype.primitive_bitwidth // 32
    if chunk % GROUP < GROUP - 1:
        put_total(slots + chunk % GROUP * WORDS + tl.arange(0, 1), total)

# The same of a pair
def tell_2(slots, chunk, total, other, GROUP: tl.constexpr):
    OWN: tl.constexpr = total.dtype.primitive_bitwidth // 32
    WORDS: tl.constexpr = OWN + other.dtype.primitive_bitwidth // 32
    if chunk % GROUP < GROUP - 1:
        at = slots + chunk % GROUP * WORDS + tl.arange(0, 1)
        put_total(at, total)
        put_total(at + OWN, other)

# the last program of a group to have read its slots leaves them as they were found
def leave_zero(group, members, size):
    tl.debug_barrier()
    if tl.atomic_add(group, 1, sem="acq_rel") == members - 1:
        for start in range(0, size, 1024):
            at = start + tl.arange(0, 1024)
            tl.store(group + at, tl.zeros([1024], tl.int64), at < size)

def product(a, b):
    return a * b

# (1 + s) * exp(m) + (1 + t) * exp(n) as such a pair; nothing is (-inf, -1). What is small
# beside the 1 keeps its digits; differences keep a -0 beside nothing. Infinities of one
# sign differ by NaN.
def add_exponentials(m, s, n, t):
    e = tl.where(m == n, 1.0, tl.exp(-tl.abs(m - n)))
    return max_nan(m, n), tl.where(m < n, t - e * (-1.0 - s), s - e * (-1.0 - t))
"""

_EXTREMES = """
def EXTREME_nan(a, b):
    return tl.EXTREMEimum(a, b, propagate_nan=tl.PropagateNan.ALL)

# the second of equals, which may be zeros of either sign
def later_EXTREME(a, b):
    return tl.where((a MORE b) | (a != a), a, b)

# the LARGEr value, NaN counting as the LARGEst; the last of equals
def last_EXTREME(a, i, b, j):
    better = (b MORE a) | ((b != b) & (a == a))
    same = (a == b) | ((a != a) & (b != b))
    second = better | (same & (j > i))
    return tl.where(second, b, a), tl.where(second, j, i)

# as last_EXTREME, for a candidate that comes after all others
def next_EXTREME(a, i, b, j):
    second = (b MORE= a) | (b != b)
    return tl.where(second, b, a), tl.where(second, j, i)

# as last_EXTREME but the first of equals, for a candidate that comes after all others
def take_EXTREME(a, i, b, j):
    better = (b MORE a) | ((b != b) & (a == a))
    return tl.where(better, b, a), tl.where(better, j, i)
"""
for _words in (("max", ">", "large"), ("min", "<", "smalle")):
    _text = _EXTREMES
    for _place, _word in zip(("EXTREME", "MORE", "LARGE"), _words, strict=True):
        _text = _text.replace(_place, _word)
    FOLDS += _text

# What comes before an element of a scan, and the element itself: (all but the last, the last) of
# two neighbouring runs
_JOINS = {
    "sum": "a + p + b",
    "product": "a * p * b",
    **{name: f"{name}({name}(a, p), b)" for name in ("later_max", "later_min")},
}
_PAIRS = ("last_max", "last_min", "add_exponentials")
for _name, _text in _JOINS.items():
    FOLDS += f"\ndef before_{_name}(a, p, b, q):\n    return {_text}, q\n"
_BEFORE_PAIR = """
def before_JOIN(a, x, p, y, b, z, q, w):
    a, x = JOIN(a, x, p, y)
    b, z = JOIN(a, x, b, z)
    return b, z, q, w
"""
_EARLIER = """
# What the chunks before this one fold to. A group of them has a slot for each but its last;
# in that of the last is what all groups before fold to, put there by the last chunk of the
# one before: the same sums, whichever program is first. slots: of the group; step: to
# those of the next.
def earlier_JOIN(slots, step, chunk, chunks, total, start, GROUP: tl.constexpr):
    WORDS: tl.constexpr = total.dtype.primitive_bitwidth // 32
    place = chunk % GROUP
    j = tl.arange(0, GROUP)
    needed = (j < place) | ((j == GROUP - 1) & (chunk >= GROUP))
    found = tl.where(needed, take_totals(slots + j * WORDS, needed, total), start)
    before = tl.broadcast_to(tl.reduce(found, 0, JOIN), [1])
    if (place == GROUP - 1) & (chunk + 1 < chunks):
        put_total(slots + step + place * WORDS + tl.arange(0, 1), JOIN(before, total))
    return before
"""
_EARLIER_PAIR = """
# What the chunks before this one fold to, as `earlier_plus` has it, of pairs
def earlier_JOIN(
    slots, step, chunk, chunks, total, other, start, start_other, GROUP: tl.constexpr
):
    OWN: tl.constexpr = total.dtype.primitive_bitwidth // 32
    WORDS: tl.constexpr = OWN + other.dtype.primitive_bitwidth // 32
    place = chunk % GROUP
    j = tl.arange(0, GROUP)
    needed = (j < place) | ((j == GROUP - 1) & (chunk >= GROUP))
    at = slots + j * WORDS
    found = tl.where(needed, take_totals(at, needed, total), start)
    found_other = tl.where(needed, take_totals(at + OWN, needed, other), start_other)
    before, before_other = tl.reduce((found, found_other), 0, JOIN)
    before, before_other = tl.broadcast_to(before, [1]), tl.broadcast_to(before_other, [1])
    if (place == GROUP - 1) & (chunk + 1 < chunks):
        after, after_other = JOIN(before, before_other, total, other)
        there = slots + step + place * WORDS + tl.arange(0, 1)
        put_total(there, after)
        put_total(there + OWN, after_other)
    return before, before_other
"""
FOLDS += "".join(
    text.replace("JOIN", name)
    for names, text in (
        (("plus", "product", "later_max", "later_min"), _EARLIER),
        (_PAIRS, _BEFORE_PAIR + _EARLIER_PAIR),
    )
    for name in names
)
