"""Kernel source -> cubin, with no GPU present."""

from __future__ import annotations

from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction

from triton_rt.binary import Binary
from triton_rt.errors import CompileFailed, TritonRTError
from triton_rt.source import KernelSource, load_jit
from triton_rt.target import Target


def in_process() -> bool:
    """Whether this process can compile: not if Triton was imported with TRITON_INTERPRET=1, which
    turns `tl.sum` and its like into interpreted functions for good."""
    return isinstance(triton.language.sum, JITFunction)


def compile_here(
    source: KernelSource, target: Target, alignment: int | None = None, keep_ptx: bool = False
) -> Binary:
    """Compiles in this process, past every cache. Raises `CompileFailed`, `BadSource`.

    The stages are those of `triton.compile`, without its disk cache and dump hooks: the same
    source gives the same cubin.
    """
    mask = source.promised_alignment if alignment is None else alignment
    signature = source.signature()
    function = load_jit(source)
    position = {name: i for i, name in enumerate(signature)}
    constants = {(position[n],): v for n, v in source.constant_values().items()}
    attributes = {
        (position[p.name],): [["tt.divisibility", 16]]
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
            }
        )
        asm, metadata = _run_stages(
            backend, options, gpu, ASTSource(function, signature, constants, attributes)
        )
    except TritonRTError:
        raise
    except Exception as error:
        # Triton and LLVM raise errors of many classes; each means that this kernel did not compile.
        raise CompileFailed(
            f"{source.name} for {target} (num_warps={source.num_warps}, "
            f"num_stages={source.num_stages}): {type(error).__name__}: {error}"
        ) from error
    return Binary(
        name=metadata["name"],
        target=target,
        params=source.params,
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
        cubin=asm["cubin"],
        ptx=asm["ptx"] if keep_ptx else "",
    )


def _run_stages(
    backend: Any, options: Any, gpu: GPUTarget, source: ASTSource
) -> tuple[dict[str, Any], dict[str, Any]]:
    stages: dict[str, Any] = {}
    backend.add_stages(stages, options, Language.TRITON)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    metadata: dict[str, Any] = {"target": gpu, **options.__dict__}
    module = source.make_ir(
        gpu,
        options,
        backend.get_codegen_implementation(options),
        backend.get_module_map(),
        context,
    )
    asm: dict[str, Any] = {}
    for name, stage in stages.items():
        module = stage(module, metadata)
        asm[name] = module
    return {"ptx": asm["ptx"], "cubin": asm["cubin"]}, metadata
