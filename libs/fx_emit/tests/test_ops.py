"""Every op by every launch, against `wrapper_ir.interpret` with torch."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fx_emit import Run, emit, host, is_impure
from fx_emit.torch_compat import FUNCTIONS
from fx_emit.torch_types import operator_of
from wrapper_ir import Reuse, parse_program
from wrapper_ir.errors import AssertionFailed, InputMismatch, MissingConstant, ResultMismatch
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


def test_view_counts_from_the_first_element_of_a_parameter(check):
    base = torch.arange(200, dtype=torch.float32)
    offset = [base[37:101].reshape(8, 8), 3]
    modules = check(
        HEAD + "  v = view x f32[8, s0] cpu stride (1, 8)\n"
        "  w = view v f32[s0, 3] cpu stride (8, 1) offset 5\n"
        "  i = view w i32[s0, 8] cpu\n  h = view x bf16[s0*8] cpu stride (2,) offset 1\n"
        "  b = extern aten.mul.Tensor(w, n) -> f32[s0, 3] cpu\n"
        "  extern aten.add_.Scalar(w, 1) mutates (w,)\n  return (v, w, i, h, b)\n",
        inputs(4), offset,
    )  # fmt: skip
    out = modules["direct"](*offset)
    assert out[0].storage_offset() == 37 and out[1].storage_offset() == 42


def test_view_of_an_unaligned_parameter_as_larger_elements(check, load_jit):
    text = "program p(x: bf16[8] cpu):\n  v = view x f32[4] cpu\n  return (v,)\n"
    check(text, [torch.arange(8.0).bfloat16()], [torch.arange(20.0).bfloat16()[2:10]])
    gm = emit(parse_program(text), load_kernel=load_jit)
    with pytest.raises(Exception, match="starts at byte 2"):
        gm(torch.arange(20.0).bfloat16()[1:9])


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


IF = (
    HEAD
    + SCALE
    + """  a = alloc f32[s0, 8] cpu
  extern aten.fill_.Scalar(a, 1) mutates (a,)
  if s0*s0 <= 9 and n > 0 and n < 8:
    t = alloc f32[s0] cpu
    launch scale grid (1, 1, 1) (x, t, 3.0, s0)
    v = view a f32[s0] cpu stride (8,) offset n
    extern aten.add_.Tensor(v, t) mutates (v,)
    free t
    if n == 2:
      launch scale grid (s0, 1, 1) (a, x, 1.0, s0*8)
  else:
    w = view x f32[s0, 4] cpu stride (8, 1) offset 4
    extern aten.mul_.Scalar(w, n) mutates (w,)
  return (a,)
"""
)


def test_if(check):
    base = torch.arange(100, dtype=torch.float32)
    offset = [base[10:34].reshape(3, 8), 2]
    modules = check(IF, inputs(2, 2), inputs(2, 1), inputs(4), inputs(2, -3), offset)
    for gm in modules.values():
        before = gm(*inputs(2, 2))[0]
        gm.graph.eliminate_dead_code(is_impure)
        gm.recompile()
        assert torch.equal(gm(*inputs(2, 2))[0], before)


CHAIN = (
    HEAD
    + """  if s0 <= 1:
    extern aten.add_.Scalar(x, 1) mutates (x,)
  else:
    if n <= 0:
      extern aten.add_.Scalar(x, 2) mutates (x,)
    else:
      if s0 <= 3:
        extern aten.add_.Scalar(x, 4) mutates (x,)
      else:
        if FloorDiv(8, n) <= 2:
          extern aten.add_.Scalar(x, 8) mutates (x,)
  return (x,)
"""
)


def test_a_chain_of_ifs_is_one_call(check):
    """But for conditions that an earlier one may guard: 8 // n is not looked at where n is 0."""
    modules = check(
        CHAIN, inputs(1, 5), inputs(2, 0), inputs(3, 1), inputs(4, 3), inputs(4, 2), inputs(5, 0)
    )
    for gm in modules.values():
        assert [name for name, _ in gm.named_children()] == [
            "then_0",
            "then_1",
            "then_2",
            "orelse_0",
        ]
        (call,) = [n for n in gm.graph.nodes if n.target is host.branch]
        assert len(call.args[0]) == 3 and "floordiv" not in gm.code
        other = copy.deepcopy(gm)
        other.then_0 = other.then_1  # an edit of what runs
        before = inputs(1, 5)[0]
        assert torch.equal(other(*inputs(1, 5))[0], before + 2)
        assert torch.equal(gm(*inputs(1, 5))[0], before + 1)


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


def test_assert(check):
    modules = check(HEAD + '  assert s0*n < 20 "too much"\n  return ()\n', inputs(2))
    for gm in modules.values():
        with pytest.raises(AssertionFailed, match=r"too much \(n=3, s0=9\)"):
            gm(*inputs(9))


BLOCKS = """  kernel double(t: tensordesc<f32[4,8]>, u: tensordesc<f32[4,8]> mutated) warps 4 stages 3 ctas 2:
    import triton
    import triton.language as tl


    @triton.jit
    def double(t, u):
        at = [tl.program_id(0) * 4, 0]
        u.store(at, t.load(at) * 2)
  end
"""  # noqa: E501


def test_descriptors(check):
    """One node for the same tensor and block; views and blocks of `if` too."""
    modules = check(
        HEAD + BLOCKS + "  a = alloc f32[s0, 8] cpu\n  d = describe x block (4, 8)  # m.py:2\n"
        "  e = describe a block (4, 8)\n  launch double grid (CeilDiv(s0, 4), 1, 1) (d, e)\n"
        "  launch double grid (CeilDiv(s0, 4), 1, 1) (e, e)\n"
        "  w = alloc f32[s0, 12] cpu\n  extern aten.fill_.Scalar(w, 1) mutates (w,)\n"
        "  v = view w f32[s0, 8] cpu stride (12, 1) offset 4\n  f = describe v block (4, 8)\n"
        "  if n > 0:\n    launch double grid (CeilDiv(s0, 4), 1, 1) (d, f)\n"
        "    g = describe w block (4, 8)\n    launch double grid (CeilDiv(s0, 4), 1, 1) (g, g)\n"
        "  free a\n  return (w,)\n",
        inputs(2), inputs(9, -1), inputs(5),
    )  # fmt: skip
    code = modules["direct"].code
    assert code.count("fx_emit_host_describe(") == 3 and "# m.py:2" in code
    launches = [n for n in modules["hop"].graph.nodes if n.name.startswith("launch_double")]
    blocks = {"t": ("stable", ([4, 8],)), "u": ("stable", ([4, 8],))}
    assert [n.kwargs["tma_descriptor_metadata"] for n in launches] == [blocks] * 2
    assert [str(n) for n in launches[1].kwargs["kwargs"].values()] == ["a", "a"]


def test_descriptors_of_the_callers(load_launcher):
    made = []

    def describe(tensor, block):
        made.append((tensor.shape, block))
        return host.describe(tensor, block)

    text = HEAD + BLOCKS + "  a = alloc f32[s0, 8] cpu\n  d = describe x block (4, 8)\n"
    text += "  e = describe a block (4, 8)\n  launch double grid (1, 1, 1) (d, e)\n  return (a,)\n"
    gm = emit(parse_program(text), "direct", load_kernel=load_launcher, describe=describe)
    (a,) = gm(*inputs(3))
    assert torch.equal(a, inputs(3)[0] * 2) and made == [((3, 8), (4, 8))] * 2


def test_launchers_that_take_tensors_for_descriptors(load_launcher):
    """They get the very view that is described, though others lie at the same address."""
    given = []

    def load(kernel):
        launch = load_launcher(kernel)

        def described(grid, *args):
            given.append([(a.shape, a.stride()) for a in args])
            launch(grid, *(host.describe(a, (4, 8)) for a in args))

        return described

    text = (
        HEAD + BLOCKS + "  w = alloc f32[s0, 16] cpu\n  v = view w f32[s0, 8] cpu stride (16, 1)\n"
    )
    text += "  d = describe x block (4, 8)\n  e = describe v block (4, 8)\n"
    text += "  launch double grid (1, 1, 1) (d, e)\n"
    text += "  if n > 0:\n    launch double grid (1, 1, 1) (e, e)\n  return (v,)\n"
    gm = emit(parse_program(text), "direct", load_kernel=load, describe=None)
    (v,) = gm(*inputs(3))
    assert torch.equal(v, inputs(3)[0] * 4) and "describe" not in gm.code
    assert given == [[((3, 8), (8, 1)), ((3, 8), (16, 1))], [((3, 8), (16, 1))] * 2]


class Alive(TorchDispatchMode):
    """Whether the storage of the first operator's first argument is alive at each later call."""

    def __init__(self):
        super().__init__()
        self.storage = None
        self.alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.storage is not None:
            self.alive[str(func)] = not self.storage.expired()
        elif str(func) == "aten.fill_.Scalar":
            self.storage = StorageWeakRef(args[0].untyped_storage())
        return func(*args, **(kwargs or {}))


def test_free_drops_the_memory(check):
    text = HEAD + (
        "  a = alloc f32[s0, 8] cpu\n  v = view a f32[4] cpu\n"
        "  extern aten.fill_.Scalar(v, 1) mutates (v,)\n"
        "  extern aten.add_.Scalar(a, 1) mutates (a,)\n  free a\n"
        "  extern aten.relu_.default(x) mutates (x,)\n  return ()\n"
    )
    for gm in check(text, inputs(2)).values():
        free = next(n for n in gm.graph.nodes if n.name == "free_a")
        assert [str(a) for a in free.args] == ["a"] and "a = free_a = None" in gm.code
        gc.collect()
        with Alive() as seen:
            gm(*inputs(2))
        assert seen.alive == {"aten.add_.Scalar": True, "aten.relu_.default": False}


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


def test_inputs_are_checked(check, load_jit):
    modules = check(HEAD + "  return ()\n", inputs(2))
    x = torch.zeros(2, 8)
    wrong = [
        ((x.double(), 3), "x: expected f32"), ((x[0], 3), "x: expected rank 2, got rank 1"),
        ((torch.zeros(2, 9), 3), r"x: expected f32\[s0, 8\] cpu = \[2, 8\]"),
        ((torch.zeros(8, 2).T, 3), r"stride \(1, 2\)"), ((x, 100), r"n: expected n in \[-4, 99\]"),
        ((torch.zeros(65, 8), 3), r"s0: expected s0 in \[1, 64\] hint 2, got 65"),
        ((x, 1.5), "n: expected an integer"),
    ]  # fmt: skip
    for gm in modules.values():
        for args, message in wrong:
            with pytest.raises(InputMismatch, match=message):
                gm(*args)
        gm(torch.zeros(1, 16)[:, :8], 3)  # the stride of a single row does not count
    unchecked = emit(parse_program(HEAD + "  return ()\n"), load_kernel=load_jit, checks=False)
    unchecked(torch.zeros(65, 9), 1)


def test_inputs_of_fixed_sizes_are_checked_at_each_call(check, load_launcher):
    """Those that were right once are compared at once; a parameter whose data was replaced is the
    same object."""
    text = "program p(x: f32[2, 8] cpu, w: f32[8, 2] cpu stride (1, 8)):\n  return ()\n"
    w = torch.nn.Parameter(torch.zeros(2, 8).T)
    right = [torch.zeros(2, 8), w]
    check(text, [torch.zeros(2, 8), torch.zeros(2, 8).T])
    asked = []

    def same(tensors):
        asked.append([(t.dtype, t.shape, t.stride()) for t in tensors])
        return lambda others: asked[0] == [(t.dtype, t.shape, t.stride()) for t in others]

    forms = [
        emit(parse_program(text), launch, load_kernel=load_launcher, check_inputs=given)
        for launch, given in (("hop", True), ("direct", True), ("direct", same))
    ]
    wrong = [
        (torch.zeros(2, 8).double(), r"x: expected f32\[2, 8\]"),
        (torch.zeros(8, 2).T, r"x: .* got f32\[2, 8\] stride \(1, 2\)"),
        (torch.zeros(1, 8), r"x: .* got f32\[1, 8\]"), (torch.zeros(16), r"x: .* got f32\[16\]"),
    ]  # fmt: skip
    for gm in forms:
        for _ in range(2):
            gm(*right)
            for x, message in wrong:
                with pytest.raises(InputMismatch, match=message):
                    gm(x, w)
        w.data = torch.zeros(8, 2)
        with pytest.raises(InputMismatch, match="w: expected"):
            gm(right[0], w)
        w.data = torch.zeros(2, 8).T
    gm(*right)
    assert len(asked) == 1


def test_results_are_checked(load_jit):
    text = HEAD + "  a = extern aten.mul.Tensor(x, 2) -> f32[8, s0] cpu\n  return (a,)\n"
    gm = emit(parse_program(text), load_kernel=load_jit)
    with pytest.raises(ResultMismatch, match=r"aten.mul.Tensor returned a as f32\[2, 8\]"):
        gm(*inputs(2))


def test_results_of_another_layout_or_type_are_converted(load_jit):
    text = HEAD + "  a = extern aten.mul.Tensor(x, 2) -> bf16[s0, 8] cpu stride (1, s0)\n"
    gm = emit(parse_program(text + "  return (a,)\n"), load_kernel=load_jit)
    x, n = inputs(2)
    (a,) = gm(x, n)
    assert a.dtype == torch.bfloat16 and a.stride() == (1, 2)
    assert torch.equal(a, (x * 2).bfloat16())


def test_values_are_fake_tensors_of_the_declared_layout(load_jit):
    text = """program p(x: bf16[s0, 8] cuda:0, n: int):
  where s0 hint 5
  symbol s0 = x.size(0)
  a = alloc f8e4m3[s0, 2] cuda:0 stride (16, 1)
  v = view a f8e4m3[2] cuda:0 offset s0
  (m, _) = extern aten.max.dim(x, 1) -> (bf16[s0] cuda:0, _)
  return (v, m, s0 + 1)
"""
    gm = emit(parse_program(text), load_kernel=load_jit)
    values = {node.name: node.meta["val"] for node in gm.graph.nodes}
    assert isinstance(values["a"], FakeTensor) and values["a"].device == torch.device("cuda:0")
    assert values["a"].shape == (5, 2) and values["a"].stride() == (16, 1)
    assert values["a"].dtype == torch.float8_e4m3fn and values["v"].storage_offset() == 5
    assert values["s0"] == 5 and values["m"].shape == (5,)
    assert values["output"][1] is values["m"] and values["output"][2] == 6


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


def test_views_that_are_seen_outside_are_torchs_own(check):
    """The writes of their owner count for them, and the other way around."""
    modules = check(
        HEAD + "  v = view x f32[8, s0] cpu stride (1, 8)\n  w = view v f32[s0*8] cpu\n"
        "  extern aten.relu_.default(w) mutates (w,)\n"
        "  a = extern aten.mul.Tensor(w, 2) -> f32[8*s0] cpu\n  u = view a f32[s0, 8] cpu\n"
        "  return (v, u)\n",
        inputs(2),
    )  # fmt: skip
    for gm in modules.values():
        x, n = inputs(2)
        version = x._version
        v, u = gm(x, n)
        assert v._base is x and u._is_view() and v._version == x._version == version + 1


def test_a_returned_view_is_no_argument(check):
    """Nor another result, though it has its layout: eager gives objects of their own."""
    text = HEAD + "  v = view x f32[s0, 8] cpu\n  a = alloc f32[s0, 8] cpu\n  copy x -> a\n"
    modules = check(text + "  w = view a f32[s0, 8] cpu\n  return (v, a, w)\n", inputs(2))
    for gm in modules.values():
        x, n = inputs(2)
        v, a, w = gm(x, n)
        assert v is not x and v._base is x and w is not a and w._base is a


def test_a_view_between_storages_keeps_the_right_one(check):
    """An element type comes back after another one, and begins where the storage does."""
    check(
        HEAD + "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(a, 1) mutates (a,)\n"
        "  b = reuse a i32[s0*2] cpu\n  extern aten.fill_.Scalar(b, 7) mutates (b,)\n"
        "  c = reuse b f32[s0] cpu\n  extern aten.fill_.Scalar(c, 3) mutates (c,)\n"
        "  v = view c f32[2] cpu offset 1\n  e = extern aten.exp.default(v) -> f32[2] cpu\n"
        "  return (e, c)\n",
        inputs(3),
    )


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
    for target, function in FUNCTIONS.items():
        schema = operator_of(target, {})._schema.name
        assert schema == f"aten::{function.__name__}"
    options = {"dtype": torch.int64, "device": torch.device("cpu"), "pin_memory": False}
    drawn = []
    for call in (FUNCTIONS["aten.randint.low"], operator_of("aten.randint.low", {})):
        torch.manual_seed(3)
        drawn.append(call(0, 2**63 - 1, (4,), **options))
    assert torch.equal(*drawn)


def test_a_boxed_run_lets_go_of_its_arguments(load_launcher):
    text = HEAD + (
        "  a = alloc f32[s0, 8] cpu\n  extern aten.fill_.Scalar(x, 2) mutates (x,)\n"
        "  copy x -> a\n  b = extern aten.mul.Tensor(a, n) -> f32[s0, 8] cpu\n  return (b,)\n"
    )
    gm = emit(parse_program(text), "direct", load_kernel=load_launcher)
    run = Run(gm)
    for call, alive in ((run.boxed, False), (lambda args: run(*args), True)):
        args = inputs(3)
        with Alive() as seen:
            (b,) = call(args)
        assert torch.equal(b, torch.full((3, 8), 6.0)) and args == ([] if not alive else args)
        assert seen.alive == {"aten.copy_.default": True, "aten.mul.Tensor": alive}
    (mul,) = [n for n in gm.graph.nodes if n.name == "b"]
    mul.target = torch.ops.aten.add.Tensor
    gm.recompile()
    for result in (run.boxed(inputs(3)), run(*inputs(3)), gm(*inputs(3))):
        assert torch.equal(result[0], torch.full((3, 8), 5.0)), "an edit is followed"
    with pytest.raises(ValueError, match="expected 2"):
        run.boxed(inputs(3)[:1])
    nothing = Run(emit(parse_program("program p():\n  return ()\n"), load_kernel=load_launcher))
    assert nothing.boxed([]) == nothing() == ()
