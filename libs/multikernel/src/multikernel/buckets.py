"""Sizes in buckets: each octave `[2**k, 2**(k+1))` in `resolution` parts of equal width.

Integers only. Small sizes have a bucket each, and a bucket `[a, b)` above `resolution` has
`b/a <= 1 + 1/resolution`, which makes a difference of buckets a distance in log2 (to within the
curve of log2 inside an octave)."""

from collections.abc import Sequence

Cell = tuple[int, ...]


def bucket(size: int, resolution: int) -> int:
    """`size -> index`, never decreasing; a size below 1 counts as 1. With resolution 4:
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10 -> 0, 4, 6, 8, 9, 10, 11, 12, 12, 13."""
    size = max(size, 1)
    octave = size.bit_length() - 1
    return octave * resolution + ((size * resolution) >> octave) - resolution


def smallest(index: int, resolution: int) -> int:
    """The smallest size (at least 1) whose bucket is `index` or a later one."""
    octave, part = divmod(index, resolution)
    return -(-((resolution + part) << octave) // resolution)


def cell_of(sizes: Sequence[int], resolution: int) -> Cell:
    """The bucket of each size."""
    return tuple(bucket(size, resolution) for size in sizes)
