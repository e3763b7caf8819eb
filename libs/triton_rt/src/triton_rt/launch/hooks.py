"""Callables around every launch of the process: for profilers, logs and tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from triton_rt.launch import native


@dataclass(frozen=True)
class LaunchRecord:
    """One launch. `stream` and `function` are driver handles; `alignment` is the mask of the
    arguments (those past the 62nd share a bit), `grid` counts programs (of `num_ctas` blocks
    each)."""

    name: str
    grid: tuple[int, int, int]
    device: int
    stream: int
    threads: int
    shared_bytes: int
    alignment: int
    function: int


Hook = Callable[[LaunchRecord], None]

_lock = threading.Lock()
_before: tuple[Hook, ...] = ()
_after: tuple[Hook, ...] = ()


@contextmanager
def launch_hook(before: Hook | None = None, after: Hook | None = None) -> Iterator[None]:
    """Calls `before` ahead of every launch in this process, and `after` when it was queued.

    An error raised by `before` stops that launch. Launches of a kernel that a CUDA graph replays
    are not seen, nor those with a zero in the grid. Without hooks a launch pays nothing for them.

    >>> log = []
    >>> with launch_hook(log.append):
    ...     pass
    """
    global _before, _after
    with _lock:
        _before += (before,) if before else ()
        _after += (after,) if after else ()
        _install()
    try:
        yield
    finally:
        with _lock:
            _before = _without(_before, before)
            _after = _without(_after, after)
            _install()


def run_before(*fields: object) -> None:
    """What the launchers call ahead of a launch, with the fields of a `LaunchRecord`."""
    _run(_before, fields)


def run_after(*fields: object) -> None:
    """What the launchers call after a launch."""
    _run(_after, fields)


def _run(hooks: tuple[Hook, ...], fields: tuple[object, ...]) -> None:
    if hooks:
        record = LaunchRecord(*fields)  # type: ignore[arg-type]  # what launchers call it with
        for hook in hooks:
            hook(record)


def _without(hooks: tuple[Hook, ...], hook: Hook | None) -> tuple[Hook, ...]:
    if hook is None:
        return hooks
    at = len(hooks) - 1 - hooks[::-1].index(hook)
    return hooks[:at] + hooks[at + 1 :]


def _install() -> None:
    module = native.extension()
    if module is not None:
        module.set_hooks(run_before if _before else None, run_after if _after else None)
