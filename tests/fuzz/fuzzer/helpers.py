"""What printed programs carry beside `make`, so that they need torch alone."""

from __future__ import annotations

import torch


# Eager runs one of the branches, without the capture that torch.cond brings along there.
def branch(choice, first, second, *args):  # type: ignore[no-untyped-def]
    if torch.compiler.is_compiling():
        return torch.cond(choice, first, second, args)
    return first(*args) if choice else second(*args)


# Eager runs a loop: what batched tensors round nobody could tell from their numbers.
def mapped(function, x):  # type: ignore[no-untyped-def]
    if torch.compiler.is_compiling():
        return torch.vmap(function)(x)
    return torch.stack([function(part) for part in x])


# Custom operators: one of two results, one that writes into its argument, one with gradients.
def register_custom():  # type: ignore[no-untyped-def]
    if hasattr(torch.ops.fuzzed, "pair"):
        return
    library = torch.ops.fuzzed.library = torch.library.Library("fuzzed", "FRAGMENT")
    library.define("pair(Tensor x, int dim) -> (Tensor, Tensor)")
    library.define("add_(Tensor(a!) x, Tensor y, float by=1.0) -> ()")
    library.define("scaled(Tensor x, float by) -> Tensor")

    def add(x, y, by=1.0):  # type: ignore[no-untyped-def]
        x.copy_(x + y * by)

    for key in ("CPU", "CUDA", "Meta"):
        library.impl("pair", lambda x, dim: (x.flip(dim), x.clone().transpose(0, -1)), key)
        library.impl("scaled", lambda x, by: x * by, key)
    for key in ("CPU", "CUDA"):
        library.impl("add_", add, key)
    library.impl("add_", lambda x, y, by=1.0: None, "Meta")
    torch.library.register_autograd(
        "fuzzed::scaled", lambda ctx, grad: (grad * ctx.by, None), lib=library,
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )  # fmt: skip


register_custom()
FUNCTIONS = {"branch": branch, "mapped": mapped}
