"""The IR itself: nodes, text, rules, meaning, and the facts and rewrites that all passes share.

`loop_ir` has what users of the library need. What is added here is for code that inspects or
rewrites kernels, as passes and code generators do."""

from loop_ir.ir.affine import linear, product, same, span, substitute
from loop_ir.ir.alike import Alike, form, node_form
from loop_ir.ir.analysis import (
    at_hints,
    bound_by_data,
    hints_of,
    iterates,
    mentioned,
    reads,
    scans,
    traffic,
    walk,
    writes,
)
from loop_ir.ir.body import Body, fresh_values
from loop_ir.ir.in_place import hazard
from loop_ir.ir.iterated import ITERATED
from loop_ir.ir.masks import definitions, mask_tests
from loop_ir.ir.names import (
    Name,
    defined_values,
    expression,
    map_expressions,
    operands,
    renamed,
    results,
    statements,
    used_values,
    value_names,
    varying,
)
from loop_ir.ir.points import at_strides
from loop_ir.ir.renaming import fresh_name, new_buffer, renumber, union_buffers
from loop_ir.ir.rewrite import map_statements, ranges_of, simplify_with
from loop_ir.ir.scalars import philox
from tensor_ir import once
