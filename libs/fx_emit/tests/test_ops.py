"""Every op by every launch, against `wrapper_ir.interpret` with torch."""

from __future__ import annotations

import pytest
import torch

from fx_emit import emit, is_impure
from fx_emit.torch_compat import FUNCTIONS
from fx_emit.torch_types import operator_of
from wrapper_ir import Reuse, parse_program
from wrapper_ir.errors import AssertionFailed, InputMismatch, MissingConstant
from wrapper_ir.passes import InsertFrees, PlanMemory, run_passes

HEAD = """program p(x: f32[s0, 8] cpu, n: int):
  where s0 in [1, 64] hint 2
  where n in [-4, 99] hint 3
  symbol s0 = x.size(0)
"""
SCALE = """  kernel scale(x: *f32, out: *f32 mutated, by: f32, n: i32) constants (BLOCK=16, PLUS=1) warps 4 stages 3:
    import triton
    import triton.language as tl


    @triton.jit
    def scale(x, out, by, n, BLOCK: tl.constexpr, PLUS: tl.constexpr):
        i = (tl.program_id(0) + tl.program_id(1)) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) * by + PLUS, mask=i < n)
  end
"""  # noqa: E501


def inputs(rows, n=3):
    return [torch.arange(rows * 8, dtype=torch.float32).reshape(rows, 8) / 3, n]


def test_launch_allocate_return(check):
    modules = check(
        HEAD + SCALE + "  b = alloc f32[s0, 8] cpu\n"
        "  launch scale grid (CeilDiv(s0*8, 16), 1, 1) (x, b, 2.5, s0*8)  # aten.mul m.py:3\n"
        "  return (b, s0*n, None, 1.5, True)\n",
        inputs(1), inputs(2), inputs(5, -1),
    )  # fmt: skip
    assert modules["direct"](*inputs(2))[0].tolist()[0][1] == pytest.approx(1 / 3 * 2.5 + 1)
    assert (
        "kernel_scale((" in modules["direct"].code and "# aten.mul m.py:3" in modules["direct"].code
    )
    hop = [n for n in modules["hop"].graph.nodes if "triton_kernel_wrapper" in str(n.target)]
    assert len(hop) == 1 and set(hop[0].kwargs["kwargs"]) == {"x", "out", "by", "n"}
    assert set(modules["hop"].meta["kernels"]) == {"scale"}


def test_launch_of_an_empty_grid(check):
    check(HEAD + SCALE + "  launch scale grid (s0 - 1, 1, 1) (x, x, 2.0, 8)\n  return (x,)\n",
          inputs(1), inputs(2))  # fmt: skip


def test_reuse(check):
    check(
        HEAD + "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(a, 1) mutates (a,)\n"
        "  b = reuse a f32[4, s0] cpu\n  extern aten.fill_.Scalar(b, n) mutates (b,)\n"
        "  v = view b f32[s0] cpu stride (4,) offset 3\n"
        "  s = extern aten.sum.default(v) -> f32[] cpu\n"
        "  c = reuse b i16[s0*16] cpu\n  extern aten.fill_.Scalar(c, 7) mutates (c,)\n"
        "  d = reuse c f32[s0, 8] cpu\n  copy x -> d\n  return (s, d)\n",
        inputs(1), inputs(5),
    )  # fmt: skip


def test_reuse_of_a_result(check):
    check(
        HEAD + "  a = extern aten.mul.Tensor(x, 2) -> f32[s0, 8] cpu\n"
        "  b = reuse a f32[8*s0] cpu\n  w = view b f32[s0] cpu offset s0\n"
        "  f = view x f32[8*s0] cpu\n  copy f -> b\n  return (w,)\n",
        inputs(3),
    )


def test_extern(check):
    check(
        HEAD + "  a = extern aten.add.Tensor(x, 1.5, alpha=n*s0) -> f32[s0, 8] cpu\n"
        "  (m, _) = extern aten.max.dim(a, 1) -> (f32[s0] cpu, _)\n"
        "  (_, i) = extern aten.max.dim(a, 1, True) -> (_, i64[s0, 1] cpu)\n"
        "  z = extern aten.full.default((s0, 2), 3, dtype=dtype f16, layout=layout strided,"
        " device=device cpu, pin_memory=False) -> f16[s0, 2] cpu\n"
        "  c = extern aten.cat.default((x, a), 1) -> f32[s0, 16] cpu\n"
        "  k = extern aten.clone.default(c, memory_format=memory_format contiguous_format)"
        " -> f32[s0, 16] cpu\n"
        "  (p,) = extern aten.unbind.int(x, 2 - 2*1 + n - n + 0) alias x -> (f32[8] cpu,)\n"
        "  extern aten.relu_.default(a) mutates (a,)\n"
        "  _ = extern aten.add.Tensor(x, 1) -> _\n"
        "  return (a, m, i, z, k, p)\n",
        inputs(1),
    )


def test_alias_of_an_extern_keeps_the_storage(check):
    base = torch.arange(100, dtype=torch.float32)
    check(
        HEAD + "  t = extern aten.t.default(x) alias x -> f32[8, s0] cpu stride (1, 8)\n"
        "  s = extern aten.select.int(x, 1, 2) alias x -> f32[s0] cpu stride (8,) offset 2\n"
        "  v = view s f32[s0, 2] cpu stride (8, 1) offset 3\n"
        "  w = view t f32[4] cpu offset 2\n  return (t, s, v, w)\n",
        [base[11:35].reshape(3, 8), 1],
    )


def test_operators_of_the_caller(check):
    def double(x):
        return x * 2

    check(HEAD + "  a = extern mine.double(x) -> f32[s0, 8] cpu\n  return (a,)\n", inputs(2),
          operators={"mine.double": double})  # fmt: skip


def test_constant(check, load_jit):
    w = torch.arange(12, dtype=torch.float32)[3:].reshape(3, 3)
    text = HEAD + '  c = constant f32[3, 3] cpu "layer.w"\n'
    text += "  v = view c f32[3] cpu stride (3,) offset 1\n  return (v,)\n"
    modules = check(text, inputs(2), constants={"layer.w": w})
    assert modules["hop"].c.data_ptr() == w.data_ptr()
    with pytest.raises(MissingConstant):
        emit(parse_program(text), load_kernel=load_jit)
    with pytest.raises(InputMismatch, match=r"c: expected f32\[3, 3\]"):
        emit(parse_program(text), load_kernel=load_jit, constants={"layer.w": w.T})


def test_copy_back(check):
    check(
        HEAD + "  a = extern aten.mul.Tensor(x, n) -> f32[s0, 8] cpu\n  copy a -> x\n  return ()\n",
        inputs(2),
        [torch.arange(100.0)[20:44].reshape(3, 8), 2],
    )


def test_dead_code_elimination_keeps_effects(check):
    text = (
        HEAD
        + SCALE
        + (
            '  launch scale grid (s0, 1, 1) (x, x, 2.0, s0*8)\n  assert s0 < 4 "few"\n'
            "  b = alloc f32[4] cpu\n  return ()\n"
        )
    )
    for gm in check(text, inputs(2)).values():
        gm.graph.eliminate_dead_code(is_impure)
        gm.recompile()
        assert "b" not in {n.name for n in gm.graph.nodes}
        x, n = inputs(2)
        gm(x, n)
        torch.testing.assert_close(x, inputs(2)[0] * 2 + 1)
        with pytest.raises(AssertionFailed):
            gm(*inputs(4))


def test_expressions_are_computed_once(check):
    text = HEAD + (
        "  a = alloc f32[s0*8 + 1] cpu\n  b = alloc f32[s0*8 + 1, s0//2] cpu\n"
        "  c = alloc f32[Max(s0 % 3, 1) + Min(n**2, 7)] cpu\n"
        "  v = view a f32[1] cpu offset s0*8\n  extern aten.fill_.Scalar(a, 1) mutates (a,)\n"
        "  extern aten.fill_.Scalar(b, s0*8) mutates (b,)\n"
        "  extern aten.fill_.Scalar(c, -s0) mutates (c,)\n"
        "  return (a, b, c, v, s0*8 + 1, Where(s0 < n, s0, n), CeilDiv(s0, 3), (s0 - 5)//2)\n"
    )
    modules = check(text, inputs(1), inputs(2), inputs(7, -3))
    code = modules["direct"].code
    assert code.count("8 * s0") + code.count("s0 * 8") == 1 and code.count("// 2") == 2


def test_planned_programs_run_the_same(check):
    text = HEAD + SCALE
    previous = "x"
    for i in range(4):
        text += f"""  a{i} = alloc f32[s0, 8] cpu
  launch scale grid (s0, 1, 1) ({previous}, a{i}, 0.5, s0*8)
  t{i} = view a{i} f32[8, s0] cpu stride (1, 8)
  m{i} = extern aten.mm.default(a{i}, t{i}) -> f32[s0, s0] cpu
  n{i} = alloc f32[s0, 8] cpu
  extern aten.mm.out(m{i}, {previous}, out=n{i}) mutates (n{i},)
"""
        previous = f"n{i}"
    program = parse_program(text + f"  return ({previous}, m1)\n")
    planned = run_passes(program, [InsertFrees(), PlanMemory()])
    assert sum(isinstance(op, Reuse) for op in planned.ops) >= 3
    plain = check(program, inputs(1), inputs(3))
    for launch, gm in check(planned, inputs(1), inputs(3)).items():
        for got, expected in zip(gm(*inputs(3)), plain[launch](*inputs(3)), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=0)


def test_complex_numbers(check):
    """Python writes no complex number whose parts are NaN, infinite or a negative zero."""
    check(
        """program p(x: c64[2] cpu):
  a = extern aten.add.Scalar(x, complex(nan, -inf)) -> c64[2] cpu
  b = extern aten.full_like.default(x, complex(-0.0, -0.0)) -> c64[2] cpu
  return (a, b)
""",
        [torch.tensor([1 + 2j, 3j])],
    )


def operators_of(gm):
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


def test_launches_need_no_views(check):
    """A layout that is there is not made again; a launch takes the address of what lies there."""
    modules = check(
        HEAD + SCALE + "  a = alloc f32[s0, 8] cpu\n"
        "  launch scale grid (s0, 1, 1) (x, a, 2.0, s0*8)\n"
        "  v = view a f32[8*s0] cpu\n  b = alloc f32[s0, 8] cpu\n"
        "  launch scale grid (s0, 1, 1) (v, b, 3.0, s0*8)\n"
        "  c = reuse a f32[4, s0] cpu\n  launch scale grid (s0, 1, 1) (b, c, 1.0, s0*4)\n"
        "  d = reuse c f32[s0, 8] cpu\n  launch scale grid (s0, 1, 1) (b, d, 0.5, s0*8)\n"
        "  w = view b f32[s0] cpu offset 3\n  launch scale grid (1, 1, 1) (w, d, 0.5, s0)\n"
        "  return (d,)\n",
        inputs(2),
        inputs(5),
    )
    views = [n for n in operators_of(modules["direct"]) if "strided" in n or "reinterpret" in n]
    assert len(views) == 3 and "reinterpret" in views[2]  # two allocations and w


def test_functions_of_torch_are_their_operators():
    a, b, c = torch.randn(3, 4, 4).double().unbind()
    batch = torch.randn(2, 3, 4, 4)
    calls = {
        "mm": (a, b), "addmm": (a[0], b, c), "bmm": (batch[0], batch[1]),
        "baddbmm": (batch[0], batch[1], batch[0]),
        "convolution": (batch, batch[:, :, :3, :3].contiguous(), None, [1, 2], [0, 1], [1, 1],
                        False, [0, 0], 1),
    }  # fmt: skip
    for name, args in calls.items():
        target = f"aten.{name}.default"
        kwargs = {"beta": 2, "alpha": 0.5} if "add" in name else {}
        expected = operator_of(target, {})(*args, **kwargs)
        assert torch.equal(FUNCTIONS[target](*args, **kwargs), expected)
        if (into := FUNCTIONS.get(f"aten.{name}.out")) is not None:
            out = torch.empty_like(expected)
            into(*args, **kwargs, out=out)
            assert torch.equal(out, expected)
    for target, function in FUNCTIONS.items():
        schema = operator_of(target, {})._schema.name
        assert schema == f"aten::{function.__name__}"
    options = {"dtype": torch.int64, "device": torch.device("cpu"), "pin_memory": False}
    drawn = []
    for call in (FUNCTIONS["aten.randint.low"], operator_of("aten.randint.low", {})):
        torch.manual_seed(3)
        drawn.append(call(0, 2**63 - 1, (4,), **options))
    assert torch.equal(*drawn)
