"""How far a right answer may lie from eager's.

Eager is run several times more, each time with every operator's result moved by what the operator
itself rounded off (known from the same operator in float64). Where such a run differs, the
answer hangs on rounding: by as much a compiled program may differ too. An integer, a comparison or
an index that no such run changes must be exactly eager's.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fuzzer.artefacts import Call, blur, blur_gradient, blur_zeros

# What moves, picks or compares elements, and rounds nothing.
_EXACT = frozenset(
    """__get__ __set__ __getitem__ __setitem__ __len__ size dim stride view reshape flatten
    unflatten transpose t permute movedim swapaxes expand expand_as broadcast_to squeeze unsqueeze
    select narrow diagonal unfold as_strided chunk split tensor_split unbind clone contiguous
    detach cat stack hstack vstack where gather index_select take take_along_dim roll flip rot90
    tril triu repeat tile repeat_interleave neg abs maximum minimum amax amin max min fmax fmin relu
    copy_ fill_ zero_ masked_fill masked_fill_ index_fill_ index_copy_ index_copy scatter scatter_
    zeros_like ones_like full_like new_zeros new_ones new_full arange eye full zeros ones sort msort
    topk floor ceil round trunc sign eq ne lt le gt ge isnan isinf isfinite embedding
    pad constant_pad_nd diag_embed view_as real imag diag cummax cummin clamp threshold numel
    dropout bernoulli rand_like randn_like randint_like broadcast_tensors meshgrid
    grad requires_grad_ element_size is_floating_point is_complex data_ptr storage_offset""".split()
)
# Of those, what makes a NaN where it is given one.
_EXTREMES = frozenset("maximum minimum amax amin fmax fmin clamp".split())
_CASTS = frozenset(
    "to type type_as int long short char byte bool half float double bfloat16".split()
)
# Means that are updated element by element: they round even where a sum would be exact.
_UPDATED = frozenset(
    """std var std_mean var_mean batch_norm instance_norm group_norm layer_norm native_layer_norm
    native_batch_norm nanmean""".split()
)
_SHIFTS = frozenset(
    "bitwise_left_shift bitwise_right_shift __lshift__ __rshift__ __rlshift__ __rrshift__".split()
)
_WIDE = {torch.float16, torch.bfloat16, torch.float32}
_COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}
# Parts of complex numbers that are rounded one by one; others are rounded as the number is.
_OF_PARTS = frozenset("add sub rsub subtract sum mean cumsum nansum".split())


_BITS = {
    torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32,
    torch.float64: torch.int64,
}  # fmt: skip


class Perturbed(TorchFunctionMode):
    """Runs torch functions, and moves what they round."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        # Most runs move all numbers as far as they may lie; others see what jumps between.
        self.between = seed % 8 == 7

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        floats = all(a.dtype.is_floating_point for a in args if isinstance(a, Tensor))
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        if any(isinstance(a, Tensor) and wrapped(a) for a in args):
            return func(*args, **kwargs)  # of a transform of functions: nobody knows its numbers
        if name in _PARTS and floats and kwargs.get("out") is None:
            with self:
                return _PARTS[name](*args, **kwargs)
        if name.strip("_") == "index_add" and _of_complex(*args) and self.rng.random() < 0.5:
            return _added_in_parts(func, *args, **kwargs)
        if name in _EXACT or (name.startswith("__") and "shift" not in name and name[2] != "i"
                              and name not in _ARITHMETIC):  # fmt: skip
            result = func(*args, **kwargs)
            for tensor in pytree.tree_leaves(result) if name in _EXTREMES else []:
                self._other_nans(tensor)
            blur_zeros(self.rng, name, args, result)
            if name in ("__setitem__", "copy_") and isinstance(args[-1], Tensor):
                undefined = _undefined("type_as", (args[-1], args[0]), {})
                if undefined is not None:  # casts of what is written
                    where = torch.zeros_like(args[0], dtype=torch.bool)
                    func(where, *args[1:-1], undefined)
                    self._scramble(args[0], where)
            return result
        casts = name in _CASTS
        wide = None if casts else self._in_float64(func, args, kwargs, 0.0)
        near = None if casts else self._in_float64(func, args, kwargs, 1.0)
        undefined = _undefined(name, args, kwargs)
        call = Call(func, args, kwargs)
        watched = torch.is_grad_enabled() and not name.endswith("_") and "out" not in kwargs
        given = self._watched(call) if watched else (args, kwargs)
        kept = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = [t.detach().clone() for t in kept if name in _UPDATED]
        result = func(*given[0], **given[1])
        for tensor, old in zip(kept, before, strict=False):
            if not torch.equal(tensor.detach().nan_to_num(), old.nan_to_num()):
                self._move_statistics(tensor, max(map(_largest, kept)))
        flat = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        for i, tensor in enumerate(flat if watched else []):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(functools.partial(call.gradients.__setitem__, i))
        if undefined is not None and len(flat) == 1 and flat[0].shape == undefined.shape:
            self._scramble(flat[0], undefined)
        elif undefined is not None and bool(undefined.any()):  # a reduction of such numbers
            for tensor in flat:
                self._scramble(tensor, torch.ones_like(tensor, dtype=torch.bool))
        for tensor in flat:
            self._other_nans(tensor)
        for i, tensor in enumerate(flat if not casts else []):
            pair = [w[i] for w in (wide, near) if w is not None and i < len(w)]
            whole = name.strip("_").removeprefix("r").removeprefix("i") not in _OF_PARTS
            whole &= tensor.is_complex()
            self._move(tensor, *(pair if len(pair) == 2 else (None, None)), whole)
        blur(self.rng, func, args, kwargs, flat, wide)
        return result

    @torch.no_grad()
    def _other_nans(self, tensor: Tensor) -> None:
        """NaN has many bit patterns, of which an operator makes any."""
        kind = _BITS.get(tensor.dtype)
        if kind is None or not bool(tensor.isnan().any()):
            return
        quiet = torch.tensor(float("nan"), dtype=tensor.dtype)
        bits = [quiet.view(kind), (-quiet).view(kind), torch.tensor(-1, dtype=kind)]
        new = self.rng.choice(bits).view(tensor.dtype).to(tensor.device)
        tensor.data.copy_(torch.where(tensor.detach().isnan(), new, tensor.data))

    @torch.no_grad()
    def _move(
        self, tensor: Tensor, exact: Tensor | None, near: Tensor | None, whole: bool = False
    ) -> None:
        """exact: the result in float64; near: that of arguments some of which moved by a unit.
        whole: a part of a complex number is rounded as the number is."""
        if tensor.dtype in _COMPLEX and not tensor.is_conj():
            parts = [x if x is None or not x.is_complex() else _parts(x) for x in (exact, near)]
            self._move(torch.view_as_real(tensor.detach()), *parts, whole)
        if not tensor.dtype.is_floating_point or tensor.numel() == 0:
            return
        values = tensor.detach().double()
        if exact is not None and exact.shape == tensor.shape:
            undefined = torch.isnan(values) & ~torch.isnan(exact.double())
            if bool(undefined.any()) and self.rng.random() < 0.5:  # an infinity on the way there
                tensor.data.copy_(torch.where(undefined, exact.to(tensor.dtype), tensor.data))
                values = tensor.detach().double()
        off = torch.zeros_like(values)
        rounded = _has_digits(values)
        if exact is not None and near is not None and exact.shape == tensor.shape:
            a, b = exact.double(), near.double()
            off = torch.maximum((a - values).abs().nan_to_num(0.0, 0.0, 0.0),
                                (a - b).abs().nan_to_num(0.0, 0.0, 0.0))  # fmt: skip
            if tensor.dtype != torch.float64:
                rounded = (a != values) | (b != values)
        rounded &= torch.isfinite(values)
        if tensor.dtype == torch.float16 and exact is not None and exact.shape == tensor.shape:
            # What does not fit 16 bits may stay a number in a kernel, which computes in 32.
            over = torch.isinf(values) & torch.isfinite(exact.double())
            if bool(over.any()) and self.rng.random() < 0.5:
                largest = torch.finfo(tensor.dtype).max * values.sign()
                tensor.data.copy_(torch.where(over, largest.to(tensor.dtype), tensor.data))
        if not bool(rounded.any()):
            return
        size = torch.hypot(*values.unbind(-1)).unsqueeze(-1) if whole else values.abs()
        ulp = torch.where(size.isfinite(), size, values.abs()) * torch.finfo(tensor.dtype).eps
        moved = (values + self._signs(tensor) * (2 * off + 1.5 * ulp)).to(tensor.dtype)
        tensor.data.copy_(torch.where(rounded, moved, tensor.data))

    @torch.no_grad()
    def _move_statistics(self, tensor: Tensor, largest: float) -> None:
        """Running means and variances that a norm has written, of numbers as large as that."""
        values, unit = tensor.detach().double(), torch.finfo(tensor.dtype).eps
        off = 2 * unit * values.abs() + 2 * torch.finfo(torch.float32).eps * largest
        tensor.data.copy_(values + self._signs(tensor) * off)

    def _watched(self, call: Call) -> Any:
        """The arguments, whose gradients by this call are moved. What computes them rounds, inside
        of it, numbers as large as the gradients by the call's results. Statistics that a call keeps
        for its gradients round as if of moved arguments."""

        def watched(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.requires_grad:
                return value
            seen = torch.ops.aten.alias.default(value)
            if not seen.requires_grad:  # inside of a transform of functions
                return value
            seen.register_hook(functools.partial(self._moved_gradient, call, value))
            unit = torch.finfo(seen.dtype).eps
            moves = call.name in _UPDATED and unit < 1e-6
            return seen * (1 + unit * self._signs(seen)).to(seen.dtype) if moves else seen

        return pytree.tree_map(watched, (call.args, call.kwargs))

    def _moved_gradient(
        self, call: Call, argument: Tensor, gradient: Tensor | None
    ) -> Tensor | None:
        if gradient is not None and gradient.dtype in _COMPLEX and gradient.numel():
            parts, unit = _parts(gradient), torch.finfo(gradient.dtype).eps
            largest = max(map(_largest, call.gradients.values()), default=0.0)
            size = gradient.abs().double().nan_to_num(0.0, 0.0, 0.0).unsqueeze(-1)
            new = parts + self._signs(parts) * (2 * unit * size + unit * largest)
            moved = torch.where(parts == 0, parts, new.to(parts.dtype)).contiguous()
            return torch.view_as_complex(moved)
        if gradient is None or gradient.numel() == 0 or not gradient.dtype.is_floating_point:
            return gradient
        gradient = blur_gradient(self.rng, call, argument, gradient)
        values, unit = gradient.double(), torch.finfo(gradient.dtype).eps
        largest = max(map(_largest, call.gradients.values()), default=0.0)
        new = values + self._signs(gradient) * (2 * unit * values.abs() + unit * largest)
        return torch.where(gradient == 0, gradient, new.to(gradient.dtype))

    def _signs(self, like: Tensor) -> Tensor:
        numbers = range(like.numel())
        if self.between:
            signs = [self.rng.uniform(-1.0, 1.0) for _ in numbers]
        else:
            signs = [self.rng.choice([-1.0, 1.0]) for _ in numbers]
        return torch.tensor(signs, dtype=torch.float64, device=like.device).reshape(like.shape)

    def _in_float64(
        self, func: Any, args: Any, kwargs: dict[str, Any], units: float
    ) -> list[Tensor] | None:
        """The operator's results in float64, from the same arguments; or from arguments of 32 and
        64 bits moved by `units` in the last place, where they are no short binary numbers. None
        where it has none."""

        def widen(value: Any) -> Any:
            if not isinstance(value, Tensor):
                if value is torch.complex64:
                    return torch.complex128
                wide = isinstance(value, torch.dtype) and value in _WIDE
                return torch.float64 if wide else value
            if value.dtype in _COMPLEX:
                real = _COMPLEX[value.dtype]
                parts = _parts(value.detach()).to(real)
                return torch.view_as_complex(widen(parts).contiguous())
            if value.dtype not in (*_WIDE, torch.float64):
                return value.detach().clone()
            moved = value.detach().double()
            if moved is value or moved.data_ptr() == value.data_ptr():
                moved = moved.clone()
            if units and value.dtype in (torch.float32, torch.float64):
                by = self._signs(moved) * units * torch.finfo(value.dtype).eps
                digits = _has_digits(moved) | (getattr(func, "__name__", "") in _UPDATED)
                moved = torch.where(digits, moved * (1 + by), moved)
            return moved

        default = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)  # of what integers become
            with torch.no_grad():
                wide = func(*pytree.tree_map(widen, args), **pytree.tree_map(widen, kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return None  # an operator without float64: its rounding is taken for one unit
        finally:
            torch.set_default_dtype(default)
        return [t for t in pytree.tree_leaves(wide) if isinstance(t, Tensor)]

    @torch.no_grad()
    def _scramble(self, tensor: Tensor, where: Tensor) -> None:
        """Elements that the language does not define: any value will do."""
        if tensor.numel() and bool(where.any()):
            few: list[Any] = [0, 1]
            if not tensor.dtype.is_floating_point and tensor.dtype != torch.bool:
                limits = torch.iinfo(tensor.dtype)
                few = [0, 1, limits.min, limits.max]
            odd = torch.tensor([self.rng.choice(few) for _ in range(tensor.numel())])
            odd = odd.reshape(tensor.shape).to(tensor.device)
            tensor.data.copy_(torch.where(where, odd.to(tensor.dtype), tensor.data))


def _normalize(
    x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None
) -> Tensor:
    return x / x.norm(p, dim, keepdim=True).clamp_min(eps).expand_as(x)


def _ldexp(x: Tensor, other: Tensor, out: None = None) -> Tensor:
    return x * torch.pow(2.0, other)


def _of_complex(x: Tensor, *args: Any) -> bool:
    return x.is_complex() and not x.is_conj() and len(args) == 3


def _added_in_parts(
    func: Any, x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1
) -> Tensor:
    """Eager multiplies some complex numbers with 1 + 0j, others not: of infinities that is NaN."""
    parts = torch.view_as_real(x), torch.view_as_real(source.resolve_conj()) * alpha
    found: Tensor = func(parts[0], dim % x.dim(), index, parts[1])
    return torch.view_as_complex(found)


# What runs as its parts, since its gradients are made of what those round.
_PARTS: dict[str, Callable[..., Tensor]] = {"normalize": _normalize, "ldexp": _ldexp}


_ARITHMETIC = frozenset(
    f"__{r}{n}__" for r in ("", "r", "i")
    for n in ("add", "sub", "mul", "div", "truediv", "pow", "matmul", "mod", "floordiv")
)  # fmt: skip


def _largest(gradient: Tensor | None) -> float:
    if gradient is None or gradient.numel() == 0:
        return 0.0
    return float(gradient.abs().double().nan_to_num(0.0, 0.0, 0.0).max())


def _parts(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj())


def _has_digits(values: Tensor) -> Tensor:
    """Of numbers in float64: which are no small multiples of 2**-16."""
    return (values * 2**16).frac() != 0


def _undefined(name: str, args: Any, kwargs: dict[str, Any]) -> Tensor | None:
    """Where an integer's value is not defined: casts of floats out of range, shifts by too many
    bits."""
    if not args or not isinstance(args[0], Tensor):
        return None
    x = args[0].detach()
    given = [kwargs.get("dtype")] if name not in _CASTS else list(args[1:])
    if (name in _CASTS or isinstance(given[0], torch.dtype)) and (
        x.dtype.is_floating_point or x.dtype.is_complex
    ):
        target = next((a for a in given if isinstance(a, torch.dtype)), None)
        short = {
            "int": torch.int32, "long": torch.int64, "short": torch.int16, "char": torch.int8,
            "byte": torch.uint8,
        }  # fmt: skip
        target = short.get(name, target)
        if name == "type_as":
            target = args[1].dtype
        if target is None or target.is_floating_point or target.is_complex or target == torch.bool:
            return None
        limits = torch.iinfo(target)
        wide = (x.real if x.is_complex() else x).double()
        return ~((wide > float(limits.min) - 1) & (wide < float(limits.max) + 1))
    if name in _SHIFTS and len(args) > 1:
        by = args[1] if isinstance(args[1], Tensor) else torch.tensor(args[1])
        value = x
        if "__r" in name and name != "__rshift__":
            by, value = x, x
        if by.dtype.is_floating_point or value.dtype.is_floating_point:
            return None
        bits = torch.iinfo(value.dtype).bits if value.dtype != torch.bool else 1
        bad = (by < 0) | (by >= bits)
        return (bad | torch.zeros_like(x, dtype=torch.bool)).clone()
    return None


def perturbed_runs(run: Callable[[], list[Any] | None], seeds: Iterable[int]) -> list[list[Any]]:
    """What `run` gives under the perturbations of these seeds, where it gives something."""
    out = []
    for seed in seeds:
        with Perturbed(seed):
            values = run()
        if values is not None:
            out.append(values)
    return out


def difference(got: Tensor, eager: Tensor, others: list[Tensor]) -> str | None:
    """How `got` is wrong, in words, or None. `others`: eager's answer under perturbations."""
    got, eager = got.detach().cpu(), eager.detach().cpu()
    others = [o.detach().cpu() for o in others if o.shape == eager.shape]
    if got.numel() == 0:
        return None
    if got.dtype.is_complex:
        pairs = [_parts(o) for o in (got, eager, *others)]
        got, eager, others = pairs[0], pairs[1], pairs[2:]
    if not got.dtype.is_floating_point:
        wrong = got != eager
        for other in others:
            wrong &= other == eager
        return _first(wrong, got, eager) if bool(wrong.any()) else None
    a, b = got.double(), eager.double()
    runs = torch.stack([b, *(o.double() for o in others)])
    spread = (runs - b).abs().nan_to_num(0.0, 0.0, 0.0).amax(0)
    info = torch.finfo(got.dtype)
    allowed = 4 * spread + 4 * info.eps * b.abs() + 2 * info.tiny
    if got.dtype == torch.float64:
        # Nothing wider says what an operator rounds inside of itself.
        allowed = allowed + 64 * info.eps * b.abs().clamp(min=1.0).nan_to_num(0.0, 0.0, 0.0)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    # Eager adds up in a wider type on a CPU: what is near the end of the range may be past it.
    near = torch.where(torch.isinf(a), b, a).abs() > info.max / 1024
    if info.bits > 16:
        same |= (torch.isinf(a) != torch.isinf(b)) & (a.sign() == b.sign()) & near
    wrong = ~(same | ((a - b).abs() <= allowed) | _between(a, runs, info))
    return _first(wrong, got, eager) if bool(wrong.any()) else None


def _between(a: Tensor, runs: Tensor, info: torch.finfo) -> Tensor:
    """Where some of eager's runs give numbers, and others infinities or NaN: `a` is none either, or
    a number that lies between those of the runs, infinities included."""
    finite, nan = runs.isfinite(), runs.isnan()
    mixed = (finite.any(0) & ~finite.all(0)) | (nan.any(0) & ~nan.all(0))
    numbers = [runs.where(finite, v) for v in (math.inf, -math.inf)]
    least, most = (v.nan_to_num(0.0, 0.0, 0.0) for v in (numbers[0].amin(0), numbers[1].amax(0)))
    # Where eager gives none, nothing says how much of a number it would have rounded off.
    slack = 4 * (most - least) + 64 * info.eps * torch.maximum(least.abs(), most.abs())
    slack = slack + 2 * info.tiny
    low = runs.nan_to_num(math.inf, math.inf, -math.inf).amin(0) - slack
    high = runs.nan_to_num(-math.inf, math.inf, -math.inf).amax(0) + slack
    return mixed & (~a.isfinite() | (finite.any(0) & (a >= low) & (a <= high)))


def zero_signs(got: Tensor, eager: Tensor, others: list[Tensor]) -> str | None:
    """A zero of the other sign, where rounding does not decide it."""
    if not got.dtype.is_floating_point or got.numel() == 0:
        return None
    a, b = got.detach().cpu(), eager.detach().cpu()
    wrong = (a == 0) & (b == 0) & (torch.signbit(a) != torch.signbit(b))
    for other in others:
        c = other.detach().cpu()
        wrong &= (c == 0) & (torch.signbit(c) == torch.signbit(b))
    return _first(wrong, a, b) if bool(wrong.any()) else None


def _first(wrong: Tensor, got: Tensor, eager: Tensor) -> str:
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, the first at {list(at)}: "
        f"{got[at].item()!r} and not {eager[at].item()!r}"
    )
