"""Families of operators that move and write elements: views, copies, gathers, scatters, writes."""

from __future__ import annotations

import torch

from fuzzer.generate import FLOATS, INTS, Maker


def view_of(g: Maker, x: str) -> str:
    """The text of a view of a tensor."""
    value = g.value(x)
    rank = value.dim()
    if rank == 0:
        return str(g.one([f"{x}.unsqueeze(0)", f"{x}.expand(3)", f"{x}.view(1)", f"{x}[None]",
                          f"{x}.reshape(1, 1)", f"{x}.view_as({x})"]))  # fmt: skip
    d, e = g.dim(x), g.dim(x)
    n = value.shape[d]
    order = list(range(rank))
    g.rng.shuffle(order)
    lead = ", ".join([":"] * (d % rank) + [""])
    start, length = g.one([0, 0, 1]), max(n // 2, 1)
    match g.rng.randrange(22):
        case 0 | 1:
            return f"{x}.permute({order})"
        case 2:
            return f"{x}.transpose({d}, {e})"
        case 3:
            return str(g.one([f"{x}.t()", f"{x}.T", f"{x}.mT", f"{x}.movedim({d}, {e})"]))
        case 4 | 5:
            part = g.one(
                ["1:", ":-1", "::2", "1::2", "-2:", ":2", "1:3", "::3", "2:100", ":0", "-100:2"]
            )
            return f"{x}[{lead}{part}]"
        case 6:
            return f"{x}[{lead}{g.one([0, -1])}]"
        case 7:
            return f"{x}.narrow({d}, {start}, {length})"
        case 8:
            return f"{x}.select({d}, {g.one([0, -1])})"
        case 9:
            return f"{x}.unsqueeze({g.rng.randrange(-rank - 1, rank + 1)})"
        case 10:
            return str(g.one([f"{x}.squeeze()", f"{x}.squeeze({d})", f"{x}.squeeze(({d},))"]))
        case 11:
            place = g.rng.randrange(rank + 1)
            sizes = ["-1"] * place + ["3"] + ["-1"] * (rank - place)
            return f"{x}.unsqueeze({place}).expand({', '.join(sizes)})"
        case 12:
            sizes = [str(g.one([2, 4])) if s == 1 else "-1" for s in value.shape]
            return f"{x}.expand({', '.join(sizes)})"
        case 13:
            first = g.size(x, 0)
            return str(g.one([f"{x}.reshape(-1)", f"{x}.reshape({first}, -1)",
                f"{x}.reshape(-1, 2)",
                              f"{x}.view(-1)", f"{x}.view({first}, -1)", f"{x}.reshape(2, -1)",
                              f"{x}.reshape(-1, {first})", f"{x}.reshape(-1, 4)"]))  # fmt: skip
        case 14:
            return str(g.one([f"{x}.flatten()", f"{x}.flatten({min(d % rank, e % rank)}, -1)",
                              f"{x}.unflatten({d}, (2, -1))", f"{x}.unflatten({d}, (-1, 4))",
                              f"{x}.ravel()"]))  # fmt: skip
        case 15:
            return f"{x}.diagonal({g.one([0, 0, 1, -1])}, {d}, {e})"
        case 16:
            return f"{x}.unfold({d}, {g.one([1, 2, 3])}, {g.one([1, 2])})"
        case 17:
            size, stride = g.one([((2, 3), (1, 2)), ((3,), (1,)), ((2, 2), (0, 1)), ((2, 2),
                (1, 1)),
                                  ((), ()), ((4, 1), (1, 1))])  # fmt: skip
            return f"{x}.as_strided({size}, {stride}{g.one(['', ', 1', ''])})"
        case 18:
            parts = g.one([2, 3])
            how = g.one([f"chunk({parts}, {d})", f"split(2, {d})", f"tensor_split({parts}, {d})",
                         f"unbind({d})", f"tensor_split([1, 2], {d})"])  # fmt: skip
            return f"{x}.{how}[{g.one([0, 0, 1, -1])}]"
        case 19:
            to = g.one([*FLOATS, *INTS, torch.bool])
            return f"{x}.view({to})"
        case 20:
            return str(g.one([f"{x}.real", f"{x}.detach()", f"{x}.view_as({x})", f"{x}[...]",
                f"{x}[None]",
                              f"{x}[..., None]", f"{x}.conj()", f"{x}.imag"]))  # fmt: skip
        case _:
            return f"{x}.expand_as({g.partner(x)})"


def view(g: Maker) -> None:
    g.add(view_of(g, g.any()))


def moved(g: Maker) -> None:
    x = g.any(1)
    d = g.dim(x)
    rank = g.value(x).dim()
    pads = [g.one([0, 1, 2, -1]) for _ in range(2 * g.rng.randint(1, rank))]
    g.add(g.one([
        f"{x}.clone()", f"{x}.contiguous()", f"{x}.flip({d})",
        f"{x}.roll({g.one([1, -1, 2])}, {d})",
        f"{x}.roll(1)", f"{x}.repeat({', '.join(['2'] + ['1'] * (rank - 1))})", f"{x}.tile(2)",
        f"{x}.repeat_interleave(2, {d})", f"torch.rot90({x}, 1, (0, -1))", f"{x}.tril()",
        f"{x}.triu({g.one([0, 1, -1])})", f"torch.diag_embed({x})", f"torch.diag({x})",
        f"F.pad({x}, {pads})", f"F.pad({x}, {pads}, value={g.scalar()})",
        f"F.pad({x}, (1, 1), mode='{g.one(['reflect', 'replicate', 'circular'])}')",
        f"torch.block_diag({x}, {x})", f"torch.atleast_2d({x})", f"torch.trace({x})",
        f"{x}.clone(memory_format=torch.contiguous_format)", f"torch.diff({x}, dim={d})",
        f"{x}.to(memory_format=torch.channels_last)", f"torch.vander({x})", f"torch.kron({x}, {x})",
        f"torch.channel_shuffle({x}, 2)", f"torch.fliplr({x})", f"torch.resolve_conj({x})",
    ]))  # fmt: skip


def joined(g: Maker) -> None:
    x = g.any(1)
    d = g.dim(x)
    shape = g.value(x).shape
    like = g.pick(lambda t: t.shape == shape) or x
    third = g.one([x, like, g.input(g.dtype(), list(shape)) if g.chance(0.3) else like])
    parts = g.one([f"{x}, {like}", f"{like}, {x}, {third}", f"{x}, {third}", f"{x}"])
    match g.rng.randrange(6):
        case 0 | 1 | 2:
            g.add(f"torch.cat([{parts}], {d})")
        case 3 | 4:
            g.add(f"torch.stack([{parts}], {d})")
        case _:
            g.add(f"torch.{g.one(['hstack', 'vstack', 'dstack', 'column_stack'])}([{parts}])")


def created(g: Maker) -> None:
    x = g.any()
    rank = g.value(x).dim()
    n = g.size(x, 0) if rank else "3"
    to = g.one([*FLOATS, *INTS])
    g.add(g.one([
        f"torch.arange({n})", f"torch.arange({n}, dtype={to})", f"torch.arange(1, {n}, 2)",
        f"torch.zeros_like({x})", f"torch.ones_like({x}, dtype={to})",
        f"torch.full_like({x}, {g.scalar()})",
        f"torch.full(({n}, 2), {g.scalar()})", f"torch.eye({n})", f"{x}.new_zeros(({n}, 3))",
        f"torch.tensor({g.scalar()})", "torch.tensor([1.5, -2.0, 0.25])",
        f"torch.linspace(-1, 1, {n})",
        f"{x}.new_full(({n},), {g.scalar()})", f"torch.scalar_tensor({g.scalar()}, dtype={to})",
        "torch.tril_indices(3, 3)", f"torch.zeros(({n},), dtype={to})", "torch.ones(())",
        f"F.one_hot(torch.arange({n}) % 3, 3)",
        f"torch.arange({n}).float().outer(torch.arange(3.0))",
    ]))  # fmt: skip


def gathered(g: Maker) -> None:
    x = g.any(1)
    value = g.value(x)
    rank = value.dim()
    d = g.dim(x)
    count = g.one([1, 3, 3, 4, 0])
    match g.rng.randrange(12):
        case 0 | 1:
            sizes = g.one([[count], [2, 2]])
            if g.setting.entry == "backend" and g.chance(0.1):
                sizes = []  # torch.export refuses an index of no dimension
            g.add(f"{x}[{g.index(x, 0, sizes)}]")
        case 2:
            lead = ", ".join([":"] * (d % rank) + [""])
            g.add(f"{x}[{lead}{g.index(x, d, [count])}]")
        case 3:
            g.add(f"{x}.index_select({d}, {g.index(x, d, [count])})")
        case 4 | 5:
            sizes = list(value.shape)
            if sizes[d] not in g.sizes.values():
                sizes[d] = g.one([1, 2, sizes[d]])
            g.add(f"{x}.gather({d}, {g.index(x, d, sizes)})")
        case 6:
            g.add(f"torch.take({x}, {g.index(f'{x}', 0, [count])} % max({x}.numel(), 1))")
        case 7:
            g.add(f"torch.take_along_dim({x}, {x}.argsort({d}, stable=True), {d})")
        case 8:
            if rank > 1:
                i, j = g.index(x, 0, [count]), g.index(x, 1, g.one([[count], [1], [2, 1]]))
                g.add(f"{x}[{i}, {j}]")
        case 9:
            g.add(f"F.embedding({g.index(x, 0, g.one([[count], [2, 2]]))}, {x})")
        case 10:
            if rank > 2:
                i, j = g.index(x, 0, [count]), g.index(x, 2, [count])
                g.add(g.one([f"{x}[{i}, :, {j}]", f"{x}[{i}, 1:, {j}]", f"{x}[None, {i}]"]))
        case _:
            g.add(f"{x}[[0, -1, 0]]")


def scattered(g: Maker) -> None:
    x = g.any(1)
    value = g.value(x)
    d = g.dim(x)
    sizes = list(value.shape)
    match g.rng.randrange(9):
        case 0 | 1:
            index = g.index(x, d, [3])
            sizes[d] = 3
            g.add(f"{x}.index_add({d}, {index}, {g.input(value.dtype, sizes)})")
        case 2 | 3:
            if sizes[d] not in g.sizes.values():
                sizes[d] = g.one([1, 2, max(sizes[d], 1)])
            g.add(f"{x}.scatter_add({d}, {g.index(x, d, sizes)}, {g.input(value.dtype, sizes)})")
        case 4:
            kind = g.one(["sum", "amax", "amin", "prod", "mean"])
            source = g.input(value.dtype, sizes)
            index = g.index(x, d, sizes)
            own = g.one([True, False])
            g.add(f"{x}.scatter_reduce({d}, {index}, {source}, '{kind}', include_self={own})")
        case 5:
            g.add(f"{x}.scatter({d}, {g.index(x, d, sizes)}, {g.scalar()})")
        case 6:
            i = g.index(x, 0, [3])
            source = g.input(value.dtype, [3, *sizes[1:]])
            g.add(f"{x}.index_put(({i},), {source}, accumulate=True)")
        case 7:
            g.add(f"{x}.index_fill({d}, {g.index(x, d, [2])}, {g.scalar()})")
        case _:
            part = g.one([
                f"torch.select_scatter({x}, {x}.select({d}, -1), {d}, 0)",
                f"torch.slice_scatter({x}, {x}.narrow({d}, 0, 1), {d}, 0, 1)",
                f"torch.diagonal_scatter({x}, {x}.diagonal() * 2)",
                f"torch.as_strided_scatter({x}, {x}.flatten()[:2], (2,), (1,))",
                f"torch.masked_scatter({x}, {x} > 0, {x} * 2)",
            ])  # fmt: skip
            g.add(part)


WRITES = """abs_ neg_ exp_ relu_ sqrt_ tanh_ sigmoid_ zero_ floor_ square_ sin_ reciprocal_
logical_not_ bitwise_not_ nan_to_num_ tril_ triu_""".split()


def _target(g: Maker) -> str:
    """What to write into: a tensor (an argument rather often), or a view of it."""
    x = None
    if g.chance(0.4):
        x = g.pick_argument()
    x = x or g.any()
    return f"{view_of(g, x)}" if g.chance(0.5) else x


def written(g: Maker) -> None:
    """An operator in place."""
    x = _target(g)
    shape = g._eval(x)
    if shape is None or not isinstance(shape[0], torch.Tensor):
        return
    value = shape[0]
    y = g.scalar()
    if g.chance(0.6):
        sizes = [1 if g.chance(0.2) else s for s in value.shape]
        found = g.pick(lambda t: t.shape == value.shape)
        y = found if found and g.chance(0.6) else g.input(g.dtype(), sizes)
    d = g.rng.randrange(value.dim()) if value.dim() else 0
    match g.rng.randrange(13):
        case 0 | 1 | 2:
            g.write(
                f"{x}.{g.one(['add_', 'sub_', 'mul_', 'div_', 'copy_', 'pow_', 'remainder_'])}({y})"
            )
        case 3 | 4:
            g.write(f"{x}.{g.one(WRITES)}()")
        case 5:
            g.write(f"{x}.{g.one(['fill_(%s)', 'clamp_(%s)', 'masked_fill_(_m, %s)'])}".replace(
                "_m", f"{x} > 0") % g.scalar())  # fmt: skip
        case 6:
            g.write(f"{x}.addcmul_({x}, {y}, value=2)")
        case 7:
            g.write(f"{x}.lerp_({x}, 0.5)")
        case 8 if value.dim():
            sizes = list(value.shape)
            sizes[d] = 3
            index = g.input(torch.int64, [3], "index", max(value.shape[d], 1))
            g.write(f"{x}.index_add_({d}, {index} % {x}.shape[{d}], {g.input(value.dtype, sizes)})")
        case 9 if value.dim():
            index = g.input(torch.int64, value.shape, "index", max(value.shape[d], 1))
            source = g.input(value.dtype, value.shape)
            g.write(g.one([
                f"{x}.scatter_add_({d}, {index} % {x}.shape[{d}], {source})",
                f"{x}.scatter_({d}, {index} % {x}.shape[{d}], {g.scalar()})",
                f"{x}.index_fill_({d}, {index}.flatten()[:2] % {x}.shape[{d}], {g.scalar()})",
                f"{x}.index_copy_({d}, torch.arange({x}.shape[{d}]).flip(0), {source})",
            ]))  # fmt: skip
        case 10 if value.dim():
            index = g.input(torch.int64, [3], "index", max(value.shape[0], 1))
            source = g.input(value.dtype, [3, *value.shape[1:]])
            g.write(f"{x}.index_put_(({index} % {x}.shape[0],), {source}, accumulate=True)")
        case 11:
            g.write(f"torch.{g.one(['add', 'mul', 'sub', 'maximum'])}({x}, {y}, out={x})")
        case 12 if x.isidentifier() and x.startswith("v"):
            g.write(f"{x}.{g.one(['t_()', 'unsqueeze_(0)', 'squeeze_()', 'transpose_(0, -1)'])}")
        case _:
            pass


def assigned(g: Maker) -> None:
    """An assignment to a part of a tensor, or an augmented one."""
    x = (g.pick_argument() if g.chance(0.4) else None) or g.any(1)
    value = g.value(x)
    y = g.scalar() if g.chance(0.5) else g.any()
    index = f"{x}[{g.index(x, 0, [3])}]" if value.dim() else f"{x}[...]"
    change = g.one(["+=", "*=", "-="])
    g.write(g.one([
        f"{x}[{g.one(['0', '-1', '1:', '::2', '...', ':, 0', '..., -1', '..., 1:', ':2'])}] = {y}",
        f"{x}[{g.one(['0', '1:', '::2', '...', ':, 0', '..., -1'])}] {change} {y}",
        f"{x} {g.one(['+=', '-=', '*=', '/=', '**=', '//=', '%='])} {y}",
        f"{x}[{x} {g.one(['>', '<', '!='])} {g.scalar()}] = {g.scalar()}",
        f"{x}[[0, -1]] = {g.scalar()}",
        f"{x}[1:] = {x}[:-1]",
        f"{x}[...] = {x}.flip(0)",
        f"{index} {g.one(['=', change])} {g.scalar()}",
    ]))  # fmt: skip


def ordered(g: Maker) -> None:
    x = g.any(1)
    d = g.dim(x)
    down = g.one([True, False])
    g.add(g.one([
        f"torch.sort({x}, stable=True, dim={d}, descending={down})[{g.one([0, 0, 1])}]",
        f"torch.argsort({x}, {d}, descending={down}, stable=True)",
        f"torch.topk({x}, 2, {d}, {down})[0]",
        f"torch.msort({x})",
        f"torch.kthvalue({x}, 1, {d})[0]",
        f"torch.searchsorted({x}.sort(-1)[0], {x})",
        f"torch.bucketize({x}, torch.tensor([-1.0, 0.0, 1.5]))",
    ]))  # fmt: skip
