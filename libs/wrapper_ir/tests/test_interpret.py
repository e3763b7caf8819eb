"""The meaning of each op, on numpy arrays."""

from __future__ import annotations

import numpy as np
import pytest

from wrapper_ir import errors, interpret, parse_program, verify

HEAD = """program p(x: f32[s0, 4] cpu, n: int):
  where s0 in [1, 8]
  symbol s0 = x.size(0)
"""
SCALE = """  kernel scale(x: *f32, out: *f32 mutated, by: i32) constants (PLUS=1) warps 4 stages 3:
    def scale(x, out, by, PLUS): ...
  end
"""


def scale(grid, x, out, by, PLUS):
    out[...] = x * by + PLUS


@pytest.fixture
def run(runtime):
    def run(body, x=None, n=3, constants=None, head=HEAD, **functions):
        program = parse_program(head + body)
        verify(program)
        functions = {k.replace("__", "."): v for k, v in functions.items()}
        host = runtime(scale=scale, **functions)
        x = np.arange(8, dtype=np.float32).reshape(2, 4) if x is None else x
        return interpret(program, [x, n], host, constants or {}), host.log, x

    return run


def test_allocate_launch_return(run):
    values, log, x = run(
        SCALE + "  b = alloc f32[s0, 4] cpu\n  launch scale grid (s0, n, 1) (x, b, n)\n"
        "  return (b, s0*n, None, 2.5)\n"
    )
    np.testing.assert_array_equal(values[0], x * 3 + 1)
    assert values[1:] == (6, None, 2.5)
    assert log == ["empty 32", "launch scale (2, 3, 1)"]


def test_launch_of_an_empty_grid_does_nothing(run):
    _, log, _ = run(SCALE + "  launch scale grid (s0 - 2, 1, 1) (x, x, 1)\n  return ()\n")
    assert log == []


def test_view_is_relative_to_the_first_element_of_a_parameter(run):
    big = np.arange(40, dtype=np.float32)
    x = big[13:21].reshape(2, 4)
    values, _, _ = run("  v = view x f32[s0, 2] cpu stride (4, 1) offset 2\n  return (v,)\n", x)
    np.testing.assert_array_equal(values[0], x[:, 2:])
    values[0][0, 0] = -1
    assert big[15] == -1


def test_view_of_a_view_counts_from_the_storage(run):
    values, _, x = run(
        "  a = view x f32[4] cpu offset 4\n  b = view a f32[2] cpu offset 1\n  return (a, b)\n",
        head=HEAD.replace("[1,", "[2,"),
    )
    np.testing.assert_array_equal(values[0], x[1])
    np.testing.assert_array_equal(values[1], x[0, 1:3])


def test_view_of_another_element_type(run):
    values, _, x = run("  v = view x i32[2] cpu offset 1\n  return (v,)\n")
    np.testing.assert_array_equal(values[0], x.reshape(-1)[1:3].view(np.int32))


def test_reuse_takes_the_storage(run):
    values, log, _ = run(
        "  b = alloc f32[s0, 4] cpu\n  c = reuse b f64[s0] cpu\n  d = reuse c f32[s0, 4] cpu\n"
        "  extern t.set.default(d) mutates (d,)\n  return (d,)\n",
        t__set__default=lambda d: d.fill(7),
    )
    assert values[0].tolist() == [[7] * 4] * 2 and log.count("empty 32") == 1


def test_free_ends_a_tensor(runtime):
    program = parse_program(HEAD + "  b = alloc f32[4] cpu\n  free b\n  return (b,)\n")
    x = np.zeros((2, 4), np.float32)
    with pytest.raises(errors.UndefinedName, match="b is alive"):
        interpret(program, [x, 1], runtime())


def test_extern_results(run):
    values, _, x = run(
        "  (a, _, b) = extern t.split.default(x, (n, (s0,)), k=1.5) -> "
        "(f32[4] cpu, _, f32[4] cpu)\n  return (a, b)\n",
        t__split__default=lambda x, sizes, k: (x[0].copy(), sizes, x[1] * k),
    )
    np.testing.assert_array_equal(values[1], x[1] * 1.5)


def test_extern_alias_shares_the_storage(run):
    values, _, x = run(
        "  t = extern t.t.default(x) alias x -> f32[4, s0] cpu stride (1, 4)\n"
        "  v = view t f32[4] cpu offset 4\n  return (v,)\n",
        t__t__default=lambda x: x.T,
        head=HEAD.replace("[1,", "[2,"),
    )
    np.testing.assert_array_equal(values[0], x[1])


def test_extern_result_that_is_not_as_declared(run):
    strided = "  a = extern t.f.default(x) -> f64[s0, 4] cpu stride (1, s0)\n  return (a,)\n"
    (a,), _, x = run(strided, t__f__default=lambda x: x + 1)  # converted, and copied
    assert a.dtype == np.float64 and a.strides == (8, 16)
    np.testing.assert_array_equal(a, x + 1)
    with pytest.raises(errors.ResultMismatch, match=r"t.f.default returned a as f32\[2, 4\]"):
        run("  a = extern t.f.default(x) -> f32[4, s0] cpu\n  return (a,)\n",
            t__f__default=lambda x: x + 1)  # fmt: skip
    with pytest.raises(errors.ResultMismatch, match="2 results"):
        run("  (a,) = extern t.f.default(x) -> (f32[4] cpu,)\n  return (a,)\n",
            t__f__default=lambda x: (x, x))  # fmt: skip


def test_copy_back(run):
    _, _, x = run(
        "  b = extern t.f.default(x) -> f32[s0, 4] cpu\n  copy b -> x\n  return ()\n",
        t__f__default=lambda x: x + 1,
    )
    np.testing.assert_array_equal(x, np.arange(1, 9, dtype=np.float32).reshape(2, 4))


@pytest.mark.parametrize(("n", "expected"), [(1, 1), (5, 2)])
def test_if(run, n, expected):
    body = (
        "  if n*s0 < 6 and n > 0:\n    extern t.add(x, 1) mutates (x,)\n"
        "  else:\n    extern t.add(x, 2) mutates (x,)\n  return ()\n"
    )
    _, _, x = run(body, np.zeros((2, 4), np.float32), n, t__add=lambda x, by: x.__iadd__(by))
    assert (x == expected).all()


def test_assert(run):
    with pytest.raises(errors.AssertionFailed, match=r"too many \(n=3, s0=2\)"):
        run('  assert n < s0 "too many"\n  return ()\n')


def test_constant(run):
    body = '  c = constant f32[2, 2] cpu "w"\n  v = view c f32[2] cpu offset 2\n  return (v,)\n'
    w = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert run(body, constants={"w": w})[0][0].tolist() == [2, 3]
    with pytest.raises(errors.MissingConstant, match="'w'"):
        run(body)
    with pytest.raises(errors.InputMismatch, match="size"):
        run(body, constants={"w": w[:1]})
    with pytest.raises(errors.InputMismatch, match="f32"):
        run(body, constants={"w": w.astype(np.float64)})


def test_storage_too_small_for_these_sizes(runtime):
    # Verification tries the bounds of s0 only: 2 and 4096 do divide, 3 does not.
    text = HEAD.replace("[1, 8]", "[2, 4096]") + (
        "  b = alloc f32[s0//2*2] cpu\n  v = view b f32[s0] cpu\n"
        "  extern test.zero_.default(v) mutates (v,)\n  return (v,)\n"
    )
    program = parse_program(text)
    verify(program)
    zero = {"test.zero_.default": lambda x: x.fill(0)}
    interpret(program, [np.zeros((4, 4), np.float32), 1], runtime(**zero))
    with pytest.raises(errors.StorageTooSmall, match="12 bytes of a storage of 8"):
        interpret(program, [np.zeros((3, 4), np.float32), 1], runtime(**zero))


X = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize(("x", "n", "name", "expected", "got"), [
    (X.astype(np.float64), 3, "x", "f32", "f64"),
    (X[0], 3, "x", "rank 2", "rank 1"),
    (np.zeros((2, 5), np.float32), 3, "x", "size (2, 4)", "size (2, 5)"),
    (np.zeros((4, 2), np.float32).T, 3, "x", "stride (4, 1)", "stride (1, 2)"),
    (np.zeros((2, 8), np.float32)[:, ::2], 3, "x", "stride (4, 1)", "stride (8, 2)"),
    (np.zeros((9, 4), np.float32), 3, "s0", "s0 in [1, 8]", "9"),
    (np.zeros((0, 4), np.float32), 3, "s0", "s0 in [1, 8]", "0"),
    (X, 1.5, "n", "an integer", "1.5"),
    (X, True, "n", "an integer", "True"),
])  # fmt: skip
def test_input_that_differs_from_its_declaration(runtime, x, n, name, expected, got):
    program = parse_program(HEAD + "  return ()\n")
    with pytest.raises(errors.InputMismatch) as caught:
        interpret(program, [x, n], runtime())
    error = caught.value
    assert error.name == name and error.expected.startswith(expected) and error.got == got


def test_strides_of_single_elements_do_not_count(runtime):
    x = np.zeros((1, 8, 4), np.float32)[:, 0]
    assert x.strides[0] != 16
    interpret(parse_program(HEAD + "  return ()\n"), [x, 3], runtime())


def test_two_sizes_of_one_symbol_must_agree(runtime):
    text = "program p(x: f32[s0] cpu, y: f32[s0] cpu):\n  symbol s0 = x.size(0)\n  return ()\n"
    with pytest.raises(errors.InputMismatch, match=r"y: expected size \(2,\)"):
        interpret(parse_program(text), [np.zeros(2, "f"), np.zeros(3, "f")], runtime())


def test_input_count(runtime):
    with pytest.raises(errors.InputCountMismatch, match="takes 2 inputs, got 1"):
        interpret(parse_program(HEAD + "  return ()\n"), [X], runtime())


def test_a_descriptor_is_a_tensor_with_its_block(run):
    got = []
    values, _, x = run(
        "  kernel k(t: tensordesc<f32[2,2]>, u: tensordesc<f32[2,2]>) warps 4 stages 3:\n"
        "    def k(t, u): ...\n  end\n"
        "  v = view x f32[s0, 2] cpu stride (4, 1) offset 2\n  d = describe v block (2, 2)\n"
        "  launch k grid (1, 1, 1) (d, d)\n  return (v,)\n",
        k=lambda grid, t, u: got.extend([t, u]),
    )
    assert got[0] is got[1] and got[0].base is values[0]
    assert (got[0].shape, got[0].strides, got[0].block_shape) == ((2, 2), (4, 1), (2, 2))
    assert got[0].base[0, 0] == x[0, 2]


def test_a_descriptor_dies_with_its_tensor(runtime):
    program = parse_program(
        HEAD + "  kernel k(t: tensordesc<f32[4]>) warps 4 stages 3:\n    def k(t): ...\n  end\n"
        "  b = alloc f32[4] cpu\n  d = describe b block (4,)\n  free b\n"
        "  launch k grid (1, 1, 1) (d)\n  return ()\n"
    )
    with pytest.raises(errors.UndefinedName, match="d is alive"):
        interpret(program, [np.zeros((2, 4), np.float32), 1], runtime())
