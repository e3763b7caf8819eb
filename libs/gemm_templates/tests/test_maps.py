"""Descriptors that the host makes: what kernels take, what they describe, which maps are kept."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from gemm_templates import H200, Config, Inputs, Problem, bind, make_plan
from gemm_templates.epilogues import SILU
from gemm_templates.launch import arguments
from gemm_templates.model import is_legal, predict, predict_extern
from gemm_templates.registry import FAMILIES
from gemm_templates.tensor_maps import TensorMaps
from triton_rt import MapPlan, Target, TensorMap, compile

ALIGNED = frozenset({"a", "b", "b2", "bias", "out"})
PLAIN = Problem(1000, 776, 328, aligned=ALIGNED)
CASES = {
    "tma": PLAIN,
    "gluon": PLAIN,
    "gluon_scaled": replace(
        PLAIN, k=336, a_dtype="f8e4m3", b_dtype="f8e4m3", b_stride=(1, 336), out_dtype="bf16"
    ),
    "gated": replace(PLAIN, gate=SILU),
    "gated_gluon": replace(PLAIN, gate=SILU),
    "batched_tma": replace(PLAIN, batch=3),
    "gluon_batched": replace(PLAIN, batch=3),
}


def first(template: str) -> Config:
    problem = CASES[template]
    configs = FAMILIES[template].configs(problem, H200)
    return next(c for c in configs if is_legal(problem, c, H200))


@cache
def compiled(template: str, maps: bool) -> Any:
    kernel = make_plan(CASES[template], replace(first(template), maps=maps)).steps[0]
    everything = sum(1 << i for i, p in enumerate(kernel.source.params) if p.may_align)
    return compile(kernel.source, Target(90), alignment=everything, keep_ptx=True)


# Its roles, scales and sums are all that a template has; the others are like it.
FEW = [t if t == "gluon_scaled" else pytest.param(t, marks=pytest.mark.slow) for t in CASES]


@pytest.mark.parametrize("template", FEW)
def test_kernels_make_none_themselves(template: str) -> None:
    """No scratch memory, no fence and no wait for a map in memory; `out` alone is written."""
    given, made = compiled(template, True), compiled(template, False)
    names = [p.name for p in given.params if p.is_descriptor]
    assert names == ["a", "b", *(["b2"] if "gated" in template else []), "out"]
    assert len(given.tensor_maps) == len(names) == given.ptx.count(".align 64 .b8")
    assert [p.name for p in given.params if p.mutated] == ["out"]
    assert given.global_scratch_bytes == 0 and "tensormap" not in given.ptx
    assert made.global_scratch_bytes > 0 and "tensormap.replace" in made.ptx
    assert not any(p.is_descriptor for p in made.params)
    for layout in given.tensor_maps:
        inner = layout.box[-1] * layout.element_bytes
        assert {3: 128, 2: 64, 1: 32}[layout.swizzle] >= inner
    for text in (given.ptx, made.ptx):
        assert "wgmma.mma_async" in text and "ld.local" not in text


def test_what_is_described() -> None:
    rows = dict(make_plan(PLAIN, first("tma")).steps[0].maps)
    assert rows["a"] == MapPlan((128, 64), ("M", "K"), ("stride_am", 1))
    assert rows["b"] == MapPlan((64, 256), ("K", "N"), ("stride_bk", 1))
    assert rows["out"] == MapPlan((128, 128), ("M", "N"), ("stride_om", 1))
    columns = replace(PLAIN, a_stride=(1, 1000), b_stride=(1, 328))
    turned = dict(make_plan(columns, first("gluon")).steps[0].maps)
    assert turned["a"] == MapPlan((64, 128), ("K", "M"), ("stride_ak", 1))
    assert turned["b"] == MapPlan((128, 64), ("N", "K"), ("stride_bn", 1))
    one = replace(PLAIN, batch=3, batch_strides=(328000, 0, 776000))
    shared = dict(make_plan(one, first("gluon_batched")).steps[0].maps)
    assert shared["a"].shape == (3, "M", "K") and shared["a"].strides[0] == "stride_ab"
    assert shared["b"].shape == (1, "K", "N") and shared["b"].strides[0] == "stride_bk"


def test_what_no_map_may_write_stays_a_pointer() -> None:
    odd = replace(PLAIN, n=775, b_stride=(1, 328))
    for template in ("tma", "gluon"):
        kernel = make_plan(odd, first(template)).steps[0]
        assert [name for name, _ in kernel.maps] == ["a", "b"]
        assert next(p.kind for p in kernel.source.params if p.name == "out") == "*bf16"
    grouped = replace(PLAIN, batch=4, jagged="M")
    for template in ("grouped", "gluon_batched"):
        config = FAMILIES[template].configs(grouped, H200)[0]
        assert not make_plan(grouped, config).steps[0].maps  # ends that only the device knows


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("template", ["tma", "gated", "batched_tma"])
def test_either_form_is_interpreted(template: str, maps: bool) -> None:
    problem = replace(CASES[template], m=40, n=48, k=56, a_dtype="f32", b_dtype="f32")
    problem = replace(problem, out_dtype="f32")
    config = Config(32, 32, 16, 8, 4, 2, template, 3, 2, maps=maps)
    lead = (3,) if problem.batch > 1 else ()
    a, b, b2 = (torch.randn(*lead, *s) for s in ((40, 56), (56, 48), (56, 48)))
    out = torch.full((*lead, 40, 48), float("nan"))
    inputs = Inputs(a, b, out, b2=b2 if problem.gate else None)
    bind(problem, config)(inputs)
    want = a @ b
    want = torch.nn.functional.silu(want) * (a @ b2) if problem.gate else want
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
    given = arguments(problem, make_plan(problem, config).steps[0], inputs)
    assert [type(x) is TensorMap for x in given].count(True) == maps * (len(given))


def test_a_config_says_where_its_maps_come_from() -> None:
    config = first("gluon")
    assert str(replace(config, maps=False)) == f"{config} d"
    for template in ("tma", "gluon", "batched_tma"):
        problem, config = CASES[template], first(template)
        given, _ = predict(problem, config, H200)
        made, _ = predict(problem, replace(config, maps=False), H200)
        assert 1e-6 < made - given < 3e-6
    assert predict_extern(PLAIN, H200)[0] > 0


class OnGpu:
    """What is asked of a CUDA tensor."""

    def __init__(self, address: int, dtype: torch.dtype = torch.bfloat16) -> None:
        self.address, self.dtype = address, dtype

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return 0


def test_maps_are_kept_by_address_rows_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = MapPlan((128, 64), ("M", "K"), ("stride_am", 1))
    turned = MapPlan((64, 128), ("K", "M"), ("stride_ak", 1))
    described: Any = TensorMaps((("a", plan), ("b", turned)), {"K": 64, "stride_am": 72, "M": 9,
                                                               "stride_ak": 1024})  # fmt: skip
    first = described("a", OnGpu(0x1000), 300)
    assert (first.shape, first.strides, first.kind) == ((300, 64), (72, 1), "bf16")
    assert described("a", OnGpu(0x1000), 300) is first
    more = described("a", OnGpu(0x1000), 301)
    moved = described("a", OnGpu(0x2000), 300)
    assert more.shape == (301, 64) and more.address == 0x1000 and not more.ready
    assert moved.shape == (300, 64) and moved.address == 0x2000 and moved.strides == (72, 1)
    other = described("a", OnGpu(0x1000, torch.float16), 300)
    assert other.kind == "f16" and other.base.dtype == torch.float16
    assert described("b", OnGpu(0x1000), 300).shape == (64, 300)
    assert described("b", OnGpu(0x1010), 7).shape == (64, 7)
    monkeypatch.setattr("gemm_templates.tensor_maps._KEPT", 3)
    described("a", OnGpu(0x3000), 300)
    assert described("a", OnGpu(0x1000), 300) is not first  # forgotten, and made again
    tensor = torch.zeros(300, 72, dtype=torch.bfloat16)
    assert described("a", tensor, 300).base is tensor
    assert described("a", tensor, 300) is not described("a", tensor, 300)


@pytest.mark.parametrize(
    "template",
    [
        "gluon_scaled",
        pytest.param("gluon_batched", marks=pytest.mark.slow),
        pytest.param("gluon", marks=pytest.mark.slow),
        pytest.param("gated_gluon", marks=pytest.mark.slow),
    ],
)
def test_roles_begin_once_the_launch_before_has_ended(template: str) -> None:
    """The barriers are made while it runs; one wait, and only after it any role."""
    config = replace(first(template), overlap=True)
    source = make_plan(CASES[template], config).steps[0].source
    ptx = compile(source, Target(90), keep_ptx=True).ptx or ""
    assert source.pdl and ptx.count("griddepcontrol.wait") == 1
    wait = ptx.index("griddepcontrol.wait")
    released = ptx.index("\tbarrier.sync", ptx.index("mbarrier.init"))  # the other roles' warps
    assert ptx.rindex("mbarrier.init") < wait < released
    assert "griddepcontrol" not in compiled(template, True).ptx
