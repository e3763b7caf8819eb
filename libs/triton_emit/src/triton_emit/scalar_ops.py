"""Scalar operations of loop IR as Triton expressions.

Where Triton differs from loop IR the difference is made up here: integer `//` and `%` truncate,
`-x` loses the sign of zero, `tl.maximum` drops NaN, plain `/` and `tl.sqrt` on f32 are
approximations, floats narrower than f32 are computed in f32 and rounded once."""

import math
from dataclasses import replace

from loop_ir import Compute, DType
from triton_emit.errors import UnsupportedDType
from triton_emit.values import (
    ADD,
    ATOM,
    BIT_AND,
    BIT_OR,
    BIT_XOR,
    COMPARE,
    MUL,
    SMALL_FLOATS,
    TL_TYPES,
    UNARY,
    Value,
    guessed,
    in_call,
    literal,
    typed,
)

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

_INFIX = {"add": ("+", ADD), "sub": ("-", ADD), "mul": ("*", MUL)}
_INFIX |= {"and": ("&", BIT_AND), "or": ("|", BIT_OR), "xor": ("^", BIT_XOR)}

# bool has no arithmetic of its own: addition is `or`, multiplication `and`
_BOOL_AS: dict[str, str | None] = dict.fromkeys(("eq", "gt", "lt", "ge", "le"))
_BOOL_AS |= {
    "add": "or",
    "mul": "and",
    "sub": "xor",
    "ne": "xor",
    "maximum": "or",
    "minimum": "and",
}

# helpers for integers whose divisor may be zero
_BY_ZERO = {"floordiv": "int_floor_div", "mod": "int_floor_mod"}
_BY_ZERO |= {"truncdiv": "int_div", "fmod": "int_rem"}
_UNSIGNED = {"floordiv": "truncdiv", "mod": "fmod"}

# functions: Triton text for f32 and for f64; a bare name is a helper, but for `libdevice`: the
# function of that name in CUDA's library, which eager calls too
_TABLE = """
abs tl.abs tl.abs
gelu gelu_f32 gelu_f32
exp exp_f32 tl.exp
exp2 exp2_f32 tl.exp2
expm1 expm1_f32 libdevice
log tl.log tl.log
log2 tl.log2 tl.log2
log1p log1p_f32 libdevice
log1p_unit log1p_unit_f32 tl.extra.cuda.libdevice.log1p
log1p_positive log1p_positive_f32 tl.extra.cuda.libdevice.log1p
near_exp tl.exp tl.exp
near_sigmoid sigmoid_near sigmoid_f64
near_tanh tanh_near tl.extra.cuda.libdevice.tanh
near_erf erf_f32 tl.erf
sqrt tl.sqrt_rn tl.sqrt
sin sin_f32 tl.sin
cos cos_f32 tl.cos
tanh tanh_f32 libdevice
erf erf_fine_f32 tl.erf
sigmoid sigmoid_f32 sigmoid_f64
floor floor_f32 tl.floor
ceil ceil_f32 tl.ceil
trunc trunc_float trunc_float
round round_f32 round_f64
lgamma lgamma_f32 libdevice
tan tan_f32 libdevice
asin asin_f32 libdevice
atan atan_f32 libdevice
atan2 atan2_f32 libdevice
sinh sinh_f32 libdevice
asinh asinh_f32 libdevice
atanh atanh_f32 libdevice
acos libdevice libdevice
cosh libdevice libdevice
acosh libdevice libdevice
erfc libdevice libdevice
erfinv libdevice libdevice
hypot hypot_f32 libdevice
zeta zeta zeta
gamma_series gamma_series gamma_series
gamma_fraction gamma_fraction gamma_fraction
laguerre laguerre laguerre
legendre legendre legendre
chebyshev chebyshev chebyshev
hermite hermite hermite
"""
_FUNCTIONS = {op: (f32, f64) for op, f32, f64 in map(str.split, _TABLE.strip().splitlines())}

# computed in f32 and rounded once for the narrower types
_WIDE = frozenset(("fmod", "mod", "floordiv"))
# quotients by one number for many, of which less is asked or more is known than of others
_SHARED_QUOTIENTS = {"bounded_div": "quotient_bounded_f32", "near_div": "near_quotient_f32"}


class ScalarOps:
    """Prints operations of one kernel. A function without `tl.` is one of `helpers.py`."""

    def __init__(self, kernel: str, rows: frozenset[str] = frozenset(), many: bool = False) -> None:
        """rows: the tile dimensions of what is one number for all of a row's elements. many: a
        thread has many quotients."""
        self.kernel = kernel
        self.rows, self.many = rows, many
        # programs have several rows, which share what is of a column
        self.columns = False

    def call(self, function: str, args: list[str], dtype: DType, axes: frozenset[str]) -> Value:
        """A call of a Triton function."""
        return Value(f"{function}({', '.join(args)})", ATOM, dtype, axes)

    def of(self, function: str, args: list[Value], dtype: DType) -> Value:
        """A call of a Triton function of values, each of which shows its type."""
        axes = frozenset[str]().union(*(a.axes for a in args))
        return self.call(function, [typed(a).text for a in args], dtype, axes)

    def compute(self, stmt: Compute, args: list[Value]) -> Value:
        """The value of `stmt` given the values of its arguments."""
        for dtype in (stmt.dtype, *(a.dtype for a in args)):
            if dtype not in TL_TYPES:
                raise UnsupportedDType(self.kernel, dtype.value, f"{stmt.out} = {stmt.op}")
        op = stmt.op
        if op in ("cast", "narrow"):
            return self.cast(args[0], stmt.dtype)
        if op == "fit":
            value = typed(self.cast(args[0], DType.i32) if stmt.dtype.is_int else args[0])
            text = f"{value.at(ATOM)}.to({TL_TYPES[stmt.dtype]})"
            return Value(text, ATOM, stmt.dtype, args[0].axes)
        if op == "saturated":
            wide = self.cast(args[0], DType.f32) if args[0].dtype in SMALL_FLOATS else args[0]
            return self.of("saturated_int", [wide], stmt.dtype)
        if op == "byte":
            return self.cast(self.of("byte_f32", args, DType.i8), stmt.dtype)
        if op == "bitcast":
            value = self.held(args[0])
            text = f"{typed(value).at(ATOM)}.to({TL_TYPES[stmt.dtype]}, bitcast=True)"
            return Value(text, ATOM, stmt.dtype, value.axes)
        if op in ("where", "rarely"):
            return self._where(args, stmt.dtype)
        if op in COMPARISONS or op in ("isnan", "isinf", "signbit"):
            return self._predicate(op, args)
        args = [self.held(a) for a in args]
        if op == "philox":
            return self.of("philox_u32", args, stmt.dtype)
        kind = args[0].dtype
        if kind is DType.bool_:
            return self._on_bool(op, args, stmt.dtype)
        if kind in SMALL_FLOATS:
            floats = [self.cast(a, DType.f32) for a in args]
            return self.cast(self._floats(op, floats, DType.f32), stmt.dtype)
        if kind.is_float:
            return self._floats(op, args, kind)
        return self._ints(op, args, kind)

    def held(self, value: Value) -> Value:
        """The value in the type it is declared with (an index may be held in a narrower one)."""
        if not value.narrow:
            return value
        declared = f"tl.cast({value.text}, {TL_TYPES[value.dtype]})"
        return Value(declared, ATOM, value.dtype, value.axes)

    def cast(self, value: Value, dtype: DType) -> Value:
        """Converts as torch does: to bool by `!= 0`, float to int by truncation, narrow floats by
        way of f32."""
        src = value.dtype
        if value.literal is not None:
            if src.is_float and dtype.is_int:
                return literal(int(value.literal), dtype)
            return literal(value.literal, dtype)
        if src is dtype:
            return value
        if dtype is DType.bool_:
            wide = self.cast(value, DType.f32) if src in SMALL_FLOATS else value
            return Value(f"{wide.at(COMPARE + 1)} != 0", COMPARE, dtype, value.axes)
        if value.narrow:
            if dtype.is_float and dtype not in SMALL_FLOATS:
                return Value(f"tl.cast({value.text}, {TL_TYPES[dtype]})", ATOM, dtype, value.axes)
            return self.cast(self.held(value), dtype)
        if src in SMALL_FLOATS and dtype is not DType.f32:
            value, src = self.cast(value, DType.f32), DType.f32
            if src is dtype:
                return value
        if dtype in SMALL_FLOATS and src is not DType.f32:
            value = self.cast(value, DType.f32)
        if dtype in (DType.f8e4m3, DType.f8e5m2):
            return self.call(f"to_{dtype.value}", [value.text], dtype, value.axes)
        text = value.at(ATOM)
        if src.is_float and dtype.is_int and dtype.itemsize < 4:
            # torch goes through a wider int, so that out-of-range values wrap around
            text += ".to(tl.int64)" if dtype.value.startswith("u") else ".to(tl.int32)"
        text = f"{text}.to({TL_TYPES[dtype]})"
        return Value(text, ATOM, dtype, value.axes, normal=src is DType.f16)

    def _where(self, args: list[Value], dtype: DType) -> Value:
        condition, a, b = args
        axes = condition.axes | a.axes | b.axes
        a, b = self.held(a), self.held(b)
        if a.literal is not None and b.literal is not None and not (guessed(a) and guessed(b)):
            a = typed(a)
        return self.call("tl.where", [typed(condition).text, in_call(a), in_call(b)], dtype, axes)

    def _predicate(self, op: str, args: list[Value]) -> Value:
        axes = frozenset[str]().union(*(a.axes for a in args))
        if op in COMPARISONS:
            a, b = args
            if a.dtype in SMALL_FLOATS:
                a, b = self.cast(a, DType.f32), self.cast(b, DType.f32)
            if a.dtype is DType.bool_:
                a, b = (typed(v) if v.literal is not None else v for v in (a, b))
                if op not in ("eq", "ne"):
                    a, b = self.cast(a, DType.i32), self.cast(b, DType.i32)
            small = all(v.narrow or _fits_i32(v) for v in (a, b))
            if not (small and (a.narrow or b.narrow)):
                a, b = self.held(a), self.held(b)
            if a.literal is not None and b.literal is not None:
                a = typed(a)
            if a.dtype.is_float:  # Triton guesses the type of a number that is compared
                a, b = (v if in_call(v) == v.text else typed(v) for v in (a, b))
            text = f"{a.at(COMPARE + 1)} {COMPARISONS[op]} {b.at(COMPARE + 1)}"
            return Value(text, COMPARE, DType.bool_, axes)
        value = typed(self.held(args[0]))
        if not value.dtype.is_float and op != "signbit":
            return Value(f"{value.at(ATOM)} != {value.at(ATOM)}", COMPARE, DType.bool_, axes)
        if value.dtype in SMALL_FLOATS:
            value = self.cast(value, DType.f32)
        if op == "isnan":
            text = f"{value.at(COMPARE + 1)} != {value.at(COMPARE + 1)}"
        elif op == "isinf":
            text = f'tl.abs({value.text}) == float("inf")'
        elif value.dtype.is_float:
            bits = "tl.int64" if value.dtype is DType.f64 else "tl.int32"
            text = f"{value.at(ATOM)}.to({bits}, bitcast=True) < 0"
        else:
            text = f"{value.at(COMPARE + 1)} < 0"
        return Value(text, COMPARE, DType.bool_, axes)

    def _infix(self, sign: str, prec: int, args: list[Value], dtype: DType) -> Value:
        a, b = args
        if a.literal is not None and b.literal is not None:
            a = typed(a)
        text = f"{a.at(prec)} {sign} {b.at(prec + 1)}"
        return Value(text, prec, dtype, a.axes | b.axes)

    def _all_in_call(self, args: list[Value]) -> list[str]:
        if all(a.literal is not None for a in args):
            return [typed(a).text for a in args]
        return [in_call(a) for a in args]

    def _on_bool(self, op: str, args: list[Value], dtype: DType) -> Value:
        if op == "not":
            return Value(f"~{typed(args[0]).at(UNARY)}", UNARY, dtype, args[0].axes)
        logic = _BOOL_AS.get(op, op)
        if logic in ("and", "or", "xor"):
            sign, prec = _INFIX[logic]
            return self._infix(sign, prec, [typed(a) for a in args], dtype)
        ints = [self.cast(a, DType.i32) for a in args]
        return self.cast(self._ints(op, ints, DType.i32), dtype)

    def _ints(self, op: str, args: list[Value], dtype: DType) -> Value:
        axes = frozenset[str]().union(*(a.axes for a in args))
        signed = dtype.value.startswith("i")
        if op in _INFIX:
            sign, prec = _INFIX[op]
            return self._infix(sign, prec, args, dtype)
        if op == "neg":
            return Value(f"-{typed(args[0]).at(UNARY)}", UNARY, dtype, axes)
        if op == "not":
            return Value(f"~{typed(args[0]).at(UNARY)}", UNARY, dtype, axes)
        if op in ("maximum", "minimum"):
            return self.call(f"tl.{op}", self._all_in_call(args), dtype, axes)
        divisor = args[1].literal if len(args) > 1 else None
        if op in _BY_ZERO and not divisor:
            # no bare division: a compiler takes it for proof that the divisor is not zero, in all
            # that the kernel computes, so that `where(y != 0, x // y, -1)` would lose its condition
            return self.of(_BY_ZERO[op if signed else _UNSIGNED.get(op, op)], args, dtype)
        if op in ("floordiv", "mod") and signed:
            if op == "mod" and isinstance(divisor, int) and _is_mask(divisor - 1):
                low = literal(divisor - 1, dtype)
                return self._infix("&", BIT_AND, [args[0], low], dtype)
            return self.of("floor_div" if op == "floordiv" else "floor_mod", args, dtype)
        if op in ("floordiv", "truncdiv"):
            return self._infix("//", MUL, args, dtype)
        if op in ("mod", "fmod"):
            return self._infix("%", MUL, args, dtype)
        if op in ("shl", "shr"):
            return self._shift(op, args, dtype)
        if op in ("abs", "gcd"):
            return self.of("tl.abs" if op == "abs" else "gcd_int", args, dtype)
        if op == "pow":
            return self._int_pow(args, dtype)
        if op == "fma":
            product = self._infix("*", MUL, args[:2], dtype)
            return self._infix("+", ADD, [product, args[2]], dtype)
        if op in ("floor", "ceil", "trunc", "round"):
            return args[0]
        raise UnsupportedDType(self.kernel, dtype.value, f"operation {op}")

    def _shift(self, op: str, args: list[Value], dtype: DType) -> Value:
        """A shift by the width or more gives 0 (-1 for a negative number shifted right)."""
        value, amount = args
        bits = 8 * dtype.itemsize
        sign, prec = ("<<", 5) if op == "shl" else (">>", 5)
        if amount.literal is not None and 0 <= amount.literal < bits:
            return self._infix(sign, prec, [typed(value), amount], dtype)
        axes = value.axes | amount.axes
        inside = f"({amount.at(6)} >= 0) & ({amount.at(6)} < {bits})"
        if op == "shr" and dtype.value.startswith("i"):
            safe = f"tl.where({inside}, {amount.text}, {bits - 1})"
            return Value(f"{typed(value).at(prec)} >> {safe}", prec, dtype, axes)
        shifted = f"{typed(value).at(prec)} {sign} tl.where({inside}, {amount.text}, 0)"
        return Value(f"tl.where({inside}, {shifted}, 0)", ATOM, dtype, axes)

    def _int_pow(self, args: list[Value], dtype: DType) -> Value:
        base, exponent = args
        if exponent.literal in (2, 3) and base.prec == ATOM and "(" not in base.text:
            text = " * ".join([base.text] * int(exponent.literal or 0))
            return Value(text, MUL, dtype, base.axes)
        return self.of("pow_int", args, dtype)

    def _floats(self, op: str, args: list[Value], dtype: DType) -> Value:
        axes = frozenset[str]().union(*(a.axes for a in args))
        double = dtype is DType.f64
        if op in ("add", "sub", "mul"):
            sign, prec = _INFIX[op]
            value = self._infix(sign, prec, args, dtype)
            # a sum with a number has no bits far below those of the number
            numbers = [abs(a.literal) for a in args if a.literal is not None]
            return replace(value, normal=op != "mul" and any(n > 1e-20 for n in numbers))
        if op == "neg":  # Triton's -x is 0 - x, which loses the sign of zero
            return self._infix("*", MUL, [literal(-1.0, dtype), typed(args[0])], dtype)
        if op in ("maximum", "minimum"):
            texts = [*self._all_in_call(args), "propagate_nan=tl.PropagateNan.ALL"]
            value = self.call(f"tl.{op}", texts, dtype, axes)
            floors = [a.literal for a in args if a.literal is not None]
            return replace(value, normal=op == "maximum" and any(n > 1e-30 for n in floors))
        if op in ("div", "near_div", "bounded_div", "count_div"):
            return self._divide(args, dtype, op)
        if op == "fma":
            return self.call("tl.fma", self._all_in_call(args), dtype, axes)
        if op == "truncdiv":
            quotient = self._divide(args, dtype, "div")
            return self.call("trunc_float", [quotient.text], dtype, axes)
        if op == "rsqrt":
            if double:  # tl.rsqrt on f64 is an approximation
                return Value(f"1.0 / tl.sqrt({typed(args[0]).text})", MUL, dtype, axes)
            return self.of("tl.rsqrt" if args[0].normal else "rsqrt_f32", args, dtype)
        if op == "log10":
            log = self.of("tl.log2", args, dtype)
            return self._infix("*", MUL, [log, literal(0.30102999566398120, dtype)], dtype)
        if op == "pow" and args[1].literal is not None:
            simple = self._simple_pow(args[0], float(args[1].literal), dtype)
            if simple is not None:
                return simple
        if op in _FUNCTIONS:
            function = _FUNCTIONS[op][1 if double else 0]
            if function == "libdevice":
                function = f"tl.extra.cuda.libdevice.{op}"
            return self.of(function, args, dtype)
        if op == "pow":
            function = "tl.extra.cuda.libdevice.pow" if double else _pow_of(args[1].literal)
            return self.of(function, args, dtype)
        if op == "fmod" and (args[1].normal or abs(args[1].literal or 0) > 1e-30) and not double:
            return self.of("fmod_by_f32", args, dtype)
        if op in _WIDE:
            kind = DType.f64 if double else DType.f32
            wide = [typed(self.cast(a, kind)).text for a in args]
            return self.cast(self.call(f"{op}_{kind.value}", wide, kind, axes), dtype)
        raise UnsupportedDType(self.kernel, dtype.value, f"operation {op}")

    def _divide(self, args: list[Value], dtype: DType, op: str) -> Value:
        a, b = args
        if b.literal is not None and _is_power_of_two(float(b.literal)):
            return self._infix("*", MUL, [a, literal(1.0 / b.literal, dtype)], dtype)
        axes = a.axes | b.axes
        shared = b.axes <= self.rows or (self.columns and b.axes < axes)
        if shared and not axes <= self.rows and dtype is not DType.f64:  # its reciprocal, once
            return self.of(_SHARED_QUOTIENTS.get(op, "quotient_f32"), args, dtype)
        if dtype is DType.f64 or op == "near_div":  # on f32: 2 ulp
            return self._infix("/", MUL, args, dtype)
        if op == "count_div":
            return self.call("quotient_of_count_f32", self._all_in_call(args), dtype, axes)
        function = "quotient_each_f32" if self.many and not axes <= self.rows else "tl.div_rn"
        return self.call(function, self._all_in_call(args), dtype, axes)

    def _simple_pow(self, base: Value, exponent: float, dtype: DType) -> Value | None:
        """`x**2 -> x * x` and so on, for exponents where that is the same number, to 1.5 ulp. (A
        square root is not: `(-inf)**0.5` is inf, `(-0.0)**0.5` is 0.0.)"""
        name = base.prec == ATOM and "(" not in base.text
        one = literal(1.0, dtype)
        if exponent == 1.0:
            return base
        if exponent in (2.0, 3.0) and name:
            text = " * ".join([base.text] * int(exponent))
            return Value(text, MUL, dtype, base.axes)
        if exponent in (2.0, 3.0, 4.0):
            return self.of(
                {2: "square", 3: "cube", 4: "fourth_power"}[int(exponent)], [base], dtype
            )
        if exponent == -1.0:
            return self._divide([one, base], dtype, "div")
        return None


def _pow_of(exponent: int | float | None) -> str:
    """The helper for a power in f32 whose exponent may be a number."""
    if exponent is None or exponent == 0 or not math.isfinite(exponent):
        return "pow_f32"
    if exponent != math.floor(exponent):
        return "pow_part_f32"
    return "pow_odd_f32" if exponent % 2 else "pow_even_f32"


def _is_power_of_two(value: float) -> bool:
    """The reciprocal is exact, and normal in f32."""
    return (
        value != 0
        and 2.0**-126 < abs(value) < 2.0**126
        and (abs(value).hex().split("p")[0] == "0x1.0000000000000")
    )


def _is_mask(value: int) -> bool:
    """All ones from some bit down, or zero."""
    return value >= 0 and not value & (value + 1)


def _fits_i32(value: Value) -> bool:
    return isinstance(value.literal, int) and -(2**31) <= value.literal < 2**31
