# ruff: noqa: E501 (lines of programs)
"""Every op of the grammar: C++ against the reference interpreter."""

from __future__ import annotations

import gc
import resource
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cpp_emit
from cpp_emit.errors import InputError, LoadError, MissingCallback, MissingConstant
from symexpr import parse
from wrapper_ir import Assert, parse_program

STORAGE = """\
program storage(x: f32[s0, 8] cpu, y: f32[4, s0] cpu stride (1, 4), n: int):
  where s0 in [0, 64] hint 3
  where n in [1, *]
  symbol s0 = x.size(0)
  # storages and layouts
  assert n % 2 == 0 "n must be even"
  b0 = alloc f32[s0, 8] cpu                                     # two lines\\nof comment
  copy x -> b0
  v = view b0 f32[8, s0] cpu stride (1, 8)
  bits = view b0 i16[s0, 16] cpu
  tail = view b0 f32[s0, 3] cpu stride (8, 1) offset 5
  xt = view x f32[s0, 2] cpu stride (8, 2) offset 1
  vv = view tail f32[s0*4] cpu stride (2,)
  tt = extern aten.clone.default(vv) -> f32[s0*4] cpu
  xx = view xt i32[s0, 2] cpu stride (8, 3) offset 2
  w = extern aten.mul.Tensor(v, v) -> f32[8, s0] cpu stride (1, 8)
  t = extern aten.clone.default(tail, memory_format=memory_format contiguous_format) -> f32[s0, 3] cpu
  i = extern aten.clone.default(bits) -> i16[s0, 16] cpu
  b1 = reuse b0 i32[8, s0] cpu
  extern aten.zero_.default(b1) mutates (b1,)
  extern aten.zero_.default(b1) mutates (b1,)
  double = view b1 f64[s0*4] cpu
  z = extern aten.clone.default(double) -> f64[s0*4] cpu
  free b1
  return (w, t, i, tt, xt, xx, z, s0*n - 3, n//2 > 3, 7, 2.5, None, "text", True, x, -n % 7)
"""


def test_storages_layouts_symbols_and_returns(both: Callable[..., Any]) -> None:
    p = both(STORAGE)
    for s0, n in ((3, 4), (1, 2), (0, 10), (64, 2)):
        p.check(torch.randn(s0, 8), torch.randn(s0, 4).t(), n)


def test_a_caller_may_pass_a_view_with_an_offset(both: Callable[..., Any]) -> None:
    p = both(STORAGE)
    whole = torch.randn(80)
    p.check(whole[17:49].view(4, 8), torch.randn(4, 4).t(), 2)
    p.check(torch.randn(9, 8)[5:8], torch.randn(20, 4).t()[:, 2:5], 2)


def test_strides_of_sizes_of_one_do_not_count(both: Callable[..., Any]) -> None:
    both(STORAGE).check(torch.randn(1, 99)[:, 7:15], torch.randn(1, 4).t(), 2)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.zeros(3, 8), torch.zeros(3, 4).t(), 3), r"n must be even \(n=3, s0=3\)"),
        ((torch.zeros(3, 8).double(), torch.zeros(3, 4).t(), 2), "parameter x: expected f32 of ra"),
        ((torch.zeros(24), torch.zeros(3, 4).t(), 2), "expected f32 of rank 2 on cpu, got f32.24."),
        (
            (torch.zeros(3, 8), torch.zeros(5, 4).t(), 2),
            r"parameter y: expected f32\[4, 3\] cpu stride \(1, 4\), got f32\[4, 5\]",
        ),
        ((torch.zeros(3, 8), torch.zeros(4, 3), 2), r"got f32\[4, 3\] cpu stride \(3, 1\)"),
        ((torch.zeros(8, 3).t(), torch.zeros(3, 4).t(), 2), r"parameter x.*got.*stride \(1, 3\)"),
        (
            (torch.zeros(65, 8), torch.zeros(65, 4).t(), 2),
            r"symbol s0: expected .*\[0, 64\], got 65",
        ),
        ((torch.zeros(3, 8), torch.zeros(3, 4).t(), 0), r"symbol n: expected .*\[1, inf\), got 0"),
        ((torch.zeros(3, 8).to_sparse(), torch.zeros(3, 4).t(), 2), "expected a dense"),
        ((torch.zeros(3, 8, device="meta"), torch.zeros(3, 4).t(), 2), "on cpu, got .* device"),
    ],
)
def test_wrong_inputs_are_refused(
    both: Callable[..., Any], inputs: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        both(STORAGE).run(*inputs)


def test_wrong_number_of_inputs(both: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="storage takes 3 arguments, got 1"):
        both(STORAGE).run(torch.zeros(3, 8))


CALLS = """\
program calls(x: f32[s0, 6] cpu, w: f32[4, 6] cpu, bias: f32[4] cpu, ids: i64[s0] cpu):
  symbol s0 = x.size(0)
  lin = extern aten.linear.default(x, w, bias) -> f32[s0, 4] cpu
  lin0 = extern aten.linear.default(x, w) -> f32[s0, 4] cpu
  wt = view w f32[6, 4] cpu stride (1, 6)
  am = extern aten.addmm.default(bias, x, wt, beta=0.5, alpha=2) -> f32[s0, 4] cpu
  buf = alloc f32[s0, 4] cpu
  same = extern aten.addmm.out(bias, x, wt, out=buf) mutates (buf,) alias buf -> f32[s0, 4] cpu
  (n, mean, _) = extern aten.native_layer_norm.default(lin, (4,), bias, None, 1e-05) -> (f32[s0, 4] cpu, f32[s0, 1] cpu, _)
  (p, q) = extern aten.split.Tensor(x, 3, 1) alias x -> (f32[s0, 3] cpu stride (6, 1), f32[s0, 3] cpu stride (6, 1) offset 3)
  c = extern aten.cat.default((p, q, lin), dim=-1) -> f32[s0, 10] cpu
  e = extern aten.embedding.default(w, ids, -1, False) -> f32[s0, 6] cpu
  idx = extern aten.index.Tensor(x, (ids, None)) -> f32[s0, 6] cpu
  h = extern aten._to_copy.default(x, dtype=dtype bf16, layout=layout strided, device=device cpu, memory_format=memory_format preserve_format) -> bf16[s0, 6] cpu
  g = extern aten.gelu.default(lin, approximate="tanh") -> f32[s0, 4] cpu
  sm = extern aten._softmax.default(lin, -1, False) -> f32[s0, 4] cpu
  x4 = extern aten.view.default(x, (s0, 1, 2, 3)) alias x -> f32[s0, 1, 2, 3] cpu stride (6, 6, 3, 1)
  mp = extern aten.max_pool2d.default(x4, 2, ceil_mode=True) -> f32[s0, 1, 1, 2] cpu
  up = extern aten.upsample_nearest2d.vec(x4, None, (2.0, 2.0)) -> f32[s0, 1, 4, 6] cpu
  sd = extern aten.scaled_dot_product_attention.default(x4, x4, x4, None, 0.0, False, scale=0.25) -> f32[s0, 1, 2, 3] cpu
  (val, ind) = extern aten.topk.default(x, 2) -> (f32[s0, 2] cpu, i64[s0, 2] cpu)
  (vm, _) = extern aten.var_mean.correction(x, (1,), correction=None) -> (f32[s0] cpu, _)
  s = extern aten.sum.dim_IntList(x, 1, True, dtype=dtype f64) -> f64[s0, 1] cpu
  extern aten.add_.Tensor(buf, lin, alpha=2) mutates (buf,)
  d = extern aten.add.Scalar(ids, 3) -> i64[s0] cpu
  (bc,) = extern aten.broadcast_tensors.default((bias,)) -> (f32[4] cpu,)
  other = extern aten.mul.Tensor(x, x) -> f64[s0, 6] cpu stride (1, s0)
  return (lin, lin0, am, same, n, mean, p, q, c, e, idx, h, g, sm, x4, mp, up, sd, val, ind, vm, s, buf, d, bc, other)
"""


def _call_inputs(s0: int) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(s0, 6),
        torch.randn(4, 6),
        torch.randn(4),
        torch.randint(0, min(4, s0), (s0,)),
    )


def test_extern_calls_by_dispatcher_shim_and_callback(both: Callable[..., Any]) -> None:
    p = both(CALLS)
    p.check(*_call_inputs(3))
    p.check(*_call_inputs(1))
    python = [line for line in p.text.splitlines() if "through Python" in line]
    assert len(python) == 2  # Scalar arguments of add_ and add.Scalar
    assert p.text.count("aoti_torch_cpu_addmm_out(") == 2


def test_the_same_calls_all_through_python(both: Callable[..., Any]) -> None:
    p = both(CALLS.replace("program calls", "program python_calls"), schemas=None)
    p.check(*_call_inputs(3))
    assert "call<" not in p.text


def test_nothing_of_autograd_is_recorded(both: Callable[..., Any]) -> None:
    x, *rest = _call_inputs(3)
    results = both(CALLS).run(x.requires_grad_(), *rest)
    assert not any(r.requires_grad for r in results if not r._is_view())
    assert torch.is_grad_enabled()


def test_a_result_other_than_declared_is_refused(both: Callable[..., Any]) -> None:
    p = both(
        "program lies(x: f32[s0, 4] cpu):\n"
        "  symbol s0 = x.size(0)\n"
        "  r = extern aten.t.default(x) alias x -> f32[4, s0] cpu\n"
        "  return (r,)\n"
    )
    p.run(torch.zeros(1, 4))
    with pytest.raises(RuntimeError, match=r"result r: expected f32\[4, 2\].*stride \(1, 4\)"):
        p.run(torch.zeros(2, 4))


def test_an_operator_that_fails_is_named(both: Callable[..., Any], capfd: Any) -> None:
    p = both(CALLS)
    x, w, bias, _ = _call_inputs(3)
    with pytest.raises(
        RuntimeError, match=r"e = extern aten\.embedding\.default: operator aten::emb"
    ):
        p.run(x, w, bias, torch.tensor([0, 1, 99]))
    assert "out of range" in capfd.readouterr().err


KERNELS = """\
program launches(x: f32[s0, 4] cpu, w: f32[4] cpu, n: int):
  where s0 in [0, 100] hint 3
  symbol s0 = x.size(0)
  kernel scale(a: *f32, out: *f32 mutated, count: i32, by: f32) constants (BLOCK=16) warps 4 stages 3:
    def scale(a, out, count, by, BLOCK): ...
  end
  kernel shift(a: *f32 mutated, b: *f32, n: i64) warps 4 stages 3:
    def shift(a, b, n): ...
  end
  c = constant f32[4] cpu "weights.0"
  b0 = alloc f32[s0, 4] cpu
  launch scale grid (CeilDiv(s0*4, 16), 1, 1) (x, b0, s0*4, 0.5)        # aten.mul  model.py:3
  if s0*s0 <= 16:
    t = alloc f32[4] cpu
    launch shift grid (1, 1, 1) (b0, w, n)
    extern aten.add.out(w, c, out=t) mutates (t,)
    copy t -> w
    free t
  else:
    if n > 4:
      launch shift grid (2, 1, 1) (b0, c, n + 1)
  launch scale grid (s0, 0, 1) (b0, b0, s0, 3)
  v = view b0 f32[s0*2, 2] cpu
  copy w -> c
  return (v, c)
"""


def _scale(grid: Any, a: torch.Tensor, out: torch.Tensor, count: int, by: float) -> None:
    assert grid == (-(-count // 16), 1, 1) and a.numel() == count and type(by) is float
    out.copy_(a * by)


def _shift(grid: Any, a: torch.Tensor, b: torch.Tensor, n: int) -> None:
    a.add_(b).add_(n * grid[0])


@pytest.fixture(scope="module")
def launches(both: Callable[..., Any]) -> Any:
    return both(
        KERNELS,
        kernels={"scale": _scale, "shift": _shift},
        constants={"weights.0": torch.arange(4.0)},
    )


def test_launches_constants_and_branches(launches: Any) -> None:
    for s0, n in ((3, 1), (5, 1), (5, 9), (0, 1)):
        launches.constants["weights.0"].copy_(torch.arange(4.0))
        launches.run = cpp_emit.load(
            launches.path,
            launches.program,
            cpp_emit.Callbacks(launch=launches.runtime.launch),
            {"weights.0": torch.arange(4.0)},
        )
        launches.check(torch.randn(s0, 4), torch.randn(4), n)


def test_an_error_of_a_callback_comes_out_as_it_was(launches: Any) -> None:
    class Odd(Exception):
        pass

    def launch(*_: Any) -> None:
        raise Odd("kernel")

    constants = {"weights.0": torch.zeros(4)}
    run = cpp_emit.load(launches.path, launches.program, cpp_emit.Callbacks(launch), constants)
    with pytest.raises(Odd, match="kernel"):
        run(torch.zeros(3, 4), torch.zeros(4), 1)
    without = cpp_emit.load(launches.path, launches.program, None, constants)
    with pytest.raises(MissingCallback, match="kernel scale runs on CPU tensors"):
        without(torch.zeros(3, 4), torch.zeros(4), 1)


def test_two_programs_of_one_library_have_their_own_constants(launches: Any) -> None:
    def load(value: float) -> Any:
        return cpp_emit.load(
            launches.path,
            launches.program,
            cpp_emit.Callbacks(launch=launches.runtime.launch),
            {"weights.0": torch.full((4,), value)},
        )

    one, two = load(1.0), load(2.0)
    x, w = torch.zeros(5, 4), torch.zeros(4)
    assert torch.equal(one(x, w, 9)[0], torch.full((10, 2), 21.0))
    assert torch.equal(two(x, w, 9)[0], torch.full((10, 2), 22.0))
    programs = [one]
    del one

    def traced(x: torch.Tensor) -> torch.Tensor:
        programs.clear()
        gc.collect()
        return x + 1

    # What is collected while a graph is traced leaves nothing in it.
    calls = [n.target for n in make_fx(traced)(x).graph.nodes if n.op == "call_function"]
    assert calls == [torch.ops.aten.add.Tensor]
    w.zero_()
    assert torch.equal(two(x, w, 1)[0], torch.full((10, 2), 0.0))


def test_constants_are_checked(launches: Any) -> None:
    with pytest.raises(MissingConstant, match=r"no constant 'weights\.0'"):
        cpp_emit.load(launches.path, launches.program)
    run = cpp_emit.load(
        launches.path,
        launches.program,
        cpp_emit.Callbacks(launch=launches.runtime.launch),
        {"weights.0": torch.zeros(5)},
    )
    with pytest.raises(RuntimeError, match=r"constant weights.0: expected f32\[4\]"):
        run(torch.zeros(3, 4), torch.zeros(4), 1)


def test_a_library_of_another_program_is_refused(launches: Any, both: Callable[..., Any]) -> None:
    other = parse_program(KERNELS.replace("0.5", "0.25"))
    with pytest.raises(LoadError, match="made of another program than launches"):
        cpp_emit.load(launches.path, other)
    with pytest.raises(LoadError, match="cannot load"):
        cpp_emit.load(launches.path.with_name("absent.so"), other)
    with pytest.raises(LoadError, match=r"invalid ELF header|file too short"):
        cpp_emit.load(launches.path.with_suffix(".cpp"), other)


def test_threads_share_a_program(both: Callable[..., Any]) -> None:
    p = both(CALLS)
    inputs = _call_inputs(3)
    expected, got = p.run(*inputs), {}

    def work(number: int) -> None:
        for _ in range(20):
            got[number] = p.run(*inputs)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(torch.equal(a, b) for r in got.values() for a, b in zip(r, expected, strict=True))


LEAKS = """\
program leaks(x: f32[s0, 16] cpu, w: f32[16, 16] cpu):
  symbol s0 = x.size(0)
  (_, e) = extern aten.frexp.Tensor(x) -> (_, i32[s0, 16] cpu)
  (n, _) = extern aten._foreach_neg.default((x, x)) -> (f32[s0, 16] cpu, _)
  a = extern aten.addmm.default(x, x, w) -> f32[s0, 16] cpu
  p = extern aten.add.Scalar(x, 1) -> f32[s0, 16] cpu
  v = view p f32[16, s0] cpu stride (1, 16)
  r = reuse a i32[s0, 16] cpu
  extern aten.copy_.default(r, e) mutates (r,)
  return (v, r)
"""


def test_no_tensor_leaks(both: Callable[..., Any]) -> None:
    """Tensors of 42 MB: the system takes back at once what is freed."""
    p = both(LEAKS)
    x, w = torch.ones(655_360, 16), torch.ones(16, 16)
    held = x._use_count()
    resident = []
    for _ in range(4):
        p.run(x, w)
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resident.append(pages * resource.getpagesize() / 1e6)
    assert max(resident[1:]) - resident[0] < 20
    assert x._use_count() == held


NAMES = """\
program names(c0: f32[] cpu, m: f32[2, 2] cpu, new: f32[n] cpu, self: f32[n] cpu, n_1: int):
  symbol n = new.size(0)
  double = alloc f32[n] cpu
  view1 = view double f32[n] cpu
  extern aten.fill_.Tensor(double, c0) mutates (double,)
  out = extern aten.add.Tensor(new, self) -> f32[n] cpu
  tensor = extern aten.mm.default(m, m) -> f32[2, 2] cpu
  return (out, tensor, double, n + n_1)
"""


def test_names_that_are_words_of_cpp(both: Callable[..., Any]) -> None:
    both(NAMES).check(torch.tensor(2.0), torch.randn(2, 2), torch.randn(3), torch.randn(3), 4)


def test_any_text_survives_as_message_and_comment(folder: Path) -> None:
    message = 'say "no" \\ ??/ \n\t é 漢 */'
    name = "odd.name-1"
    program = replace(
        parse_program(
            "program texts(x: f32[s0] cpu):\n  symbol s0 = x.size(0)\n  return (x, s0)\n"
        ),
        name=name,
    )
    check = Assert(parse("s0 > 3"), message, comment="ends with a backslash \\\nsecond line ??/")
    program = replace(program, ops=(*program.ops[:1], check, *program.ops[1:]))
    text = cpp_emit.emit(program)
    run = cpp_emit.load(cpp_emit.build(text, folder, name), program)
    assert run(torch.zeros(4))[1] == 4
    with pytest.raises(RuntimeError) as error:
        run(torch.zeros(2))
    assert str(error.value) == f"{message} (s0=2)"


EXPRESSIONS = """\
program expressions(a: int, b: int, x: f32[1] cpu):
  return (a//b, a % 7, (a*b + 3)//-4, CeilDiv(a, 5), Max(a, b)//3 - Min(a, b, 2), Where(a > b, a, b*2), ModularIndexing(a, 3, 5), a**3 - b**2, (a - b)//6, -a % 4, a % b, a > b)
"""


def test_integers_are_what_they_are_in_python(both: Callable[..., Any]) -> None:
    p = both(EXPRESSIONS)
    for a in (*range(-20, 21), -(10**6), 10**6 + 1):
        for b in (-9, -2, -1, 1, 2, 7, 50):
            p.check(a, b, torch.zeros(1))
