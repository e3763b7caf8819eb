"""The disk cache: keys, damage, bounds, and many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from triton_rt import Binary, Cache, KernelParam, KernelSource, LazyKernel, Target, compile, errors
from triton_rt.compiler.build import compiler_name
from triton_rt.compiler.cache import cache_key
from triton_rt.config import Config
from triton_rt.source.reached_globals import reaches_nothing


def binary(size: int, mark: int = 0) -> Binary:
    return Binary(
        "k", Target(90), (KernelParam("n", "i32"),), 0, 4, 1, 0, 0, 1, 0, 1, False, False, "c",
        bytes([mark]) * size,
    )  # fmt: skip


def key(number: int) -> str:
    return f"{number:064x}"


def test_a_hit_is_the_binary_that_was_built(cache: Cache, add_one: KernelSource) -> None:
    first = compile(add_one, Target(90), cache=cache)
    assert compile(add_one, Target(90), cache=cache) == first
    stats = cache.stats()
    assert (stats.entries, stats.hits, stats.misses, stats.corrupt) == (1, 1, 1, 0)


def test_the_key_covers_what_decides_the_code(add_one: KernelSource) -> None:
    def of(
        source: KernelSource, arch: int = 90, mask: int = 0, compiler: str = compiler_name()
    ) -> str:
        return cache_key(source, Target(arch), mask, compiler)

    keys = [
        of(add_one),
        of(add_one, arch=80),
        of(add_one, mask=1),
        of(add_one, compiler="triton 9"),
        of(replace(add_one, text=add_one.text + "\n")),
        of(replace(add_one, constants=(("B", 64),))),
        of(replace(add_one, num_warps=8)),
        of(replace(add_one, num_stages=2)),
    ]
    assert len(set(keys)) == len(keys)
    assert of(replace(add_one)) == keys[0]


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("import triton\nimport triton.language as tl\n\nX = 1\n", True),
        (
            "import triton, triton.language as tl\nfrom triton.language.extra import libdevice\n",
            True,
        ),
        ("def f():\n    from triton.language import exp as e\n    return e\n", True),
        ("import triton\nimport numpy\n", False),
        ("import triton, numpy\n", False),
        ("import triton; import numpy\n", False),
        ("import triton_kernels\n", False),
        ("from triton_kernels.x import y\n", False),
        ("from triton import (\n    language)\n", False),
        ("if 1: import mine\n", False),
        ('X = __import__("mine").X\n', False),
        ('X = int(open("x").read())\n', False),
        ('X = eval("1")\n', False),
        ("X = triton.__spec__\n", False),
    ],
)
def test_a_text_is_the_key_where_it_reaches_nothing_else(text: str, alone: bool) -> None:
    assert reaches_nothing(text) == alone


def test_the_key_of_a_closed_text_executes_nothing(add_one: KernelSource) -> None:
    """A process that finds its binaries in the cache imports no Triton."""
    source = replace(add_one, text=f"{add_one.text}\nraise RuntimeError\n")
    assert cache_key(source, Target(90), 0, compiler_name())
    with pytest.raises(errors.BadSource):
        _ = replace(source, text=f"{source.text}\nimport os\n").fingerprint


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "foreign"])
def test_a_damaged_entry_is_dropped_and_built_again(
    cache: Cache, add_one: KernelSource, damage: str
) -> None:
    first = compile(add_one, Target(90), cache=cache)
    (file,) = cache.path.glob("??/*.bin")
    data = file.read_bytes()
    middle = len(data) // 2
    file.write_bytes(
        {
            "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "truncate": data[:middle],
            "empty": b"",
            "foreign": b"#!/bin/sh\n" * 100,
        }[damage]
    )
    with pytest.warns(errors.CorruptCacheEntry, match="dropped and is built again"):
        assert compile(add_one, Target(90), cache=cache) == first
    assert file.read_bytes() == data
    assert cache.corrupt == 1


def test_damage_is_reported_through_a_callback(tmp_path: Path) -> None:
    seen: list[str] = []
    cache = Cache(tmp_path, 1 << 20, on_corrupt=seen.append)
    cache.put(key(1), binary(10))
    cache.file(key(1)).write_bytes(b"?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(key(1)) is None
    assert len(seen) == 1 and str(cache.file(key(1))) in seen[0]


def test_the_size_is_bounded_and_the_least_recently_read_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=14_000)
    now = time.time()
    for i in range(8):
        cache.put(key(i), binary(1000))
        os.utime(cache.file(key(i)), (now - 100 + i, now - 100 + i))
    assert cache.get(key(0)) is not None  # read now: the youngest
    for i in range(8, 12):
        cache.put(key(i), binary(1000))
    assert cache.stats().bytes <= 14_000
    assert cache.file(key(0)).exists() and cache.file(key(11)).exists()
    assert not cache.file(key(1)).exists()


def test_an_entry_larger_than_the_bound(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=100)
    cache.put(key(1), binary(1000))
    assert cache.stats().bytes <= 100


def test_a_folder_that_cannot_be_written(tmp_path: Path, add_one: KernelSource) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    cache = Cache(blocker / "cache", 1 << 20)
    with pytest.warns(UserWarning, match="not written"):
        assert compile(add_one, Target(90), cache=cache).cubin


def test_processes_read_write_and_evict_together(tmp_path: Path) -> None:
    """Readers see whole entries or none, whatever the writers and evictions beside them do."""
    script = tmp_path / "hammer.py"
    script.write_text(
        "import sys, random, warnings\n"
        "warnings.simplefilter('error')\n"
        "from triton_rt import Binary, Cache, KernelParam, Target\n"
        "cache = Cache(sys.argv[1], max_bytes=60_000)\n"
        "rng = random.Random(int(sys.argv[2]))\n"
        "for _ in range(300):\n"
        "    n = rng.randrange(20)\n"
        "    k = f'{n:064x}'\n"
        "    found = cache.get(k)\n"
        "    if found is None:\n"
        "        cache.put(k, Binary('k', Target(90), (), 0, 4, 1, n, 0, 1, 0, 1, False, False,\n"
        "                            'c', bytes([n]) * 5000))\n"
        "    else:\n"
        "        assert found.cubin == bytes([n]) * 5000 and found.shared_bytes == n\n"
    )
    folder = tmp_path / "cache"
    processes = [
        subprocess.Popen([sys.executable, str(script), str(folder), str(i)]) for i in range(3)
    ]
    assert [p.wait(60) for p in processes] == [0, 0, 0]
    assert not list(folder.glob("??/.tmp-*"))


def test_lazy_kernels_share_a_cache(cache: Cache, add_one: KernelSource) -> None:
    built = LazyKernel(add_one, cache=cache).binary(Target(90), 0b11)
    again = LazyKernel(add_one, cache=Cache(cache.path, 1 << 20))
    assert again.binary(Target(90), 0b11) == built
    assert again.cache is not None and again.cache.hits == 1


def test_configuration_reads_the_environment_given() -> None:
    config = Config.from_environment(
        {"TRITON_RT_CACHE_DIR": "/a", "TRITON_RT_CACHE_MAX_BYTES": "5", "CC": "clang"}
    )
    assert (config.cache_dir, config.cache_max_bytes, config.compiler) == (Path("/a"), 5, "clang")
    assert Config.from_environment({"XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/triton_rt")
    assert not Config.from_environment({"TRITON_RT_NATIVE_LAUNCHER": "0"}).native_launcher
