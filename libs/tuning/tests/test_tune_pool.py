"""Candidates that crash, hang, corrupt memory or are wrong harm nobody: in workers on the CPU."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from triton_rt import KernelParam, KernelSource, LazyKernel, TensorMap, errors
from triton_rt.worker_process import WorkerProcess, decode, encode, serve
from tuning import TuningPool, TuningStore, autotune
from tuning.compare import compare
from tuning.errors import UnportableArgument, WrongResult
from tuning.pool import PoolBench
from tuning.portable import Rebuilt, describe

Make = Callable[..., KernelSource]


class Child:
    """A forked process, as `subprocess` shows those that it starts."""

    def __init__(self, pid: int, stdin: Any, stdout: Any) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class ForkedWorker(WorkerProcess):
    """One that is forked from this process: one that is started takes seconds to import torch."""

    lock = threading.Lock()  # no child has the pipes of another

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        with self.lock:
            requests, ask = os.pipe()
            answer, answers = os.pipe()
            if not (pid := os.fork()):
                try:
                    os.dup2(requests, 0)
                    os.dup2(answers, 1)
                    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
                    os.environ.update(environment)
                    sys.stdin = os.fdopen(0)
                    serve(import_module(module).open_handler, os.getppid())
                finally:
                    os._exit(1)
            os.close(requests)
            os.close(answers)
        pipes = os.fdopen(ask, "wb", buffering=0), os.fdopen(answer, "rb", buffering=0)
        self.process: Any = Child(pid, *pipes)


@pytest.fixture(scope="module")
def pool() -> Iterator[TuningPool]:
    """One of two workers for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuning.pool.WorkerProcess", ForkedWorker)
        with TuningPool(("cpu:0", "cpu:1"), timeout=2.0) as pool:
            yield pool


def faulty(good: KernelSource, header: str = "", **swaps: str) -> LazyKernel:
    """The good kernel with something wrong in its text."""
    text = header + good.text
    for old, new in swaps.items():
        text = text.replace({"value": "+ 1", "store": "tl.store(y + i,"}[old], new)
    assert text != good.text
    return LazyKernel(replace(good, text=text))


def test_each_fault_is_one_candidates_own(
    pool: TuningPool, add_one: KernelSource, tmp_path: Path
) -> None:
    n = 300
    candidates = [
        (faulty(add_one, header="import os\nos.abort()\n"), 3),  # the reference is another then
        (LazyKernel(add_one), 3),
        (faulty(add_one, header="import time\ntime.sleep(1000)\n"), 3),
        (faulty(add_one, value="+ 1.5"), 3),
        (faulty(add_one, store="tl.store(y + n + i,"), 3),
        (faulty(add_one, store="tl.store(x + i, 0.0, i < n); tl.store(y + i,"), 3),
        (faulty(add_one, store="tl.store(y + (1 << 40) + i,"), 3),
        (faulty(add_one, value="+ missing"), 3),
        (LazyKernel(replace(add_one, constants=(("B", 64),))), 5),
    ]
    store = TuningStore(tmp_path)
    x, y = torch.randn(n), torch.randn(n)
    before = x.clone(), y.clone()
    tuned = autotune(candidates, (x, y, n), pool=pool, store=store)
    assert tuned.winner in (1, 8) and tuned.how == "measured"
    assert torch.equal(x, before[0]) and torch.equal(y, before[1])
    why = dict(tuned.failures)
    assert sorted(why) == [0, 2, 3, 4, 5, 6, 7]
    assert "CandidateCrashed" in why[0] and "code -6" in why[0]
    assert "CandidateHung" in why[2] and "within 2 s" in why[2]
    assert "WrongResult" in why[3] and "300 of 300" in why[3]
    assert "CorruptedMemory" in why[4] and "after the memory of y" in why[4]
    assert "CorruptedMemory" in why[5] and "x, which is not declared mutated" in why[5]
    assert "OutOfBounds" in why[6] and "missing" in why[7]
    assert [t == math.inf for t in tuned.times] == [i in why for i in range(9)]
    assert pool.restarts == 2

    # Found again as it was; what was dangerous is not run again for other shapes either.
    again = autotune(candidates, (x, y, n), pool=pool, store=store)
    assert again.how == "stored" and again.winner == tuned.winner
    other = autotune(candidates, (x[:200], y[:200], 200), pool=pool, store=store)
    assert [i for i, reason in other.pruned if "failed before" in reason] == [0, 2, 3, 4, 5]
    assert other.times[8] < math.inf and pool.restarts == 2


def test_candidates_are_found_again_by_keys_of_ones_own(
    pool: TuningPool, add_one: KernelSource, tmp_path: Path
) -> None:
    """Where their texts differ in a comment alone."""
    store, args = TuningStore(tmp_path), (torch.randn(64), torch.zeros(64), 64)
    other = replace(add_one, text=f"# of another model\n{add_one.text}")
    for source, how in ((add_one, "measured"), (other, "stored")):
        pair = [(LazyKernel(source), 1)]
        tuned = autotune(pair, args, pool=pool, store=store, name="k", keys=["first"])
        assert tuned.how == how
    again = autotune([(LazyKernel(other), 1)], args, pool=pool, store=store, name="k")
    assert again.how == "measured"


def test_a_worker_killed_between_measurements_is_replaced(
    pool: TuningPool, add_one: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one that is started, as all are elsewhere."""
    monkeypatch.setattr("tuning.pool.WorkerProcess", WorkerProcess)
    pair, args = [(LazyKernel(add_one), 1)], (torch.randn(64), torch.zeros(64), 64)
    autotune(pair, args, pool=pool)
    killed = pool._workers["cpu:0"].process
    os.kill(killed.pid, signal.SIGKILL)
    assert autotune(pair, args, pool=pool).winner == 0
    assert pool._workers["cpu:0"].process is not killed


def test_a_worker_ends_with_its_parent(
    add_one: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even in the middle of a candidate that does not return."""
    monkeypatch.setattr("tuning.pool.WorkerProcess", WorkerProcess)
    endless = LazyKernel(replace(add_one, text="while True: pass\n"))
    x = torch.zeros(4)
    answers, says = os.pipe()
    parent = os.fork()
    if parent == 0:
        try:
            pool = TuningPool(("cpu",), timeout=1000)
            tuning = threading.Thread(
                target=lambda: autotune([(endless, 1)], (x, x, 4), pool=pool), daemon=True
            )
            tuning.start()
            while "cpu" not in pool._workers:
                time.sleep(0.05)
            time.sleep(0.5)
            os.write(says, b"%d" % pool._workers["cpu"].process.pid)
        finally:
            os._exit(0)
    os.close(says)
    os.waitpid(parent, 0)
    with os.fdopen(answers, "rb") as pipe:
        worker = int(pipe.read())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            break  # ended, and not yet reaped by its new parent
        time.sleep(0.1)
    else:
        assert not Path(f"/proc/{worker}").exists()


def test_candidates_are_spread_over_workers(
    pool: TuningPool, add_one: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker has the arguments and the reference; a fault in one leaves the other."""
    good = [LazyKernel(replace(add_one, constants=(("B", b),))) for b in (32, 64, 128, 256)]
    bad = [faulty(add_one, value="+ 3"), faulty(add_one, value="+ missing")]
    args = (torch.randn(256), torch.zeros(256), 256)
    ran: dict[int | str, int] = Counter()

    def ask(bench: PoolBench, device: int | str, *what: int) -> list[float]:
        ran[device] += 1
        return one(bench, device, *what)

    one = PoolBench._ask
    monkeypatch.setattr(PoolBench, "_ask", ask)
    tuned = autotune([(k, 8) for k in (*good, *bad)], args, pool=pool)
    assert set(ran) == {"cpu:0", "cpu:1"} and min(ran.values()) > 1
    assert [i for i, _ in tuned.failures] == [4, 5] and max(tuned.times[:4]) < math.inf


def test_a_closed_pool_and_no_devices(add_one: KernelSource) -> None:
    pool = TuningPool(("cpu",))
    pool.close()
    x = torch.zeros(4)
    with pytest.raises(errors.WorkerFailed, match="closed"):
        autotune([(LazyKernel(add_one), 1)], (x, x, 4), pool=pool)
    with pytest.raises(ValueError, match="at least one device"):
        TuningPool(())


# -- arguments as data ---------------------------------------------------------------------------

KINDS = {"a": "*f32", "b": "*f32", "i": "*i64", "h": "*bf16", "e": "*f8e4m3"}
PARAMS = tuple(
    KernelParam(name, kind)
    for name, kind in (KINDS | {"n": "i32", "f": "f32", "t": "bool"}).items()
)


def arguments() -> tuple[object, ...]:
    whole = torch.randn(100)
    return (
        whole[3:53], whole[10:40].view(5, 6).t(), torch.randperm(7), torch.randn(4, 4).bfloat16(),
        torch.randn(9).to(torch.float8_e4m3fn), 2**31 - 1, 0.1, True,
    )  # fmt: skip


@pytest.mark.parametrize("values", ["seeded", "saved"])
def test_arguments_are_rebuilt(values: str) -> None:
    args = arguments()
    record, blobs = decode(encode(*describe(PARAMS, args, values)))  # type: ignore[arg-type]
    rebuilt = Rebuilt(record, blobs, torch.device("cpu")).args
    again = Rebuilt(record, blobs, torch.device("cpu")).args
    for was, now, twin in zip(args, rebuilt, again, strict=True):
        if not isinstance(was, torch.Tensor):
            assert was == now and type(was) is type(now)
            continue
        assert (now.shape, now.stride(), now.dtype) == (was.shape, was.stride(), was.dtype)
        assert now.data_ptr() % 256 == was.data_ptr() % 256
        assert torch.equal(now.float(), twin.float()), "the same in every worker"
        if values == "saved" or was.dtype == torch.int64:
            assert torch.equal(now.float(), was.float())
    assert rebuilt[1].data_ptr() - rebuilt[0].data_ptr() == 28, "what overlapped overlaps"
    rebuilt[0].fill_(5)
    assert rebuilt[1].eq(5).all()


def test_tensor_maps_and_tuples_are_rebuilt() -> None:
    whole = torch.randn(64, 32)
    given = TensorMap(whole[8:], (16, 16), shape=(40, 32))
    params = (KernelParam("t", "tensordesc<f32[16,16]>", True), KernelParam("p.0", "*f32"),
              KernelParam("p.1", "i32"))  # fmt: skip
    record, blobs = decode(encode(*describe(params, (given, (whole, 7)), "saved")))
    made, whole_again, seven = Rebuilt(record, blobs, torch.device("cpu")).args
    assert (made.shape, made.strides, made.block) == ((40, 32), (32, 1), (16, 16)) and seven == 7
    assert made.address - whole_again.data_ptr() == 8 * 32 * 4
    assert torch.equal(made.base, whole[8:])


def test_empty_tensors_and_what_cannot_travel() -> None:
    params = (KernelParam("x", "*f32"), KernelParam("y", "*f32"))
    record, blobs = describe(params, (torch.zeros(0, 3), torch.zeros(2)))
    assert Rebuilt(record, blobs, torch.device("cpu")).args[0].shape == (0, 3)
    with pytest.raises(UnportableArgument, match="y is a object"):
        describe(params, (torch.zeros(2), object()))


def test_comparison_is_of_values() -> None:
    nan, inf = math.nan, math.inf
    a = torch.tensor([1.0, nan, inf, 1e-6, 0.0])
    compare("k", [a, torch.arange(3)], [a.clone(), torch.arange(3)])
    compare("k", [a + 1e-5], [a])
    for wrong in ([1.1, nan, inf, 0, 0], [1, 0.0, inf, 0, 0], [1, nan, -inf, 0, 0]):
        with pytest.raises(WrongResult, match=r"1 of 5 elements, first at"):
            compare("k", [torch.tensor(wrong)], [a])
    with pytest.raises(WrongResult, match=r"3 instead of 2"):
        compare("k", [torch.tensor([3])], [torch.tensor([2])])
