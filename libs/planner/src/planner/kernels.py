"""Between the host program and triton_rt: kernels by definition, compiled in parallel."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import sympy
from torch import Tensor

import triton_rt
from planner.errors import CacheNotWritten, NotTriton, UnsafeCache
from planner.loops import LoopLibraries
from planner.settings import Settings
from symexpr import Mod, Ranges, evaluate, known, symbol
from wrapper_ir import DefineKernel, Launch, Program, Ref, analysis

if TYPE_CHECKING:
    from tuning import TuningPool

# What a kernel's definition and its source for triton_rt name alike.
ALIKE = ("name", "constants", "num_warps", "num_stages", "num_ctas", "max_registers", "contract")


def kernel_source(define: DefineKernel) -> triton_rt.KernelSource:
    """The same kernel as triton_rt names it. Raises NotTriton."""
    if define.language != "triton":
        raise NotTriton(define.name)
    params = tuple(
        triton_rt.KernelParam(p.name, p.kind, p.mutated, p.aligned) for p in define.params
    )
    alike: dict[str, Any] = {name: getattr(define, name) for name in ALIKE}
    return triton_rt.KernelSource(text=define.source, params=params, pdl=define.overlap, **alike)


# Of the time that a compilation takes without it, the share that it may wait for candidates, and
# seconds that this is at most; seconds in which the rest of those that are there are measured.
_PATIENCE = 0.2
_LONGEST = 1.0
_MEASURED = 0.5


@dataclass
class Kernels:
    """The kernels of one program, loaded once each. defined: those of the user, by what they are
    but for the name. pool, apart: see `compiling`. began: when the compilation did, by
    `perf_counter`. started: kernels that the program is expected to have. late: candidates that
    were not compiled in time. given: inputs of the graph that is planned, by name, which is
    measured on them."""

    options: Settings
    loaded: dict[DefineKernel, triton_rt.LazyKernel] = field(default_factory=dict)
    plain: dict[DefineKernel, triton_rt.LazyKernel] = field(default_factory=dict)
    defined: dict[DefineKernel, DefineKernel] = field(default_factory=dict)
    pool: triton_rt.CompilePool | None = None
    began: float = field(default_factory=perf_counter)
    started: list[Future[triton_rt.Binary]] = field(default_factory=list)
    late: list[Future[triton_rt.Binary]] = field(default_factory=list)
    given: Mapping[str, Tensor] = field(default_factory=dict)
    _cache: triton_rt.Cache | None = None
    _end: float | None = None
    _apart: TuningPool | None = None
    _ends: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.loops = LoopLibraries(self.in_cpp_folder, self.options.workers)

    @property
    def cache(self) -> triton_rt.Cache:
        """Binaries on disk. Raises UnsafeCache."""
        if self._cache is None:
            self._cache = triton_rt.Cache(self.folder("kernels"))
        return self._cache

    @property
    def apart(self) -> TuningPool:
        """Workers in which the user's kernels are measured, one a GPU, until what `compiling` is
        entered for ends."""
        if self._apart is None:
            from tuning import TuningPool  # with all of measuring, which most graphs do without

            self._apart = self._ends.enter_context(TuningPool())
        return self._apart

    def folder(self, name: str) -> Path:
        """A folder of the cache for what is run. Raises UnsafeCache."""
        try:
            return triton_rt.private(self.options.cache_path / name)
        except triton_rt.errors.UnsafeFolder as error:
            raise UnsafeCache(str(error)) from error

    def in_cpp_folder(self, make: Callable[[Path], Path]) -> Path:
        """What `make` gives for the folder of C++ libraries, or for one of this process, with a
        warning, where the cache cannot be written to. Raises UnsafeCache, OSError."""
        folder = self.folder("cpp")
        try:
            return make(folder)
        except OSError as error:
            why = f"{folder} cannot be written to ({error}): what is built is not kept"
            warnings.warn(why, CacheNotWritten, stacklevel=2)
            return make(folder_of_process())

    def load(self, define: DefineKernel) -> triton_rt.LazyKernel:
        """The kernel of a definition, the same one each time."""
        if define not in self.loaded:
            self.loaded[define] = triton_rt.LazyKernel(kernel_source(define), cache=self.cache)
        return self.loaded[define]

    def start(self, define: DefineKernel, alignment: int) -> None:
        """Begins to compile a variant of a kernel of the program, elsewhere if there is a pool."""
        kernel = self.load(define)
        kernel.pool = self.pool
        self.started.append(kernel.prefetch(alignment=alignment))
        kernel.pool = None  # variants of later calls are compiled in process

    def in_time(self, futures: Collection[Future[triton_rt.Binary]]) -> bool:
        """Waits for candidates, of which the program needs none: while its own kernels compile, and
        then for a share of the time that all took until then. Whether they are compiled."""
        while missing := {f for f in futures if not f.done()}:
            if needed := {f for f in self.started if not f.done()}:
                wait(missing | needed, return_when=FIRST_COMPLETED)
                continue
            if (left := self._left()) <= 0:
                self.late.extend(missing)
                return False
            wait(missing, left)
        return True

    def spent(self) -> bool:
        """Whether no more candidates should be measured: the program's own kernels are compiled,
        and what may be waited for candidates is over for a while."""
        return all(f.done() for f in self.started) and self._left() <= -_MEASURED

    def _left(self) -> float:
        """Seconds until candidates are late, counted from when this is first asked."""
        now = perf_counter()
        if self._end is None:
            self._end = now + min(_LONGEST, _PATIENCE * (now - self.began))
        return self._end - now

    def launcher(self, define: DefineKernel) -> Callable[..., None]:
        """`launcher(grid, *args)`. Where a tensor of a descriptor breaks a rule of TMA, the same
        kernel runs without it."""
        if define.language == "cpp":
            return self.loops.launcher(define)
        kernel = self.load(define)
        if not any(p.is_descriptor for p in kernel.source.params) or kernel.source.is_gluon:
            return kernel.launch
        return triton_rt.with_fallback(kernel, self.without_tma(define))

    def without_tma(self, define: DefineKernel) -> triton_rt.LazyKernel:
        """The kernel with descriptors that become addresses, sizes and strides."""
        if define not in self.plain:
            source = replace(kernel_source(define), tma=False)
            self.plain[define] = triton_rt.LazyKernel(source, cache=self.cache)
        return self.plain[define]

    def start_build(self, program: Program) -> Callable[[], None]:
        """Begins to compile all kernels of a CUDA program, side by side, for the alignment that
        its hints suggest, and all that are C++; what it returns waits for them. What Triton
        interprets or launches by itself has nothing to build."""
        every = [d for p in analysis.programs(program) for d in analysis.kernels(p).values()]
        wait_for_loops = self.loops.start(d for d in every if d.language == "cpp")
        if not analysis.uses_cuda(program) or self.options.emit == "hop":
            return wait_for_loops
        triton_rt.build_ahead()  # what is found compiled started no workers
        asked = expected_variants(program)
        for define, mask in asked:
            self.start(define, mask)

        def finish() -> None:
            wait_for_loops()
            for define, mask in asked:
                self.load(define).binary(alignment=mask)

        return finish

    def binaries(self, program: Program) -> tuple[triton_rt.Binary, ...]:
        """Those of a program's kernels that its first launches need; waits for them."""
        if not analysis.uses_cuda(program) or self.options.emit == "hop":
            return ()
        asked = expected_variants(program)
        return tuple(self.load(define).binary(alignment=mask) for define, mask in asked)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Inside, compile jobs go to worker processes: those of this process, which are started
        as jobs come and stay for the next compilation."""
        with triton_rt.shared_pool(self.options.workers) as pool, self._ends:
            self.pool = pool
            try:
                yield
            finally:
                self.pool = self._apart = None


@functools.cache
def folder_of_process() -> Path:
    """Where this process builds what it cannot keep."""
    folder = tempfile.mkdtemp(prefix="planner_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def start_workers(options: Settings, tensors: Iterable[Any], kernels: int) -> None:
    """Begins to start compile workers while a model is captured, if a tensor of it is on a GPU:
    one for each of `kernels`, and two less than may serve the compilation, so that cores are left
    for the capture. And to build the launcher, once a machine."""
    if any(isinstance(t, Tensor) and t.device.type == "cuda" for t in tensors):
        most = max(1, options.workers - 2)
        triton_rt.shared_pool(options.workers).start(min(kernels, most))
        triton_rt.build_ahead()


def expected_variants(program: Program) -> list[tuple[DefineKernel, int]]:
    """Each kernel that is launched, with the alignment masks that its first launch may have: bit
    i for pointers, which allocators align, and for integers divisible by 16: those of the hints,
    and where that hangs on a size, all of them and none."""
    inner = [v for p in analysis.programs(program) if p is not program for v in _variants(p)]
    return list(dict.fromkeys((*inner, *_variants(program))))


def _variants(program: Program) -> list[tuple[DefineKernel, int]]:
    """Those of the launches of a program itself."""
    defines = analysis.kernels(program)
    hints = {s.name: s.typical for s in program.symbols}
    ranges = {symbol(s.name): (s.low, s.high) for s in program.symbols}
    found: dict[str, tuple[int, ...]] = {}

    for op in analysis.walk(program.ops):
        if not isinstance(op, Launch) or op.kernel in found:
            continue
        if defines[op.kernel].language != "triton":
            continue
        mask = open_ = 0
        for i, arg in enumerate(op.args):
            kind = defines[op.kernel].params[i].kind
            if kind[0] in "iu" and not isinstance(arg, int) and not _settled(arg, ranges):
                open_ |= 1 << i
            if (isinstance(arg, Ref) and kind[0] == "*") or (
                kind[0] in "iu" and int(evaluate(arg, hints)) % 16 == 0
            ):
                mask |= 1 << i
        found[op.kernel] = tuple(dict.fromkeys((mask, mask | open_, mask & ~open_)))
    return [(defines[name], mask) for name, masks in found.items() for mask in masks]


def _settled(size: Any, ranges: Ranges) -> bool:
    """Whether a size is, or is not, a multiple of 16 whatever the symbols are."""
    return not size.free_symbols or known(sympy.Eq(Mod(size, 16), 0), ranges) is not None
