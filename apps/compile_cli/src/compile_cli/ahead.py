"""A model compiled ahead of time: a C++ library that runs without Python, on a GPU that need not be
here, with its weights and a C header beside it."""

from __future__ import annotations

import copy
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

import cpp_emit
import triton_rt
from aten_lowering import constants_of, lower_with_report
from compile_cli.capture import capture
from compile_cli.errors import NoLibrary
from compile_cli.options import Options
from compile_cli.pipeline import fuse_options, host_program, serve_one_of
from compile_cli.record import Record
from compile_cli.torch_compat import FakeTensor
from planner import Kernels, expected_variants
from wrapper_ir import Constant, Program, print_program, print_type
from wrapper_ir.analysis import programs, walk

HEADER = """\
// {name}: compiled ahead of time for {target}. Every function returns 0, or 1 with the reason in
// cpp_emit_error() (of this thread). Tensors are handles of torch's stable C ABI
// (torch/csrc/stable/c/shim.h): those that go in stay the caller's, those that come out are the
// caller's to delete (aoti_torch_delete_tensor_object).
#pragma once
#include <stdint.h>
#include <torch/csrc/stable/c/shim.h>
#ifdef __cplusplus
extern "C" {{
#endif
// Constants: {constants}.
int32_t cpp_emit_create(const AtenTensorHandle* constants, int64_t count, int64_t* instance);
int32_t cpp_emit_drop(int64_t instance);
// Tensors: {tensors}.
// Integers: {integers}.
int32_t cpp_emit_run(int64_t instance, const AtenTensorHandle* tensors, int64_t num_tensors,
                     const int64_t* ints, int64_t num_ints, AtenTensorHandle* out_tensors,
                     int64_t num_out_tensors, int64_t* out_ints, int64_t num_out_ints);
const char* cpp_emit_error();
#ifdef __cplusplus
}}
#endif
"""


def compile_ahead(
    exported: torch.export.ExportedProgram, output: Path, target: str, options: Options
) -> Program:
    """Writes the library `m.so` that `output` names, and beside it `m.safetensors` (the weights, by
    the names of the program's first parameters, and its constants), `m.h`, and `m.txt`, the host
    program. target: `cuda:90` is any GPU of compute capability 9.0. Nothing is measured: matmuls
    are the vendor's. Raises `NoLibrary`: a part of the program needs Python."""
    kind, _, arch = target.partition(":")
    if kind != "cuda" or not arch.isdigit():
        raise NoLibrary(f"for {target}", "kernels run without Python on a GPU, such as cuda:90")
    captured = capture(_on(exported, torch.device("cuda", 0)))
    if captured.windows or not all(is_result for is_result, _ in captured.outputs):
        raise NoLibrary("of this model", "its results are not all tensors that the program makes")
    lowered = serve_one_of(lower_with_report(captured.graph))
    if any(isinstance(t, FakeTensor) for t in constants_of(lowered).values()):
        raise NoLibrary("of this model", "it makes tensors of constants of its own")
    options = replace(options, gemm="extern", tune="off", emit="cpp", channels_last="off")
    kernels = Kernels(options)
    with kernels.compiling():
        fusing = fuse_options(options, lowered.graph)
        program = host_program(lowered, fusing, options, Record(), kernels).program
        binaries = _binaries(program, kernels, triton_rt.Target(int(arch)))
    try:
        text = cpp_emit.emit(program, "aot", schemas=cpp_emit.torch_schema, binaries=binaries)
    except cpp_emit.CppEmitError as error:
        raise NoLibrary("of this model", str(error)) from error
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(cpp_emit.build(text, kernels.folder("cpp"), output.stem), output)
    tensors = {**capture(exported).lifted, **constants_of(lowered)}
    flat = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    safetensors.torch.save_file(flat, output.with_suffix(".safetensors"))
    output.with_suffix(".txt").write_text(print_program(program))
    output.with_suffix(".h").write_text(_header(program, target))
    return program


def _on(exported: torch.export.ExportedProgram, device: torch.device) -> Any:
    """The program as it would be on a device that may not be here: of fake tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own classes
        moved: Any = copy.deepcopy(exported)
    modes = (getattr(n.meta.get("val"), "fake_mode", None) for n in moved.graph.nodes)
    mode = next(filter(None, modes))

    def there(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        if not isinstance(value, Tensor):
            return value
        with mode:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=device
            )

    moved._example_inputs = None
    for store in (moved._state_dict, moved._constants):
        store.update({name: there(value) for name, value in store.items()})
    graphs = [m.graph for m in moved.graph_module.modules() if isinstance(m, fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        if node.target is torch.ops.aten.view.default:
            # Results of attention have other strides there: the export made a view of `reshape`.
            node.target = torch.ops.aten.reshape.default
        node.args = fx.node.map_aggregate(node.args, there)
        node.kwargs = fx.node.map_aggregate(node.kwargs, there)
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(there, node.meta["val"])
    return moved


def _binaries(
    program: Program, kernels: Kernels, target: triton_rt.Target
) -> dict[str, list[triton_rt.Binary]]:
    """The binaries of each kernel: one for arguments aligned as usual, and one for any."""
    asked = [(define, mask) for define, first in expected_variants(program) for mask in (first, 0)]
    pairs = dict.fromkeys(asked)
    jobs = [(d.name, kernels.load(d).prefetch(target, alignment=mask)) for d, mask in pairs]
    made: dict[str, list[triton_rt.Binary]] = {}
    for name, job in jobs:
        made.setdefault(name, []).append(job.result())
    return made


def _constants(program: Program) -> list[str]:
    every = (op for each in programs(program) for op in walk(each.ops))
    return [op.key for op in every if isinstance(op, Constant)]


def _header(program: Program, target: str) -> str:
    tensors = [f"{p.name} {print_type(p.type)}" for p in program.params if p.type is not None]
    return HEADER.format(
        name=program.name,
        target=target,
        constants=", ".join(_constants(program)) or "none",
        tensors=f"\n//   {f'{chr(10)}//   '.join(tensors)}",
        integers=", ".join(p.name for p in program.params if p.type is None) or "none",
    )
