"""Families of operators that compute: pointwise, reductions, products, norms, pools."""

from __future__ import annotations

import torch

from fuzzer.generate import FLOATS, INTS, Maker

UNARY = """abs neg exp exp2 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh
cosh tanh asinh acosh atanh sigmoid erf erfc lgamma digamma floor ceil round trunc frac sign sgn
reciprocal square isnan isinf isfinite signbit logical_not positive deg2rad rad2deg nan_to_num
sinc relu i0 isposinf isneginf angle conj_physical erfinv logit special.entr special.ndtr
special.log_ndtr special.i0e special.i1 special.i1e special.erfcx special.ndtri""".split()
ACTIVATIONS = """relu silu gelu softplus relu6 hardswish hardtanh elu selu celu leaky_relu softsign
tanhshrink hardshrink softshrink mish logsigmoid hardsigmoid""".split()
WITH_SETTINGS = (
    "F.gelu({x}, approximate='tanh')", "F.leaky_relu({x}, 0.3)", "F.elu({x}, 0.5)",
    "F.hardtanh({x}, -0.5, 1.5)", "F.softplus({x}, 2.0, 1.0)", "F.threshold({x}, 0.5, -2.0)",
    "F.softshrink({x}, 0.25)", "F.hardshrink({x}, 1.0)", "F.celu({x}, 2.0)",
    "torch.round({x}, decimals=1)",
    "torch.nan_to_num({x}, 1.0, 2.0, -2.0)", "torch.logit({x}, 0.1)", "F.glu({x}, {d})",
    "F.prelu({x}, torch.full((1,), 0.25, dtype={x}.dtype))", "torch.polygamma(1, {x})",
    "torch.mvlgamma({x} + 3, 2)", "torch.polygamma(3, {x})",
)  # fmt: skip
BINARY = """add sub mul div floor_divide remainder fmod pow atan2 maximum minimum fmax fmin hypot
copysign nextafter logaddexp logaddexp2 xlogy heaviside rsub true_divide float_power ldexp
special.xlog1py gcd lcm""".split()
OPERATORS = ("+", "-", "*", "/", "//", "%", "**")


def unary(g: Maker) -> None:
    x = g.floating() if g.chance(0.8) else g.any()
    draw = g.rng.random()
    if draw < 0.6:
        g.add(f"torch.{g.one(UNARY)}({x})")
    elif draw < 0.85:
        g.add(f"F.{g.one(ACTIVATIONS)}({x})")
    else:
        g.add(g.one(WITH_SETTINGS).format(x=x, d=g.dim(x)))


def binary(g: Maker) -> None:
    x = g.any()
    y = g.partner(x) if g.chance(0.72) else g.scalar()
    if g.chance(0.05):
        y = f"torch.tensor({g.scalar()})"
    if g.chance(0.1):
        x, y = y, x
    draw = g.rng.random()
    if draw < 0.55:
        g.add(f"{x} {g.one(OPERATORS)} {y}")
    elif draw < 0.63:
        g.add(f"torch.add({x}, {y}, alpha={g.one([2, -1, 3, 0.5])})")
    elif draw < 0.7:
        mode = g.one(["floor", "trunc"])
        g.add(f"torch.div({x}, {y}, rounding_mode='{mode}')")
    else:
        g.add(f"torch.{g.one(BINARY)}({x}, {y})")


def ternary(g: Maker) -> None:
    x = g.any()
    y = g.partner(x)
    z = g.partner(x) if g.chance(0.6) else g.scalar()
    match g.rng.randrange(9):
        case 0 | 1 | 2:
            when = g.pick(lambda t: str(t.dtype) == "torch.bool") if g.chance(0.4) else None
            when = when or f"({x} {g.one(['>', '<=', '!='])} {g.scalar()})"
            g.add(f"torch.where({when}, {g.one([y, g.scalar()])}, {z})")
        case 3:
            g.add(f"torch.addcmul({x}, {y}, {z}, value={g.one([1, 2, -1, 0.5])})")
        case 4:
            g.add(f"torch.addcdiv({x}, {y}, {z}, value={g.one([1, 2, 0.5])})")
        case 5:
            g.add(f"torch.lerp({x}, {y}, {z})")
        case 6:
            low, high = g.one([("-1", "2"), ("0", "None"), ("None", "1.5"), (y, "None"), (y, z)])
            g.add(f"torch.clamp({x}, {low}, {high})")
        case 7:
            g.add(f"torch.nn.functional.{g.one(['mse_loss', 'l1_loss', 'smooth_l1_loss'])}"
                  f"({x}, {y}, reduction='{g.one(['none', 'mean', 'sum'])}')")  # fmt: skip
        case _:
            g.add(f"{x}.masked_fill({y} {g.one(['>', '<', '=='])} 0, {g.scalar()})")


def comparison(g: Maker) -> None:
    x = g.any()
    y = g.partner(x) if g.chance(0.6) else g.scalar()
    if g.chance(0.75):
        g.add(f"{x} {g.one(['<', '<=', '>', '>=', '==', '!='])} {y}")
    else:
        name = g.one(["logical_and", "logical_or", "logical_xor", "isclose"])
        g.add(f"torch.{name}({x}, {y})")


def bits(g: Maker) -> None:
    x = g.pick(lambda t: not t.is_floating_point() and not t.is_complex())
    if x is None:
        x = g.input(g.one(INTS), g.shape())
    y = g.partner(x) if g.chance(0.5) else str(g.one([1, 2, 3, -1, 7]))
    if g.chance(0.2):
        g.add(f"~{x}")
    else:
        by = g._eval(f"torch.as_tensor({y})")
        kinds = [g.value(x).dtype, torch.bool if by is None else by[0].dtype]
        shifts = [] if torch.bool in kinds else ["<<", ">>"]  # torch traces no others
        g.add(f"{x} {g.one(['&', '|', '^', *shifts])} {y}")


def cast(g: Maker) -> None:
    x = g.any()
    to = g.one(FLOATS) if g.chance(0.5) else g.dtype()
    other = g.any()
    g.add(g.one([f"{x}.to({to})"] * 6 + [
        f"{x}.float()", f"{x}.half()", f"{x}.bool()", f"{x}.int()", f"{x}.long()", f"{x}.double()",
        f"{x}.type_as({other})", f"{x}.to({to}, copy=True)", f"{x}.bfloat16()",
    ]))  # fmt: skip


def _dims(g: Maker, x: str) -> str:
    rank = g.value(x).dim()
    if rank and g.chance(0.25):
        some = g.rng.sample(range(rank), g.rng.randint(1, rank))
        return f"({', '.join(map(str, some))},)"
    return str(g.dim(x))


def reduction(g: Maker) -> None:
    x = g.any() if g.chance(0.5) else g.any(1)
    keep = g.one(["False", "False", "True"])
    dims = _dims(g, x)
    match g.rng.randrange(13):
        case 0 | 1 | 2 | 3:
            g.add(f"{x}.{g.one(['sum', 'sum', 'mean', 'amax', 'amin'])}({dims}, keepdim={keep})")
        case 4:
            name = g.one(["sum", "mean", "prod", "max", "min", "all", "any", "std", "var", "median",
                          "nansum", "nanmean", "amax", "norm", "argmax", "argmin"])  # fmt: skip
            g.add(f"{x}.{name}()")
        case 5:
            g.add(f"{x}.{g.one(['prod', 'all', 'any'])}({g.dim(x)}, keepdim={keep})")
        case 6:
            name, extra = g.one(["std", "var"]), g.one(["", ", correction=0", ", correction=2"])
            g.add(f"torch.{name}({x}, {dims}, keepdim={keep}{extra})")
        case 7:
            i = g.one([0, 1])
            g.add(f"torch.{g.one(['std_mean', 'var_mean'])}({x}, {dims}, keepdim={keep})[{i}]")
        case 8:
            g.add(f"{x}.{g.one(['max', 'min'])}({g.dim(x)}, keepdim={keep})[{g.one([0, 0, 1])}]")
        case 9:
            if g.setting.grad:  # torch's fake tensors err on dimensions of size 1 from the last
                dims = f"({g.dim(x) % max(g.value(x).dim(), 1)},)"
            p = g.one([2, 1, 3, 0, "float('inf')", "float('-inf')", 0.5])
            g.add(g.one([f"{x}.norm({p}, {dims}, keepdim={keep})",
                         f"torch.linalg.vector_norm({x}, {p}, {dims}, {keep})"]))  # fmt: skip
        case 10:
            g.add(f"torch.logsumexp({x}, {dims}, keepdim={keep})")
        case 11:
            g.add(f"{x}.sum({dims}, keepdim={keep}, dtype={g.one([*FLOATS, *INTS])})")
        case _:
            name = g.one(["nansum", "count_nonzero", "nanmean"])
            g.add(f"torch.{name}({x}, {g.dim(x)})")


def position(g: Maker) -> None:
    x = g.any(1)
    keep = g.one(["False", "True"])
    name = g.one(["argmax", "argmin"])
    g.add(f"{x}.{name}({g.dim(x)}, keepdim={keep})")


def scan(g: Maker) -> None:
    x = g.any(1)
    name = g.one(["cumsum", "cumsum", "cumprod", "logcumsumexp"])
    if g.chance(0.2):
        g.add(f"torch.{g.one(['cummax', 'cummin'])}({x}, {g.dim(x)})[{g.one([0, 0, 1])}]")
    else:
        g.add(f"{x}.{name}({g.dim(x)})")


def normalization(g: Maker) -> None:
    x = g.floating(1)
    value = g.value(x)
    last = value.shape[-1]
    if last == 1 and g.setting.grad:
        return  # the gradients of one element's norm are all rounding
    weight = g.input(value.dtype, [last]) if g.chance(0.5) else "None"
    bias = g.input(value.dtype, [last]) if g.chance(0.5) else "None"
    size = g.size(x, -1)
    match g.rng.randrange(9):
        case 0 | 1 | 2:
            g.add(f"{g.one(['F.softmax', 'F.log_softmax', 'torch.softmax'])}({x}, {g.dim(x)})")
        case 3:
            g.add(f"F.softmax({x}, {g.dim(x)}, dtype={g.one(FLOATS)})")
        case 4:
            g.add(f"F.layer_norm({x}, ({size},), {weight}, {bias})")
        case 5:
            g.add(f"F.rms_norm({x}, ({size},), {weight})")
        case 6:
            groups = g.one([1, 2])
            g.add(f"F.group_norm({x}, {groups})")
        case 7:
            if g.chance(0.5):
                g.add(f"F.instance_norm({x})")
            else:
                g.add(f"F.batch_norm({x}, None, None, training=True)")
        case _:
            g.add(f"F.normalize({x}, {g.one([2.0, 1.0])}, {g.dim(x)})")


def product(g: Maker) -> None:
    x = g.floating(1)
    value = g.value(x)
    kind, inner = value.dtype, value.shape[-1]
    out = g.one([1, 2, 3, 5])
    match g.rng.randrange(8):
        case 0 | 1:
            y = g.input(kind, [out, inner])
            bias = g.input(kind, [out]) if g.chance(0.5) else "None"
            g.add(f"F.linear({x}, {y}, {bias})")
        case 2:
            g.add(f"{x} @ {g.input(kind, [inner, out])}")
        case 3:
            g.add(f"{x} @ {x}.transpose(-1, -2)")
        case 4:
            y = g.pick(lambda t: t.dtype == kind and t.dim() > 1 and t.shape[-2] == inner)
            g.add(f"torch.matmul({x}, {y})" if y else f"{x} @ {x}.mT")
        case 5:
            y = g.input(kind, [inner, out])
            z = g.input(kind, [g.one([1, out])])
            g.add(
                f"torch.addmm({z}, {x}, {y}, alpha={g.one([1, 2, 0.5])}, beta={g.one([1, 0, 2])})"
            )
        case 6:
            y = g.input(kind, [*value.shape[:-2], inner, out])
            g.add(f"torch.{g.one(['bmm', 'matmul'])}({x}, {y})")
        case _:
            rank = value.dim()
            letters = "bcdefgh"[: rank - 1]
            y = g.input(kind, [inner, out])
            g.add(f"torch.einsum('{letters}i,io->o{letters}', {x}, {y})")


def _image(g: Maker) -> str:
    found = g.pick(lambda t: t.is_floating_point() and t.dim() in (3, 4))
    return found or g.input(g.one(FLOATS), [2, 2, 4, 4])


def convolution(g: Maker) -> None:
    x = _image(g)
    value = g.value(x)
    channels = value.shape[1]
    size = g.one([1, 2, 3])
    weight = g.input(value.dtype, [g.one([1, 2]), channels, *[size] * (value.dim() - 2)])
    bias = "None"
    name = f"F.conv{value.dim() - 2}d"
    g.add(f"{name}({x}, {weight}, {bias}, stride={g.one([1, 2])}, padding={g.one([0, 1])})")


def pooling(g: Maker) -> None:
    x = _image(g)
    n = g.value(x).dim() - 2
    mode = {1: "linear", 2: "bilinear"}[n]
    g.add(g.one([
        f"F.max_pool{n}d({x}, 2)",
        f"F.max_pool{n}d({x}, 3, 1, 1)",
        f"F.max_pool{n}d({x}, 2, return_indices=True)[1]",
        f"F.avg_pool{n}d({x}, 2)",
        f"F.avg_pool{n}d({x}, 3, 2, 1, ceil_mode=True)",
        f"F.avg_pool{n}d({x}, 3, 1, 1, count_include_pad=False)",
        f"F.adaptive_avg_pool{n}d({x}, 2)",
        f"F.adaptive_max_pool{n}d({x}, 2)",
        f"F.interpolate({x}, scale_factor=2, mode='nearest')",
        f"F.interpolate({x}, scale_factor=0.5, mode='nearest')",
        f"F.interpolate({x}, scale_factor=2, mode='{mode}')",
        f"F.interpolate({x}, size=3, mode='{mode}', align_corners=True)",
        f"F.unfold({x}, 2)",
        f"F.pixel_shuffle({x}, 2)",
        f"F.pixel_unshuffle({x}, 2)",
    ]))  # fmt: skip


def sizes(g: Maker) -> None:
    """Arithmetic of tensors with the sizes of tensors."""
    x, y = g.any(1), g.any(1)
    d, e = g.dim(x), g.dim(y)
    g.add(g.one([
        f"{x} * {x}.shape[{d}]",
        f"{x} + {y}.size({e})",
        f"{x} / {y}.numel()",
        f"{x} * {x}.shape[{d}] ** -0.5",
        f"{x} * ({x}.shape[{d}] / max({y}.shape[{e}], 1))",
        f"({x} + 1 if {x}.shape[{d}] % 2 == 0 else {x} - 1)",
        f"{x} - ({y}.shape[{e}] > {x}.shape[{d}])",
        f"{x} + ({y}.shape[{e}] // 2)",
    ]))  # fmt: skip
