"""Chains as the emitters of the compiler print them, run against the table they came from.

Skipped where the emitters are not installed: this library does not depend on them.
"""

from __future__ import annotations

from itertools import product

import pytest

from multikernel import Decision, DecisionTable, MultiKernel, compare_chain, follow

NAMES = ("a", "b", "c")
CELLS = {(4, 10): "a", (20, 10): "b", (20, 30): "a", (9, 24): "c", (30, 31): "c", (5, 33): "b"}
TABLE = DecisionTable(NAMES, 4, {cell: Decision(name) for cell, name in CELLS.items()})


def program(chain):
    """A host program that writes the number of the branch's variant into its result."""
    lines = [
        "program pick(x: f32[s0, s1] cpu):",
        "  where s0 in [1, 4096] hint 4",
        "  where s1 in [1, 4096] hint 4",
        "  symbol s0 = x.size(0)",
        "  symbol s1 = x.size(1)",
        "  y = alloc f32[1] cpu",
    ]
    indent = "  "
    for branch in chain:
        fill = f"extern aten.fill_.Scalar(y, {branch.variant}) mutates (y,)"
        if not branch.comparisons:
            lines.append(indent + fill)
            break
        lines += [f"{indent}if {branch.text(['s0', 's1'])}:", f"{indent}  {fill}", f"{indent}else:"]
        indent += "  "
    return "\n".join([*lines, "  return (y,)", ""])


def points(chain):
    places = {1, 4096}
    for branch in chain:
        for c in branch.comparisons:
            places |= {c.right_scale, c.right_scale + 1, c.left_scale, c.left_scale + 1}
    return list(product(sorted(p for p in places if 1 <= p <= 4096), repeat=2))


def recorded():
    kernel = MultiKernel({(2, 2): None, (64, 8): None, (8, 512): None}, key=lambda *s: s)
    kernel.record_choice((30, 30), (2, 2))
    return kernel.chain()


CHAINS = [TABLE.chain(), recorded(), compare_chain([(1, 8), (4, 2)])]


@pytest.mark.parametrize("chain", CHAINS, ids=["measured", "recorded", "nearest"])
def test_fx(chain):
    torch = pytest.importorskip("torch")
    fx_emit = pytest.importorskip("fx_emit")
    wrapper_ir = pytest.importorskip("wrapper_ir")
    parsed = wrapper_ir.parse_program(program(chain))
    run = fx_emit.emit(parsed, "direct", load_kernel=lambda kernel: None)
    for sizes in points(chain):
        (y,) = run(torch.empty(sizes))
        assert int(y) == follow(chain, sizes)


@pytest.mark.parametrize("chain", CHAINS[:1], ids=["measured"])
def test_cpp(chain, libraries):
    torch = pytest.importorskip("torch")
    cpp_emit = pytest.importorskip("cpp_emit")
    wrapper_ir = pytest.importorskip("wrapper_ir")
    parsed = wrapper_ir.parse_program(program(chain))
    text = cpp_emit.emit(parsed, schemas=cpp_emit.torch_schema)
    for branch in chain:
        for c in branch.comparisons:
            assert c.text(["s0", "s1"]) in text
    run = cpp_emit.load(cpp_emit.build(text, libraries), parsed)
    for sizes in points(chain):
        (y,) = run(torch.empty(sizes))
        assert int(y) == follow(chain, sizes)
