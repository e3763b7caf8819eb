"""A kernel as data: the text of a module, and what its function takes."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from triton_rt.element_types import KINDS, SCALARS, parse_descriptor, triton_name
from triton_rt.errors import BadSource
from triton_rt.source.flat_tuples import flatten, nest, path
from triton_rt.source.modules import load_module
from triton_rt.source.reached_globals import closed_text, importable, reached_texts, reaches_nothing

Constant = bool | int | float | str | None


@dataclass(frozen=True)
class Ref:
    """A constant that is a global of the kernel's module: a jit function, a dtype.

    `Ref("epilogue")`, `Ref("tl.float32")`."""

    path: str


@dataclass(frozen=True)
class KernelParam:
    """A run-time parameter. `kind` is `*f32` (a pointer to f32), `i64` (a scalar), or
    `tensordesc<f32[64,32]>` (a host-side tensor descriptor with its block: a `TensorMap`).

    An element of a tuple is a parameter of its own: `t.0`, `t.1.0`.
    `mutated`: the kernel writes through it. `aligned`: expected to be 16-byte aligned (a pointer)
    or divisible by 16 (an integer), which decides what `prefetch` compiles; a launch looks at the
    actual value."""

    name: str
    kind: str
    mutated: bool = False
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.is_descriptor:
            self._check_descriptor()
            return
        element = self.kind.removeprefix("*")
        known = KINDS if self.is_pointer else SCALARS
        if element not in known:
            raise BadSource(
                f"parameter {self.name}: unknown kind {self.kind!r}; pointers are "
                f"{' '.join('*' + k for k in KINDS)}, scalars are {' '.join(SCALARS)}, descriptors "
                "are written tensordesc<bf16[64,32]>"
            )

    def _check_descriptor(self) -> None:
        element, block = parse_descriptor(self.kind) or ("", ())
        if element not in KINDS or element == "bool":
            raise BadSource(f"parameter {self.name}: {self.kind}: no descriptors of {element}")
        whole = all(n > 0 and n & (n - 1) == 0 for n in block)
        if not whole or not 1 <= len(block) <= 5:
            raise BadSource(
                f"parameter {self.name}: {self.kind}: a block has 1 to 5 sizes, powers of two"
            )

    @property
    def is_pointer(self) -> bool:
        """Whether it takes a tensor's address."""
        return self.kind.startswith("*")

    @property
    def element(self) -> str:
        """The kind of the elements behind a pointer or a descriptor; a scalar's own."""
        descriptor = parse_descriptor(self.kind)
        return descriptor[0] if descriptor else self.kind.removeprefix("*")

    @property
    def is_descriptor(self) -> bool:
        """Whether it takes a tensor descriptor."""
        return parse_descriptor(self.kind) is not None

    @property
    def may_align(self) -> bool:
        """Whether Triton specialises on the divisibility of this parameter."""
        return self.is_pointer or self.kind[0] in "iu"


@dataclass(frozen=True)
class KernelSource:
    """A whole Python module with a `@triton.jit` function `name`.

    `params` are the launch arguments, in the order of the function's parameters; `constants` give
    values to its `tl.constexpr` parameters, which may stand anywhere between. `text` may import
    other modules with jit functions. Identity is the text and the record. Tuples are flat here:
    `t.0` and `t.1` are the elements of the parameter `t`, each a param or a constant.

    `tma=False`: tensor descriptors, whoever makes them, become addresses, sizes and strides, as
    before Hopper; any address and stride will do, and gathers and scatters work on every chip.

    `num_ctas`: blocks of a program, a cluster (Hopper and later). `cooperative`: all blocks are
    resident at once, or the launch fails. `pdl`: a launch may begin while the one before it in the
    stream ends; the text must call `tl.extra.cuda.gdc_wait()` before it reads what that one wrote.
    `max_registers`: of a thread as the kernel starts; one whose warps specialise needs a number,
    65536 / threads or less, of which they then hand out what each needs. `contract`: a product and
    the sum that it is a term of may become one operation with one rounding, wherever the compiler
    likes; else only `tl.fma` and `tl.dot` do so, and equal expressions have equal bits in all
    kernels. Triton's own default is to contract.

    The function may be `@gluon.jit` (`triton.experimental.gluon`): it is compiled like any other,
    but not interpreted. Its descriptor parameters have the layout in shared memory that is Gluon's
    default for their block (`NVMMASharedLayout.get_default_for`).

    >>> source = KernelSource("k", '''
    ... import triton
    ... import triton.language as tl
    ... @triton.jit
    ... def k(x, n, B: tl.constexpr):
    ...     i = tl.program_id(0) * B + tl.arange(0, B)
    ...     tl.store(x + i, tl.load(x + i, i < n) + 1, i < n)
    ... ''', (KernelParam("x", "*f32", mutated=True), KernelParam("n", "i32")), (("B", 64),))
    >>> source.signature()
    {'x': '*fp32', 'n': 'i32', 'B': 'constexpr'}
    """

    name: str
    text: str
    params: tuple[KernelParam, ...]
    constants: tuple[tuple[str, Constant | Ref], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    tma: bool = True
    cooperative: bool = False
    pdl: bool = False
    max_registers: int | None = None
    contract: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", tuple(self.params))
        object.__setattr__(self, "constants", tuple((k, v) for k, v in self.constants))
        names = [p.name for p in self.params] + [name for name, _ in self.constants]
        twice = sorted({n for n in names if names.count(n) > 1})
        if twice:
            raise BadSource(f"{self.name}: names given twice: {', '.join(twice)}")
        if self.num_warps not in (1, 2, 4, 8, 16, 32):
            raise BadSource(f"{self.name}: num_warps is {self.num_warps}; a power of two up to 32")

    @classmethod
    def from_jit(
        cls,
        fn: Any,
        signature: Mapping[str, str],
        constants: Mapping[str, Constant] | None = None,
        *,
        mutated: tuple[str, ...] = (),
        **options: Any,
    ) -> KernelSource:
        """A hand-written `@triton.jit` function; `signature` maps its run-time parameters to kinds,
        `options` are `num_warps`, `tma` and the other fields of the record.

        A function at the top level of an importable module is imported by the text (a worker gets
        this process's `sys.path`); of any other, the text is taken with what it refers to, which
        may be jit functions, modules, and plain constants. Raises `BadSource` for other globals."""
        python = getattr(fn, "fn", None)
        if not inspect.isfunction(python):
            raise BadSource(f"{fn!r:.80} is no function that is decorated with @triton.jit, alone")
        if importable(python):
            text = f"from {python.__module__} import {python.__qualname__}\n"
        else:
            text = closed_text(python)
        params = tuple(KernelParam(n, k, mutated=n in mutated) for n, k in signature.items())
        return cls(python.__name__, text, params, tuple((constants or {}).items()), **options)

    @property
    def promised_alignment(self) -> int:
        """The mask of the parameters that are expected to be divisible by 16."""
        return sum(1 << i for i, p in enumerate(self.params) if p.aligned and p.may_align)

    def to_record(self) -> dict[str, Any]:
        """Plain JSON; floats keep every bit (`float.hex`), `Ref`s are tagged."""
        return asdict(self) | {"constants": [[n, _tag(value)] for n, value in self.constants]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> KernelSource:
        """Inverse of `to_record`."""
        params = tuple(KernelParam(**p) for p in record["params"])
        constants = tuple((name, _untag(value)) for name, value in record["constants"])
        return cls(**{**record, "params": params, "constants": constants})

    @property
    def function(self) -> Any:
        """What the text defines by the kernel's name, as its decorator made it. Raises `BadSource`
        if that is no `@triton.jit` function, or where the text fails."""
        found = getattr(load_module(self.name, self.text), self.name, None)
        if found is None:
            raise BadSource(f"the text of {self.name} defines no function of that name")
        if not inspect.isfunction(getattr(found, "fn", None)):
            raise BadSource(f"{self.name} is {found!r}: decorate it with @triton.jit, alone")
        return found

    @property
    def python(self) -> Any:
        """The Python function under the kernel's decorator."""
        return self.function.fn

    @property
    def is_gluon(self) -> bool:
        """Whether the function is `@gluon.jit`, which Triton compiles by other stages."""
        return bool(getattr(self.function, "is_gluon", bool)())

    def jit_function(self) -> Any:
        """Triton's `JITFunction`, also where Triton was imported with TRITON_INTERPRET=1."""
        from triton.runtime.jit import JITFunction

        function = self.function
        return function if isinstance(function, JITFunction) else JITFunction(function.fn)

    def signature(self) -> dict[str, Any]:
        """Triton's signature of the function, by parameter; of a tuple, a tuple of them. Raises
        `BadSource` on a mismatch."""
        kinds = {p.name: triton_name(p.kind, layout=self.is_gluon) for p in self.params}
        constants = dict(self.constants)
        given = self._nested(kinds | dict.fromkeys(constants, "constexpr"))
        out: dict[str, Any] = {}
        for name, parameter in inspect.signature(self.python).parameters.items():
            if name in given:
                out[name] = given[name]
            elif parameter.default is not inspect.Parameter.empty:
                out[name] = "constexpr"
            else:
                raise BadSource(
                    f"{self.name}: parameter {name} of the function has neither a kind nor a "
                    f"constant; given are params ({', '.join(kinds)}) and constants "
                    f"({', '.join(constants)})"
                )
        extra = [n for n in given if n not in out]
        if extra:
            raise BadSource(
                f"{self.name}: the function has no parameter {', '.join(extra)}; it has "
                f"{', '.join(out)}"
            )
        position = {name: i for i, name in enumerate(out)}
        ordered = sorted(kinds, key=lambda name: _place(name, position))
        if ordered != list(kinds):
            raise BadSource(
                f"{self.name}: params are in the order {', '.join(kinds)}, but the function takes "
                f"{', '.join(ordered)}"
            )
        return out

    def paths(self) -> dict[str, tuple[int, ...]]:
        """Where each param and constant is: the position of its parameter in the function, then
        the indices inside of tuples."""
        position = {name: i for i, name in enumerate(inspect.signature(self.python).parameters)}
        names = [p.name for p in self.params] + list(self.constant_values())
        return {name: _place(name, position) for name in names}

    def bound(self, args: tuple[Any, ...]) -> dict[str, Any]:
        """Arguments of a launch and constants, by parameter of the function."""
        names = (p.name for p in self.params)
        return self._nested(dict(zip(names, flatten(args), strict=True)) | self.constant_values())

    def _nested(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return nest(leaves)
        except ValueError as error:
            raise BadSource(f"{self.name}: the tuple parameters are wrong: {error}") from None

    def constant_values(self) -> dict[str, Any]:
        """Constants by name with `Ref`s resolved in the module and defaults filled in."""
        given = dict(self.constants)
        out: dict[str, Any] = {}
        params = {path(p.name)[0] for p in self.params}
        for name, parameter in inspect.signature(self.python).parameters.items():
            elements = [n for n in given if n.startswith(f"{name}.")]
            if name not in params and not elements:
                elements = [name]
            for element in elements:
                value: Any = given.get(element, parameter.default)
                out[element] = _resolve(self, value) if isinstance(value, Ref) else value
        return out

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 of the record, the text, and the text of every jit function and global value that
        the kernel reaches in other modules; Triton's own are covered by its version, so that a text
        which imports nothing else is not executed."""
        digest = hashlib.sha256(repr(self).encode())
        if reaches_nothing(self.text):
            return digest.hexdigest()
        values = [self.function, *self.constant_values().values()]
        for part in sorted(set(reached_texts(values))):
            digest.update(part.encode())
            digest.update(b"\0")
        return digest.hexdigest()


def _place(name: str, position: Mapping[str, int]) -> tuple[int, ...]:
    root, indices = path(name)
    return (position[root], *indices)


def _tag(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"ref": value.path}
    return {"float": value.hex()} if isinstance(value, float) else value


def _untag(value: Any) -> Any:
    if isinstance(value, dict):
        return Ref(value["ref"]) if "ref" in value else float.fromhex(value["float"])
    return value


def _resolve(source: KernelSource, ref: Ref) -> Any:
    value: Any = load_module(source.name, source.text)
    for part in ref.path.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise BadSource(f"{source.name}: no {ref.path} in the kernel's module") from None
    return value
