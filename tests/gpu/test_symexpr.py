"""Triton text on a GPU against Python's value: signs, helpers and widening."""

import importlib.util
from pathlib import Path

import pytest

from symexpr import TRITON_PRELUDE, evaluate, parse, symbol, to_triton

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

A, B, N = map(symbol, "abn")
SMALL = {A: (-770, 1024), B: (-65, 7), N: (-12, 64)}
WIDE = {A: (-(2**31), 2**31 - 1), B: (0, 2**31 - 1), N: (1, 2**20)}
TEXTS = [
    "a//n", "a%n", "a//8*8 + a%8", "a//4%12", "CeilDiv(a, n)", "Min(a, b, 3)*n", "-(a//n)",
    "Where(a < b and n != 3, a//3, b%5)", "Max(a, b)*768 + n", "a*b + n", "(a - b)%(n*3)",
    "n - Where(a < b, a, b) + 8", "-a*(b%4)", "(a & 255) + (b | 1) + (a ^ b)", "a >> 3",
    "not (a < b and b < n)",
]  # fmt: skip
KERNEL = """
@triton.jit
def k{i}(pa, pb, pn, out, count, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    ok = o < count
    a = tl.load(pa + o, mask=ok, other=1)
    b = tl.load(pb + o, mask=ok, other=1)
    n = tl.load(pn + o, mask=ok, other=1)
    tl.store(out + o, tl.cast({text}, tl.int64), mask=ok)
"""


@pytest.mark.parametrize("ranges", [None, SMALL, WIDE], ids=["none", "small", "wide"])
def test_triton_text_has_pythons_value(tmp_path: Path, ranges) -> None:
    points = (
        [(a, b, n) for a in (-(2**31), -7, 2**31 - 1) for b in (0, 2**31 - 1) for n in (1, 2**20)]
        if ranges is WIDE
        else [(a, b, n) for a in (-770, -13, 0, 41, 1024) for b in (-65, 7) for n in (-12, 3, 64)]
    )
    es = [parse(t) for t in TEXTS]
    kernels = "".join(
        KERNEL.format(i=i, text=to_triton(e, ranges=ranges)) for i, e in enumerate(es)
    )
    path = tmp_path / "symexpr_kernels.py"
    path.write_text(f"import triton\nimport triton.language as tl\n\n\n{TRITON_PRELUDE}{kernels}")
    spec = importlib.util.spec_from_file_location("symexpr_kernels", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    columns = [torch.tensor(c, dtype=torch.int32, device="cuda") for c in zip(*points, strict=True)]
    for i, e in enumerate(es):
        out = torch.zeros(len(points), dtype=torch.int64, device="cuda")
        getattr(module, f"k{i}")[(1,)](*columns, out, len(points), 32)
        want = [int(evaluate(e, {"a": a, "b": b, "n": n})) for a, b, n in points]
        assert out.tolist() == want, (TEXTS[i], to_triton(e, ranges=ranges))


def test_random_and_real_expressions_agree_with_sympy_on_the_gpu() -> None:
    """30,000 (expression, input) pairs of the library's agreement benchmark."""
    path = Path(__file__).parents[2] / "libs" / "symexpr" / "benchmarks" / "agreement.py"
    spec = importlib.util.spec_from_file_location("agreement", path)
    assert spec and spec.loader
    agreement = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(agreement)
    result = agreement.compare(150, 200, device="cuda", targets=("triton",))
    assert result["pairs"] == 30_000
    assert result["wrong"] == []
