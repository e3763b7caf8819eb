"""Kernel source -> cubin, with no GPU present."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import triton
from triton._C.libtriton import ir, passes
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.driver import driver as active_driver
from triton.runtime.jit import JITFunction

from triton_rt.compiler.binary import Binary
from triton_rt.compiler.descriptor_writes import written_descriptors
from triton_rt.compiler.pairs_of_halves import without_constant_pairs
from triton_rt.compiler.target import Target
from triton_rt.config import line_info
from triton_rt.errors import BadSource, CompileFailed, NoTmaGather, TritonRTError
from triton_rt.source import KernelParam, KernelSource
from triton_rt.tma import MapLayout

#: The constant of a kernel that says what all of its pointers are multiples of; 1 in the variant
#: for others. Of those that it finds by their places among the arguments Triton cannot know. No
#: kernel of the user's has one of this name by chance.
ALIGNED = "TRITON_RT_ALIGNED"


def in_process() -> bool:
    """Whether this process can compile: not if Triton was imported with TRITON_INTERPRET=1, which
    turns `tl.sum` and its like into interpreted functions for good."""
    return isinstance(triton.language.sum, JITFunction)


def compile_here(
    source: KernelSource, target: Target, alignment: int | None = None, keep_ptx: bool = False
) -> Binary:
    """Compiles in this process, past every cache. Raises `CompileFailed`, `BadSource`.

    The stages are those of `triton.compile`, without its disk cache and dump hooks: the same
    source gives the same cubin."""
    mask = source.promised_alignment if alignment is None else alignment
    signature = source.signature()
    function = source.jit_function()
    paths = source.paths()
    constants = {paths[n]: v for n, v in source.constant_values().items()}
    if paths.get(ALIGNED) in constants and not all(
        mask >> i & 1 for i, p in enumerate(source.params) if p.is_pointer
    ):
        constants[paths[ALIGNED]] = 1
    attributes = {
        paths[p.name]: [["tt.divisibility", 16]]
        for i, p in enumerate(source.params)
        if mask >> i & 1 and p.may_align
    }
    gpu = GPUTarget("cuda", target.arch, 32)
    try:
        backend = make_backend(gpu)
        options = backend.parse_options(
            {
                "num_warps": source.num_warps,
                "num_stages": source.num_stages,
                "num_ctas": source.num_ctas,
                "launch_cooperative_grid": source.cooperative,
                "launch_pdl": source.pdl,
                "maxnreg": source.max_registers,
                "enable_fp_fusion": source.contract,
            }
        )
        kind = GluonASTSource if source.is_gluon else ASTSource
        if kind is GluonASTSource and not source.tma:
            raise BadSource(f"{source.name}: a @gluon.jit kernel has no form without TMA")
        with contextlib.nullcontext() if line_info() else _WITHOUT_LINES:
            asm, metadata, written = _run_stages(
                backend, options, gpu, kind(function, signature, constants, attributes), source.tma
            )
    except TritonRTError:
        raise
    except Exception as error:
        # Triton and LLVM raise errors of many classes; each means that this kernel did not compile.
        text = str(error)
        if target.arch < 100 and ("tile::gather4" in text or "tile::scatter4" in text):
            raise NoTmaGather(
                f"{source.name} for {target} gathers or scatters through a descriptor, which "
                "TMA can do from sm_100 on (tile::gather4, tile::scatter4): use tma=False"
            ) from error
        raise CompileFailed(
            f"{source.name} for {target} (num_warps={source.num_warps}, "
            f"num_stages={source.num_stages}): {type(error).__name__}: {error}"
        ) from error
    return Binary(
        name=metadata["name"],
        target=target,
        params=_with_written(source.params, written),
        alignment=mask,
        num_warps=metadata["num_warps"],
        num_ctas=metadata["num_ctas"],
        shared_bytes=metadata["shared"],
        global_scratch_bytes=metadata["global_scratch_size"],
        global_scratch_align=metadata["global_scratch_align"],
        profile_scratch_bytes=metadata["profile_scratch_size"],
        profile_scratch_align=metadata["profile_scratch_align"],
        cooperative=bool(metadata["launch_cooperative_grid"]),
        pdl=bool(metadata["launch_pdl"]),
        compiler=f"triton {triton.__version__}",
        tensor_maps=tuple(map(MapLayout.from_triton, metadata.get("tensordesc_meta") or ())),
        cubin=asm["cubin"],
        ptx=asm["ptx"] if keep_ptx else "",
    )


def _run_stages(
    backend: Any, options: Any, gpu: GPUTarget, source: ASTSource, tma: bool
) -> tuple[dict[str, Any], dict[str, Any], set[int]]:
    stages: dict[str, Any] = {}
    gluon = isinstance(source, GluonASTSource)
    backend.add_stages(stages, options, Language.GLUON if gluon else Language.TRITON)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata: dict[str, Any] = {"target": gpu, **options.__dict__}
    with _front_end_sees(gpu):
        module = source.make_ir(
            gpu,
            options,
            backend.get_codegen_implementation(options),
            backend.get_module_map(),
            context,
        )
    written = written_descriptors(module, gluon)
    if not tma:
        _without_descriptors(module)
    asm: dict[str, Any] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        if name == "ptx":
            module = without_constant_pairs(module)
        asm[name] = module
    return {"ptx": asm["ptx"], "cubin": asm["cubin"]}, metadata, written


def _with_written(params: tuple[KernelParam, ...], written: set[int]) -> tuple[KernelParam, ...]:
    place = itertools.count()
    return tuple(
        replace(p, mutated=True) if p.is_descriptor and next(place) in written else p
        for p in params
    )


def _without_descriptors(module: Any) -> None:
    """Descriptors -> addresses, sizes and strides, also in the kernel's own parameters: the pass
    that Triton runs for chips before Hopper. It wants its functions inlined."""
    manager = ir.pass_manager(module.context)
    passes.common.add_inliner(manager)
    passes.ttir.add_rewrite_tensor_descriptor_to_pointer(manager)
    manager.run(module, "tma=False")


class _Target:
    """Triton's driver, but for the target that the compiling thread asks for."""

    def __init__(self, gpu: GPUTarget, origin: Any) -> None:
        self._gpu = gpu
        self._origin = origin
        self._thread = threading.get_ident()

    def get_current_target(self) -> GPUTarget:
        if threading.get_ident() == self._thread:
            return self._gpu
        target: GPUTarget = self._driver().get_current_target()
        return target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver(), name)

    def _driver(self) -> Any:
        return active_driver.default if self._origin is None else self._origin


class _WithoutLines:
    """Triton's knob for kernels that name no lines of their source. It is the process's: it goes
    back when the last of the threads that compile here has left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            vars(triton.knobs.compilation)["disable_line_info"] = True

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                vars(triton.knobs.compilation).pop("disable_line_info")


_WITHOUT_LINES = _WithoutLines()
_FRONT_END = threading.Lock()


@contextlib.contextmanager
def _front_end_sees(gpu: GPUTarget) -> Iterator[None]:
    """Triton's front end asks the active driver whether the chip has TMA, and not the target that
    it compiles for: without this, 16-bit float minima compile only where there is a Hopper GPU."""
    with _FRONT_END:
        origin = active_driver._active
        active_driver._active = _Target(gpu, origin)
        try:
            yield
        finally:
            active_driver._active = origin
