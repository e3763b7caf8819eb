"""Candidates measured in this process."""

from collections.abc import Iterator, Sequence

import torch

from triton_rt.errors import TritonRTError
from tuning.compare import compare
from tuning.race import Outcome
from tuning.saved import Saved, spans
from tuning.task import Ready, Task
from tuning.timer import Timer


class LocalBench:
    """Measures in this process, on the arguments themselves."""

    def __init__(self, task: Task, ready: Ready) -> None:
        self.task = task
        self.ready = ready
        self.warm: set[int] = set()
        skipped = spans(task.outputs(only=task.options.overwritten))
        self.saved = Saved([s for s in spans(task.outputs()) if s not in skipped])
        try:
            self.timer = Timer(task.device, task.options.flush_bytes)
        except BaseException:
            self.saved.free()
            raise
        self.reference: list[torch.Tensor] | None = None

    def measure(self, indices: Sequence[int], runs: int) -> Iterator[tuple[int, Outcome]]:
        """`runs` more times of each candidate, those that are compiled first in front (see
        `Bench`)."""
        cold = [i for i in indices if i not in self.warm]
        arrivals = self.ready(cold)
        if self.task.options.verify:  # the first of the candidates is what others are compared with
            arrivals = iter(sorted(arrivals, key=lambda pair: pair[0]))
        for index, binary in arrivals:
            yield index, binary if isinstance(binary, TritonRTError) else self._try(index, runs)
        for index in indices:
            if index not in cold:
                yield index, self._try(index, runs)

    def _try(self, index: int, runs: int) -> Outcome:
        kernel, grid = self.task.candidates[index]

        def launch() -> None:
            kernel.launch(grid, *self.task.args)

        try:
            if index not in self.warm:
                self.saved.restore()
                launch()
                self.warm.add(index)
                self._check(index)
            return self.timer.run(launch, self.saved.restore, runs)
        except TritonRTError as error:
            # Candidates may exceed the device's resources: they lose, the others go on.
            return error

    def _check(self, index: int) -> None:
        if not self.task.options.verify:
            return
        views = self.task.outputs()
        if self.reference is None:
            self.reference = [v.clone() for v in views]
            return
        compare(self.task.candidates[index][0].source.name, views, self.reference)

    def close(self) -> None:
        """Gives the memory back, and arguments their first values."""
        self.saved.restore()
        torch.cuda.current_stream().synchronize()
        self.saved.free()
        self.timer.close()
        self.reference = None
