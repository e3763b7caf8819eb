"""A family of operators that few models call: transforms, samples, distances, losses."""

from __future__ import annotations

from fuzzer.generate import FLOATS, Maker


def special(g: Maker) -> None:
    x = g.floating(1)
    value = g.value(x)
    d = g.dim(x)
    match g.rng.randrange(6):
        case 0:
            wide = x if value.dtype.itemsize > 2 else f"{x}.float()"  # others have no transforms
            kind, part = g.one([("rfft", "real"), ("fft", "imag"), ("ifft", "real"),
                                ("rfft2", "imag"), ("fftn", "real"), ("hfft", "real")])  # fmt: skip
            where = "" if kind in ("rfft2", "fftn") else f", dim={d}"
            g.add(f"torch.fft.{kind}({wide}{where}).{part}")
        case 1:
            image = g.pick(lambda t: t.is_floating_point() and t.dim() == 4)
            image = image or g.input(g.one(FLOATS), [2, 2, 4, 4])
            # Of NaN and infinities eager's gradients read outside of the image: the process dies.
            kind = g.one(["plain", "wide"]) if g.setting.grad else None
            grid = g.input(g.value(image).dtype, [g.value(image).shape[0], 3, 2, 2], kind)
            mode = g.one(["bilinear", "nearest", "bicubic"])
            outside, ends = g.one(["zeros", "border", "reflection"]), g.one([True, False])
            g.add(f"F.grid_sample({image}, {grid}, '{mode}', '{outside}', {ends})")
        case 2:
            image = g.pick(lambda t: t.is_floating_point() and t.dim() == 4)
            image = image or g.input(g.one(FLOATS), [2, 2, 4, 4])
            size = g.one([2, 3])
            step = g.one(["", ", stride=2", ", padding=1", ", dilation=2"])
            g.add(f"F.fold(F.unfold({image}, {size}{step}), {image}.shape[2:], {size}{step})")
        case 3:
            sizes = list(value.shape)
            sizes[d] = 3
            index, source = g.index(x, d, [3]), g.input(value.dtype, sizes)
            kind, own = g.one(["amax", "amin", "prod", "mean"]), g.one([True, False])
            g.add(f"{x}.index_reduce({d}, {index}, {source}, '{kind}', include_self={own})")
        case 4:
            y = g.input(value.dtype, value.shape)
            how = g.one(["none", "mean", "sum"])
            g.add(g.one([
                f"F.kl_div({x}, {y}, reduction='{how}')",
                f"F.huber_loss({x}, {y}, reduction='{how}')",
                f"F.soft_margin_loss({x}, {y}, reduction='{how}')",
                f"F.binary_cross_entropy_with_logits({x}, {y}, reduction='{how}')",
                f"F.cosine_similarity({x}, {y}, {d})",
                f"F.pairwise_distance({x}, {y})",
            ]))  # fmt: skip
        case _:
            rows = g.pick(lambda t: t.is_floating_point() and t.dim() == 2)
            rows = rows or g.input(g.one(FLOATS), [3, 4])
            labels = g.index(rows, 1, [g.value(rows).shape[0]])
            how = g.one(["none", "mean", "sum"])
            g.add(g.one([
                f"F.cross_entropy({rows}, {labels}, reduction='{how}')",
                f"F.nll_loss({rows}, {labels}, reduction='{how}', ignore_index=1)",
                f"F.cross_entropy({rows}, {labels}, label_smoothing=0.1)",
                f"F.multi_margin_loss({rows}, {labels}, reduction='{how}')",
                f"torch.cdist({rows}.float(), {rows}.float() * 2)",
                f"F.embedding_bag({labels}, {rows}, torch.tensor([0]), mode='sum')",
            ]))  # fmt: skip
