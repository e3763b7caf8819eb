"""Alike kernels are worked out once, and come out as if each had been worked out alone."""

from collections import Counter
from dataclasses import replace

import pytest

from loop_ir import DType, FuseOptions, fuse_with_report, parse_kernel, print_graph, print_kernel
from loop_ir.fusion import scheduler
from loop_ir.ir.alike import Alike, form

KERNEL = """\
kernel add(
    x: f32[8] cpu,
    out y: f32[8] cpu,
):
  # from aten.add.Tensor at model.py:3
  parallel i0 < 8:
    once:
      v0 = load x[i0] : f32
      v1 = const 0.0 : f32
      v2 = add(v0, v1) : f32
      store y[i0] = v2
"""


def layers(encoder, count):
    return encoder(
        layers=count, batch=32, seq=512, hidden=768, heads=12, vocab=30522, dtype=DType.bf16,
        symbolic=True,
    )  # fmt: skip


@pytest.fixture
def made(monkeypatch):
    """How often kernels were combined, and computed where they are read."""
    count: Counter[str] = Counter()
    for name in ("combine", "inline", "traffic"):
        real = getattr(scheduler, name)

        def counted(*given, _real=real, _name=name):
            count[_name] += 1
            return _real(*given)

        monkeypatch.setattr(scheduler, name, counted)
    return count


def test_the_same_as_one_by_one(encoder, monkeypatch):
    graph, options = layers(encoder, 4), FuseOptions(epilogue=True, prologue=True)
    fused, report = fuse_with_report(graph, options)
    monkeypatch.setattr(Alike, "once", lambda self, what, kernels, make, *_: make())
    alone, said = fuse_with_report(graph, options)
    assert print_graph(fused) == print_graph(alone)
    assert fused == alone
    assert report == said


def test_more_layers_are_no_more_work(encoder, made):
    fuse_with_report(layers(encoder, 3))
    few = dict(made)
    made.clear()
    fuse_with_report(layers(encoder, 12))
    assert few["combine"] > 0
    assert made["combine"] == few["combine"]
    assert made["inline"] == few.get("inline", 0)


@pytest.mark.parametrize("other", ["-0.0", "1.0"])
def test_another_constant_is_another_structure(other):
    kernel = parse_kernel(KERNEL)
    assert form(kernel).structure != form(parse_kernel(KERNEL.replace("0.0", other))).structure
    renamed = parse_kernel(KERNEL.replace("x", "z").replace("add(\n", "more(\n", 1))
    assert form(kernel).structure == form(renamed).structure
    assert form(renamed).names == ("z", "y")


def test_what_was_made_is_renamed():
    alike, first = Alike(), parse_kernel(KERNEL)
    second = parse_kernel(KERNEL.replace("x", "z").replace("kernel add", "kernel more"))

    def shorter(kernel):
        phases = (replace(kernel.phases[0], body=kernel.phases[0].body[:1]),)
        return replace(kernel, phases=phases)

    one = alike.once("short", (first,), lambda: shorter(first))
    two = alike.once("short", (second,), lambda: pytest.fail("made twice"))
    assert two == shorter(second) != one
    assert print_kernel(two) == print_kernel(shorter(second))
    assert form(two).structure is form(one).structure
    # of other kernels, and of other buffers of them, something else is made
    assert alike.once("short", (first, second), lambda: first) is first
    assert alike.once("short", (first,), lambda: second, ("x",)) is second


def test_what_is_given_back_as_it_is():
    alike, first = Alike(), parse_kernel(KERNEL)
    second = parse_kernel(KERNEL.replace("x", "z"))
    assert alike.once("same", (first,), lambda: first) is first
    assert alike.once("same", (second,), lambda: pytest.fail("made twice")) is second
