"""What a compilation had no time to decide, and which later process does.

A graph is kept for the next process as it is. Candidates that were late go on compiling while this
process runs; once they are compiled, a record says so, and a later process that finds the kept
graph compiles it again, measures them, and keeps what comes of it beside the first."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compile_cli.errors import NoArtifact
from multikernel import RecordStore

if TYPE_CHECKING:
    from compile_cli.artifact import Artifact
    from compile_cli.options import Options
    from compile_cli.result import CompiledGraph

# Nodes of a graph that is compiled again in less time than a user would lose by guessed schedules.
_FEW = 20


class Superseded(NoArtifact):
    """A later process decides better than what was kept says."""


def undecided(compiled: CompiledGraph) -> list[str]:
    """The matmuls of which nothing was measured in time, and in small graphs the kernels whose
    schedules were not."""
    from planner import NO_TIME  # with all of planning, which a graph that is found does without

    late = [out for out, choice in compiled.matmuls.items() if choice.reason == "no time"]
    if len(compiled.loop.nodes) < _FEW:
        late += [name for (name, _), chosen in compiled.schedules.items() if chosen.why == NO_TIME]
    return late


def awaiting(artifact: Artifact, late: Sequence[Future[Any]]) -> Artifact:
    """The artifact of a graph with something undecided, which is superseded once all of `late` are
    compiled; once, so that what a second compilation leaves undecided stays so."""
    name = hashlib.sha256(artifact.text.encode()).hexdigest()
    store = _store(artifact.options)
    if not late or store.get(name) is not None:
        return artifact

    def ended(_: Future[Any]) -> None:
        if all(future.done() and future.exception() is None for future in late):
            store.put(name, {"compiled": len(late)})

    for future in late:
        future.add_done_callback(ended)
    return replace(artifact, awaits=name)


def check_decided(artifact: Artifact) -> None:
    """Raises `Superseded`."""
    if artifact.awaits and _store(artifact.options).get(artifact.awaits) is not None:
        raise Superseded("what it had no time to measure is compiled now")


def _store(options: Options) -> RecordStore:
    return RecordStore(options.cache_path / "undecided")
