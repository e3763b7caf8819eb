"""Families that make several steps, each of what the one before has made."""

from __future__ import annotations

import torch

from fuzzer.generate import FLOATS, Maker

# Of `{x}` along dimension `{d}`, of rank 3; `{r}`: the dimension after it.
_LINKS = """{x}.cumsum({d})|{x}.flip({d}).cumsum({d}).flip({d})|{x}.cummax({d})[0]|{x}.roll(2, {d})
{x}.roll((1, -1), ({d}, {r}))|{x}.flip({d})|{x}.flip(({d}, {r}))|torch.logcumsumexp({x}, {d})
torch.cat([{x}, {x}.flip({d})], {d})|torch.cat([{x}.narrow({d}, 0, 1), {x}], {d})
{x} - {x}.mean({d}, keepdim=True)|{x} / ({x}.abs().amax({d}, keepdim=True) + 1)
{x} * torch.rsqrt({x}.square().mean({d}, keepdim=True) + 1)|F.softmax({x}, {d})
{x} - {x}.amax(({d}, {r}), keepdim=True)|{x} + {x}.sum({r}, keepdim=True)
F.pad({x}, (1, 2))|F.pad({x}, (-1, 1, 0, 1))|F.pad({x}, (2, 1), mode='reflect')
F.pad({x}, (1, 1), mode='replicate')|F.pad({x}, (1, 2), mode='circular')
{x}.unfold({d}, 2, 1).mean(-1)|{x}.unfold({d}, 3, 2).amax(-1)|{x}.unfold({d}, 2, 2).flatten(-2)
F.avg_pool1d({x}, 2, 1)|F.max_pool1d({x}, 3, 2, 1)|F.max_pool1d({x}, 2, 1)
F.avg_pool1d({x}, 3, 1, 1, count_include_pad=False)|F.lp_pool1d({x}, 2, 2)
F.interpolate({x}, scale_factor=2)|F.interpolate({x}, size=5, mode='linear')
{x}.transpose({d}, {r})|{x}.transpose({d}, {r}).contiguous()|{x}.narrow({d}, 0, 2)
torch.diff({x}, dim={d}, prepend={x}.narrow({d}, 0, 1))|{x}.repeat_interleave(2, {d})
F.layer_norm({x}, {x}.shape[-1:])|F.gelu({x})|{x}.float()|{x}.to(torch.bfloat16)|{x}.tril()
F.fold(F.unfold({x}.unsqueeze(1), 2, padding=1), {x}.shape[1:], 2, padding=1).squeeze(1)
{x}.std({d}, keepdim=True) + {x}|{x}.masked_fill({x} < {x}.mean({d}, keepdim=True), 0.5)"""
LINKS = tuple(link for line in _LINKS.splitlines() for link in line.split("|"))


def chain(g: Maker) -> None:
    """Scans, reductions with their results spread again, shifts, pads, pools and windows."""
    kind = torch.bfloat16 if g.chance(0.5) else g.one(FLOATS)
    x = g.pick(lambda t: t.dtype == kind and t.dim() == 3) or g.input(
        kind, g.shape(3)[:3], g.one(["plain", "wide"])
    )
    for _ in range(g.rng.randint(3, 8)):
        d = g.one([0, 1, 2])
        x = g.add(g.one(LINKS).format(x=x, d=d, r=(d + 1) % 3)) or x


def recurrence(g: Maker) -> None:
    """A loop of a few rounds over rows, as recurrent cells and state spaces have."""
    x = g.pick(lambda t: t.is_floating_point() and t.dim() > 1 and t.shape[0] > 2)
    x = x or g.input(g.one(FLOATS), [3, 4])
    state = g.add(f"torch.zeros_like({x}[0])")
    for i in range(3):
        state = state and g.add(g.one([
            f"{state} * torch.sigmoid({x}[{i}]) + {x}[{i}]", f"torch.tanh({state} + {x}[{i}])",
            f"torch.lerp({state}, {x}[{i}], 0.25)", f"torch.maximum({state} * 0.5, {x}[{i}])",
            f"{state} - {state}.mean(-1, keepdim=True) + {x}[{i}]",
        ]))  # fmt: skip


def attention(g: Maker) -> None:
    """By its parts, or by torch's operator."""
    x = g.pick(lambda t: t.is_floating_point() and t.dim() in (3, 4)) or g.input(
        g.one(FLOATS), [2, 4, 8], g.one(["plain", "wide"])
    )
    rows = g.size(x, -2)
    masks = [f"torch.ones({rows}, {rows}, dtype=torch.bool).tril()", f"{x}[..., :1] > -10",
             f"(torch.arange({rows}) - torch.arange({rows})[:, None]).to({x}.dtype)"]  # fmt: skip
    draw = g.rng.randrange(3)
    if draw == 0:
        extra = g.one(["", ", is_causal=True", ", scale=0.5", f", attn_mask={g.one(masks)}"])
        g.add(f"F.scaled_dot_product_attention({x}, {x} * 0.5, {x}.flip(-2){extra})")
        return
    scores = g.add(f"{x} @ {x}.transpose(-1, -2) * {x}.shape[-1] ** -0.5")
    scores = scores and g.add(g.one([
        scores, f"{scores}.masked_fill(~{masks[0]}, float('-inf'))", f"{scores} + {masks[2]}",
        f"torch.where({masks[0]}, {scores}, -1e4)",
    ]))  # fmt: skip
    weights = scores and g.add(g.one([
        f"F.softmax({scores}, -1)", f"F.softmax({scores}, -1, dtype=torch.float32)",
        f"({scores} - {scores}.logsumexp(-1, keepdim=True)).exp()",
    ]))  # fmt: skip
    if weights:
        g.add(f"{weights}.to({x}.dtype) @ {x}")
