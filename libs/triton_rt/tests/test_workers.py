"""Workers that pools share: reused, bounded, ended when idle, at exits and across forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from triton_rt import (
    Cache,
    CompilePool,
    KernelParam,
    KernelSource,
    Target,
    Workers,
    compile,
    compile_many,
    errors,
    shared_pool,
    shared_workers,
)
from triton_rt.compiler.workers import Server, Share

SM90 = Target(90)


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(idle=60.0)
    yield made
    made.close()


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def blocks(source: KernelSource, count: int) -> list[KernelSource]:
    return [replace(source, constants=(("B", 2**i),)) for i in range(5, 5 + count)]


# -- who gets a worker


def test_one_job_after_another_uses_one_worker(workers: Workers, add_one: KernelSource) -> None:
    seen = []
    for source in blocks(add_one, 3):
        with CompilePool(4, workers=workers) as pool:
            assert compile(source, SM90, pool=pool) == compile(source, SM90)
        seen.append(workers.pids)
    assert len(seen[0]) == 1 and seen == [seen[0]] * 3 and workers.limit == 4


def test_started_ahead(workers: Workers, add_one: KernelSource) -> None:
    pool = CompilePool(2, workers=workers)
    pool.start(5)
    assert within(20, lambda: len(workers.pids) == 2)
    pids = workers.pids
    pool.start(1)
    assert compile(add_one, SM90, pool=pool).cubin and workers.pids == pids


@dataclass(eq=False)
class Nap:
    """A job that counts how many of its share run with it."""

    share: Share
    running: list[int]
    most: list[int]
    back: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def run(self, server: Server) -> bool:
        self.running.append(1)
        self.most.append(len(self.running))
        time.sleep(0.02)
        self.running.pop()
        if self.back:
            self.back -= 1
            return True
        self.done.set()
        return False

    def abandon(self, error: errors.WorkerFailed) -> None:
        raise AssertionError


def test_a_share_bounds_its_jobs_and_no_others(workers: Workers) -> None:
    workers.allow(3)
    narrow, wide, most_narrow, most_wide = Share(1), Share(3), [0], [0]
    both: list[int] = []
    jobs = [Nap(narrow, [], most_narrow, back=i % 2) for i in range(6)]
    running: list[int] = []
    for job in jobs:
        job.running = running
    others = [Nap(wide, both, most_wide) for _ in range(12)]
    for pair in zip(jobs, others[:6], strict=True):
        for job in pair:
            workers.submit(job)
    for job in others[6:]:
        workers.submit(job)
    assert all(job.done.wait(10) for job in jobs + others)
    assert max(most_narrow) == 1 and 2 <= max(most_wide) <= 3
    assert len(most_narrow) == 1 + 6 + 3  # three came back once
    assert within(1, lambda: narrow.pending == wide.pending == narrow.running == 0)
    assert workers.pids == []  # no job asked for a process


def test_who_may_take_more_does_not_wait_for_others(workers: Workers) -> None:
    """What a program needs does not stand in line behind candidates, which leave workers to it."""
    order: list[str] = []

    class Said(Nap):
        def run(self, server: Server) -> bool:
            order.append("narrow" if self.share.n == 1 else "wide")
            return super().run(server)

    narrow, wide = Share(1), Share(2)
    jobs: list[Nap] = [Said(narrow, [], []) for _ in range(6)]
    jobs += [Said(wide, [], []) for _ in range(6)]
    for job in jobs[:-1]:
        workers.submit(job)
    workers.allow(2)
    workers.submit(jobs[-1])
    assert all(job.done.wait(10) for job in jobs)
    assert order == ["wide"] * 6 + ["narrow"] * 6


def test_a_wider_pool_lets_waiting_jobs_run(workers: Workers) -> None:
    workers.allow(1)
    running: list[int] = []
    most = [0]
    share = Share(4)
    jobs = [Nap(share, running, most) for _ in range(8)]
    for job in jobs[:7]:
        workers.submit(job)
    workers.allow(4)
    workers.submit(jobs[7])
    assert all(job.done.wait(10) for job in jobs) and max(most) == 4


def test_threads_share_workers(workers: Workers, add_one: KernelSource, cache: Cache) -> None:
    sources = blocks(add_one, 4)

    def work(_: int) -> list[bytes]:
        with CompilePool(2, workers=workers) as pool:
            return [b.cubin for b in compile_many(sources, SM90, pool=pool, cache=cache)]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(work, range(2))
    assert first == second == [compile(s, SM90).cubin for s in sources]
    assert len(workers.pids) == 2


# -- how a worker ends


def test_an_idle_worker_ends_and_another_takes_its_place(add_one: KernelSource) -> None:
    workers = Workers(idle=0.3)
    with CompilePool(2, workers=workers) as pool:
        for _ in range(2):
            pool.start(2)
            assert compile(add_one, SM90, pool=pool).cubin
            pids = workers.pids
            assert pids
            assert within(5, lambda: not workers.pids)
            assert within(5, lambda pids=pids: all(map(gone, pids)))
            assert within(5, lambda: not workers._servers)


def test_a_crash_hits_one_job(workers: Workers, add_one: KernelSource) -> None:
    deadly = replace(add_one, text="import os\nos._exit(7)\n")
    mine, yours = CompilePool(2, workers=workers), CompilePool(2, workers=workers)
    bad = mine.submit(deadly, SM90)
    good = [yours.submit(source, SM90) for source in blocks(add_one, 4)]
    with pytest.raises(errors.WorkerFailed, match=r"failed twice.*exited with code 7"):
        bad.result(60)
    assert all(job.result(60).cubin for job in good)
    assert compile(add_one, SM90, pool=mine).cubin


def test_one_killed_while_idle_costs_no_try(
    workers: Workers, add_one: KernelSource, tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    dies_once = f"""
import os
if os.path.exists({str(flag)!r}):
    os.unlink({str(flag)!r})
    os._exit(3)
"""
    pool = CompilePool(1, workers=workers)
    assert compile(add_one, SM90, pool=pool).cubin
    (pid,) = workers.pids
    os.kill(pid, signal.SIGKILL)
    assert within(5, lambda: not workers.pids)
    source = replace(add_one, text=dies_once + add_one.text)
    assert pool.submit(source, SM90).result(60).cubin and not flag.exists()


SCRIPT = """
import os, sys, time
from triton_rt import KernelParam, KernelSource, Target, shared_pool, shared_workers
text = '''import triton, triton.language as tl
@triton.jit
def k(x):
    tl.store(x, 1.0)
'''
good = KernelSource("k", text, (KernelParam("x", "*f32", True),))
hang = KernelSource("k", "import time\\ntime.sleep(1000)\\n" + text, good.params)
pool = shared_pool(2)
pool.start(2)
assert pool.submit(good, Target(90)).result(60).cubin
stuck = pool.submit(hang, Target(90))
time.sleep(0.3)
print(*shared_workers().pids, flush=True)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        pytest.param("sys.exit(3)", marks=pytest.mark.slow),
        pytest.param("raise ValueError", marks=pytest.mark.slow),
        "pid = os.fork() or sys.exit(0)\nos.wait()",
    ],
)
def test_a_process_ends_at_once_and_its_workers_with_it(ending: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + ending],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    _, problems = process.communicate(timeout=60)  # what hangs would take 1000 seconds
    assert len(pids) == 2 and within(60, lambda pids=pids: all(map(gone, pids)))
    expected = {"": 0, "sys.exit(3)": 3, "raise ValueError": 1}.get(ending, 0)
    assert process.returncode == expected, problems
    assert "ValueError" in problems if "ValueError" in ending else problems == ""


def test_killed_with_jobs_that_run_and_wait(add_one: KernelSource) -> None:
    workers = Workers()
    hanging = replace(add_one, text="import time\ntime.sleep(1000)\n")
    pool = CompilePool(1, workers=workers)
    jobs = [pool.submit(source, SM90) for source in (hanging, add_one, add_one)]
    assert within(20, lambda: bool(workers.pids))
    pids = workers.pids
    workers.kill()
    for job in jobs:
        with pytest.raises(errors.WorkerFailed, match="closed"):
            job.result(10)
    pool.close()  # nothing is left to wait for
    workers.close()
    assert all(map(gone, pids))
    with pytest.raises(errors.WorkerFailed, match="closed"):
        pool.submit(add_one, SM90)


def test_an_interrupt_is_not_for_workers(workers: Workers, add_one: KernelSource) -> None:
    pool = CompilePool(1, workers=workers)
    assert compile(add_one, SM90, pool=pool).cubin
    (pid,) = workers.pids
    os.kill(pid, signal.SIGINT)
    assert compile(add_one, SM90, pool=pool).cubin and workers.pids == [pid]


# -- forks


def in_child(work: Callable[[], bool]) -> bool:
    """What `work` says in a forked child, which has 60 s."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own(
    workers: Workers, add_one: KernelSource, cache: Cache
) -> None:
    pool = CompilePool(2, workers=workers)
    pool.start(2)
    expected = compile(add_one, SM90, pool=pool)
    pids = workers.pids
    slow = replace(add_one, text="import time\ntime.sleep(1)\n" + add_one.text)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(compile, slow, SM90, pool=pool, cache=cache)  # loaded here too
        assert within(20, lambda: pool._share.pending == 1)
        pending = pool.submit(replace(slow, num_warps=8), SM90)

        def child() -> bool:
            refused = isinstance(pending.exception(5), errors.WorkerFailed)
            none, again = workers.pids, compile(add_one, SM90, pool=pool)
            return refused and none == [] and again == expected and workers.pids != pids

        assert in_child(child)
        assert pending.result(60).num_warps == 8 and asked.result(60).cubin
    assert workers.pids == pids and compile(add_one, SM90, pool=pool) == expected


# -- what a worker knows


def test_variables_and_import_path_are_those_of_the_asker(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    (tmp_path / "rt_kernels_by_env.py").write_text(
        "import os, triton, triton.language as tl\n"
        "WRITTEN = tl.constexpr(int(os.environ.get('WRITTEN', 0)))\n"
        "@triton.jit\ndef k(x):\n    tl.store(x, WRITTEN)\n"
    )
    params = (KernelParam("x", "*i32", True),)
    pool = CompilePool(1, workers=workers)
    text = "from rt_kernels_by_env import k\n"
    with pytest.raises(errors.BadSource, match="rt_kernels_by_env"):
        pool.submit(KernelSource("k", text, params), SM90).result(60)
    monkeypatch.syspath_prepend(tmp_path)
    for value in (3, 4):
        monkeypatch.setenv("WRITTEN", str(value))
        ptx = pool.submit(KernelSource("k", text, params), SM90, keep_ptx=True).result(60).ptx
        assert f", {value};" in ptx


def test_a_module_that_changed_is_imported_anew(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    """What this process has in memory is what is compiled, whatever the worker or the file has."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    file = tmp_path / "rt_kernels_edited.py"
    pool = CompilePool(1, workers=workers)

    def write(value: int) -> None:
        file.write_text(
            "import triton, triton.language as tl\n"
            f"@triton.jit\ndef k(x):\n    tl.store(x, {value})\n"
        )

    def ptx(tag: str) -> str:
        text = f"from rt_kernels_edited import k\n# {tag}\n"
        source = KernelSource("k", text, (KernelParam("x", "*i32", True),))
        return compile(source, SM90, pool=pool, keep_ptx=True).ptx

    write(17)
    assert ", 17;" in ptx("first")
    (pid,) = workers.pids
    write(23)
    del sys.modules["rt_kernels_edited"]
    assert ", 23;" in ptx("second")
    assert workers.pids != [pid]
    write(42)  # edited, not reloaded: here it is 23
    assert ", 23;" in ptx("third")


def test_the_pool_of_the_process(add_one: KernelSource) -> None:
    with shared_pool(1) as first, shared_pool(2) as second:
        assert first.workers is second.workers is shared_workers()
        assert compile(add_one, SM90, pool=first).cubin
    assert shared_workers().limit >= 2 and shared_workers().idle == 60.0
    assert shared_workers().pids, "closing a share stops nobody"
