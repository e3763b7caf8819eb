"""The rules of TMA are written twice, with words in Python and for launchers in C: they agree."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import triton_rt
from triton_rt.tma.rules import map_strides, violations

HEADERS = Path(triton_rt.__file__).parent / "tma"

PROGRAM = """
#include "rules.h"
int keeps_rules(uint64_t address, int64_t rank, const int64_t *shape, const int64_t *strides,
                int64_t bytes, int writes) {
    return tma_keeps_rules(address, rank, shape, strides, bytes, writes);
}
int64_t stride(int64_t rank, int64_t d, const int64_t *shape, const int64_t *strides,
               int64_t bytes) {
    return tma_stride(rank, d, shape, strides, bytes);
}
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The header's functions, compiled."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.c").write_text(PROGRAM)
    out = folder / "librules.so"
    command = ["cc", "-std=c11", "-shared", "-fPIC", f"-I{HEADERS}", str(folder / "rules.c")]
    subprocess.run([*command, "-o", str(out)], check=True)
    library = ctypes.CDLL(str(out))
    library.stride.restype = ctypes.c_int64
    return library


SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 16, 24, 2**31 - 1, 2**31])
STRIDES = st.sampled_from([-8, 0, 1, 2, 3, 4, 8, 16, 24, 48, 2**36, 2**37, 2**39, 2**40])
LAYOUTS = st.integers(1, 5).flatmap(
    lambda rank: st.tuples(
        st.lists(SIZES, min_size=rank, max_size=rank),
        st.lists(STRIDES, min_size=rank, max_size=rank),
        st.booleans(),
    )
)


@settings(max_examples=240, deadline=None)
@given(
    layout=LAYOUTS,
    bytes=st.sampled_from([1, 2, 4, 8]),
    address=st.sampled_from([0, 16, 4096, 8, 4100]),
    written=st.booleans(),
)
def test_both_take_the_same_tensors(
    rules: ctypes.CDLL,
    layout: tuple[list[int], list[int], bool],
    bytes: int,
    address: int,
    written: bool,
) -> None:
    sizes, strides, dense = layout
    if dense:
        strides[-1] = 1
    rank = len(sizes)
    numbers = ctypes.c_int64 * rank
    shape, steps = numbers(*sizes), numbers(*strides)
    size = ctypes.c_int64(bytes)
    taken = rules.keeps_rules(
        ctypes.c_uint64(address), ctypes.c_int64(rank), shape, steps, size, written
    )
    found = violations(address, tuple(sizes), tuple(strides), bytes, written=written)
    broken = [str(violation) for violation in found]
    assert bool(taken) == (not broken), broken
    used = [
        rules.stride(ctypes.c_int64(rank), ctypes.c_int64(d), shape, steps, size)
        for d in range(rank)
    ]
    assert tuple(used) == map_strides(tuple(sizes), tuple(strides), bytes)
