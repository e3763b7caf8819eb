"""Random expressions: every reader of an expression agrees with Python on its value.

A tree of tuples is the oracle: it is run by Python itself, and built into a sympy expression."""

import math
import pickle

import sympy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from symexpr import (
    BitwiseAnd,
    BitwiseOr,
    BitwiseXor,
    CeilDiv,
    FloorDiv,
    LShift,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    RShift,
    Where,
    bounds,
    evaluate,
    known,
    parse,
    simplify,
    sstr,
    symbol,
    to_function,
    to_python,
)
from symexpr.structure import total

NAMES = ("a", "b", "c", "n")
SYMBOLS = {name: symbol(name) for name in NAMES}
SETTINGS = settings(
    max_examples=45, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

# name -> (sympy, python); the second argument of divisions is made non-zero by the strategy
BINARY = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "sub": (lambda x, y: x - y, lambda x, y: x - y),
    "mul": (lambda x, y: x * y, lambda x, y: x * y),
    "floordiv": (FloorDiv, lambda x, y: x // y),
    "mod": (Mod, lambda x, y: x % y),
    "ceildiv": (CeilDiv, lambda x, y: -(-x // y)),
    "min": (Min, min),
    "max": (Max, max),
    "and": (BitwiseAnd, lambda x, y: x & y),
    "or": (BitwiseOr, lambda x, y: x | y),
    "xor": (BitwiseXor, lambda x, y: x ^ y),
}
RELATIONS = {
    "<": (sympy.Lt, lambda x, y: x < y),
    "<=": (sympy.Le, lambda x, y: x <= y),
    ">": (sympy.Gt, lambda x, y: x > y),
    "==": (sympy.Eq, lambda x, y: x == y),
    "!=": (sympy.Ne, lambda x, y: x != y),
}
INDEXING = ("add", "add", "mul", "floordiv", "mod")

literals = st.one_of(st.integers(-9, 9), st.sampled_from([12, 16, 32, 64, 96, 128, 768, -64, 1000]))
leaves = st.one_of(st.sampled_from(NAMES), st.sampled_from(NAMES), literals)
divisors = st.one_of(
    st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16, 64, 128, 768, -1, -2, -3, -4]), st.just("n")
)


def _grow(children, names):
    plain = st.tuples(st.sampled_from([n for n in names if "div" not in n and n != "mod"]),
                      children, children)  # fmt: skip
    division = st.tuples(
        st.sampled_from([n for n in names if "div" in n or n == "mod"]), children, divisors
    )
    modular = st.tuples(st.just("modular"), children, divisors, divisors)
    relation = st.tuples(st.sampled_from(list(RELATIONS)), children, children)
    where = st.tuples(st.just("where"), relation, children, children)
    shift = st.tuples(st.sampled_from(["shl", "shr"]), children, st.integers(0, 4))
    power = st.tuples(st.just("pow"), children, st.integers(0, 2))
    if names is INDEXING:
        return st.one_of(plain, division, division, modular)
    return st.one_of(plain, plain, division, division, modular, where, shift, power)


trees = st.recursive(leaves, lambda c: _grow(c, tuple(BINARY)), max_leaves=10)
index_trees = st.recursive(leaves, lambda c: _grow(c, INDEXING), max_leaves=12)
values = st.fixed_dictionaries(
    {name: st.integers(-40, 40) for name in "abc"} | {"n": st.integers(-40, 40).filter(bool)}
)


def build(tree):
    if isinstance(tree, str):
        return SYMBOLS[tree]
    if isinstance(tree, int):
        return sympy.Integer(tree)
    op, *args = tree
    args = [build(a) for a in args]
    if op in BINARY:
        return BINARY[op][0](*args)
    if op in RELATIONS:
        return RELATIONS[op][0](*args)
    made = {"modular": ModularIndexing, "where": Where, "shl": LShift, "shr": RShift,
            "pow": PowByNatural}  # fmt: skip
    return made[op](*args)


def run(tree, env):
    if isinstance(tree, str):
        return env[tree]
    if isinstance(tree, int):
        return tree
    op, *args = tree
    args = [run(a, env) for a in args]
    if op in BINARY:
        return BINARY[op][1](*args)
    if op in RELATIONS:
        return RELATIONS[op][1](*args)
    if op == "modular":
        return args[0] // args[1] % args[2]
    if op == "where":
        return args[1] if args[0] else args[2]
    return {"shl": int.__lshift__, "shr": int.__rshift__, "pow": int.__pow__}[op](*args)


def symbol_ranges(env, spread):
    """A range around each value, n kept away from 0."""
    out = {}
    for k, (name, v) in enumerate(env.items()):
        low, high = v - (spread >> k) % 7, v + (spread >> (2 * k)) % 11
        if name == "n":
            low, high = (max(low, 1), high) if v > 0 else (low, min(high, -1))
        out[SYMBOLS[name]] = (low, high)
    return out


@SETTINGS
@given(trees, values)
def test_constructors_fold_with_pythons_meaning(tree, env):
    e = build(tree)
    assert evaluate(e, env) == run(tree, env)
    assert e.is_integer


@SETTINGS
@given(trees)
def test_text_parses_back_to_the_same_expression(tree):
    e = build(tree)
    assert parse(sstr(e)) == e
    assert sstr(parse(sstr(e))) == sstr(e)


@SETTINGS
@given(trees, values)
def test_python_text_has_the_value(tree, env):
    text = to_python(build(tree))
    assert eval(text, {"math": math}, dict(env)) == run(tree, env)
    assert to_function(build(tree), NAMES)(**env) == run(tree, env)


@SETTINGS
@given(st.sampled_from([sympy.Lt, sympy.Ge, sympy.Eq, sympy.Ne]), trees, trees, values)
def test_conditions_print_and_parse(make, x, y, env):
    a, b = build(x), build(y)
    rel = make(a, b)
    both = sympy.And(rel, sympy.Or(a < 3, sympy.Not(sympy.And(b > 1, a >= 7))))
    for cond in (rel, both):
        assert parse(sstr(cond)) == cond
        assert bool(eval(to_python(cond), {}, dict(env))) == bool(evaluate(cond, env))


@SETTINGS
@given(trees)
def test_hash_pickle_and_rebuild(tree):
    e = build(tree)
    again = pickle.loads(pickle.dumps(e))
    assert again == e and hash(again) == hash(e)
    if e.args:
        assert e.func(*e.args) == e


@SETTINGS
@given(trees, values, st.integers(0, 10**6))
def test_bounds_hold(tree, env, spread):
    e = build(tree)
    ranges = symbol_ranges(env, spread)
    low, high = bounds(e, ranges)
    assert (low is None or low <= run(tree, env)) and (high is None or run(tree, env) <= high)


@SETTINGS
@given(trees, values, st.integers(0, 10**6))
def test_simplify_keeps_the_value(tree, env, spread):
    assert evaluate(simplify(build(tree), symbol_ranges(env, spread)), env) == run(tree, env)


@settings(SETTINGS, max_examples=60)
@given(index_trees, values, st.integers(0, 10**6))
def test_simplify_keeps_the_value_of_indices(tree, env, spread):
    e, ranges = build(tree), symbol_ranges(env, spread)
    simple = simplify(e, ranges)
    assert evaluate(simple, env) == run(tree, env)
    assert simplify(simple, ranges) == simple
    low, high = bounds(e, ranges)
    assert low <= run(tree, env) <= high


@settings(SETTINGS, max_examples=60)
@given(index_trees, index_trees, values, st.integers(0, 10**6))
def test_known_is_never_wrong(x, y, env, spread):
    ranges = symbol_ranges(env, spread)
    a, b = build(x), build(y)
    for name, (make, python) in RELATIONS.items():
        assert known(make(a, b), ranges) in (None, python(run(x, env), run(y, env))), name


@settings(SETTINGS, max_examples=40)
@given(index_trees, st.data())
def test_symbolic_ends_are_sound(tree, data):
    """b in [0, n - 1], c in [n, n + a]: ends that mention other symbols."""
    a, b, c, n = (SYMBOLS[k] for k in NAMES)
    ranges = {b: (0, n - 1), c: (n, n + a), a: (0, None), n: (1, None)}
    env = {"a": data.draw(st.integers(0, 20)), "n": data.draw(st.integers(1, 20))}
    env["b"] = data.draw(st.integers(0, env["n"] - 1))
    env["c"] = data.draw(st.integers(env["n"], env["n"] + env["a"]))
    e = build(tree)
    value = run(tree, env)
    assert evaluate(simplify(e, ranges), env) == value
    low, high = bounds(e, ranges)
    assert (low is None or low <= value) and (high is None or value <= high)


def test_long_sums_are_what_sympy_makes_of_them() -> None:
    """Same terms in the same order, whether or not terms meet."""
    x = [symbol(f"x{i}") for i in range(90)]
    apart = [(i % 7 - 3 or 5) * v for i, v in enumerate(x)]
    cases = [
        apart,
        [*reversed(apart), sympy.Integer(4)],
        [sympy.Integer(4), *apart, sympy.Integer(-4)],
        [FloorDiv(v, 8) * 3 for v in x],
        [*apart, x[3]],
        [*apart, x[0] + x[1]],
        [*apart, x[0] * x[1]],
        [*apart, sympy.Rational(1, 2) * x[0]],
        [sympy.S.Zero] * 70,
        [sympy.S.Zero] * 70 + [x[0]],
    ]
    for terms in cases:
        assert total(terms) == sympy.Add(*terms)
        assert total(terms).args == sympy.Add(*terms).args
