"""Identical kernels are compiled once: by threads, by graphs, by processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from triton_rt import Cache, CompilePool, KernelSource, Target, compile, errors
from triton_rt.compiler import stages as compiler
from triton_rt.compiler.build import compiler_name, submit
from triton_rt.compiler.cache import cache_key
from triton_rt.compiler.one_build_at_a_time import Busy, Claim


def entry(cache: Cache, source: KernelSource) -> str:
    return cache_key(source, Target(90), 0, compiler_name())


def test_threads_that_need_the_same_kernel_compile_it_once(
    add_one: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls, go = compiler.compile_here, [], threading.Barrier(4)

    def counted(*args: object) -> object:
        calls.append(args)
        time.sleep(0.3)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "compile_here", counted)

    def work(_: int) -> object:
        go.wait()
        return submit(add_one, Target(90)).result(60)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(work, range(4)))
    assert len(calls) == 1 and all(r is results[0] for r in results)


def test_a_shared_job_is_not_cancelled_for_the_others(add_one: KernelSource) -> None:
    with CompilePool(1) as pool:
        first, second = (
            submit(add_one, Target(90), pool=pool),
            submit(add_one, Target(90), pool=pool),
        )
        first.cancel()
        assert second.result(60).cubin


def test_processes_that_need_the_same_kernels_compile_each_once(tmp_path: Path) -> None:
    """Two at the same time, one of them with a pool: as many compilations as kernels."""
    script = tmp_path / "build.py"
    script.write_text(
        "import sys\n"
        "from triton_rt import Cache, CompilePool, KernelParam, KernelSource, Target\n"
        "from triton_rt import compile_many\n"
        "text = '''import triton, triton.language as tl\n"
        "@triton.jit\n"
        "def k(x, B: tl.constexpr):\n"
        "    i = tl.arange(0, B)\n"
        "    tl.store(x + i, tl.load(x + i) + 1)\n'''\n"
        "sources = [KernelSource('k', text, (KernelParam('x', '*f32', True),), (('B', 2**b),))\n"
        "           for b in range(5, 8)]\n"
        "cache, built = Cache(sys.argv[1], 1 << 30), []\n"
        "put = cache.put\n"
        "cache.put = lambda key, binary: (built.append(key), put(key, binary))\n"
        "pool = CompilePool(1) if sys.argv[2] == '0' else None\n"
        "order = sources if sys.argv[2] != '1' else sources[::-1]\n"
        "binaries = compile_many(order, Target(90), cache=cache, pool=pool)\n"
        "assert len({b.cubin for b in binaries}) == 3\n"
        "if pool: pool.close()\n"
        "print(len(built))\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path / "cache"), str(i)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(2)
    ]
    built = [int(p.communicate(timeout=120)[0]) for p in processes]
    assert sum(built) == 3, built
    assert not list((tmp_path / "cache").glob("??/*.lock"))


def test_a_claim_waits_for_the_entry_of_its_holder(cache: Cache, add_one: KernelSource) -> None:
    key = entry(cache, add_one)
    first, second = Claim(cache, key), Claim(cache, key)
    assert first.take() is None
    with pytest.raises(Busy):
        second.take(0.05)
    binary = compile(add_one, Target(90))
    cache.put(key, binary)
    first.release()
    assert second.take(1.0) == binary


def test_a_holder_that_dies_or_stalls_stops_nobody(cache: Cache, add_one: KernelSource) -> None:
    key = entry(cache, add_one)
    code = (
        "import sys, time\nfrom triton_rt import Cache\n"
        "from triton_rt.compiler.one_build_at_a_time import Claim\n"
        "c = Claim(Cache(sys.argv[1], 1), sys.argv[2]); c.take(); print('held', flush=True)\n"
        "time.sleep(1000)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(cache.path), key], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(Busy):
        Claim(cache, key).take(0.0)
    # Stalled: past its own timeout a claim is granted without the lock.
    assert Claim(cache, key, timeout=0.05).take() is None
    holder.kill()
    holder.wait()
    after = Claim(cache, key)
    assert after.take(5.0) is None
    after.release()
    assert not after.file.exists()


def test_a_pool_goes_on_while_another_process_compiles(cache: Cache, add_one: KernelSource) -> None:
    held = Claim(cache, entry(cache, add_one))
    assert held.take() is None
    other = replace(add_one, constants=(("B", 256),))
    with CompilePool(1) as pool:
        waiting = submit(add_one, Target(90), cache=cache, pool=pool)
        assert submit(other, Target(90), cache=cache, pool=pool).result(60).cubin
        assert not waiting.done()
        held.release()
        assert waiting.result(60).cubin
    assert cache.stats().entries == 2


def test_failures_are_not_kept(cache: Cache, add_one: KernelSource) -> None:
    bad = replace(add_one, constants=(("B", 100),))
    for pool in (None, CompilePool(1)):
        for _ in range(2):
            with pytest.raises(errors.CompileFailed):
                compile(bad, Target(90), cache=cache, pool=pool)
        if pool is not None:
            pool.close()
            with pytest.raises(errors.WorkerFailed, match="closed"):
                submit(bad, Target(90), cache=cache, pool=pool)
    assert not Claim(cache, entry(cache, bad)).file.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_no_obstacle(cache: Cache, add_one: KernelSource) -> None:
    cache.path.mkdir()
    cache.path.chmod(0o500)
    with pytest.warns(UserWarning, match="not written"):
        assert compile(add_one, Target(90), cache=cache).cubin
