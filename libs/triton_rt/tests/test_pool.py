"""Compile workers: the same results as in process, and faults that hit one job only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from triton_rt import (
    Cache,
    CompilePool,
    KernelSource,
    Ref,
    Target,
    compile,
    compile_many,
    errors,
)
from triton_rt.compiler import messages

Make = Callable[..., KernelSource]


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    with CompilePool(2, timeout=60) as pool:
        yield pool


def test_results_are_those_of_this_process(
    pool: CompilePool, add_one: KernelSource, cache: Cache
) -> None:
    sources = [replace(add_one, constants=(("B", 2**i),)) for i in range(5, 9)]
    many = compile_many([*sources, sources[0]], Target(90), pool=pool, cache=cache)
    assert many == [compile(s, Target(90)) for s in [*sources, sources[0]]]
    assert cache.stats().entries == 4


def test_errors_keep_their_class_and_words(pool: CompilePool, make_source: Make) -> None:
    bad = make_source("y:*i32!", "tl.store(y + tl.arange(0, 3), 1)")
    with pytest.raises(errors.CompileFailed) as here:
        compile(bad, Target(90))
    with pytest.raises(errors.CompileFailed) as there:
        compile(bad, Target(90), pool=pool)
    assert str(there.value) == str(here.value)
    with pytest.raises(errors.BadSource, match="no function"):
        pool.submit(replace(bad, name="other"), Target(90)).result(60)


def test_compile_many_reports_an_error_after_all_ended(
    pool: CompilePool, add_one: KernelSource, make_source: Make, cache: Cache
) -> None:
    bad = make_source("y:*i32!", "tl.store(y + tl.arange(0, 3), 1)")
    with pytest.raises(errors.CompileFailed):
        compile_many([bad, add_one], Target(90), pool=pool, cache=cache)
    assert compile(add_one, Target(90), cache=cache) and cache.hits == 1


def test_a_killed_worker_is_replaced(pool: CompilePool, add_one: KernelSource) -> None:
    expected = pool.submit(add_one, Target(90)).result(60)
    pids = pool.workers.pids
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    jobs = [pool.submit(add_one, Target(90)) for _ in range(3)]
    assert [j.result(60) for j in jobs] == [expected] * 3


def test_a_job_that_kills_its_worker_fails_alone(add_one: KernelSource) -> None:
    deadly = replace(add_one, text="import os\nos._exit(7)\n")
    with CompilePool(1, timeout=60) as pool:
        bad, good = pool.submit(deadly, Target(90)), pool.submit(add_one, Target(90))
        with pytest.raises(errors.WorkerFailed, match=r"failed twice.*exited with code 7"):
            bad.result(60)
        assert good.result(60).cubin


def test_a_job_that_hangs_is_given_up(add_one: KernelSource) -> None:
    hanging = replace(add_one, text="import time\ntime.sleep(1000)\n")
    with CompilePool(1, timeout=1.5) as pool:
        with pytest.raises(errors.WorkerFailed, match=r"did not answer in time.*timeout 1.5 s"):
            pool.submit(hanging, Target(90)).result(60)
        assert pool.workers.pids == []


def test_noise_on_stdout_does_not_reach_the_pipe(pool: CompilePool, add_one: KernelSource) -> None:
    noisy = replace(add_one, text="print('hello' * 1000)\n" + add_one.text)
    assert pool.submit(noisy, Target(90)).result(60).cubin


def test_a_closed_pool_refuses(add_one: KernelSource) -> None:
    pool = CompilePool(1)
    pool.close()
    pool.close()
    with pytest.raises(errors.WorkerFailed, match="closed"):
        pool.submit(add_one, Target(90))


def test_jobs_survive_the_wire(add_one: KernelSource) -> None:
    constants = (("A", 0.1), ("B", float("inf")), ("C", None), ("D", "s"), ("E", Ref("tl.f")))
    source = replace(add_one, constants=(*constants, ("F", True), ("G", -(2**70))))
    asked = (source, Target(80), 5, True)
    job, fingerprint = messages.decode_job(messages.encode_job(asked, "abc"))
    assert job == asked and fingerprint == "abc"
    assert repr(job[0]) == repr(source)
