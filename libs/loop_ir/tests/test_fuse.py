"""What fuses, what does not, and why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from loop_ir import (
    CopyBack,
    DType,
    FuseOptions,
    Kernel,
    Matmul,
    Symbol,
    TensorRef,
    bytes_moved,
    explain,
    fuse,
    fuse_with_report,
    interpret_graph,
    parse_graph,
    print_graph,
    print_kernel,
    verify,
    why_not,
)
from loop_ir.errors import UnknownNode
from loop_ir.ir.scalars import round_bf16
from symexpr import symbol


def kernels(graph):
    return [n for n in graph.nodes if isinstance(n, Kernel)]


def body(kernel):
    return print_kernel(kernel).split("parallel", 1)[1]


def ops(kernel):
    return [o.op.split(".")[1] for o in kernel.origins]


def assert_same(graph, fused, inputs, constants=None, extern=None, tolerance=1e-6):
    verify(fused)
    a = interpret_graph(graph, [x.copy() for x in inputs], constants, extern)
    b = interpret_graph(fused, [x.copy() for x in inputs], constants, extern)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.spread(2)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("dtype", [DType.f32, DType.bf16])
def test_encoder(symbolic, dtype, encoder, inputs_of, run_attention):
    graph = encoder(layers=2, symbolic=symbolic, dtype=dtype)
    fused, report = fuse_with_report(graph)
    groups = [ops(k) for k in kernels(fused)]
    embeddings = ["embedding", "embedding", "add", "native_layer_norm"]
    layer = [["clone"], ["add", "native_layer_norm"], ["gelu"], ["add", "native_layer_norm"]]
    assert groups == [embeddings, ["ne", "expand", "where"], *layer, *layer]
    assert report.bytes_after == bytes_moved(fused) < report.bytes_before == bytes_moved(graph)
    assert (report.kernels_before, report.kernels_after) == (19, 10)
    names = [k.name for k in kernels(fused)]
    assert names[0] == "fused_embedding_add_layer_norm_0"
    assert names[3] == "fused_add_layer_norm_8"
    assert len(set(names)) == len(names)
    inputs, constants = inputs_of(graph)
    exact = fuse(graph, FuseOptions(drop_round_casts=False))
    assert_same(graph, exact, inputs, constants, run_attention, 1e-6)


def test_fused_bf16_encoder_is_closer_to_the_truth(encoder, inputs_of, run_attention):
    """The fused kernels round less often than the single ones."""
    graph = encoder(layers=2, dtype=DType.bf16)
    wide = encoder(layers=2, dtype=DType.f32)
    inputs, constants = inputs_of(graph)
    constants = {n: v if v.dtype.kind == "i" else round_bf16(0.3 * v) for n, v in constants.items()}
    (truth,) = interpret_graph(wide, inputs, constants, run_attention)
    (eager,) = interpret_graph(graph, inputs, constants, run_attention)
    (fused,) = interpret_graph(fuse(graph), inputs, constants, run_attention)
    assert np.abs(fused - truth).mean() < np.abs(eager - truth).mean()
    assert np.abs(fused - truth).max() < 0.05


def test_fused_encoder_serves_other_batches(encoder, inputs_of, run_attention):
    graph = encoder(layers=1, symbolic=True)
    fused = fuse(graph)
    for batch in (1, 3, 5):
        inputs, constants = inputs_of(graph, s0=batch)
        assert_same(graph, fused, inputs, constants, run_attention)


def test_residual_sum_is_stored_if_it_is_read_later(make_builder, inputs_of):
    b = make_builder()
    x, y = b.input("x", DType.f32, 2, 3, 8), b.input("y", DType.f32, 2, 3, 8)
    w = b.constant("w", DType.f32, 8)
    s = b.binary("add", x, y)
    n = b.extern("aten.neg.default", s.type, b.layer_norm(s, w, w))
    graph = b.graph(b.binary("add", s, n))
    fused = fuse(graph)
    first, second = kernels(fused)
    assert [x.name for x in first.buffers if x.written] == [s.name, "layer_norm_2"]
    assert ops(first) == ["add", "native_layer_norm"]
    assert ops(second) == ["add"]
    assert "load add_1" not in body(first)
    inputs, constants = inputs_of(graph)
    assert_same(graph, fused, inputs, constants, lambda t, a, k: -a[0])


@pytest.mark.parametrize("groups", [(2, 3, 4), (6, 4), (24,)])
def test_other_groupings_of_the_same_points(groups, make_builder, inputs_of):
    """A pointwise kernel over any grouping joins a reduction over (2, 3 | 4)."""
    b = make_builder()
    x = b.input("x", DType.f32, 2, 3, 4)
    y = b.unary("tanh", x.reshape(*groups)).reshape(2, 3, 4)
    z = b.softmax(y).reshape(*groups)
    graph = b.graph(b.unary("neg", z))
    (kernel,) = kernels(fuse(graph))
    assert ops(kernel) == ["tanh", "_softmax", "neg"]
    assert len(kernel.axes) == 1 and kernel.axes[0].extent == 6
    assert_same(graph, fuse(graph), *inputs_of(graph))


def test_symbolic_groupings(make_builder, inputs_of):
    s0 = symbol("s0")
    b = make_builder("g", (Symbol("s0", 0, 64, 3),))
    x = b.input("x", DType.f32, s0, 32, 8)
    y = b.unary("tanh", x.reshape(s0 * 256))
    z = b.softmax(y.reshape(s0, 32, 8))
    graph = b.graph(b.unary("neg", z.reshape(32 * s0, 8)))
    (kernel,) = kernels(fuse(graph))
    assert kernel.axes[0].extent == 32 * s0
    assert [a.extent for p in kernel.phases for a in p.axes] == [8, 8, 8]
    for size in (3, 1, 0):
        assert_same(graph, fuse(graph), *inputs_of(graph, s0=size))


def test_decomposed_softmax_becomes_one_kernel(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 4, 5, 8)
    e = b.unary("exp", b.binary("sub", x, b.reduce("max", x)))
    graph = b.graph(b.binary("div", e, b.reduce("sum", e)))
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert [len(p.axes) for p in kernel.phases] == [1, 1, 1]
    assert body(kernel).count("load x[") == 1
    assert_same(graph, fused, *inputs_of(graph))


def test_transposed_reader_follows_the_strides(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 2, 5, 3, 4)
    y = b.unary("tanh", x)
    graph = b.graph(b.copy("clone", y.transpose(1, 2)))
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert ops(kernel) == ["tanh", "clone"]
    assert_same(graph, fused, *inputs_of(graph))


def test_column_reduction_takes_its_rowwise_producer(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 26, 8)
    y = b.unary("tanh", x)
    graph = b.graph(b.reduce("sum", y.transpose(0, 1)))
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert [a.extent for a in kernel.axes] == [8]
    assert [a.extent for a in kernel.phases[0].axes] == [26]
    assert_same(graph, fused, *inputs_of(graph))


def test_square_transpose_is_not_mistaken_for_the_same_point(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 4, 4)
    y = b.unary("tanh", x)
    graph = b.graph(b.binary("add", y, y.transpose(0, 1)))
    fused = fuse(graph)
    (kernel,) = kernels(fused)  # computed twice, once at the transposed point
    assert body(kernel).count("tanh(") == 2
    assert_same(graph, fused, *inputs_of(graph))


@pytest.mark.parametrize(("size", "count"), [(8, 1), (2048, 3)])
def test_rows_and_columns_of_one_matrix_are_read_apart(size, count, make_builder, inputs_of):
    """A contrastive loss of both sides: a tile would suit one of them, where that takes time."""
    b = make_builder()
    x = b.input("x", DType.f32, size, size)
    rows = b.reduce("sum", x)
    columns = b.reduce("sum", x.transpose(0, 1))
    graph = b.graph(b.binary("add", rows, columns))
    fused = fuse(graph)
    assert len(kernels(fused)) == count
    if count == 1:
        assert_same(graph, fused, *inputs_of(graph), tolerance=1e-5)


def test_cheap_mask_is_computed_where_it_is_read(make_builder, inputs_of):
    b = make_builder()
    mask = b.input("mask", DType.i64, 2, 8)
    x = b.input("x", DType.f32, 2, 4, 8, 8)
    keep = b.pointwise(
        "ne", lambda v, e: e.op("ne", v[0], e.const(0, DType.i64)), mask, dtype=DType.bool_
    )
    wide = keep.view((2, 4, 8, 8), (8, 0, 0, 1))
    masked = b.pointwise(
        "where", lambda v, e: e.op("where", v[1], v[0], e.const(-1e9)), x, wide, dtype=DType.f32
    )
    graph = b.graph(b.softmax(masked))
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert ops(kernel) == ["ne", "where", "_softmax"]
    assert_same(graph, fused, *inputs_of(graph))


def test_a_cast_is_read_again_rather_than_stored(make_builder, inputs_of):
    """Rows and columns of a cast: neither writes it for the other."""
    b = make_builder()
    x = b.input("x", DType.bf16, 64, 128)
    wide = b.pointwise("cast", lambda v, e: v[0], x, dtype=DType.f32)
    columns = b.reduce("sum", wide.view((128, 64), (1, 128)))
    graph = b.graph(columns, b.reduce("sum", wide))
    fused = fuse(graph, FuseOptions(split=False))
    assert [ops(k) for k in kernels(fused)] == [["cast", "sum"]] * 2
    assert all("f32[64, 128]" not in str(b.type) for k in kernels(fused) for b in k.buffers)
    assert_same(graph, fused, *inputs_of(graph))


def test_expensive_producer_is_stored_not_computed_again(make_builder, inputs_of):
    """64 readers of each value: exp of everything would cost more than the small buffer."""
    b = make_builder()
    row = b.input("row", DType.f32, 1, 1 << 14)
    x = b.input("x", DType.u8, 1 << 12, 1 << 14)
    y = row
    for _ in range(12):
        y = b.unary("exp", y)
    graph = b.graph(b.pointwise("gt", lambda v, e: e.op("gt", v[1], v[1]), x, y, dtype=DType.bool_))
    fused = fuse(graph)
    assert [len(k.origins) for k in kernels(fused)] == [12, 1]
    text = why_not(fused, *(k.name for k in kernels(fused)))
    assert "costs more than its table" in text


def test_reduction_is_never_computed_again(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 4, 28)
    y = b.input("y", DType.f32, 3, 4, 28)
    graph = b.graph(b.binary("mul", y, b.reduce("sum", x)))
    fused = fuse(graph)
    assert len(kernels(fused)) == 2
    assert "reduces, so it is not computed again" in why_not(
        fused, *(k.name for k in kernels(fused))
    )
    assert_same(graph, fused, *inputs_of(graph))


def test_different_reductions_stay_apart(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 25, 28)
    rows, columns = b.reduce("sum", x), b.reduce("sum", x.transpose(0, 1))
    graph = b.graph(rows, columns)
    fused = fuse(graph, FuseOptions(split=False))
    assert len(kernels(fused)) == 2
    text = why_not(fused, *(k.name for k in kernels(fused)))
    assert "they run over different numbers of points: (25) and (28)" in text


def test_siblings_fuse_into_one_kernel_with_two_results(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 4, 8)
    graph = b.graph(b.unary("tanh", x), b.reduce("max", x), b.softmax(x))
    fused, report = fuse_with_report(graph)
    (kernel,) = kernels(fused)
    assert body(kernel).count("load x[") == 1
    assert body(kernel).count("reduce max") == 1  # that of the softmax is the same
    assert {f.kind for f in report.fusions} == {"horizontal"}
    assert len([x for x in kernel.buffers if x.written]) == 3
    assert_same(graph, fused, *inputs_of(graph))
    apart = fuse(graph, FuseOptions(horizontal=False))
    assert len(kernels(apart)) == 3


def test_no_cycle_through_an_extern_call(make_builder, inputs_of):
    b = make_builder()
    x = b.input("x", DType.f32, 4, 8)
    y = b.unary("tanh", x)
    z = b.extern("aten.neg.default", y.type, y)
    graph = b.graph(b.binary("add", y, z))
    fused = fuse(graph)
    assert len(kernels(fused)) == 2
    text = why_not(fused, *(k.name for k in kernels(fused)))
    assert "neg_2 needs op_tanh_1 and op_add_3 needs neg_2" in text
    inputs, constants = inputs_of(graph)
    assert_same(graph, fused, inputs, constants, lambda t, a, k: -a[0])


def test_no_fusion_across_a_mutation(make_builder, inputs_of):
    """`y = tanh(x); x <- y; z = y + x` must read the new x."""
    b = make_builder()
    x = b.input("x", DType.f32, 4, 8)
    y = b.unary("tanh", x)
    b.nodes.append(CopyBack(TensorRef(y.name, y.type), TensorRef("x", x.type)))
    graph = b.graph(b.binary("add", y, x))
    fused = fuse(graph)
    assert len(kernels(fused)) == 2
    assert [type(n).__name__ for n in fused.nodes] == ["Kernel", "CopyBack", "Kernel"]
    assert_same(graph, fused, *inputs_of(graph))


def test_producer_of_a_changed_buffer_is_not_computed_later(make_builder, inputs_of):
    """`m = exp(x); x <- y; z = w + m` reads m, not exp of the new x."""
    b = make_builder()
    x, y = b.input("x", DType.f32, 8), b.input("y", DType.f32, 8)
    w = b.input("w", DType.f32, 4, 8)
    m = b.unary("exp", x)
    b.nodes.append(CopyBack(TensorRef("y", y.type), TensorRef("x", x.type)))
    graph = b.graph(b.binary("add", w, m))
    fused = fuse(graph)
    assert len(kernels(fused)) == 2
    assert "x, which op_exp_1 reads, is changed there or later" in why_not(
        fused, "op_exp_1", "op_add_2"
    )
    assert_same(graph, fused, *inputs_of(graph))


def test_scatter_stays_after_its_initialiser(inputs_of):
    graph = parse_graph("""\
graph g(
    ids: i64[6] cpu,
):
  kernel zero(
      out y: f32[6] cpu,
  ):
    parallel i0 < 6:
      once:
        v0 = const 0.0 : f32
        store y[i0] = v0
  kernel count(
      ids: i64[6] cpu,
      out y: f32[6] cpu,
  ):
    parallel i0 < 6:
      once:
        v0 = load ids[i0] : i64
        t0 = indirect v0 < 6
        v1 = const 1.0 : f32
        store y[t0] += v1
  kernel double(
      y: f32[6] cpu,
      out z: f32[6] cpu,
  ):
    parallel i0 < 6:
      once:
        v0 = load y[i0] : f32
        v1 = add(v0, v0) : f32
        store z[i0] = v1
  return (z: f32[6] cpu)
""")
    fused = fuse(graph)
    assert [k.name for k in kernels(fused)] == ["zero", "count", "double"]
    assert "both write y" in why_not(graph, "zero", "count")
    assert "y is written in part or added to" in why_not(graph, "count", "double")
    (got,) = interpret_graph(fused, [np.array([0, 1, 1, 5, 5, 5])])
    np.testing.assert_array_equal(got, [2, 4, 0, 0, 0, 6])


def test_epilogue(make_builder, inputs_of):
    b = make_builder("g", (Symbol("s0", 1, 64, 2),))
    s0 = symbol("s0")
    x = b.input("x", DType.f32, s0, 3, 4)
    r = b.input("r", DType.f32, s0, 3, 6)
    w, c = b.constant("w", DType.f32, 6, 4), b.constant("c", DType.f32, 6)
    y = b.gelu(b.linear(x, w, c))
    graph = b.graph(b.binary("add", y, r))
    plain, _ = fuse(graph).nodes
    assert isinstance(plain, Matmul) and plain.epilogue is None
    text = why_not(graph, "linear_1", "op_gelu_2")
    assert "fuse with the option `epilogue`" in text
    fused, report = fuse_with_report(graph, FuseOptions(epilogue=True))
    (node,) = fused.nodes
    assert [a.extent for a in node.epilogue.axes] == [3 * s0, 6]
    assert [o.op for o in node.origins] == [
        "aten.linear.default", "aten.gelu.default", "aten.add.default"
    ]  # fmt: skip
    assert report.fusions[-1].kind == "epilogue"
    assert parse_graph(print_graph(fused)) == fused
    for size in (1, 2, 5):
        assert_same(graph, fused, *inputs_of(graph, s0=size))


def test_epilogue_needs_to_be_the_only_reader(make_builder):
    b = make_builder()
    x, w = b.input("x", DType.f32, 3, 4), b.constant("w", DType.f32, 6, 4)
    y = b.linear(x, w)
    graph = b.graph(b.unary("tanh", y), y)
    assert len(fuse(graph, FuseOptions(epilogue=True)).nodes) == 2
    assert "read by others or by the caller" in why_not(graph, "linear_1", "op_tanh_2")


def test_epilogue_waits_for_its_other_operands(make_builder, inputs_of):
    """The residual is made after the matmul: the matmul moves to where its epilogue was."""
    b = make_builder()
    x, w = b.input("x", DType.f32, 3, 4), b.constant("w", DType.f32, 6, 4)
    y = b.linear(x, w)
    z = b.extern("aten.neg.default", y.type, b.input("z", DType.f32, 3, 6))
    graph = b.graph(b.binary("add", y, z))
    fused = fuse(graph, FuseOptions(epilogue=True))
    assert [type(n).__name__ for n in fused.nodes] == ["Extern", "Matmul"]
    inputs, constants = inputs_of(graph)
    assert_same(graph, fused, inputs, constants, lambda t, a, k: -a[0])


def test_limits_of_a_kernel(make_builder):
    b = make_builder()
    y = b.input("x", DType.f32, 64)
    for _ in range(10):
        y = b.unary("tanh", y)
    graph = b.graph(y)
    assert len(kernels(fuse(graph))) == 1
    short = fuse(graph, FuseOptions(max_statements=9, inline=False))
    assert len(kernels(short)) > 1
    assert "together they have 6 statements" in why_not(
        graph, "op_tanh_1", "op_tanh_2", FuseOptions(max_statements=5, inline=False)
    )


def test_explain_and_report(encoder):
    graph = encoder(layers=1)
    text = explain(graph)
    assert "vertical op_embedding_1 + op_add_3" in text
    assert "left apart:" in text
    assert "linear_16 and op_gelu_17 fuse with the option `epilogue`" in text
    assert "aten.embedding.default" in text
    with pytest.raises(UnknownNode, match="no node 'nobody'"):
        why_not(graph, "nobody", "op_add_3")
    assert "share no tensor" in why_not(graph, "op_embedding_1", "op_gelu_17")
    assert "is a matmul, which does not fuse" in why_not(graph, "linear_8", "linear_9")


def test_fusion_is_deterministic_and_idempotent(encoder):
    graph = encoder(layers=2, symbolic=True)
    once = fuse(graph)
    assert print_graph(once) == print_graph(fuse(graph))
    again = fuse(once)
    assert [body(k) for k in kernels(again)] == [body(k) for k in kernels(once)]


def test_bytes_moved_counts_rows_gathered(make_builder):
    b = make_builder("g", (Symbol("s0", 1, 64, 2),))
    s0 = symbol("s0")
    ids = b.input("ids", DType.i64, s0)
    table = b.input("table", DType.f32, 1000, 16)
    graph = b.graph(b.gather(ids, table))
    assert bytes_moved(graph) == 2 * 8 + 2 * 64 + 2 * 64
    assert bytes_moved(graph, {"s0": 5}) == 5 * 8 + 5 * 64 + 5 * 64
    assert bytes_moved(graph, {"s0": 5000}) == 5000 * 8 + 1000 * 64 + 5000 * 64


def test_size_names_like_axis_names():
    """A size called i0 is no axis: fused axes take other names."""
    text = """\
graph g(
    x: f32[i0, 4] cuda:0,
):
  where i0 in [1, 9] hint 3
  kernel a(
      x: f32[i0, 4] cuda:0,
      out y: f32[i0, 4] cuda:0,
  ):
    where i0 in [1, 9] hint 3
    parallel p < i0, q < 4:
      once:
        v0 = load x[p*4 + q] : f32
        v1 = tanh(v0) : f32
        store y[p*4 + q] = v1
  kernel b(
      y: f32[i0, 4] cuda:0,
      out z: f32[i0, 4] cuda:0,
  ):
    where i0 in [1, 9] hint 3
    parallel p < i0:
      over r0 < 4:
        v0 = load y[p*4 + r0] : f32
        v1 = reduce max(v0) : f32
      over r0 < 4:
        v2 = sub(v0, v1) : f32
        store z[p*4 + r0] = v2
  return (z: f32[i0, 4] cuda:0)
"""
    graph = parse_graph(text)
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert [a.symbol.name for a in kernel.axes] == ["i1"]
    assert_same(graph, fused, [np.arange(12, dtype=np.float32).reshape(3, 4)])


def test_a_graph_without_kernels(make_builder):
    b = make_builder()
    x = b.input("x", DType.f32, 2)
    graph = b.graph(x)
    fused, report = fuse_with_report(graph)
    assert fused == replace(graph)
    assert report.fusions == ()


def test_concatenation_computes_its_parts_in_place(make_builder, inputs_of):
    """A masked, shifted load takes the producer along where the mask proves the point valid."""
    b = make_builder()
    x = b.input("x", DType.f32, 3, 4)
    row = b.input("row", DType.f32, 4)
    graph = b.graph(b.pad(b.binary("mul", x, row), 2, 1))
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert "load row[i1 - 2] if inside else 0" in body(kernel)
    assert_same(graph, fused, *inputs_of(graph))


def test_points_are_found_by_division_where_a_mask_proves_too_little(inputs_of):
    """The mask lets the flat index run into the next row of the producer."""
    graph = parse_graph("""\
graph g(
    x: f32[3, 4] cuda:0,
    row: f32[4] cuda:0,
):
  kernel a(
      x: f32[3, 4] cuda:0,
      row: f32[4] cuda:0,
      out y: f32[3, 4] cuda:0,
  ):
    parallel i0 < 3, i1 < 4:
      once:
        v0 = load x[i0*4 + i1] : f32
        v1 = load row[i1] : f32
        v2 = mul(v0, v1) : f32
        store y[i0*4 + i1] = v2
  kernel b(
      y: f32[3, 4] cuda:0,
      out z: f32[2, 6] cuda:0,
  ):
    parallel i0 < 2, i1 < 6:
      once:
        v0 = index i1 : i64
        v1 = const 1 : i64
        v2 = ge(v0, v1) : bool
        v3 = load y[i0*4 + i1 - 1] if v2 else 0 : f32
        store z[i0*6 + i1] = v3
  return (z: f32[2, 6] cuda:0)
""")
    fused = fuse(graph)
    (kernel,) = kernels(fused)
    assert "load row[(i1 - 1)%4] if" in body(kernel)
    assert_same(graph, fused, *inputs_of(graph))


TILES = """
graph g(
    x: f32[NW, 2400] cuda:0,
):
  kernel scale(
      x: f32[NW, 2400] cuda:0,
      out m: f32[20, 20] cuda:0,
  ):
    parallel i0 < 20, i1 < 20:
      over r0 < NR, r1 < 120:
        v0 = load x[i0*NR*2400 + r0*2400 + i1*120 + r1] : f32
        v1 = reduce max(v0) : f32
      once:
        store m[i0*20 + i1] = v1
  kernel turned(
      x: f32[NW, 2400] cuda:0,
      m: f32[20, 20] cuda:0,
      out y: f32[2400, NW] cuda:0,
  ):
    parallel i1 < 20, r1 < 120, i0 < 20, r0 < NR:
      once:
        v0 = load x[i0*NR*2400 + r0*2400 + i1*120 + r1] : f32
        v1 = load m[i0*20 + i1] : f32
        v2 = div(v0, v1) : f32
        store y[i1*120*NW + r1*NW + i0*NR + r0] = v2
  return (y: f32[2400, NW] cuda:0)
"""


@pytest.mark.parametrize(("rows", "columns", "count"), [(128, 120, 2), (128, 128, 1)])
def test_rows_that_would_be_stored_across_memory(rows: int, columns: int, count: int) -> None:
    """Not where a tile of two dimensions turns them around."""
    text = TILES.replace("NW", str(20 * rows)).replace("NR", str(rows))
    text = text.replace("2400", str(20 * columns)).replace("120", str(columns))
    assert len(kernels(fuse(parse_graph(text)))) == count
