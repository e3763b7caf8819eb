"""Families of what surrounds operators: randomness, branches, transforms of functions, custom
operators, several results, complex numbers, types that only casts know."""

from __future__ import annotations

from fuzzer.generate import DERIVED, FLOATS, Maker


def chance(g: Maker) -> None:
    """Random numbers, in expressions whose value does not hang on them if each is drawn once, and
    a gradient takes what its result took."""
    x = g.floating()
    safe = g.add(f"{x}.nan_to_num(1.0).abs().clamp(0.5, 8.0)")
    if safe is None:
        return
    drawn = g.add(g.one([
        f"F.dropout({safe}, 0.5, True)", f"F.dropout({safe}, 0.5, True)",
        f"{safe} * torch.bernoulli(torch.full_like({safe}, 0.5)) * 2",
        f"{safe} * (torch.rand_like({safe}) < 0.5) * 2",
        f"{safe} * torch.randint_like({safe}, 0, 2) * 2",
        f"{safe} * torch.randn_like({safe}).sign().clamp(min=0) * 2",
    ]), False)  # fmt: skip
    if drawn is None:
        return
    g.add(g.one([
        f"{drawn} * 0.5 - torch.where({drawn} == 0, torch.zeros_like({safe}), {safe})",
        f"torch.where({drawn} == 0, {safe}, {drawn} * 0.5)",
        f"({drawn} == 0).sum() + {drawn}.count_nonzero()",
        f"({drawn} / {safe} - 1).square().sum(-1)",
        f"({drawn} - {drawn}.amax() > 0).any()",
    ]))  # fmt: skip


def branched(g: Maker) -> None:
    x = g.floating()
    y = g.pick(lambda t: t.shape == g.value(x).shape and t.dtype == g.value(x).dtype) or x
    when = g.one([f"{x}.sum() > 0", f"({x} > {y}).any()", f"{x}.isnan().all()",
                  "torch.tensor(True)"])  # fmt: skip
    first, second = g.one([("t.sin()", "t * 2"), ("t + u", "t - u"), ("(t * u).exp()", "t.clone()"),
                           ("F.relu(t) + u.mean()", "t.cumsum(-1)")])  # fmt: skip
    copy = "clone(memory_format=torch.contiguous_format)"  # torch.cond takes no aliases
    g.add(f"branch({when}, lambda t, u: {first}, lambda t, u: {second}, {x}.{copy}, {y}.{copy})")


def transformed(g: Maker) -> None:
    x = g.floating(1)
    texts = [
        f"mapped(lambda t: (t * 2).cumsum(-1) - t.mean(), {x})",
        f"mapped(lambda t: F.softmax(t, -1), {x}.mT)", f"mapped(lambda t: t @ t.flatten(), {x})",
        f"mapped(lambda t: t[..., :1].flip(0) + torch.zeros_like(t), {x})",
        f"torch.utils.checkpoint.checkpoint(lambda t: (t * 3).sin().exp(), {x}, "
        "use_reentrant=False)",
    ]  # fmt: skip
    # torch.export refuses the gradients of a buffer, and those in a program that writes.
    if not x.startswith("b") and all(step.result for step in g.steps):
        texts += [
            f"{DERIVED}grad(lambda t: t.square().sum())({x})",
            f"{DERIVED}vjp(torch.square, {x})[1](torch.ones_like({x}))[0]",
            f"{DERIVED}jvp(torch.exp, ({x},), (torch.ones_like({x}),))[1]",
        ]
    g.add(g.one(texts))


def custom(g: Maker) -> None:
    x = g.floating(1)
    draw = g.rng.randrange(3)
    if draw == 0:
        g.add(f"torch.ops.fuzzed.scaled({x}, {g.one([2.0, -0.5])})")
    elif draw == 1 and not g.setting.grad:
        for i in (0, 1):
            g.add(f"torch.ops.fuzzed.pair({x}, {g.dim(x)})[{i}]")
    elif draw == 2 and not g.setting.grad:
        target = g.add(f"{x}.clone()") if g.chance(0.5) else x
        part, other = g.one(["", "[1:]", ".t()"]), g.one([f"({x} * 2)", x])
        g.write(f"torch.ops.fuzzed.add_({target}{part}, {other}{part}, {g.one([1.0, 0.5])})")


def several(g: Maker) -> None:
    """Both results of an operator, which is called once."""
    x = g.floating(1)
    d = g.dim(x)
    text = g.one([
        f"torch.max({x}, {d})", f"torch.min({x}, {d}, keepdim=True)", f"torch.cummax({x}, {d})",
        f"torch.sort({x}, dim={d}, stable=True)", f"torch.std_mean({x}, {d})",
        f"torch.var_mean({x}, {d}, keepdim=True)", f"torch.aminmax({x}, dim={d})",
        f"torch.frexp({x})", f"torch.broadcast_tensors({x}, {x}.sum({d}, keepdim=True))",
        f"torch.meshgrid({x}.flatten(), {x}.flatten()[:3], indexing='ij')",
        f"torch._foreach_add([{x}, {x}.flip(0)], 1.5)",
        f"torch._foreach_mul([{x}, {x}], [{x}, {x} + 2])",
        f"torch._foreach_norm([{x}, {x} * 2])", f"torch._foreach_sqrt([{x}.abs(), {x}.square()])",
        f"torch._foreach_lerp([{x}, {x} + 1], [{x} * 2, {x}], 0.25)",
        f"torch.split({x}, 1, {d})", f"torch.topk({x}, 1, {d})",
    ])  # fmt: skip
    for i in g.one([(0, 1), (1, 0), (1,), (0, -1)]):
        g.add(f"{text}[{i}]")


def statistics(g: Maker) -> None:
    """Norms that keep their statistics: buffers or arguments that training writes."""
    x = g.pick(lambda t: t.is_floating_point() and t.dim() > 1 and t.dtype.itemsize > 1)
    x = x or g.input(g.one(FLOATS), [4, 3, 2])
    kind, channels = g.value(x).dtype, g.value(x).shape[1]
    mean, var, weight = (g.input(kind, [channels], "plain") for _ in range(3))
    if g.setting.grad:
        mean, var = f"{mean}.detach()", f"{var}.detach()"
    training = "False" if g.chance(0.3) else "True"
    scale = g.one([f"weight={weight}, bias={weight}", ""])
    var = var if training == "True" else f"{var}.abs()"
    g.add(f"F.batch_norm({x}, {mean}, {var}, training={training}, {scale})".replace(", )", ")"))
    if g.chance(0.3):
        g.add(f"F.instance_norm({x}, {mean}, {var}, use_input_stats=True)")


def complexes(g: Maker) -> None:
    x = g.pick(lambda t: t.is_complex())
    if x is None or g.chance(0.3):
        real = g.floating()
        real = real if g.value(real).dtype.itemsize > 2 else f"{real}.float()"
        g.add(g.one([
            f"torch.complex({real}, {real} * 2)", f"torch.polar({real}.abs(), {real})",
            f"{real} * 1j", f"{real}.to(torch.complex64)", f"{real}.to(torch.complex128)",
            f"torch.view_as_complex({real}.unsqueeze(-1).repeat_interleave(2, -1))",
        ]))  # fmt: skip
        return
    y = g.pick(lambda t: t.is_complex() and t.shape == g.value(str(x)).shape) or x
    g.add(g.one([
        f"{x} + {y}", f"{x} * {y}.conj()", f"{x} / ({y} + 3)", f"{x} - {y} * 2.5", f"{x}.abs()",
        f"{x}.angle()", f"{x}.real", f"{x}.imag * 2", f"{x}.conj().imag",
        f"torch.view_as_real({x})",
        f"{x}.conj().real.neg()", f"{x}.sum()", f"{x}.mean(-1)", f"{x}.mT @ {y}.conj()",
        f"{x}.exp()", f"{x}.sqrt()", f"{x}.square()", f"{x} == {y}", f"{x}.flip(0).conj()",
        f"torch.cat([{x}, {y}.conj()])", f"torch.where({x}.real > 0, {x}, {y})", f"{x}.sgn()",
        f"{x}.conj().resolve_conj()", f"{x}.cumsum(0)", f"{x}.conj().T.imag", f"{x}.prod(0)",
        f"torch.vdot({x}.flatten(), {y}.flatten())", f"torch.reciprocal({x} + 2)",
    ]))  # fmt: skip


def contraction(g: Maker) -> None:
    x = g.floating(2)
    value = g.value(x)
    kind, rows, inner = value.dtype, value.shape[-2], value.shape[-1]
    if value.dim() > 3:
        return
    vector = g.input(kind, [inner], g.one(["plain", "wide"]))
    g.add(g.one([
        f"{x} @ {vector}", f"torch.kron({x}.flatten()[:3], {vector}[:2])",
        f"torch.outer({vector}, {vector}.flip(0))", f"torch.dot({vector}, {vector} * 2)",
        f"torch.tensordot({x}, {x}, dims=([-1], [-1]))",
        f"torch.einsum('...i,...i->...', {x}, {x})",
        f"torch.einsum('...ij,...kj->...ik', {x}, {x})", f"torch.inner({x}, {vector})",
        f"F.bilinear({x}, {x}, {g.input(kind, [2, inner, inner])})",
        f"torch.addmv({g.input(kind, [rows])}, {x}, {vector}, beta=0.5)",
        f"torch.addr({g.input(kind, [inner, inner])}, {vector}, {vector}, alpha=2)",
        f"torch.baddbmm({x}[..., :1], {x}, {x}.mT, beta=0)", f"F.relu({x} @ {x}.mT + 1).sum(-1)",
        f"torch.linalg.multi_dot([{x}, {x}.mT, {x}])",
        f"({x}.to(torch.int8) @ {x}.mT.to(torch.int8))",
        f"F.linear(F.gelu({x}), {g.input(kind, [3, inner])}).mean(0)",
    ]))  # fmt: skip


def filters(g: Maker) -> None:
    """Convolutions beyond the plain one: depthwise, grouped, dilated, transposed, with a bias."""
    n = g.one([1, 2, 2])
    x = g.pick(lambda t: t.is_floating_point() and t.dim() == n + 2)
    x = x or g.input(g.one(FLOATS), [2, 4, *[6 - n] * n])
    kind, channels = g.value(x).dtype, g.value(x).shape[1]
    groups = g.one([channels, channels, 1, 2])
    size = [g.one([1, 2, 3])] * n
    settings = g.one(["", ", stride=2", ", padding=1", ", dilation=2", ", stride=2, padding=2"])
    if g.chance(0.3):
        weight = g.input(kind, [channels, 1 if g.chance(0.5) else 2, *size])
        g.add(f"F.conv_transpose{n}d({x}, {weight}{settings}, groups={groups})")
        return
    many = g.one([1, 2]) * max(groups, 1)
    weight = g.input(kind, [many, max(channels // max(groups, 1), 1), *size])
    bias = g.input(kind, [many]) if g.chance(0.6) else "None"
    g.add(f"F.conv{n}d({x}, {weight}, {bias}{settings}, groups={groups})")


def narrow_types(g: Maker) -> None:
    """8-bit floats and unsigned integers, which hardly an operator takes."""
    x = g.floating()
    eight = g.one(["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
    word = g.one(["uint16", "uint32", "uint64"])
    g.add(g.one([
        f"{x}.to(torch.{eight}).to({x}.dtype)", f"{x}.clamp(-8, 8).to(torch.{eight}).float() * 2",
        f"{x}.to(torch.{eight}).view(torch.uint8)", f"{x}.to(torch.{eight}).flip(0).float()",
        f"{x}.nan_to_num().abs().clamp(0, 9).to(torch.{word}).to(torch.int32)",
        f"{x}.nan_to_num().abs().clamp(0, 9).to(torch.{word})",
        f"torch.cat([{x}.to(torch.{eight})] * 2).to(torch.bfloat16)" if g.value(x).dim() else x,
    ]))  # fmt: skip
