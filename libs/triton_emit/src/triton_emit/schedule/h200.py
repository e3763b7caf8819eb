"""The GPU that schedules are good on by default: an H200, and what is long on it."""

# Of an H200: multiprocessors, warps that one of them holds, and its second-level cache.
MULTIPROCESSORS = 132
WARPS = 64
L2_BYTES = 60 << 20
LINE = 128
# Threads of a warp.
LANES = 32
# A tile narrower than this in one direction reads less than a sector at a time.
NARROW = 16
# The shortest row, in elements, that is worth a program, and that is worth several.
ROW, LONG = 256, 1024
