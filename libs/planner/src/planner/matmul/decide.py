"""Matmul nodes: the vendor's call, or a template with the epilogue that fusion found.

A matmul whose sizes are known is decided once. One with a dynamic number of rows is decided at
each rung of `planner.matmul.ladder`, and the program compares the number with the rungs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sympy

import gemm_templates
from gemm_templates import is_legal
from loop_ir import Kernel, Matmul
from loop_ir.ir import hints_of
from planner.matmul.chooser import MatmulChooser, Peer
from planner.matmul.joined import JoinedTask, join, joinable
from planner.matmul.ladder import Rung, last_of_runs, share
from planner.matmul.likeness import likeness
from planner.matmul.problem import (
    MOST_PRODUCTS,
    MatmulTask,
)
from planner.matmul.tasks import MatmulTasks
from planner.matmul.ways import (
    in_turn,
    layouts_of,
    start_apart,
    vendor_steps,
    with_first,
    with_producers,
)
from planner.plan import Choice, Condition, Decided, Decision, MatmulPlan, Steps, plan_launch
from planner.schedules.proposals import default_schedule
from symexpr import known, symbol
from triton_emit import emit
from tuning import MARGINS

VENDOR = "extern"

# Matmuls whose candidates compile beside the program's kernels: of many, no more are ready in time.
_PREFETCHED = 8

# So many times the rows of the hints, what was measured there alone is no guess: a tile for 40 rows
# took an H100 149 us for 3000, the vendor's call 31.
_NEAR = 2


@dataclass(frozen=True)
class Way:
    """A template (task and config), or the vendor's call (no config). A task without the node's
    prologues comes after kernels that make its operands. first: what runs the other matmul of a
    pair before. label: equal at rungs that one way serves."""

    task: MatmulTask | None
    config: gemm_templates.Config | None
    label: str = ""
    first: Way | None = None

    def __str__(self) -> str:
        if self.first is not None:
            return f"{self.first}, {replace(self, first=None)}"
        if self.config is None or self.task is None:
            return VENDOR
        ending = {"fused": " with prologue", "gated": " of both products"}
        return f"{self.config}{ending.get(self.task.kind, '')}"


@dataclass
class MatmulPlanner(MatmulTasks):
    """Decides for each matmul of a graph: called with one, it gives the plan of what runs it. What
    is decided of the first of those that are alike holds for them all."""

    _measurements: dict[str, dict[str, gemm_templates.Choice]] = field(default_factory=dict)
    _joint: dict[str, bool] = field(default_factory=dict)
    _chosen: dict[str, list[Way]] = field(default_factory=dict)

    @functools.cached_property
    def chooser(self) -> MatmulChooser:
        """What measures candidates."""
        return MatmulChooser(self.options, self.kernels)

    @functools.cached_property
    def _firsts(self) -> dict[str, Matmul]:
        """Of each matmul, by the name of its result, the first that is like it."""
        found: dict[Hashable, Matmul] = {}
        others = self._users | {out: pair.first for out, pair in self.pairs.items()}

        def key(node: Matmul) -> Hashable:
            both = (node, others[node.out]) if node.out in others else (node,)
            return tuple(likeness(n, self.facts.aligned) for n in both)

        nodes = (*self._matmuls, *(node for node, _ in self._halves.values()))
        return {n.out: found.setdefault(key(n), n) for n in nodes}

    @functools.cached_property
    def _readers(self) -> dict[str, Kernel]:
        """Of the matmuls that stand for halves, the kernels that read these."""
        kernels = {n.name: n for n in self.graph.nodes if isinstance(n, Kernel)}
        return {node.out: kernels[name] for name, (node, _) in self._halves.items()}

    @property
    def absorbed(self) -> dict[str, Matmul]:
        """Kernels that run in one template with both products that they read, by name."""
        halves = self._halves.items()
        return {name: n for name, (n, _) in halves if self._is_joint(self._firsts[n.out])}

    @functools.cached_property
    def _users(self) -> dict[str, Matmul]:
        """Of the first matmul of each pair, by its result, the other."""
        nodes = (*self._matmuls, *(node for node, _ in self._halves.values()))
        return {self.pairs[n.out].first.out: n for n in nodes if n.out in self.pairs}

    def _is_joint(self, node: Matmul) -> bool:
        """Whether one template that multiplies both products of a node's pair is the fastest at
        some rung, and of halves of one product at all. The node then runs the other matmul at the
        other rungs."""
        if node.out not in self._joint:
            steps = (
                self._rungs(node, hints_of(self.graph.symbols)) if node.out in self.pairs else []
            )
            found = [self._gated_choice(node, r) is not None for r in steps]
            joint = all(found) if node.out in self._readers else any(found)
            self._joint[node.out] = bool(found) and joint
        return self._joint[node.out]

    def _gated_choice(self, node: Matmul, rung: Rung) -> gemm_templates.Choice | None:
        """A template for both products of a node's pair, where that is faster than the best way for
        each."""
        if node.out not in self.pairs:
            return None
        task, first = self._gated(node, rung), self.pairs[node.out].first
        one, two = self._task(first, rung), self._task(node, rung)
        if task is None or one is None or two is None:
            return None
        if self.options.gemm == "template":
            config = self.chooser.best_config(task)
            choice = gemm_templates.Choice(task.problem, config, (), reason="model")
        else:
            choice = self.chooser.choose(task, rung.hints, lambda: self._both_apart(node, rung))
        return choice if choice.config is not None else None

    def _both_apart(self, node: Matmul, rung: Rung) -> Peer:
        """What would run if no template ran both products: the best way for each, or for the one
        whose halves they are, and then the kernel that reads these."""
        first, reader = self.pairs[node.out].first, self._readers.get(node.out)
        made = self._alone(first, rung)
        if reader is None:
            both = with_first(first, made, self._alone(node, rung), "")
            return both, layouts_of(first, node)
        launch = plan_launch(emit(reader, default_schedule(reader, rung.hints)))
        return in_turn(made, Steps((launch,))), layouts_of(first, reader)

    def _alone(self, node: Matmul, rung: Rung) -> Steps:
        """The best way for one product, its operands made."""
        task = self._task(node, rung)
        assert task is not None
        way = Way(task, self._made(node, rung, task).config)
        return self._steps_of(node, rung, way, "")[0]

    def _joined_plan(self, node: Matmul) -> MatmulPlan:
        """The launches of a set, which are those of its first."""
        nodes = self._joined[node.out]
        if node.out != nodes[0].out:
            return MatmulPlan(absorbed=True)
        steps = self._usual_rungs(node)
        tables = [self._joined_ways(nodes, at, len(steps) > 1) for at in range(len(steps))]
        labels = share([{k: t for k, (t, _) in table.items()} for table in tables])
        choices: list[tuple[Condition, Choice]] = []
        even: frozenset[str] = frozenset()
        for at in last_of_runs(labels):
            rung, config = steps[at], tables[at][labels[at]][1]
            suffix = "" if rung.condition is None else self.facts.ending(f"_{rung.rows}")
            if config is not None and (task := self._joint_task(nodes, rung)) is not None:
                made, used = task.steps(config, f"matmul_{node.out}{suffix}"), task.reads
            else:
                each = [self._steps_of(n, rung, w, suffix) for n, w in self._each(nodes, at)]
                made = in_turn(*(one for one, _ in each))
                used = frozenset().union(*(buffers for _, buffers in each))
            choices.append((rung.condition, made))
            even |= self.facts.inputs & self.facts.aligned & used
        decided = [Decided(steps[at].condition, labels[at]) for at in last_of_runs(labels)]
        measured = tuple(
            (f"{node.out} and others" + f" M={rung.rows}" * (len(steps) > 1), choice)
            for rung in steps
            if (choice := self._joined_choice(nodes, rung)) is not None
        )
        more = tuple((n.out, n.type) for n in nodes[1:])
        return MatmulPlan(
            tuple(choices), Decision(node.out, tuple(decided), measured), even, more=more
        )

    def _joined_ways(
        self, nodes: tuple[Matmul, ...], at: int, many: bool
    ) -> dict[str, tuple[float, gemm_templates.Config | None]]:
        """Label -> seconds and config (None: each by itself) of what could run a set at a rung."""
        apart = ", ".join(f"{n.out} {way.label}" for n, way in self._each(nodes, at))
        choice = self._joined_choice(nodes, self._usual_rungs(nodes[0])[at])
        if choice is None or (choice.config is None and not choice.times):
            return {apart: (1.0, None)}
        configs = {c.label: c.config for c in choice.candidates}
        times = dict(choice.times)
        if not many or not times:
            configs, times = {str(choice.config): choice.config}, {str(choice.config): 1.0}
        own = {
            f"{k} of {len(nodes)} products": (t, configs[k])
            for k, t in times.items()
            if k != VENDOR
        }
        if VENDOR in times:
            own[apart] = times[VENDOR] * (1 - MARGINS.in_doubt), None
        return own

    def _each(self, nodes: tuple[Matmul, ...], at: int) -> list[tuple[Matmul, Way]]:
        """What runs each of a set by itself at a rung."""
        return [(n, self._ways_of(self._firsts[n.out], self._usual_rungs(n))[at]) for n in nodes]

    def _usual_rungs(self, node: Matmul) -> list[Rung]:
        """Where what is like a node is decided, at the hints of the graph."""
        return self._rungs(self._firsts[node.out], hints_of(self.graph.symbols))

    @functools.cached_property
    def _joinable(self) -> list[tuple[Matmul, ...]]:
        """Products of one matrix that templates may compute in one launch, none of a pair."""
        paired = {*self.pairs, *self._users}
        found = []
        for nodes in joinable(self.graph).values() if self.options.gemm == "auto" else ():
            rows = [[rung.rows for rung in self._usual_rungs(n)] for n in nodes]
            if all(n.out not in paired for n in nodes) and rows.count(rows[0]) == len(nodes):
                found.append(nodes)
        return found

    def _joint_task(self, nodes: tuple[Matmul, ...], rung: Rung) -> JoinedTask | None:
        """A set as one problem at a rung; None where templates are not asked for each of it, and
        where there may be any number of rows."""
        if rung.condition is None and nodes[0].a.type.size[0].free_symbols:
            return None
        if any(self._task(n, rung) is None for n in nodes):
            return None
        aligned = self.facts.aligned | {n.out for n in nodes}
        return join(nodes, aligned, rung.rows, rung.exact)

    @functools.cached_property
    def _joined(self) -> dict[str, tuple[Matmul, ...]]:
        """Those for which that is the fastest at some number of rows, by the results of all."""
        return {
            node.out: nodes
            for nodes in self._joinable
            if any(
                (choice := self._joined_choice(nodes, rung)) and choice.config is not None
                for rung in self._usual_rungs(nodes[0])
            )
            for node in nodes
        }

    def _joined_choice(self, nodes: tuple[Matmul, ...], rung: Rung) -> gemm_templates.Choice | None:
        """A template for all products of a set, held against the best way for each."""
        if (task := self._joint_task(nodes, rung)) is None:
            return None

        def each() -> Peer:
            return in_turn(*(self._alone(n, rung) for n in nodes)), layouts_of(*nodes)

        return self.chooser.choose(task, rung.hints, each)

    def _joint_ways(self, node: Matmul, rung: Rung, many: bool) -> dict[str, tuple[float, Way]]:
        """Like `_ways`: templates of both products, or one way for each after the other."""
        choice, task = self._gated_choice(node, rung), self._gated(node, rung)
        found: dict[str, tuple[float, Way]] = {}
        if choice is not None and task is not None:
            self._note(node, f" of both products{f' M={rung.rows}' if many else ''}", choice)
            configs = {c.label: c.config for c in choice.candidates if c.config is not None}
            times = [(label, time) for label, time in choice.times if label in configs]
            if not many or not times:
                return {str(choice.config): (1.0, Way(task, choice.config))}
            for label, time in times:
                if self._lasts(task.problem, configs[label], rung):
                    found[label] = time, Way(task, configs[label])
        if node.out in self._readers and choice is not None:
            return found or {str(choice.config): (1.0, Way(task, choice.config))}
        first = self.pairs[node.out].first
        one, two = self._task(first, rung), self._task(node, rung)
        apart = {
            f"{before}, {after}": (time + more, Way(two, config, first=Way(one, made)))
            for before, (time, made) in self._times(first, rung, one, many).items()
            for after, (more, config) in self._times(node, rung, two, many).items()
        }
        # As the best of these took where it was measured with the templates of both.
        best = min(time for time, _ in apart.values())
        scale = dict(choice.times)[VENDOR] / best if choice is not None else 1.0
        return found | {label: (time * scale, way) for label, (time, way) in apart.items()}

    def __call__(self, node: Matmul, hints: Mapping[str, int]) -> MatmulPlan:
        """What to run, each with its condition; no choices for the vendor's call (and prologues and
        the epilogue as kernels of their own) whatever the sizes."""
        if node.out in self._joined:
            return self._joined_plan(node)
        first = self._firsts[node.out]
        if (user := self._users.get(node.out)) and self._is_joint(self._firsts[user.out]):
            return MatmulPlan(absorbed=True)
        steps = self._rungs(first, hints)
        if all(self._task(first, r) is None and self._fused(first, r) is None for r in steps):
            return MatmulPlan()
        ways = self._ways_of(first, steps)
        if all(way.config is None and way.first is None for way in ways):
            return MatmulPlan((), self._decision(node, [Decided(None, VENDOR)]))
        choices: list[tuple[Condition, Choice]] = []
        decided: list[Decided] = []
        aligned: set[str] = set()
        for at in last_of_runs([way.label for way in ways]):
            rung, way = steps[at], ways[at]
            suffix = "" if rung.condition is None else self.facts.ending(f"_{rung.rows}")
            choice, used = self._steps_of(node, rung, way, suffix)
            aligned |= self.facts.inputs & self.facts.aligned & used
            choices.append((rung.condition, choice))
            decided.append(Decided(rung.condition, str(way)))
        if (most := self._limit(node, steps)) is not None:
            choices[-1] = (most, choices[-1][1])
            decided[-1] = replace(decided[-1], condition=most)
            choices.append((None, self._vendor(node, hints, self.facts.ending("_more"))))
            decided.append(Decided(None, VENDOR))
        return MatmulPlan(tuple(choices), self._decision(node, decided), frozenset(aligned))

    def _steps_of(
        self, node: Matmul, rung: Rung, way: Way, suffix: str
    ) -> tuple[Steps, frozenset[str]]:
        """What runs one way, and buffers that it reads through tensor maps."""
        task = way.task and self._find_task(node, rung, way.task.kind)
        aligned: frozenset[str] = frozenset()
        if way.config is None or task is None:
            choice = self._vendor(node, rung.hints, suffix)
        else:
            choice = task.steps(way.config, f"matmul_{node.out}{suffix}")
            if not task.prologues:
                choice = with_producers(node, choice, rung.hints, suffix)
            if way.config.template != "tiled":
                aligned = frozenset(task.buffers.values())
        if way.first is None:
            return choice, aligned
        first = self.pairs[node.out].first
        made, more = self._steps_of(first, rung, way.first, suffix)
        return with_first(first, made, choice, suffix), aligned | more

    def _ways_of(self, node: Matmul, steps: Sequence[Rung]) -> list[Way]:
        """What runs at each rung."""
        if node.out not in self._chosen:
            tables = [self._ways(node, rung, len(steps) > 1) for rung in steps]
            names = share([{k: t for k, (t, _) in table.items()} for table in tables])
            chosen = [replace(table[k][1], label=k) for k, table in zip(names, tables, strict=True)]
            self._chosen[node.out] = chosen
        return self._chosen[node.out]

    def _decision(self, node: Matmul, decided: Sequence[Decided]) -> Decision:
        measured = self._measurements.get(self._firsts[node.out].out, {})
        labelled = tuple((f"{node.out}{label}", choice) for label, choice in measured.items())
        return Decision(node.out, tuple(decided), labelled)

    def _note(self, node: Matmul, label: str, choice: gemm_templates.Choice) -> None:
        self._measurements.setdefault(node.out, {})[label] = choice

    def _limit(self, node: Matmul, steps: Sequence[Rung]) -> Condition:
        """What must hold for a dynamic batch to fit into a grid, and for a number of rows to be
        near the one for which a template is decided once; None if it always does."""
        batch, rows = node.type.size[0], node.a.type.size[-2]
        limits = []
        if len(node.type.size) == 3 and batch.free_symbols:
            limits.append(sympy.Le(batch, MOST_PRODUCTS))
        once = len(steps) == 1 and bool(rows.free_symbols)
        if once and self.options.multikernel != "off" and self.options.gemm == "auto":
            limits.append(sympy.Le(rows, _NEAR * steps[0].rows))
        ranges = {symbol(s.name): (s.low, s.high) for s in self.graph.symbols}
        asked = [limit for limit in limits if not known(limit, ranges)]
        return sympy.And(*asked) if asked else None

    @functools.cached_property
    def _ranked(self) -> list[Matmul]:
        """The matmuls that are decided, those first whose like multiply most: there may be no time
        for all."""
        hints, worth = hints_of(self.graph.symbols), Counter[str]()
        for node in self._firsts.values():
            task = self._task(node, self._rungs(node, hints)[0])
            worth[node.out] += 0 if task is None else task.problem.flops
        nodes = {node.out: node for node in self._firsts.values()}
        return [nodes[out] for out, _ in worth.most_common()]

    def measure(self) -> None:
        """Measures each as soon as its candidates are compiled; those of the next ones are compiled
        meanwhile."""
        own = {self._firsts[n.out].out for n in self._matmuls if self.options.gemm == "auto"}
        for node in (n for n in self._ranked if n.out in own):
            if not self._is_joint(self._firsts[self._users.get(node.out, node).out]):
                self._ways_of(node, self._usual_rungs(node))

    def prefetch(self, hints: Mapping[str, int]) -> bool:
        """Begins to compile candidates for the graph's matmuls, with `tune="max"` all that will be
        measured; whether there are any."""
        if self.options.gemm != "auto" or self.kernels.pool is None:
            return False
        most = None if self.options.tune == "max" else _PREFETCHED
        rungs = [
            (node, rung)
            for node in self._ranked[:most]
            for rung in self._rungs(node, hints)
            if not self._by_model(node, rung)
        ]
        apart = [(node, rung.hints) for node, rung in rungs if self._task(node, rung) is not None]
        start_apart(self.kernels, apart)
        tasks: list[MatmulTask | JoinedTask | None] = [
            self._joint_task(nodes, rung)
            for nodes in self._joinable
            for rung in self._usual_rungs(nodes[0])
        ]
        tasks += [self._gated(node, rung) for node, rung in rungs]
        tasks += [
            find(node, rung)
            for node, rung in rungs
            if node.out not in self._readers
            for find in (self._task, self._fused)
        ]
        return bool(self.chooser.prefetch(task for task in tasks if task is not None))

    def _ways(self, node: Matmul, rung: Rung, many: bool) -> dict[str, tuple[float, Way]]:
        """Label -> seconds and what could run at a rung. A matmul with prologues: templates that
        run these, too, and the best of what comes after kernels of their own, with those."""
        if self._is_joint(node):
            return self._joint_ways(node, rung, many)
        plain, fused = self._task(node, rung), self._fused(node, rung)
        times = self._times(node, rung, plain, many)
        apart = {label: (time, Way(plain, config)) for label, (time, config) in times.items()}
        if fused is None or plain is None:
            return apart
        if self._by_model(node, rung):
            way = Way(fused, self.chooser.best_config(fused))
            return apart if way.config is None else {str(way): (1.0, way)}
        label, (_, best) = min(apart.items(), key=lambda item: item[1][0])

        def kernels_first() -> Peer:
            return self._steps_of(node, rung, best, "")[0], layouts_of(node)

        choice = self.chooser.choose(fused, rung.hints, kernels_first)
        self._note(node, f" with prologue{f' M={rung.rows}' if many else ''}", choice)
        if not many or not choice.times:
            way = Way(fused, choice.config)
            return {label: (1.0, best)} if way.config is None else {str(way): (1.0, way)}
        configs = {c.label: c.config for c in choice.candidates if c.config is not None}
        found = {
            str(way): (time, way)
            for name, time in choice.times
            if name in configs and self._lasts(fused.problem, configs[name], rung)
            for way in [Way(fused, configs[name])]
        }
        found[f"kernels, {label}"] = (dict(choice.times)[VENDOR] * (1 - MARGINS.in_doubt), best)
        return found

    def _times(
        self, node: Matmul, rung: Rung, task: MatmulTask | None, many: bool
    ) -> dict[str, tuple[float, gemm_templates.Config | None]]:
        """Label -> seconds and config (None: the vendor's call) of what could run at a rung."""
        vendor = VENDOR
        if many and node.epilogue is not None:  # calls whose epilogues differ are not the same
            vendor = f"{VENDOR} {default_schedule(node.epilogue, rung.hints)}"
        if task is None:
            return {vendor: (1.0, None)}
        if self._by_model(node, rung):
            config = self.chooser.best_config(task)
            return {vendor if config is None else str(config): (1.0, config)}
        choice = self._made(node, rung, task)
        self._note(node, f" M={rung.rows}" if many else "", choice)
        if not many or not choice.times:
            label = vendor if choice.config is None else str(choice.config)
            return {label: (1.0, choice.config)}
        configs = {c.label: c.config for c in choice.candidates}
        times = {label: (t, configs[label]) for label, t in choice.times if label != VENDOR}
        times = {k: v for k, v in times.items() if v[1] and self._lasts(task.problem, v[1], rung)}
        times[vendor] = (dict(choice.times)[VENDOR] * (1 - MARGINS.in_doubt), None)
        return times

    def _made(self, node: Matmul, rung: Rung, task: MatmulTask) -> gemm_templates.Choice:
        """What is the fastest for one product, its operands made: beside one of several ways, which
        all write one buffer, the vendor's call of groups comes with a copy into it."""
        many = len(self._rungs(node, hints_of(self.graph.symbols))) > 1
        if not many or node.groups is None or node.epilogue is not None:
            return self.chooser.choose(task, rung.hints)

        def copying() -> Peer:
            return self._vendor(node, rung.hints, ""), layouts_of(node)

        return self.chooser.choose(task, rung.hints, copying, True)

    def _lasts(
        self, problem: gemm_templates.Problem, config: gemm_templates.Config, rung: Rung
    ) -> bool:
        """Whether the highest rung's config can run all the larger numbers of rows."""
        if rung.condition is not None or "M" not in problem.dynamic:
            return True
        return is_legal(replace(problem, m=2**24), config, self.chooser.device)

    def _vendor(self, node: Matmul, hints: Mapping[str, int], suffix: str) -> Steps:
        """The vendor's call as one of several choices, after the kernels of prologues: it writes a
        buffer that they share, or the epilogue's kernel does."""
        own = f"{node.out}{suffix or self.facts.ending('_')}"
        return with_producers(node, vendor_steps(node, hints, suffix, own), hints, suffix)
