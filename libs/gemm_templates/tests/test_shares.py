"""Which tiles and steps persistent programs take: each once, whatever the sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_templates import H200, Config, InvalidConfig, Problem, candidates, make_plan
from gemm_templates.families.gluon import family as gluon
from gemm_templates.fused import Epilogue
from gemm_templates.model import is_legal
from triton_rt import KernelParam, KernelSource, LazyKernel, Target, compile

TEXT = """\
import triton
import triton.language as tl
from gemm_templates.parts.tail_tiles import item_of, shares_of


@triton.jit
def items_of(out, tiles, steps, most, SHARES: tl.constexpr):
    pid, programs = tl.program_id(0), tl.num_programs(0)
    items, pieces, shared = shares_of(pid, programs, tiles, SHARES)
    for number in range(items):
        tile, first, count, before = item_of(
            number, pid, programs, tiles, pieces, shared, steps, SHARES
        )
        place = out + (pid * most + number) * 4
        tl.store(place, tile)
        tl.store(place + 1, first)
        tl.store(place + 2, count)
        tl.store(place + 3, before)
"""
ALIGNED = frozenset({"a", "b", "b2", "out"})
TURNS = Config(128, 128, 64, 8, 8, 6, "gluon", 132, 2)


@cache
def kernel(shares):
    params = [KernelParam("out", "*i32", mutated=True)]
    params += [KernelParam(name, "i32") for name in ("tiles", "steps", "most")]
    return LazyKernel(KernelSource("items_of", TEXT, tuple(params), (("SHARES", shares),)))


def items(programs, tiles, steps, shares):
    """For each program its items: (tile, first step, how many, how many steps came before)."""
    most = tiles // programs + 2
    out = torch.full((programs, most, 4), -1, dtype=torch.int32)
    kernel(shares).launch((programs, 1, 1), out, tiles, steps, most)
    return [[tuple(item) for item in part if item[0] >= 0] for part in out.tolist()]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(0, 40), st.integers(1, 12), st.sampled_from([0, 2, 3, 4]))
def test_each_step_of_each_tile_once(programs, tiles, steps, shares):
    found = items(programs, tiles, steps, shares)
    seen = [(t, first + i) for part in found for t, first, count, _ in part for i in range(count)]
    assert sorted(seen) == [(tile, step) for tile in range(tiles) for step in range(steps)]
    for part in found:
        done = 0
        for _, _, count, before in part:
            assert before == done
            done += count
    rest = tiles % programs
    pieces = {}
    for pid, part in enumerate(found):
        for number, (tile, _, _, _) in enumerate(part):
            pieces.setdefault(tile, []).append((pid, number))
    shared = {tile: where for tile, where in pieces.items() if len(where) > 1}
    if shares and rest * shares <= programs:
        assert sorted(shared) == list(range(tiles - rest, tiles))
        # As `combined` counts and reads them: SHARES pieces, that of program part * shared + place.
        for place, tile in enumerate(sorted(shared)):
            assert shared[tile] == [(part * rest + place, 0) for part in range(shares)]
    else:
        assert not shared


def test_the_picture_of_the_docstring():
    assert items(4, 5, 4, 4) == [[(4, i, 1, 0), (i, 0, 4, 1)] for i in range(4)]


@pytest.mark.parametrize(
    "config",
    [
        TURNS,
        pytest.param(Config(128, 256, 64, 8, 8, 4, "gluon", 132, 4), marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("out_columns", [2560, pytest.param(2559, marks=pytest.mark.slow)])
def test_code_for_hopper(config, out_columns):
    """Partial sums leave and come back 16 bytes a thread, and the products are as before."""
    problem = Problem(2560, out_columns, 2560, b_stride=(1, 2560), aligned=ALIGNED)
    plan = make_plan(problem, replace(config, split_k=4))
    source = plan.steps[0].source
    binary = compile(source, Target(90), alignment=(1 << len(source.params)) - 1, keep_ptx=True)
    groups = 2
    vectors = config.block_m * config.block_n // (2 if config.block_n == 256 else 1) // 128 // 4
    assert binary.ptx.count("ld.global.cg.v4") == vectors * groups
    assert binary.ptx.count("atom.global.gpu.acq_rel.add") == groups
    assert "ld.local" not in binary.ptx
    assert binary.shared_bytes <= H200.smem
    halves = 2 if config.block_n == 256 else 1
    tiles = -(-2560 // 128) * -(-out_columns // config.block_n)
    sizes = {w.name: (w.elements(problem.m, problem.n), w.zeroed) for w in plan.workspaces}
    assert sizes["partials"] == (132 * config.block_m * config.block_n, False)
    assert sizes["counters"] == (halves * tiles, True)
    assert plan.steps[0].grid(problem.m, problem.n) == (132, 1, 1)


def test_few_tiles_have_more_programs():
    problem = Problem(256, 1024, 4096, aligned=ALIGNED)
    kernel = make_plan(problem, replace(TURNS, split_k=4)).steps[0]
    assert kernel.grid(256, 1024) == (64, 1, 1) and "*4, 132)" in kernel.grid_text[0]
    assert make_plan(problem, TURNS).steps[0].grid(256, 1024) == (16, 1, 1)


def test_where_it_is_offered():
    def offered(*sizes, **more):
        problem = Problem(*sizes, b_stride=(1, sizes[2]), aligned=ALIGNED, **more)
        return [c for c in gluon.configs(problem, H200) if c.split_k > 1]

    assert offered(2560, 2560, 2560) == [replace(TURNS, split_k=4)]  # 400 tiles: 3 rounds and 4
    assert offered(3072, 3072, 3072) == [replace(TURNS, split_k=2)]  # 576: 4 rounds and 48
    assert offered(4096, 4096, 4096) == []  # 1024: 7 rounds and 100, more than 132 can share
    assert offered(2560, 2560, 128) == []  # two blocks of K
    assert offered(2560, 2560, 2560, dynamic=frozenset({"M"})) == []
    first = candidates(Problem(2560, 2560, 2560, b_stride=(1, 2560), aligned=ALIGNED), H200)[0]
    assert first.config.split_k == 4


def test_what_it_cannot_share():
    shared = replace(TURNS, split_k=4)
    dynamic = Problem(2560, 2560, 2560, dynamic=frozenset({"M"}), aligned=ALIGNED)
    with pytest.raises(InvalidConfig, match="M, N, K known"):
        make_plan(dynamic, shared)
    with pytest.raises(InvalidConfig, match="fewer blocks"):
        make_plan(Problem(2560, 2560, 192, aligned=ALIGNED), shared)
    gate = Epilogue("relu", "@triton.jit\ndef relu(acc, rm, rn, mask, operands):\n    return acc\n")
    gated = Problem(2560, 2560, 192, gate=gate, aligned=ALIGNED)
    config = Config(128, 128, 64, 8, 8, 4, "gated_gluon", 132, 2, split_k=4)
    assert not is_legal(gated, config, H200)
    assert is_legal(replace(gated, k=256), config, H200)
