"""One ATen call on its way to loop IR: its lowered arguments, its results, the nodes it makes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import fx
from torch._ops import OpOverload

import loop_ir as ir
from aten_lowering.builder import Coords, KernelBuilder, Number, Operand, Scalar, Value
from aten_lowering.errors import CannotLower, require
from aten_lowering.meta import dtype_of, origin
from aten_lowering.seeds import Seeds


@dataclass(frozen=True)
class Result:
    """A fresh tensor that the call returns. `used` is False if the graph never looks at it."""

    operand: Operand
    fake: torch.Tensor
    used: bool

    @property
    def dtype(self) -> ir.DType:
        """The element type."""
        return self.operand.dtype

    @property
    def size(self) -> tuple[sympy.Expr, ...]:
        """The extent of each dimension."""
        return self.operand.size


@dataclass
class Call:
    """What a lowering gets.

    arguments: schema argument name -> value, defaults filled in. Tensors are `Operand`s, ints and
    SymInts and SymFloats are numbers or expressions, the rest is as in FX.
    fakes: schema argument name -> what FX had (fake tensors, Python scalars), for promotion.
    results: the fresh tensors to be written (None for results that are no tensors).
    seeds: the seeds of random operators; None where these stay torch's.
    for_gpu: the program computes on a GPU; no kernel is launched for the CPU tensors beside.
    fresh: a new name. in_place: the result lies in the memory of the first argument."""

    node: fx.Node
    op: OpOverload
    arguments: dict[str, Any]
    fakes: dict[str, Any]
    results: tuple[Result | None, ...]
    extern: ir.Extern
    fresh: Callable[[str], str]
    for_gpu: bool = False
    seeds: Seeds | None = None
    in_place: bool = False
    nodes: list[ir.Node] = field(default_factory=list)

    @property
    def origin(self) -> ir.Origin:
        """The operator, and the user's line."""
        return origin(self.node)

    @property
    def out(self) -> Result:
        """The only (or first) result."""
        result = self.results[0]
        require(result is not None, "the result is no tensor")
        assert result is not None
        return result

    def result(self, index: int) -> Result | None:
        """Result `index`, or None if nobody uses it."""
        result = self.results[index]
        return result if result is not None and result.used else None

    @property
    def decomposed(self) -> bool:
        """The call is part of what another operator was decomposed into."""
        # Copies of graphs hold copies of operators: they are told apart by name.
        return str(self.node.meta.get("original_aten") or self.op) != str(self.op)

    @property
    def on_cpu(self) -> bool:
        """Whether the result is on the CPU, where some of eager's kernels differ."""
        return self.out.operand.type.device.kind == "cpu"

    def kernel(self, size: Sequence[sympy.Expr] | None = None, name: str = "") -> KernelBuilder:
        """A kernel with a parallel axis a dimension of `size`, or else of the result. name: of one
        beside that which is named after the call."""
        size = self.out.size if size is None else size
        return KernelBuilder(self.fresh(name) if name else self.node.name, size, self.origin)

    def scratch(
        self, name: str, dtype: ir.DType, size: Sequence[sympy.Expr] | None = None
    ) -> Operand:
        """A new contiguous tensor beside the result, of its size or another, named after the call
        and `name`."""
        size = self.out.size if size is None else tuple(size)
        type = ir.TensorType(dtype, size, ir.contiguous_strides(size), self.out.operand.type.device)
        return Operand(ir.TensorRef(self.fresh(f"{self.node.name}_{name}"), type), type)

    def put(self, index: int, k: KernelBuilder, value: Value, coords: Coords | None = None) -> None:
        """Stores `value` as the element of result `index` at `coords`, or else at the kernel's own,
        if the graph looks at that."""
        if (result := self.result(index)) is not None:
            k.store(result.operand, k.coords if coords is None else coords, value)

    def store(self, k: KernelBuilder, value: Value, coords: Coords | None = None) -> None:
        """Stores `value` as the element of the result at `coords`, or else at the kernel's own, and
        emits the kernel."""
        k.store(self.out.operand, k.coords if coords is None else coords, value)
        self.emit_kernel(k)

    def emit(self, node: ir.Node) -> None:
        """Appends a node to those that compute the call."""
        self.nodes.append(node)

    def emit_kernel(self, builder: KernelBuilder) -> None:
        """Appends the kernel. Raises `CannotLower` where its tensors are on several devices."""
        self._check_devices(builder)
        self.emit(builder.finish())

    def _check_devices(self, builder: KernelBuilder) -> None:
        devices = {b.type.device for b in builder.buffers}
        require(len(devices) <= 1, "operands on more than one device")
        outside = self.for_gpu and any(d.kind == "cpu" for d in devices)
        require(not outside, "CPU tensors of a program for a GPU")

    def written(self) -> set[str]:
        """Names of the results that the nodes so far write."""
        names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ir.Kernel):
                names |= {b.name for b in node.buffers if b.written}
            elif isinstance(node, ir.Matmul):
                names.add(node.out)
            elif isinstance(node, ir.Extern):
                names |= {o[0] for o in node.outs if o is not None}
        return names


def known(value: Number) -> Scalar:
    """A number that is no expression of sizes. Raises `CannotLower` for one that is."""
    if isinstance(value, sympy.Expr | torch.SymBool):
        raise CannotLower(f"the number {value}, which depends on sizes")
    return value


def torch_dtype(dtype: torch.dtype) -> ir.DType:
    """The IR's name of a type that kernels compute in."""
    found = dtype_of(dtype)
    if found.is_complex or dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise CannotLower(f"kernels do not compute on {dtype}")
    return found


def opmath(dtype: ir.DType) -> ir.DType:
    """The type that eager computes in: f32 for 16-bit floats (`at::opmath_type`)."""
    return ir.DType.f32 if dtype in (ir.DType.f16, ir.DType.bf16) else dtype


def least(dtype: ir.DType) -> int | float:
    """The least that an element of this type can be."""
    if dtype.is_float:
        return float("-inf")
    return 0 if dtype.value.startswith("u") else -(1 << (8 * dtype.itemsize - 1))


def wrap_dim(dim: int, rank: int) -> int:
    """`-1 -> rank - 1`. A tensor of rank 0 has the dims 0 and -1."""
    span = max(rank, 1)
    require(-span <= dim < span, f"dim {dim} of a tensor of rank {rank}")
    return dim % span
