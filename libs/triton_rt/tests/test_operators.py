"""The interpreter's quick operators against Triton's semantic: types, shapes, values, errors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from triton.language import core, standard
from triton.language.semantic import IncompatibleTypeErrorImpl, TritonSemantic
from triton.runtime.interpreter import TensorHandle

from triton_rt.interp.floats import numpy_dtype
from triton_rt.interp.lang import world
from triton_rt.interp.operators import _ARITHMETIC, _COMPARISONS

KINDS = (core.int1, core.int32, core.uint32, core.int64, core.float16, core.float32)
SHAPES: tuple[tuple[int, ...], ...] = ((), (4,), (2, 1), (1, 4))
NUMBERS = (3, -2, 2**31, 2**40, True, 0.5, -0.0, 1e-42, 1e300)


def tensor(kind: Any, shape: tuple[int, ...], by: int) -> Any:
    data = np.arange(by, by + max(1, np.prod(shape, dtype=int))).astype(numpy_dtype(kind))
    type = core.block_type(kind, list(shape)) if shape else kind
    return world().tensor(TensorHandle(data.reshape(shape or (1,)), kind), type)


def pointer(shape: tuple[int, ...]) -> Any:
    kind = core.pointer_type(core.float32)
    data = np.full(shape or (1,), 4096, np.uint64)
    type = core.block_type(kind, list(shape)) if shape else kind
    return world().tensor(TensorHandle(data, kind), type)


def outcome(operator: Any, a: Any, b: Any) -> tuple[str, Any]:
    with np.errstate(all="ignore"):
        try:
            out = operator(a, b)
        except (TypeError, ValueError, IncompatibleTypeErrorImpl) as error:
            return type(error).__name__, None
    shape = tuple(int(n) for n in out.shape)
    assert out.handle.data.shape == (shape or (1,))
    assert out.dtype == out.type.scalar == out.handle.dtype
    return f"{out.dtype} {shape} {out.handle.data.dtype}", out.handle.data


@pytest.mark.parametrize("name", [*_ARITHMETIC, *_COMPARISONS])
def test_as_the_semantic(name: str) -> None:
    interpreter = world()
    slow = interpreter.bind(getattr(core.tensor, name))
    quick = getattr(interpreter.tensor, name)
    pairs: list[tuple[Any, Any]] = []
    for kind in KINDS:
        for shape in SHAPES:
            a = tensor(kind, shape, -1 if kind.is_int_signed() else 1)
            pairs += [(a, tensor(kind, other, 2)) for other in SHAPES]
            pairs += [(pointer(shape), tensor(kind, other, 2)) for other in ((), shape, (1, 4))]
        a = tensor(kind, (4,), 5)
        pairs += [(a, tensor(other, (), 2)) for other in KINDS]
        pairs += [(a, b) for b in (*NUMBERS, core.constexpr(7), core.constexpr(0.1))]
    count = 0
    for a, b in pairs:
        (kind, got), (wanted, expected) = outcome(quick, a, b), outcome(slow, a, b)
        assert kind == wanted, (a.type, b)
        np.testing.assert_array_equal(got, expected)
        count += expected is not None
    assert count > 50


@pytest.mark.parametrize("kind", KINDS)
def test_operands_as_the_semantic_makes_them(kind: Any) -> None:
    """What both become where they meet, constants among them, at the first and the second time."""
    semantic = world().semantic
    pairs = [
        (tensor(kind, a, 1), tensor(other, b, 2)) for a in SHAPES for b in SHAPES for other in KINDS
    ]
    pairs += [(tensor(kind, (4,), 5), number) for number in (*NUMBERS, math.nan, math.inf)]

    def made(how: Any, a: Any, b: Any) -> list[Any]:
        try:
            with np.errstate(all="ignore"):
                return [(str(x.type), x.handle.data.tolist()) for x in how(a, b)]
        except (TypeError, ValueError, IncompatibleTypeErrorImpl) as error:
            return [type(error)]

    class Plain(TritonSemantic):  # type: ignore[misc]  # Triton has no types
        tensor = world().tensor

    plain = Plain(world().builder)
    for a, b in pairs:
        wanted = made(plain.binary_op_type_checking_impl, a, b)
        for _ in range(2):
            found = made(semantic.binary_op_type_checking_impl, a, b)
            assert repr(found) == repr(wanted), (a.type, b)
        assert repr(made(lambda a, b: [semantic.to_tensor(b)], a, b)) == repr(
            made(lambda a, b: [plain.to_tensor(b)], a, b)
        )


def test_types_without_a_hash() -> None:
    semantic = world().semantic
    kind = core.pointer_type(core.float32)
    assert semantic.full([4], 0, kind).handle.data.tolist() == [0] * 4
    block = core.block_type(core.int32, [4])
    for made in (semantic.arange(0, 4, ret_ty=block), semantic.arange(0, 4)):
        assert made.handle.data.tolist() == [0, 1, 2, 3]


def test_folds_are_methods_too() -> None:
    x = tensor(core.int32, (4,), 1)
    assert x.reduce(0, standard._sum_combine).handle.data.tolist() == [10]
    assert x.associative_scan(0, standard._sum_combine).handle.data.tolist() == [1, 3, 6, 10]
    assert x.max(0).handle.data.tolist() == [4] and x.min(0).handle.data.tolist() == [1]
