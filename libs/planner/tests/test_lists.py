"""Which kernels become one launch."""

from __future__ import annotations

from loop_ir import Kernel, parse_graph
from planner import gather

DOUBLED = """
  kernel {name}(
      x{n}: f32[{size}] cuda:0,
      out {out}: f32[{size}] cuda:0,
  ):
    parallel i0 < {size}:
      once:
        v0 = load x{n}[i0] : f32
        v1 = {op}(v0, v0) : f32
        store {out}[i0] = v1
"""


def lists(sizes: list[int], ops: list[str]) -> list[list[str]]:
    """The launches of kernels of so many elements each: the names of those in each."""
    inputs = "".join(f"    x{n}: f32[{size}] cuda:0,\n" for n, size in enumerate(sizes))
    text = "".join(
        DOUBLED.format(name=f"k{n}", n=n, size=size, out=f"y{n}", op=op)
        for n, (size, op) in enumerate(zip(sizes, ops, strict=True))
    )
    outs = ", ".join(f"y{n}: f32[{size}] cuda:0" for n, size in enumerate(sizes))
    graph, found = gather(parse_graph(f"graph g(\n{inputs}):{text}  return ({outs})\n"), {})
    listed = {k.name for kernels in found.values() for k in kernels[1:]}
    return [
        [k.name for k in found.get(node.name, (node,))]
        for node in graph.nodes
        if isinstance(node, Kernel) and node.name not in listed
    ]


def test_few_are_one_launch_where_they_are_alike() -> None:
    assert lists([64, 32, 128], ["add", "mul", "add"]) == [["k0", "k2"], ["k1"]]


def test_many_are_one_launch_though_they_are_unlike() -> None:
    ops = ["add", "mul", "sub", "maximum", "minimum"] * 2
    (names,) = lists([16 + n for n in range(10)], ops)
    assert sorted(names) == sorted(f"k{n}" for n in range(10))


def test_what_makes_a_large_tensor_is_a_launch_of_its_own() -> None:
    """It may be measured, and what it makes would live longer if it ran earlier."""
    large, *rest = lists([1 << 22, *[64] * 9], ["mul", *["add"] * 9])
    assert large == ["k0"] and [len(names) for names in rest] == [9]


def test_unlike_ones_that_follow_a_crowd_are_one_launch() -> None:
    """What two of a crowd have matrices for and others have not: twelve parameters of Adafactor
    took nine launches."""
    crowd = "".join(
        DOUBLED.format(name=f"k{n}", n=n, size=64, out=f"y{n}", op="add") for n in range(8)
    )
    later = "".join(
        DOUBLED.format(name=f"m{n}", n=n, size=64, out=f"z{n}", op=op).replace(f"x{n}", f"y{n}")
        for n, op in enumerate(["mul", "maximum"])
    )
    inputs = "".join(f"    x{n}: f32[64] cuda:0,\n" for n in range(8))
    outs = ", ".join(f"{o}: f32[64] cuda:0" for o in ("z0", "z1", *(f"y{n}" for n in range(2, 8))))
    text = f"graph g(\n{inputs}):{crowd}{later}  return ({outs})\n"
    _, found = gather(parse_graph(text), {})
    assert [len(kernels) for kernels in found.values()] == [8, 2]
