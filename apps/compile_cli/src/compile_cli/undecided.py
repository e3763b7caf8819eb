"""What a compilation had no time to decide, and which later process does.

A graph is kept for the next process as it is, guesses included. Candidates that were late go on
compiling while this process runs; once they are compiled, a record says so. Processes that find the
kept graph load it, and nothing is measured there: a call that is to be quick would wait for it, and
what the user computes meanwhile would be measured, too. Who finds it after `_SETTLED` seconds
compiles it again, measures, and keeps what comes of it beside the first: a graph that is still in
use by then is worth the time of one more compilation."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compile_cli.errors import NoArtifact
from multikernel import RecordStore

if TYPE_CHECKING:
    from compile_cli.artifact import Artifact
    from compile_cli.options import Options

_SETTLED = 3600.0


class Superseded(NoArtifact):
    """A process that finds what was kept decides better than that says."""


def awaiting(artifact: Artifact, late: Sequence[Future[Any]]) -> Artifact:
    """The artifact of a graph with something undecided, which is superseded some time after all of
    `late` are compiled; once, so that what a second compilation leaves undecided stays so."""
    name = hashlib.sha256(artifact.text.encode()).hexdigest()
    store = _store(artifact.options)
    if not late or store.get(name) is not None:
        return artifact

    def ended(_: Future[Any]) -> None:
        if all(future.done() and future.exception() is None for future in late):
            store.put(name, {"compiled": time.time()})

    for future in late:
        future.add_done_callback(ended)
    return replace(artifact, awaits=name)


def check_decided(artifact: Artifact) -> None:
    """Raises `Superseded`."""
    found = _store(artifact.options).get(artifact.awaits) if artifact.awaits else None
    if found is not None and time.time() - found["compiled"] > _SETTLED:
        raise Superseded("what it had no time to measure is compiled now")


def _store(options: Options) -> RecordStore:
    return RecordStore(options.cache_path / "undecided")
