"""Points that all want the same few numbers, which each program folds before its block of them."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import triton_rt
from loop_ir import Kernel, parse_kernel
from triton_emit import BadSchedule, default_schedule, emit, emit_list, list_schedule

SCALED = """\
kernel k{n}(
    part{n}: f32[{parts}] cuda:0,
    more{n}: f32[3, 5] cuda:0,
    x{n}: bf16[{size}] cuda:0,
    out y{n}: f32[{size}] cuda:0,
):
  parallel i0 < {size}:
    over r0 < {parts}:
      v0 = load part{n}[r0] : f32
      v1 = reduce sum(v0) : f32
    over r1 < 3, r2 < 5:
      v2 = load more{n}[5*r1 + r2] : f32
      v3 = sub(v2, v1) : f32
      v4 = reduce max(v3) : f32
    once:
      v5 = abs(v4) : f32
      v6 = load x{n}[i0] : bf16
      v7 = cast(v6) : f32
      v8 = add(v7, v5) : f32
      v9 = mul(v8, v1) : f32
      store y{n}[i0] = v9
"""


def scaled(size: int, parts: int = 40, n: int = 0) -> Kernel:
    return parse_kernel(SCALED.format(n=n, size=size, parts=parts))


@pytest.mark.spread(3)
@pytest.mark.parametrize("size", [4096, 5000, 77, 2])
@pytest.mark.parametrize("parts", [40, 256, 1])
def test_blocks_of_points(size: int, parts: int, tools: SimpleNamespace) -> None:
    kernel = scaled(size, parts)
    schedule = default_schedule(kernel, {})
    assert (schedule.kind, schedule.rblock >= parts) == ("flat", True)
    tools.check(kernel, schedule, ulp=256.0)  # of a sum of both signs


def test_points_are_read_as_if_there_were_no_numbers(tools: SimpleNamespace) -> None:
    """In vectors, and none goes through shared memory but the numbers of the warps."""
    text = SCALED.format(n=0, size=1 << 20, parts=40).replace("bf16", "f32")
    kernel = parse_kernel(text.replace("v7 = cast(v6)", "v7 = abs(v6)"))
    source = tools.kernel_source(emit(kernel, default_schedule(kernel, {})))
    every = (1 << len(source.params)) - 1
    binary = triton_rt.compile(source, triton_rt.Target(90), alignment=every, keep_ptx=True)
    stores = re.findall(r"st\.global\.\S+", binary.ptx)
    assert stores and all("v4" in s for s in stores) and binary.shared_bytes <= 256


def test_rows_that_differ_are_not_flat() -> None:
    own = SCALED.format(n=0, size=64, parts=40).replace("part0: f32[40]", "part0: f32[64, 40]")
    own = own.replace("part0[r0]", "part0[40*i0 + r0]")
    kernel = parse_kernel(own)
    assert default_schedule(kernel, {}).kind != "flat"
    with pytest.raises(BadSchedule, match="inner axes"):
        emit(kernel, replace(default_schedule(scaled(64), {}), kind="flat"))


PLANE = """\
kernel k{n}(
    part{n}: f32[{parts}] cuda:0,
    row{n}: f32[{rows}] cuda:0,
    x{n}: f32[{rows}, {columns}] cuda:0,
    out y{n}: f32[{rows}, {columns}] cuda:0,
):
  parallel i0 < {rows}, i1 < {columns}:
    over r0 < {parts}:
      v0 = load part{n}[r0] : f32
      v1 = reduce sum(v0) : f32
    once:
      v2 = load x{n}[{at}] : f32
      v3 = load row{n}[i0] : f32
      v4 = mul(v2, v3) : f32
      v5 = div(v4, v1) : f32
      store y{n}[{columns}*i0 + i1] = v5
"""


def plane(rows: int, columns: int, parts: int, turned: bool = False, n: int = 0) -> Kernel:
    at = f"i0 + {rows}*i1" if turned else f"{columns}*i0 + i1"
    return parse_kernel(PLANE.format(n=n, rows=rows, columns=columns, parts=parts, at=at))


@pytest.mark.spread(3)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(16, 256), (13, 300), (70, 37)])
def test_tiles_of_points(rows: int, columns: int, turned: bool, tools: SimpleNamespace) -> None:
    """Those that transpose, and those of lists, would be tiles without the numbers. As rows of one
    point, programs of 64 folded the numbers (Adafactor: 904 us, 566 apart)."""
    large = default_schedule(plane(3072, 768, 40, turned), {})
    assert (large.kind == "tiled", large.rblock) == (turned, 64)
    for yblock in (1, 4):
        tiled = replace(large, kind="tiled", xblock=64, yblock=yblock, vector=0)
        tools.check(plane(rows, columns, 40, turned), tiled, ulp=256.0)


def test_lists_of_tiles(tools: SimpleNamespace) -> None:
    import torch

    sizes = [(70, 256, 40), (9, 300, 200)]
    nests = [plane(*size, n=n) for n, size in enumerate(sizes)]
    tensors: dict[str, torch.Tensor] = {}
    for n, (rows, columns, parts) in enumerate(sizes):
        tensors |= {f"part{n}": torch.rand(parts), f"row{n}": torch.rand(rows)}
        tensors |= {f"x{n}": torch.rand(rows, columns), f"y{n}": torch.zeros(rows, columns)}
    schedule = list_schedule([plane(3072, 768, 40), plane(768, 512, 200)], {})
    assert (schedule.kind, schedule.rblock) == ("tiled", 256)
    tools.launch(emit_list([nests], [schedule]), tensors, {})
    for n in range(len(sizes)):
        want = tensors[f"x{n}"] * tensors[f"row{n}"][:, None] / tensors[f"part{n}"].sum()
        torch.testing.assert_close(tensors[f"y{n}"], want)


def test_lists_of_them(tools: SimpleNamespace) -> None:
    import torch

    sizes = [(4096, 40), (512, 200), (33, 7), (1040, 1)]
    nests = [scaled(size, parts, n) for n, (size, parts) in enumerate(sizes)]
    tensors: dict[str, torch.Tensor] = {}
    for n, (size, parts) in enumerate(sizes):
        tensors |= {f"part{n}": torch.rand(parts), f"more{n}": torch.rand(3, 5)}
        tensors |= {f"x{n}": torch.rand(size).bfloat16(), f"y{n}": torch.zeros(size)}
    alike = [nests[:2], nests[2:3], nests[3:]]
    tools.launch(emit_list(alike, [list_schedule(each, {}) for each in alike]), tensors, {})
    for n in range(len(sizes)):
        total = tensors[f"part{n}"].sum()
        want = (tensors[f"x{n}"].float() + (tensors[f"more{n}"] - total).max().abs()) * total
        torch.testing.assert_close(tensors[f"y{n}"], want)
