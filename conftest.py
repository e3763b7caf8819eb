"""How the tests of every member run: one process a core, one thread each, bytecode kept, a cache
of the run for what none of them wants apart."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from math import inf
from pathlib import Path
from time import perf_counter, thread_time

import pytest

# To import torch without its bytecode takes ten seconds, for each process that the tests start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

if "PYTEST_XDIST_WORKER" in os.environ:  # the cores are taken by the other processes
    os.environ.setdefault("OMP_NUM_THREADS", "1")


# What runs on the CPU here are the kernels of a GPU; tests of C++ loops say so.
os.environ.setdefault("COMPILE_CLI_CPU_KERNELS", "interpreter")

# Compilers make many objects that live for long: the collector looks a twentieth of the time.
gc.set_threshold(50_000, 10, 10)
os.environ["TORCH_DYNAMO_RUN_GC_AFTER_COMPILE"] = "0"


def pytest_collection_finish() -> None:
    """What torch and the tests consist of is not looked through again, and Dynamo does not flush
    the caches of the machine to measure its guards, for each graph, for a log that nobody reads.
    Each test compiles what it tests: torch's cache of compiled graphs is off."""
    if torch_config := sys.modules.get("torch._functorch.config"):
        setattr(torch_config, "enable_autograd_cache", False)  # noqa: B010  mypy knows no such module
    if guards := sys.modules.get("torch._dynamo.guards"):
        assert callable(vars(guards)["profile_guard_manager"])
        vars(guards)["profile_guard_manager"] = lambda *_: 0.0
    gc.collect()
    gc.freeze()
    # It counts them one by one, which compilations ask for: 30 to 60 ms each, of half a million.
    gc.get_freeze_count = lambda: 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked `spread(n)`, one of n runs always, and each that has a
    value of a parameter which none of these has; the others are slow ones."""
    families: dict[tuple[Path, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("spread") and not item.get_closest_marker("slow"):
            assert isinstance(item, pytest.Function)
            families[item.path, item.nodeid.partition("[")[0]].append(item)
    for cases in families.values():
        mark = cases[0].get_closest_marker("spread")
        assert mark is not None
        (n,) = mark.args
        chosen = [(i + i // n) % n == 0 for i in range(len(cases))]
        shown: set[tuple[str, str]] = set()
        for case, first in sorted(zip(cases, chosen, strict=True), key=lambda x: not x[1]):
            values = {(name, repr(value)) for name, value in case.callspec.params.items()}
            if not first and values <= shown:
                case.add_marker(pytest.mark.slow)
            else:
                shown |= values


@pytest.fixture(scope="session", autouse=True)
def cache_of_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of all processes of this run: never the user's, so that a run is as any other."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    os.environ["COMPILE_CLI_CACHE_DIR"] = str(cache)
    return cache


@pytest.fixture(scope="session")
def libraries(cache_of_run: Path) -> Path:
    """The folder of the run's C++ libraries. They are named by what went in, and g++ is slow."""
    folder = cache_of_run / "cpp"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@pytest.fixture
def share_parts(libraries: Path) -> Callable[[Path], None]:
    """`share_parts(folder)`: libraries built there take what all have in common, which g++ needs
    seconds for, from the run's, where it is made unless it is there."""

    def share(folder: Path) -> None:
        import cpp_emit
        from wrapper_ir import parse_program

        program = parse_program("program none(x: f32[1] cpu):\n  return (x,)\n")
        cpp_emit.build(cpp_emit.emit(program), libraries, "none")
        folder.mkdir(mode=0o700, exist_ok=True)
        for parts in libraries.glob("parts_*"):
            (folder / parts.name).symlink_to(parts)

    return share


@pytest.fixture
def own_cache(tmp_path_factory: pytest.TempPathFactory, libraries: Path) -> Path:
    """A cache of the test's own but for the C++ libraries."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "cpp").symlink_to(libraries)
    return cache


def _burst(call: Callable[[], object], calls: int) -> float:
    """Seconds of one of some calls. In long bursts the time that this thread does not run is none;
    in short ones the clock of a thread may err."""
    start, start_of_thread = perf_counter(), thread_time()
    for _ in range(calls):
        call()
    seconds = perf_counter() - start
    return (seconds if seconds < 0.01 else thread_time() - start_of_thread) / calls


def _microsecond() -> None:
    """What takes the interpreter about a microsecond on a machine of 2024."""
    seen: dict[tuple[int, int], int] = {}
    for number in range(8):
        key = (number, number * 2)
        seen[key] = seen.get(key, 0) + len(key)


@pytest.fixture
def microseconds() -> Callable[..., float]:
    """`microseconds(call, bar, calls)`: what a call takes, in a unit that is longer on a slower
    machine, so that a bar may be less than twice what was measured on another. Other processes
    make bursts of calls slower, and none quicker: the best is looked for until it meets the bar,
    for ten seconds. `calls` are those of a burst, which ought to take less than a millisecond."""

    def measure(call: Callable[[], object], bar: float = inf, calls: int = 1) -> float:
        end, best, unit = perf_counter() + 10, inf, inf
        while True:
            unit = min(unit, *(_burst(_microsecond, 50) for _ in range(20)))
            best = min(best, *(_burst(call, calls) for _ in range(5 if calls > 1 else 1)))
            if best <= bar * unit or perf_counter() > end:
                return best / unit

    return measure


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """None, one process a core, for whole folders. All in this process for single files or
    tests, where starting others takes longer, and on a machine with a GPU, which tests that
    measure want for themselves."""
    paths = (arg.partition("::")[0] for arg in config.args)
    if Path("/dev/nvidiactl").exists() or all(Path(path).is_file() for path in paths):
        return 0
    return None
